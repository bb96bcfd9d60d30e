// The state of a shard's core: its keys, their steps, its part in the commit round. For the files of the core alone:
// server_core.c, server_step.c, the replay of a recorded order and the chain to the neighbour.
#ifndef STARRING_PS_SERVER_SERVER_STATE_H
#define STARRING_PS_SERVER_SERVER_STATE_H

#include "ps/server/server_options.h"

struct replay_key;  // replay_pulls.h

// The last pull of one worker.
struct server_pull {
    bool pending, final;
    int64_t want;   // the key's clock it waits for
    uint64_t seq;   // 0: none yet
    uint64_t into;  // where in the worker's segment the weights are wanted; 0: nowhere
};

// A worker's gradient: a frame's, or in its segment, where it stays until the worker hears that it was taken.
struct gradient {
    const void *data;  // NULL: none
    size_t bytes;
    struct ps_frame *frame;  // NULL: in the segment
};

// The snapshot that was asked for last.
struct server_shot {
    bool pending;
    int worker;
    int64_t want;  // the key's version
    uint64_t seq;
};

// The header of a gradient that is held until its key is no longer pinned.
struct server_late {
    uint64_t order;  // 1, 2, ..; 0: nothing is held
    int64_t step, version, batch, ready_ns;
    float lr, grad_scale;
    uint32_t flags;
};

struct server_key {
    int key;
    const struct partition *part;
    const struct unit *unit;
    int64_t n;  // elements
    struct server_buffers buf;
    bool loaded;
    uint64_t load_seq, load_kept;  // kept: what the neighbour has acknowledged
    int64_t version;               // updates applied
    int64_t skew;                  // the moments' own count of them minus version
    int64_t step;                  // the key's clock: steps committed
    // Of the open step, where pushes are summed in worker order:
    int turn;         // of the gradient that is added next (worker_of_turn)
    int contributed;  // gradients taken, held ones included
    bool complete;    // summed and rounded, not yet committed
    float lr;
    int lr_worker;
    int64_t open_ready_ns;      // the latest ready_ns of its gradients: what the open step's update needs
    int64_t update_ready_ns;    // that of the last update: with a commit round, of all keys
    struct gradient *held;      // (N)
    int64_t *batches;           // which it holds (ps/job/batches.h); NULL: steps commit
    int64_t *pushed;            // (N) pushes taken; the next step expected
    int64_t *staleness;         // (N) of the last push
    int64_t *ready_ns;          // (N) of the last push; once added, with those added before it
    struct server_pull *pulls;  // (N)
    struct replay_key *replay;  // NULL: pushes are applied as they arrive
    struct server_shot shot;
    bool replicated;           // the neighbour has the sum of the open step (ps/server/chain.h)
    struct server_late *late;  // (N) pushes that found the key pinned; NULL: they never do
    bool keep;                 // the state behind the open step is to be kept
    _Atomic int inflight;      // replies that the transport still reads from buf.weight
    _Atomic int pins;          // readers of a state that is being kept
};

// A shard's part in the commit round of one step.
struct server_round {
    int64_t step;
    int keys;        // complete so far
    int replicated;  // of these, kept by the neighbour as well
    bool reported, decided;
    struct exact_sum sum;
    struct update_scalars scalars;
    int64_t ready_ns;  // of the keys complete so far; after the decision, of all that it needed
};

// Steps to which not all workers belong (ps/server/server_set.h).
struct server_set {
    int *keys;         // (N) of which the worker's gradient of the open step is here
    uint64_t arrived;  // workers with all keys
    uint64_t fixed;    // the open step's set; 0: not yet
    uint32_t *life;    // (N) heard; 0: none
};

struct server_core {
    struct server_core_options o;
    int count;  // keys of this shard
    struct server_key *keys;
    int *index;                       // (map->count): key -> place in keys, -1: not ours
    uint64_t *incarnation;            // (N); 0: not heard yet
    struct server_segment *segments;  // (N)
    int attached;                     // workers with a segment
    const void **grads;               // (N) of a sum
    void *chunk;                      // scratch of a pass
    double now;                       // of the last message or tick
    struct server_round round;
    struct update_scalars decided;  // of the round before
    struct server_set *set;         // NULL: all workers belong to every step
    int open;                       // keys whose step has gradients and is not committed
    int uncommitted;                // complete keys
    bool waiting_for_transport;     // or for a pin:
    bool waiting_for_pin;           // since pin_since_s, if that is known (0: not yet)
    double pin_since_s;
    uint64_t applied;  // pushes, where each is applied on arrival
    uint64_t late;     // pushes that came late so far
    int64_t begin;     // steps that were over before this life of the job
    int64_t *row;      // (N) scratch
    struct server_totals totals;
    char error[WIRE_TEXT_MAX];
};

// Workers whose gradients one push brings.
static inline int crew_of(const struct server_core *c) { return c->o.crew ? c->o.crew : 1; }
// The worker that pushes the gradient which is added as number `turn`: of a group the worker that leads the key (ps/sum/crew.h).
static inline int worker_of_turn(const struct server_core *c, const struct server_key *k, int turn) {
    return turn * crew_of(c) + k->key % crew_of(c);
}

#endif
