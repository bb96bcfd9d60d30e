// The ranks of a run compare their identities (identity.h), before the first step and after a resume.
//
//     1. one sum of each rank's hash                  all equal: done, for any number of ranks
//     2. rank 0's text is sent to all, as doubles     only where hashes differ
//     3. the ranks that differ are counted; the text of the first one is sent to all: every rank fails with it
//
// Keys of one kind of device are compared by the ranks with that device.
#ifndef STARRING_SHARED_STATE_IDENTITY_AGREE_H
#define STARRING_SHARED_STATE_IDENTITY_AGREE_H

#include "shared/core/topology.h"
#include "shared/state/identity.h"

// Collective: every rank of the topology calls it. Returns 0, or -1 on every rank after fail() named the first rank
// that differs from worker 0, the keys and both values. Worker 0 and the ranks that differ print it; the others
// keep the text.
int identity_agree(struct topology *t, const struct identity *i);

#endif
