// Options of a shard's core, and its counts (ps/server/server_core.h).
#ifndef STARRING_PS_SERVER_SERVER_OPTIONS_H
#define STARRING_PS_SERVER_SERVER_OPTIONS_H

#include "ps/agree/key_rows.h"
#include "ps/job/consistency.h"
#include "ps/net/port.h"
#include "ps/server/server_memory.h"
#include "shared/model/optimizer.h"
#include "shared/time/thread_time.h"

struct arrivals;
struct staleness_log;

// A key whose state behind `step` steps is to be kept: nothing changes it before `keep` returns, which copies it.
struct kept_key {
    struct key_counts counts;  // until the call returns
    int64_t step;
    bool last;  // behind all steps of a run that shares a budget: another one of that number may be there
    const struct server_buffers *buf;
};
struct keep_port {
    void *ctx;
    void (*keep)(void *ctx, const struct kept_key *k);  // NULL: nothing is ever kept
};

struct server_core_options {
    const struct config *config;
    const struct layout *layout;
    const struct shard_map *map;
    int shard;
    const struct server_buffers *buffers;  // (map->count); those of this shard are used
    struct thread_time *spans;             // of the calling thread; NULL: none. Its content decides nothing
    uint64_t job;                          // that workers' messages carry
    // Where what comes by chance is kept (ps/record/arrivals.h), and what is to be repeated. NULL: none.
    struct arrivals *record;
    const struct arrivals *replay;
    struct staleness_log *staleness_log;  // NULL: none
    const struct consistency_rule *rule;  // NULL: the configuration's
    struct ps_port port;                  // peers: worker ranks, PEER_SCHEDULER
    struct keep_port keep;
};

// The memory that a worker shares: where its gradients lie and, for some, its weights. base NULL: nothing.
struct server_segment {
    char *base;
    size_t bytes;
};

struct server_totals {
    uint64_t pushes, duplicates, refused;
    int64_t
        dropped;  // of these pushes, those that were too old (parameter_server.max_staleness) or too late (push_set.c)
    size_t held_bytes, held_peak_bytes;  // frames waiting for their turn
    double steps;  // over on every key of the shard; of pushes that are applied on arrival also a part of one
    struct staleness staleness;
};

#endif
