// Collectives in groups of g consecutive ranks, for example the ranks of one host: how a call of all ranks is split.
//
// Order       A sum is an fp32 sum in rank order within each group, rounded once to the type. Then follows an fp32 sum
//             of the groups' sums in group order, rounded once (docs/ring.md, Groups). g = 1 and g = N are the sum
//             over all ranks.
// Legs        A leg is one of the calls that a call is split into. Rank r = k*g + i is place i of group k. A buffer has
//             one block for each of the N = G*g ranks:
//
//                 reduce_scatter   within | blocks of group 0 | blocks of group 1 | ..    G calls: the group's sum of
//                                         | 0 .. i .. g-1     | g .. g+i ..       |       each block of place i
//                                  across | i | g+i | 2g+i | ..                           one call: their sum over
//                                                                                         the groups
//                 all_gather       across, then within: the same in reverse
//
//             The owner of a block is the same as without groups. A rank sends N-1 blocks as before, but only G-1 of
//             them to other groups instead of N-g: the bytes that leave a group are divided by g. The number of
//             messages stays.
// Memory      None: the sums of the first legs overwrite `send`, at the rank's place of each group.
// All other primitives run as without groups.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_GROUPS_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_GROUPS_H

#include "decentral/collective/collective_plan.h"

// The ranks of the rank's group; the ranks at the rank's place in all groups.
struct collective_team collective_within(int rank, int group);
struct collective_team collective_across(int rank, int size, int group);

// The number of legs of a rank's call, and leg k. rank of size; group divides size, 0: no groups.
int collective_legs(const struct collective_call *c, int size, int group);
struct collective_call collective_leg(const struct collective_call *c, int rank, int size, int group, int k);

// Payload and messages of the whole call; each leg sends one message to each of its peers. across: to other groups.
struct collective_traffic {
    struct collective_volume all, across;  // bytes
    uint64_t messages, messages_across;    // sent
};
struct collective_traffic collective_traffic(const struct collective_call *c, int rank, int size, int group);

#endif
