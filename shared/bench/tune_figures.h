// The results of `starring bench tune`, and printing them as a table or as one JSON document.
#ifndef STARRING_SHARED_BENCH_TUNE_FIGURES_H
#define STARRING_SHARED_BENCH_TUNE_FIGURES_H

#include "kernels/backend.h"
#include "shared/model/spec.h"

// A product of the step.
struct tuned {
    struct product_key key;
    uint64_t uses;  // per step
    struct product_timing timing;
};

struct tune_figures {
    const struct model_spec *spec;
    int64_t batch, seq;
    enum dtype dtype;
    int rounds;
    struct device_facts facts;
    const struct tuned *products;
    int count;
    const char *file;  // that the table was written to
    int kept;          // entries of the file that are of other products, devices or versions
};

// What a product of the model is for, as far as its shape tells: "mlp up, forward". Returns text.
#define PRODUCT_PURPOSE_BYTES 64
const char *product_purpose(char text[PRODUCT_PURPOSE_BYTES], const struct model_spec *s,
                            const struct product_key *k);

void tune_figures_begin(const struct tune_figures *f);  // the table's head
void tune_figures_row(const struct tune_figures *f, const struct tuned *t);
void tune_figures_end(const struct tune_figures *f);  // what all of it gives per step, and the file
void tune_figures_json(const struct tune_figures *f);

#endif
