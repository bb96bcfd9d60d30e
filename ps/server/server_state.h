// What a shard's core holds; shared by server_core.c (messages) and server_setup.c (birth and death).
#ifndef STARRING_PS_SERVER_SERVER_STATE_H
#define STARRING_PS_SERVER_SERVER_STATE_H

#include "ps/server/server_core.h"

// The pull of one worker that waits for its step, or the last one answered.
struct server_pull {
    bool pending, final;
    int64_t want;  // steps over
    uint64_t seq;  // 0: none yet
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
    int64_t step;     // sync: steps over
    int turn;         // sync: the worker whose gradient is added next
    int contributed;  // sync: gradients of this step taken, held ones included
    bool complete;    // sync: summed and rounded, not yet committed
    float lr;
    int lr_worker;
    double first_s;             // when the first gradient of this step came
    struct ps_frame **held;     // (N)
    int64_t *pushed;            // (N) pushes taken; the next step expected
    int64_t *staleness;         // (N) of the last push
    struct server_pull *pulls;  // (N)
    _Atomic int inflight;       // replies that the transport still reads from buf.weight
};

// A shard's part in the commit round of one step.
struct server_round {
    int64_t step;
    int keys;  // complete so far
    bool reported, decided;
    double sent_s;
    struct exact_sum sum;
    struct update_scalars scalars;
};

struct server_core {
    struct server_core_options o;
    int count;  // keys of this shard
    struct server_key *keys;
    int *index;             // (map->count): key -> place in keys, -1: not ours
    uint64_t *incarnation;  // (N); 0: not heard yet
    double now;             // of the last message or tick
    struct server_round round;
    int uncommitted;  // complete keys
    bool waiting_for_transport;
    uint64_t applied;  // async: pushes
    struct server_totals totals;
    char error[WIRE_TEXT_MAX];
};

// Keeps the first error; always -1.
int server_fail(struct server_core *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
