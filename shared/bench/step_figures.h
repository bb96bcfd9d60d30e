// The results of `starring bench step`, and printing them as a table or as one JSON document.
#ifndef STARRING_SHARED_BENCH_STEP_FIGURES_H
#define STARRING_SHARED_BENCH_STEP_FIGURES_H

#include "kernels/cpu/peak.h"
#include "shared/device/device_facts.h"
#include "shared/model/head_plan.h"
#include "shared/model/spec.h"

struct cJSON;

struct step_figures {
    const char *model;
    int64_t params, batch, seq;
    enum dtype dtype;
    double step_s;  // median
    // Of it the compute stream had nothing to do: the host between the end of one step and the start of the
    // next, which in a run overlaps with the updates. Median.
    double host_waits;  // a step: of the host for the device
    double idle_s;
    struct token_flops flops;                   // of a step
    struct token_flops again;                   // of it: what the backward computes again, beside flops
    int64_t product;                            // side of the large matrix product
    int products;                               // of one measurement
    double product_s;                           // of one, median
    const struct cpu_peak *peak;                // of a host's multiply-add; NULL on a GPU
    double peak_s;                              // of one call of it, median
    double datasheet_flops;                     // a second; 0: not known
    const char *datasheet;                      // where it is from, or why it is not known
    double forward_s, backward_s, optimizer_s;  // of all steps; logits and loss are the backward's
    struct head_plan head;
    uint64_t late_allocations;
    size_t predicted_bytes, peak_bytes, pinned_bytes;  // the ledger; device memory, and host memory beside it
    bool gpu;
    struct device_facts facts;    // of a GPU
    struct cJSON *algorithms;     // of a GPU: products_json, the large product among its shapes
    struct device_memory memory;  // of a GPU, after the last step
};

void step_figures_json(const struct step_figures *f);
void step_figures_table(const struct step_figures *f);

#endif
