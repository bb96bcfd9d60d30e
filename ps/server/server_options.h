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
struct study;

// A key whose state behind `step` steps is to be kept: nothing changes it before `keep` returns, nor while somebody has
// added one to *pins, which any thread takes away.
struct kept_key {
    struct key_counts counts;  // until the call returns
    int64_t step;
    bool last;  // behind all steps of a run that shares a budget: another one of that number may be there
    const struct server_buffers *buf;
    _Atomic int *pins;
};
struct keep_port {
    void *ctx;
    void (*keep)(void *ctx, const struct kept_key *k);  // NULL: nothing is ever kept
};

struct server_core_options {
    const struct layout *layout;
    const struct shard_map *map;
    int shard;
    int64_t batches;                       // of the job's budget, where pushes are applied on arrival
    const struct server_buffers *buffers;  // (map->count); those of this shard are used
    struct consistency_rule rule;
    struct optimizer_config optimizer;
    enum dtype dtype;
    struct code_format code;  // of pushes; of kind CODE_NONE: they are gradients
    int group;                // workers of a group that is summed first; 0: none (ps_group)
    int crew;           // workers of a group of whom one pushes for all; 0: each pushes its own (ps_crew)
    bool elastic;       // workers come and go
    bool commit_round;  // updates wait for the scheduler's decision (commit_waits)
    bool replicate;     // sums go to PEER_NEIGHBOUR before they are reported; with commit_round alone
    struct thread_time *spans;  // of the calling thread; NULL: none. Its content decides nothing
    uint64_t job;               // 0: set later by server_core_set_job
    // Of pushes applied on arrival: where their order is kept, and the one to repeat. NULL: none.
    struct arrivals *record;
    const struct arrivals *replay;
    struct study *study;  // NULL: none
    struct ps_port port;  // peers: worker ranks, PEER_SCHEDULER
    struct keep_port keep;
};

// The memory that a worker shares: where its gradients lie and, for some, its weights. base NULL: nothing.
struct server_segment {
    char *base;
    size_t bytes;
};

struct server_totals {
    uint64_t pushes, duplicates, refused;
    size_t held_bytes, held_peak_bytes;  // frames waiting for their turn
    double steps;  // over on every key of the shard; of pushes that are applied on arrival also a part of one
    // How often updates waited for keys to be written, and for how long.
    int64_t pin_waits;
    double pin_seconds, pin_seconds_most;
    struct staleness staleness;
};

#endif
