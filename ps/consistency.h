// Consistency of one key as pure functions of counts and clocks. version = updates applied.
//
//     sync      update t commits when all workers have contributed (in worker order)
//     async     every push is an update of its own, on arrival
//     ssp:s     every push on arrival; a worker at clock c reads iff the slowest clock >= c - s (Ho et al.
//     2013) backup:b  commits on the first N-b workers (Chen et al. 2016)
//
// The rules of ssp and backup are stated here; the roles do not run them yet and refuse them by name.
#ifndef STARRING_PS_CONSISTENCY_H
#define STARRING_PS_CONSISTENCY_H

#include "shared/config/config.h"
#include "shared/core/topology.h"

struct consistency_rule {
    enum consistency kind;
    int bound;    // ssp: s; backup: b
    int workers;  // N
};

// 0, or -1 after naming the mode that is not supported yet.
int consistency_supported(const struct consistency_rule *r);
// Whether a push is applied when it arrives, as an update of its own.
bool consistency_applies_on_arrival(const struct consistency_rule *r);
// Whether a step with this many contributions may commit.
bool consistency_may_commit(const struct consistency_rule *r, int contributed);
// Whether a reader that has finished reader_clock steps may read, when the slowest worker has finished
// slowest_clock.
bool consistency_may_read(const struct consistency_rule *r, int64_t slowest_clock, int64_t reader_clock);

// Counts one push's staleness (versions). mean is exact while the total stays below 2^53.
void staleness_count(struct staleness *s, uint64_t tau);
void staleness_merge(struct staleness *into, const struct staleness *from);

#endif
