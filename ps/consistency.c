#include "ps/consistency.h"

#include "shared/core/error.h"

#define STALENESS_BINS (sizeof((struct staleness *)0)->count / sizeof(uint64_t))

int consistency_supported(const struct consistency_rule *r) {
    switch (r->kind) {
        case CONSISTENCY_SYNC:
        case CONSISTENCY_ASYNC:
            return 0;
        case CONSISTENCY_SSP:
            return fail("topology ps:ssp:%d is not supported yet; use ps:sync or ps:async", r->bound);
        case CONSISTENCY_BACKUP:
            return fail("topology ps:backup:%d is not supported yet; use ps:sync or ps:async", r->bound);
    }
    return fail("topology: unknown consistency %d", (int)r->kind);
}

bool consistency_applies_on_arrival(const struct consistency_rule *r) {
    return r->kind == CONSISTENCY_ASYNC || r->kind == CONSISTENCY_SSP;
}

bool consistency_may_commit(const struct consistency_rule *r, int contributed) {
    switch (r->kind) {
        case CONSISTENCY_SYNC:
            return contributed == r->workers;
        case CONSISTENCY_BACKUP:
            return contributed >= r->workers - r->bound;
        default:
            return contributed >= 1;
    }
}

bool consistency_may_read(const struct consistency_rule *r, int64_t slowest_clock, int64_t reader_clock) {
    switch (r->kind) {
        case CONSISTENCY_SYNC:
            return slowest_clock >= reader_clock;
        case CONSISTENCY_SSP:
            return slowest_clock >= reader_clock - r->bound;
        default:
            return true;
    }
}

static uint64_t staleness_total(const struct staleness *s) {
    uint64_t n = 0;
    for (unsigned i = 0; i < STALENESS_BINS; i++) n += s->count[i];
    return n;
}

void staleness_count(struct staleness *s, uint64_t tau) {
    double n = (double)staleness_total(s);
    s->count[tau < STALENESS_BINS ? tau : STALENESS_BINS - 1]++;
    if (tau > s->max) s->max = tau;
    s->mean += ((double)tau - s->mean) / (n + 1.0);
}

void staleness_merge(struct staleness *into, const struct staleness *from) {
    double a = (double)staleness_total(into), b = (double)staleness_total(from);
    if (b == 0.0) return;
    into->mean = (into->mean * a + from->mean * b) / (a + b);
    for (unsigned i = 0; i < STALENESS_BINS; i++) into->count[i] += from->count[i];
    if (from->max > into->max) into->max = from->max;
}
