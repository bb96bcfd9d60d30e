// Options of a shard's core, its counts, and how its thread's time is divided (ps/server/server_core.h).
#ifndef STARRING_PS_SERVER_SERVER_OPTIONS_H
#define STARRING_PS_SERVER_SERVER_OPTIONS_H

#include "ps/agree/key_rows.h"
#include "ps/job/consistency.h"
#include "ps/net/port.h"
#include "ps/server/server_buffers.h"
#include "shared/model/optimizer.h"
#include "shared/time/thread_time.h"

struct arrivals;
struct staleness_log;

// A key whose state after `step` steps is to be kept. The state does not change before `keep` returns, which copies it.
struct kept_key {
    struct key_counts counts;  // valid until the call returns
    int64_t step;
    bool last;  // after the last step of a run with a shared budget: an earlier keep may have the same step
    const struct server_buffers *buf;
};
struct keep_port {
    void *ctx;
    void (*keep)(void *ctx, const struct kept_key *k);  // NULL: no checkpoints
};

// How a shard thread's time is divided. The thread is at
//
//     receive   taking messages off the sockets      update   the optimizer; new weights in the key's buffer
//     sum       adding, rounding, squares            reply    answers: acknowledgements, weights, sums
//     idle: hold, while there are gradients of a step that waits for more of them or for the scheduler's decision;
//     wait, while there are none
enum server_part {
    SERVER_RECEIVE,
    SERVER_SUM,
    SERVER_HOLD,
    SERVER_WAIT,
    SERVER_UPDATE,
    SERVER_REPLY,
    SERVER_PARTS
};

#define SERVER_PICTURED 3  // last steps of the run in a server's timeline

struct server_core_options {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int shard;
    const struct server_buffers *buffers;  // (map->count); those of this shard are used
    struct thread_time *spans;  // the calling thread's time; NULL: not recorded. No decision depends on it
    uint64_t job;               // the job number that workers' messages carry
    // Where random choices are recorded (ps/record/arrivals.h), and the record to repeat. NULL: none.
    struct arrivals *record;
    const struct arrivals *replay;
    struct staleness_log *staleness_log;  // NULL: none
    const struct consistency_rule *rule;  // NULL: the configuration's
    struct ps_port port;                  // peers: worker ranks, PEER_SCHEDULER
    struct keep_port keep;
};

// The memory that a worker shares: its gradients and, for some workers, its weights. base NULL: nothing.
struct server_segment {
    char *base;
    size_t bytes;
};

struct server_totals {
    uint64_t pushes, duplicates, refused;
    // Pushes of these that were too old (parameter_server.max_staleness) or too late (push_set.c).
    int64_t dropped;
    size_t held_bytes, held_peak_bytes;  // frames that are not added yet
    double steps;  // over on every key of the shard; where pushes are applied on arrival also fractions
    struct staleness staleness;
};

#endif
