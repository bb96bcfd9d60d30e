// metrics.jsonl: a line a step, written by rank 0's loop. A line goes out in one write, so that the file
// ends with a whole line however the process ends. Doubles are written with 17 digits: equal text means
// equal bits. Values that are not finite are null (JSON has no NaN).
//
//   {"step":1,"loss":5.54..,"grad_norm":1.2,"lr":0.0003,"loss_scale":1,"tokens":256,"seconds":0.01,
//    "skipped":false,"memory_bytes":123}
//   {"eval_step":10,"val_loss":2.3,"unigram_entropy":3.1}
#ifndef STARRING_SHARED_RUN_METRICS_H
#define STARRING_SHARED_RUN_METRICS_H

#include "shared/run/train.h"

struct metrics;  // one thread

struct metrics *metrics_create(const char *dir);  // DIR/metrics.jsonl, truncated; NULL after logging
void metrics_step(struct metrics *m, const struct step_record *r);
void metrics_eval(struct metrics *m, int64_t step, double val_loss, double unigram_entropy);
int metrics_destroy(struct metrics **m);  // -1 after logging when something could not be written

// What the file holds so far.
struct metrics_totals {
    int64_t steps, skipped, tokens;
    double loss_first, loss_last;
    double *step_seconds;              // (steps), owned
    double val_loss, unigram_entropy;  // of the last evaluation; NAN: none
};
// 0, or -1 after naming the file and the line.
int metrics_read(const char *dir, struct metrics_totals *out);
void metrics_totals_free(struct metrics_totals *t);
// Number of the last step in the file, -1 when there is none (yet). Never logs.
int64_t metrics_last_step(const char *dir);

#endif
