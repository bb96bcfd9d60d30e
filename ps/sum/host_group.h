// A host group: the workers of a group (reduce_group) where they share a machine's memory. They add their gradients before
// one of them pushes, so that what leaves the machine leaves it once.
//
//     worker 0's segment   gradient: | key 0 | key 1 | key 2 | ..        worker 1's   | key 0 | key 1 | key 2 | ..
//                                       |        ^        |                              |        |        |
//     key 0, worker 0 leads             +-- sum -+--------|----------- reads ------------+        |        |
//     key 1, worker 1 leads                      +--------|----------- reads -------------------> + sum    |
//     key 2, worker 0 leads                               + sum <----- reads ------------------------------+
//
// Keys are led in turn, so that every member adds and pushes as much as any other. The sum is in fp32 in worker order,
// rounded once to the run's type, and stands where the leader's own gradient of the key was: it takes no memory.
//
// Each member has a board in shared memory beside its gradients, which it alone writes:
//
//     units   steps of which it has handed the unit's gradient over   -> the leaders may read it
//     keys    steps of which it has added the key, where it leads     -> the others may have their gradient back
//
// Ownership   The boards and gradients are their owners' (ps/sum/host_group.h); a host group only knows where they are.
// Threads     One at a time: the communication thread. Between processes the counts order everything: what was written
//             before a count was raised is seen by who reads the count.
// Blocking    Nothing. A member that never comes is the scheduler's to notice: it hears no heartbeats.
// Errors      host_group_add: -1 with a text.
#ifndef STARRING_PS_SUM_HOST_GROUP_H
#define STARRING_PS_SUM_HOST_GROUP_H

#include <stdatomic.h>

#include "ps/job/shard_map.h"
#include "shared/core/segment.h"
#include "shared/core/wire_count.h"

struct host_group_unit {
    _Atomic int64_t steps;
    int64_t ready_ns;  // of the last one; the scheduler's clock
    uint64_t grad_at;  // bytes from the start of the member's gradients' segment
    float lr;
    uint32_t keep;
};
struct host_group_key {
    _Atomic int64_t steps;
    int64_t ready_ns;  // the latest of the members'
};

struct host_group_member {
    struct host_group_unit *units;  // (units)
    struct host_group_key *keys;    // (map->count)
    char *base;                     // what grad_at counts from
};

struct host_group {
    int size, self;                     // members; this worker's place
    struct host_group_member *members;  // (size)
    const struct shard_map *map;
    enum dtype dtype;
    int first_rank;           // of the first member, for texts
    const void **grads;       // (size) scratch
    struct wire_count *wire;  // counts what members read of each other
};

// The facts that came with a unit's gradient, or with those of all members.
struct host_group_info {
    int64_t step;
    int64_t ready_ns;
    float lr;
    bool keep;
};

static inline int host_group_leader(const struct host_group *c, int key) { return key % c->size; }
static inline bool host_group_leads(const struct host_group *c, int key) {
    return host_group_leader(c, key) == c->self;
}
// This worker's gradient of unit u stays as it is until every key of it was added, or is led by itself.
void host_group_hand(struct host_group *c, int u, const struct host_group_info *info);
// The first member whose gradient of the key's unit has not come for this step; -1: all have.
int host_group_lacks(const struct host_group *c, int key, int64_t step);
// All have come, and this worker leads the key: the sum takes the place of its gradient. info->step is given, the rest
// comes back. 0, or -1 with the reason in error.
int host_group_add(struct host_group *c, int key, struct host_group_info *info, char *error, size_t size);
// Whether the key's leader has added it for this step; *ready_ns: the latest hand-over.
bool host_group_added(const struct host_group *c, int key, int64_t step, int64_t *ready_ns);

// ---------------------------------------------------------------- how members meet
// How the members of a host group (host_group.h) find each other's memory. Each makes a board in a segment of its own and tells
// all workers where it is, as numbers in a gather, for the scheduler carries these already; the board names the
// segment that the gradients lie in:
//
//     | head | name of the gradients' segment | units | keys |
//     0      SEGMENT_HEAD
//
// Order       open, a gather of HOST_GROUP_NUMBERS for each worker, meet; then the host group is complete and stays as it is.
// Threads     One at a time. Nothing here blocks.
#define HOST_GROUP_NUMBERS SEGMENT_NUMBERS

struct host_group_options {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    const struct segment *grads;  // the worker's own: outlives the place
    const uint64_t *grad_at;      // (units)
    struct wire_count *wire;
    int rank;
};

struct host_group_place {
    struct host_group_options o;
    struct segment *boards, *grads;  // (host_group.size) each; this worker's grads stay empty
    struct host_group host_group;
};

// Bytes of a board, whole pages.
size_t host_group_board_bytes(int units, int64_t keys);
// Makes this worker's board; numbers (HOST_GROUP_NUMBERS) say where it is. 0, or -1 after logging.
int host_group_open(struct host_group_place *p, const struct host_group_options *o, double *numbers);
// numbers (workers * HOST_GROUP_NUMBERS) of all workers. 0, or -1 after logging who cannot be reached and why.
int host_group_meet(struct host_group_place *p, const double *numbers);
void host_group_close(struct host_group_place *p);  // zeroed or opened

#endif
