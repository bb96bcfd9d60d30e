// metrics.jsonl, a line per step, written by rank 0's loop. A line
// goes out in one write, so that a file ends with a whole line however the process ends. All lines of a file
// have the same keys, and each key one type: what is no integer has a point or an exponent. Doubles are
// written with 17 digits: equal text means equal bits. Values that are not finite are null (JSON has no NaN).
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
    int64_t
        tokens;  // of the global batch, or of the workers whose gradients counted; where ranks share a budget, of all since
    // the line before
    int64_t place;    // there: steps of the run that the samples make, no key; else 0: step
    int workers;      // that is how many, where workers come and go; else 0 (no key)
    int64_t samples;  // of the whole job whose gradients have been applied, this step's included
    double seconds;   // this step, host clock
    double
        elapsed;  // from the beginning of the first step to the end of this one, without what is no training
    bool skipped;
    size_t memory_bytes;  // device memory in use on this rank
};

struct figure_rows step_figures(void);  // of a line, from struct step_record

struct metrics;  // one thread

// DIR/metrics.jsonl behind the lines of the first `steps` steps: later ones are cut off. *elapsed: of the last line that
// stays, 0: there is none. NULL after logging.
struct metrics *metrics_create(const char *dir, int64_t steps, double *elapsed);
void metrics_step(struct metrics *m, const struct step_record *r);
int metrics_destroy(struct metrics **m);  // -1 after logging when something could not be written

#define METRICS_SECONDS_MAX (1 << 18)
// The lines that metrics.jsonl and evals.jsonl (shared/report/evals.h) hold so far.
struct metrics_totals {
    int64_t steps, skipped, tokens;  // steps: lines
    int64_t contributions;           // workers, where lines say them, of all steps
    int64_t last_step;  // the number in the last one; a run that went on elsewhere began with a higher one
    double loss_first, loss_last;
    double later_seconds;              // of all steps but the first, added
    double *step_seconds;              // (kept), owned: of each kept_every-th step, the first included
    int64_t kept, kept_every;          // kept <= METRICS_SECONDS_MAX; kept_every is 1 up to so many steps
    double val_loss, unigram_entropy;  // of the last evaluation; NAN: none
    const char *torn;  // the file whose last line is not whole (a full disk, a copy) and is left out, or NULL
    double written_s;  // when metrics.jsonl was last written to, seconds since 1970
};
// 0, or -1 after naming the file and the line: a broken line that others follow, or no metrics.jsonl.
int metrics_read(const char *dir, struct metrics_totals *out);
void metrics_totals_free(struct metrics_totals *t);
// Number of the last step in the file, -1 when there is none (yet). Never logs.
int64_t metrics_last_step(const char *dir);

#endif
