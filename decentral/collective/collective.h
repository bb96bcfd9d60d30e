// Collectives: eleven primitives over streams. A collective is a call: one struct, which an engine carries
// out. The engines are collective_hub (threads, and processes of one host), collective_tcp, collective_mpi and
// collective_nccl (GPUs); what a call means is the same for all of them: collective_plan.h.
//
// Ownership   One struct collective per rank and communicator; destroyed by its rank. Operations of one
//             communicator run in the order enqueued, and every rank enqueues the same sequence. What
//             must overlap (gathers and reductions) uses two communicators on two streams.
// Blocking    Calls only enqueue on the stream; buffers must stay valid until it has run them.
// Errors      A failure, an abort or a peer that does not come within deadline_ms fails the stream;
//             collective_error has the text, which names the operation and the rank missing.
// Reduction   A call's `reduction`: a sum, or minimum, maximum, product, logical or (kernels/operations.h says of what).
//             ordered (the default): 16-bit pieces are added in fp32 in rank order and rounded once
//             (ARCHITECTURE.md, Numerics 1); fp64 in rank order; int64 exactly, by the library where the engine
//             has one: any order gives the same bits. native: the library's own order.
// Counting    Payload bytes by the ring/all-to-all volume: all_gather, reduce_scatter (N-1)/N of the whole
//             buffer out and in; all_reduce both, 2(N-1)/N of it. Sums of a library itself are counted by this
//             formula, however it moves the bytes. A control communicator counts as control bytes. A barrier
//             moves no payload.
// Groups      With collective_options.group ranks exchange within groups of so many and across them, and sum
//             in that order (collective_groups.h). Bytes that cross a group's edge are counted once more for themselves.
// Deadline    0: none. It runs from when an operation begins to wait for its peers. Slow is not dead: where ranks
//             tell what device they compute on, a wait goes on beyond the deadline while all who have not come
//             live and some rank's device is at work (which is named once), and ends within half a deadline
//             after. Threads live as long as their process; processes over MPI and tcp answer when asked (rank_pulse.h).
//             Over NCCL the deadline is final; so it is for send and recv between threads.
// send, recv  A send may end only when its receiver has come: two ranks that exchange must order them.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_H

#include <assert.h>

#include "kernels/backend.h"
#include "shared/core/wire_count.h"

// The primitives, one line each: which ranks have a send buffer and which a receive buffer, how many blocks
// of `count` elements these hold (1, or one for each of the N ranks in rank order), and what arrives:
//
//     from rank a to rank b:  a's block for b, or its only one  ->  b's block from a, or its only one
//
// MOVED as it is; SUMMED over all a; SUMMED_IN_PIECES, of which every rank sums one and then gets them all.
// OTHERS: all but the root. Of send and recv CALLER is the rank that calls and PEER the one that it names.
//
// clang-format off
//      primitive       name            senders  blocks  receivers  blocks  what arrives
#define COLLECTIVE_LIST(ROW)                                                                \
    ROW(BROADCAST,      broadcast,      ROOT,    1,      OTHERS,    1,      MOVED)            \
    ROW(SCATTER,        scatter,        ROOT,    N,      ALL,       1,      MOVED)            \
    ROW(REDUCE,         reduce,         ALL,     1,      ROOT,      1,      SUMMED)           \
    ROW(ALL_REDUCE,     all_reduce,     ALL,     1,      ALL,       1,      SUMMED_IN_PIECES) \
    ROW(GATHER,         gather,         ALL,     1,      ROOT,      N,      MOVED)            \
    ROW(ALL_GATHER,     all_gather,     ALL,     1,      ALL,       N,      MOVED)            \
    ROW(REDUCE_SCATTER, reduce_scatter, ALL,     N,      ALL,       1,      SUMMED)           \
    ROW(ALL_TO_ALL,     all_to_all,     ALL,     N,      ALL,       N,      MOVED)            \
    ROW(SEND,           send,           CALLER,  1,      PEER,      1,      MOVED)            \
    ROW(RECV,           recv,           PEER,    1,      CALLER,    1,      MOVED)            \
    ROW(BARRIER,        barrier,        NOBODY,  1,      NOBODY,    1,      MOVED)
// clang-format on

