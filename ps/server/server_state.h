// What a shard's core knows: its keys, their steps, its part in the commit round. For the files of the core alone:
// server_core.c, server_step.c, server_snapshot.c and the replay of a recorded order.
#ifndef STARRING_PS_SERVER_SERVER_STATE_H
#define STARRING_PS_SERVER_SERVER_STATE_H

#include "ps/server/server_options.h"

struct replay_key;  // replay_pulls.h

// The pull of one worker that waits for its step, or the last one answered.
struct server_pull {
    bool pending, final;
    int64_t want;   // the key's clock it waits for
    uint64_t seq;   // 0: none yet
    uint64_t into;  // where in the worker's segment the weights are wanted; 0: nowhere
    bool answered;
    int64_t version;  // of the answer
    double answered_s;
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
    double answered_s;
};

struct server_key {
    int key;
    const struct partition *part;
    const struct unit *unit;
    int64_t n;  // elements
    struct server_buffers buf;
    bool loaded;
    uint64_t load_seq;
    int64_t version;  // updates applied
    int64_t step;     // the key's clock: steps committed
    // Of the open step, where pushes are summed in worker order:
    int turn;         // the worker whose gradient is added next
    int contributed;  // gradients taken, held ones included
    bool complete;    // summed and rounded, not yet committed
    float lr;
    int lr_worker;
    int64_t open_ready_ns;      // the latest ready_ns of its gradients: what the open step's update needs
    int64_t update_ready_ns;    // that of the last update: with a commit round, of all keys
    struct gradient *held;      // (N)
    int64_t *pushed;            // (N) pushes taken; the next step expected
    int64_t *staleness;         // (N) of the last push
    int64_t *ready_ns;          // (N) of the last push; once added, with those added before it
    struct server_pull *pulls;  // (N)
    struct replay_key *replay;  // NULL: pushes are applied as they arrive
    struct server_shot shot;
    _Atomic int inflight;  // replies that the transport still reads from buf.weight
};

// A shard's part in the commit round of one step.
struct server_round {
    int64_t step;
    int keys;  // complete so far
    bool reported, decided;
    double sent_s;
    struct exact_sum sum;
    struct update_scalars scalars;
    int64_t ready_ns;  // of the keys complete so far; after the decision, of all that it needed
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
    int open;         // keys whose step has gradients and is not committed
    int uncommitted;  // complete keys
    bool waiting_for_transport;
    uint64_t applied;  // pushes, where each is applied on arrival
    struct server_totals totals;
    char error[WIRE_TEXT_MAX];
};

#endif
