#include "shared/train/pace.h"

#include <math.h>
#include <stdlib.h>

#include "shared/core/error.h"

void pace_step(struct pace *p, int64_t step, int64_t samples, int64_t now_ns, bool skipped) {
    p->samples = samples;
    p->skipped += skipped;
    p->ended_ns[step % PACE_STEPS] = now_ns;
}

// Converts to microseconds of the job's clock, which ranks of several hosts share.
static double job_clock_us(const struct pace_end *at, int64_t ns) {
    return 1e-3 * (double)(ns + timeline_clock(at->timeline).offset_ns);
}

int pace_report(const struct pace *p, const struct pace_end *at, struct rank_report *out) {
    struct topology *t = at->topology;
    double *ends = xcalloc((size_t)t->size, sizeof *ends),
           *no_work = xcalloc((size_t)t->size, sizeof *no_work);
    double first = INFINITY, last = 0;
    ends[t->rank] = job_clock_us(at, at->end_ns);
    no_work[t->rank] = job_clock_us(at, at->no_work_ns);
    int rc = topology_sum(t, ends, t->size) || topology_sum(t, no_work, t->size) ? -1 : 0;
    for (int w = 0; w < t->size && !rc; w++) {
        if (!(ends[w] > 0)) continue;  // the worker has left
        first = fmin(first, no_work[w]);
        last = fmax(last, ends[w]);
    }
    out->skipped = p->skipped;
    out->tail_seconds = last > first ? 1e-6 * (last - first) : 0;
    for (int i = 0; i < PACE_STEPS; i++)
        out->tail_batches += p->ended_ns[i] && job_clock_us(at, p->ended_ns[i]) > first;
    free(ends);
    free(no_work);
    return rc;
}