#define COLLECTIVE_ENUM(primitive, ...) COLLECTIVE_##primitive,
enum collective_primitive { COLLECTIVE_LIST(COLLECTIVE_ENUM) COLLECTIVE_PRIMITIVES };
#undef COLLECTIVE_ENUM

// Ranks first, first + step, .. : count of them. count 0: all ranks.
struct collective_team {
    int first, step, count;
};

// All but the buffers, the stream and the peer must agree on all ranks of the team.
struct collective_call {
    enum collective_primitive primitive;
    struct stream *stream;
    const void *send;  // NULL where the rank sends nothing
    void *recv;        // NULL where the rank receives nothing
    size_t count;      // elements of a block
    enum dtype dt;
    int root, peer;  // of the primitives that have one; else 0
    // The steps that collective_groups.h makes of a call of all ranks. A call that names its team is carried out as it is:
    size_t stride;                // elements from a block of a buffer to its next one; 0: count
    struct collective_team team;  // who takes part; root and peer count within it
    enum reduction reduction;     // of primitives that reduce
};

enum reduce_mode { REDUCE_ORDERED, REDUCE_NATIVE };

struct collective;

struct collective_ops {
    const char *name;
    void (*enqueue)(struct collective *c, const struct collective_call *call);
    void (*abort)(struct collective *c, const char *why);
    const char *(*aborted)(struct collective *c);  // NULL: cannot be told
    void (*destroy)(struct collective *c);
};

struct collective {
    const struct collective_ops *ops;
    int rank, size;
    enum reduce_mode mode;
    bool control;             // count as control bytes
    int group;                // ranks of a group, 0: there are none (collective_groups.h)
    int edge;                 // ranks of a group whose edge is counted, 0: none is
    struct wire_count *wire;  // the rank's counters; not owned
    double deadline_s;
    const char *
        by;  // who carried out the last call that is done: "memory", "exchange" (between two ranks each) or "library"
    double busy_s;  // in transfers, waiting for peers included; written by the stream's thread
};

// Memory is given by whoever plans it, in what a kind asks for (struct collective_kind).
struct collective_options {
    enum reduce_mode mode;
    bool control;
    int group;  // divides the ranks; 0: none
    int edge;   // what crosses the edge of groups of so many is counted apart; 0: of group
    struct wire_count *wire;
    double deadline_s;
    void *staging;  // device memory, or NULL
    size_t staging_bytes;
    void *host_staging;  // MEM_HOST, or NULL
    size_t host_staging_bytes;
    struct device *dev;  // what the rank computes on: while it is at work, peers wait; NULL: not told
};

const char *collective_error(struct collective *c);  // "" while nothing has failed
void collective_destroy(struct collective **c);
// Any thread; every rank's waits fail soon.
static inline void collective_abort(struct collective *c, const char *why) { c->ops->abort(c, why); }
// Why some rank has aborted; NULL: none has, or the engine cannot tell. Any thread; never blocks.
static inline const char *collective_aborted(struct collective *c) {
    return c->ops->aborted ? c->ops->aborted(c) : NULL;
}

// ---------------------------------------------------------------- the primitives
// N ranks, count elements of type dt. In place where send is the rank's own place in recv.

static inline bool collective_is_grouped(int group, int size) { return group > 1 && group < size; }
void collective_grouped_enqueue(struct collective *c,
                                const struct collective_call *call);  // collective_groups.c

static inline void collective_enqueue(struct collective *c, const struct collective_call *call) {
    assert(call->root >= 0 && call->root < c->size && call->peer >= 0 && call->peer < c->size);
    if (collective_is_grouped(c->group, c->size) && !call->team.count)
        collective_grouped_enqueue(c, call);
    else
        c->ops->enqueue(c, call);
}

// The root's buf (count) to all.
static inline void collective_broadcast(struct collective *c, struct stream *s, void *buf, size_t count,
                                        enum dtype dt, int root) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_BROADCAST, s, buf, buf, count, dt, root, 0, 0, {0}, 0});
}

// recv (count) is the rank's block of the root's send (N*count).
static inline void collective_scatter(struct collective *c, struct stream *s, const void *send, void *recv,
                                      size_t count, enum dtype dt, int root) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_SCATTER, s, send, recv, count, dt, root, 0, 0, {0}, 0});
}

// The root's recv (count) is the sum of all ranks' send (count).
static inline void collective_reduce(struct collective *c, struct stream *s, const void *send, void *recv,
                                     size_t count, enum dtype dt, int root) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_REDUCE, s, send, recv, count, dt, root, 0, 0, {0}, 0});
}

