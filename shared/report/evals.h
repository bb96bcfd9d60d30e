// evals.jsonl: one line per evaluated snapshot, in the order of the steps. The whole file is replaced atomically after
// each evaluation, so an interrupted evaluation can be resumed.
//
//   {"step":40,"samples":320,"updates":40,"seconds":9.5,"val_loss":2.3,"unigram_entropy":3.1,"tokens":81920}
#ifndef STARRING_SHARED_REPORT_EVALS_H
#define STARRING_SHARED_REPORT_EVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/report/figure.h"

struct eval_record {
    int64_t step, samples, updates;    // the snapshot's (shared/train/saver.h)
    double seconds;                    // seconds of training until the snapshot
    double val_loss, unigram_entropy;  // nats per token; NAN where unknown
    int64_t tokens;                    // number of predicted tokens
};

struct figure_rows eval_figures(void);  // Returns the figures of a line, which are in struct eval_record.

// A point on the line between two evaluations.
struct eval_point {
    double step, samples, updates, seconds, val_loss;
};

struct evals {
    struct eval_record *all;  // owned, by step
    int count;
};

// Returns 0 (also if there is no file), or -1 after naming the file and the invalid line.
int evals_read(const char *dir, struct evals *out);
// Adds r, or replaces the record of the same step.
void evals_add(struct evals *e, const struct eval_record *r);
// Finds the point at which the held-out loss first was at most target, by linear interpolation between the evaluations
// before and after it: seconds and all other fields. If the first evaluation is already that low, it is the point.
// Evaluations without a finite loss are skipped. Returns false if the loss never was that low. Same definition as
// experiments/comparison/learning.py.
bool evals_reach(const struct evals *e, double target, struct eval_point *out);
int evals_write(const char *dir, const struct evals *e);  // Returns 0, or -1 after logging.
void evals_free(struct evals *e);

#endif
