// evals.jsonl: a line per evaluated snapshot, in the order of the steps. Written anew, whole or not at all, whenever a
// snapshot has been evaluated, so that an evaluation may be interrupted and gone on with.
//
//   {"step":40,"samples":320,"updates":40,"seconds":9.5,"val_loss":2.3,"unigram_entropy":3.1,"tokens":81920}
#ifndef STARRING_SHARED_REPORT_EVALS_H
#define STARRING_SHARED_REPORT_EVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/report/figure.h"

struct eval_record {
    int64_t step, samples, updates;    // of the snapshot (shared/train/saver.h)
    double seconds;                    // of training until it was taken
    double val_loss, unigram_entropy;  // nats per token; NAN where unknown
    int64_t tokens;                    // that were predicted
};

struct figure_rows eval_figures(void);  // of a line, from struct eval_record

// Between two evaluations.
struct eval_point {
    double step, samples, updates, seconds, val_loss;
};

struct evals {
    struct eval_record *all;  // owned, by step
    int count;
};

// 0 (also where there is no file), or -1 after naming the file and the line that makes no sense.
int evals_read(const char *dir, struct evals *out);
// Adds r, in the place of one of the same step.
void evals_add(struct evals *e, const struct eval_record *r);
// The point at which the held-out loss first was at most target: on the straight line between the two evaluations around it, in
// seconds and in all the rest; where the first one is already that low, that one. Evaluations without a finite loss are
// left out. false: it never was. The same definition as experiments/comparison/learning.py's.
bool evals_reach(const struct evals *e, double target, struct eval_point *out);
int evals_write(const char *dir, const struct evals *e);  // 0, or -1 after logging
void evals_free(struct evals *e);

#endif
