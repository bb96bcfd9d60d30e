// metrics.jsonl: one line per step, written by rank 0's loop. Each line is one write, so the file always ends with a
// whole line. All lines of a file have the same keys, and each key has one type: non-integers have a point or an
// exponent. Doubles have 17 digits: equal text means equal bits. Values that are not finite are null (JSON has no
// NaN).
//
//   {"step":1,"loss":5.54..,"grad_norm":1.2,"lr":0.0003,"loss_scale":1.0,"tokens":256,"samples":8,
//    "seconds":0.01,"elapsed":0.01,"skipped":false,"memory_bytes":123}
#ifndef STARRING_SHARED_REPORT_METRICS_H
#define STARRING_SHARED_REPORT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/report/figure.h"

// One line of metrics.jsonl.
struct step_record {
    int64_t step;      // 1-based
    double loss;       // mean over the global batch
    double grad_norm;  // NAN: none computed
    double lr, loss_scale;
    int64_t tokens;  // tokens of the global batch, or of the workers whose gradients counted;
    // if ranks share a budget, of all ranks since the previous line
    int64_t place;    // with a shared budget: steps of the run that the samples make; else 0: step (no key)
    int workers;      // workers whose gradients counted, if workers may join and leave; else 0 (no key)
    int64_t samples;  // samples of the whole job in all updates so far, including this step's
    double seconds;   // seconds of this step, by the host's clock
    double elapsed;   // from the start of the first step to the end of this one, training only
    bool skipped;
    size_t memory_bytes;  // device memory in use on this rank
};

struct figure_rows step_figures(void);  // the figures of a line, from struct step_record

struct metrics;  // For use by one thread.

// Opens DIR/metrics.jsonl and keeps the lines of the first `steps` steps; cuts later ones. *elapsed receives the value
// of the last kept line, 0 if there is none. Returns NULL after logging.
struct metrics *metrics_create(const char *dir, int64_t steps, double *elapsed);
void metrics_step(struct metrics *m, const struct step_record *r);
int metrics_destroy(struct metrics **m);  // Returns -1 after logging if a write failed.

#define METRICS_SECONDS_MAX (1 << 18)
// Totals over the lines that metrics.jsonl and evals.jsonl (shared/report/evals.h) have so far.
struct metrics_totals {
    int64_t steps, skipped, tokens;  // steps: lines
    int64_t contributions;           // sum of "workers" over the lines that have it
    int64_t last_step;  // step number of the last line; a run resumed in another directory starts above 1
    double loss_first, loss_last;
    double later_seconds;              // sum over all steps except the first
    double *step_seconds;              // (kept), owned: of every kept_every-th step, from the first on
    int64_t kept, kept_every;          // kept <= METRICS_SECONDS_MAX; kept_every: 1 for up to as many steps
    double val_loss, unigram_entropy;  // figures of the last evaluation; NAN: none
    const char *torn;  // file whose incomplete last line was skipped (a full disk, a copy), or NULL
    double written_s;  // modification time of metrics.jsonl, seconds since 1970
};
// Returns 0, or -1 after naming the file and the line: an invalid line before the last, or no metrics.jsonl.
int metrics_read(const char *dir, struct metrics_totals *out);
void metrics_totals_free(struct metrics_totals *t);
// Returns the number of the last step in the file, -1 if there is none. Never logs.
int64_t metrics_last_step(const char *dir);

#endif