// Every rank's recv (count) is the sum of all ranks' send (count).
static inline void collective_all_reduce(struct collective *c, struct stream *s, const void *send, void *recv,
                                         size_t count, enum dtype dt) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_ALL_REDUCE, s, send, recv, count, dt, 0, 0, 0, {0}, 0});
}

// The root's recv (N*count) is all ranks' send (count).
static inline void collective_gather(struct collective *c, struct stream *s, const void *send, void *recv,
                                     size_t count, enum dtype dt, int root) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_GATHER, s, send, recv, count, dt, root, 0, 0, {0}, 0});
}

// Every rank's recv (N*count) is all ranks' send (count).
static inline void collective_all_gather(struct collective *c, struct stream *s, const void *send, void *recv,
                                         size_t count, enum dtype dt) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_ALL_GATHER, s, send, recv, count, dt, 0, 0, 0, {0}, 0});
}

// recv (count) is the sum of the rank's blocks of all ranks' send (N*count). In place: recv is the rank's own
// place in send. With groups the sums of a group come to lie in send.
static inline void collective_reduce_scatter(struct collective *c, struct stream *s, const void *send,
                                             void *recv, size_t count, enum dtype dt) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_REDUCE_SCATTER, s, send, recv, count, dt, 0, 0, 0, {0}, 0});
}

// recv (N*count) is the rank's blocks of all ranks' send (N*count). Never in place.
static inline void collective_all_to_all(struct collective *c, struct stream *s, const void *send, void *recv,
                                         size_t count, enum dtype dt) {
    assert(send != recv);
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_ALL_TO_ALL, s, send, recv, count, dt, 0, 0, 0, {0}, 0});
}

// buf (count) to rank `to`, which receives it.
static inline void collective_send(struct collective *c, struct stream *s, const void *buf, size_t count,
                                   enum dtype dt, int to) {
    assert(to != c->rank);
    collective_enqueue(c,
                       &(struct collective_call){COLLECTIVE_SEND, s, buf, NULL, count, dt, 0, to, 0, {0}, 0});
}

// buf (count) from rank `from`, which sends it.
static inline void collective_recv(struct collective *c, struct stream *s, void *buf, size_t count,
                                   enum dtype dt, int from) {
    assert(from != c->rank);
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_RECV, s, NULL, buf, count, dt, 0, from, 0, {0}, 0});
}

// The stream goes on when every rank's has come here.
static inline void collective_barrier(struct collective *c, struct stream *s) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_BARRIER, s, NULL, NULL, 0, DT_U8, 0, 0, 0, {0}, 0});
}

// ---------------------------------------------------------------- where communicators come from
#define COLLECTIVE_CHANNELS 4  // 0 .. : independent communicators

// A kind of collectives: one row, in its engine's file.
struct collective_kind {
    const char *name;  // "local", "mpi", "nccl"
    // world: the engine's own, of all channels. NULL after logging.
    struct collective *(*create)(void *world, int rank, int channel, const struct collective_options *o);
    // Bytes of collective_options' memory for blocks of up to max_count elements. NULL: none.
    size_t (*staging_bytes)(int size, size_t max_count, enum dtype dt);       // of channels that reduce
    size_t (*host_staging_bytes)(int size, size_t max_count, enum dtype dt);  // of every channel
    bool ordered_16bit_only;  // REDUCE_NATIVE is refused for bf16 and fp16
};

// A rank's: the ring does not care which kind they are.
struct collective_source {
    const struct collective_kind *kind;
    void *world;  // NULL where only predictions are wanted
    int rank, size;
};
static inline struct collective *collective_create(const struct collective_source *s, int channel,
                                                   const struct collective_options *o) {
    return s->kind->create(s->world, s->rank, channel, o);
}
static inline size_t collective_staging(const struct collective_source *s, size_t max_count, enum dtype dt) {
    return s->kind->staging_bytes ? s->kind->staging_bytes(s->size, max_count, dt) : 0;
}
static inline size_t collective_host_staging(const struct collective_source *s, size_t max_count,
                                             enum dtype dt) {
    return s->kind->host_staging_bytes ? s->kind->host_staging_bytes(s->size, max_count, dt) : 0;
}

#endif
