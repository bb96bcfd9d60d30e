// The ranks of a run compare what each of them is (identity.h), before the first step and after a resume.
//
//     1. each rank's hash, in one sum                 all equal: done, whatever the number of ranks
//     2. rank 0's text goes to all, as doubles        only where hashes differ
//     3. the ranks that differ from it are counted, and the first such rank's words go to all: every rank fails with them
//
// Keys that only a kind of device has are compared by those that have them.
#ifndef STARRING_SHARED_STATE_IDENTITY_AGREE_H
#define STARRING_SHARED_STATE_IDENTITY_AGREE_H

#include "shared/core/topology.h"
#include "shared/state/identity.h"

// Collective: every rank of the topology calls it. 0, or -1 on every rank after fail() named the first rank that differs
// from worker 0, the keys and both values. Worker 0 prints, and the ranks that differ; the others keep the text.
int identity_agree(struct topology *t, const struct identity *i);

#endif
