// What a shard's core is made from, and what it counts (ps/server/server_core.h).
#ifndef STARRING_PS_SERVER_SERVER_OPTIONS_H
#define STARRING_PS_SERVER_SERVER_OPTIONS_H

#include "ps/consistency.h"
#include "ps/diary/diary.h"
#include "ps/net/port.h"
#include "ps/server/server_memory.h"
#include "shared/model/optimizer.h"

struct arrivals;
struct study;

struct server_core_options {
    const struct layout *layout;
    const struct shard_map *map;
    int shard;
    const struct server_buffers *buffers;  // (map->count); those of this shard are used
    struct consistency_rule rule;
    struct optimizer_config optimizer;
    enum dtype dtype;
    bool commit_round;  // clipping or fp16: updates wait for the scheduler's decision
    double resend_s;
    struct diary *diary;  // of the calling thread; NULL: none. What is in it decides nothing
    uint64_t job;         // 0: set later by server_core_set_job
    // Of pushes applied on arrival: where their order is kept, and the one to repeat. NULL: none.
    struct arrivals *record;
    const struct arrivals *replay;
    struct study *study;  // NULL: none
    struct ps_port port;  // peers: worker ranks, PEER_SCHEDULER
};

// What a worker shares: where its gradients lie and, for some, its weights. base NULL: nothing.
struct server_segment {
    char *base;
    size_t bytes;
};

struct server_totals {
    uint64_t pushes, duplicates, refused;
    size_t held_bytes, held_peak_bytes;  // frames waiting for their turn
    int64_t steps;                       // steps over on every key of the shard
    struct staleness staleness;
};

#endif
