// Collectives: eleven primitives over streams. A call is one struct, which an engine runs. The engines are
// collective_hub (threads, and processes of one host), collective_tcp, collective_mpi and collective_nccl (GPUs). A
// call means the same in all of them: collective_plan.h.
//
// Ownership   One struct collective per rank and communicator, destroyed by its rank. Operations of one communicator
//             run in the order enqueued, and every rank enqueues the same sequence. Operations that must overlap
//             (gathers and reductions) use two communicators on two streams.
// Blocking    Calls only enqueue on the stream. Buffers must stay valid until the stream has run the call.
// Errors      A failure, an abort or a peer that misses deadline_ms fails the stream. collective_error returns the
//             text, which names the operation and the missing rank.
// Reduction   A call's `reduction`: sum, minimum, maximum, product or logical or (defined in kernels/operations.h).
//             ordered (the default): 16-bit elements are added in fp32 in rank order and rounded once (docs/numerics.md);
//             fp64 in rank order; int64 exactly, by the library if the engine has one: any order gives the
//             same bits. native: the library's own order.
// Counting    Payload bytes by the ring/all-to-all volume: all_gather, reduce_scatter (N-1)/N of the whole buffer out
//             and in; all_reduce twice that, 2(N-1)/N. Sums by a library are counted by the same formula, however the
//             library moves the bytes. A control communicator counts control bytes. A barrier moves no payload.
// Groups      With collective_options.group ranks exchange within groups of so many ranks, and between groups, and sum
//             in that order (collective_plan.h). Bytes that leave a group are also counted separately.
// Deadline    0: none. It starts when an operation begins to wait for its peers. If the device of each rank is known, a
//             wait continues beyond the deadline while all missing ranks are alive and the device of some rank is
//             working. That rank is logged once. The wait ends at most half a deadline after that is no longer so.
//             Threads are alive as long as their process; processes send heartbeats (rank_liveness.h). Over NCCL the
//             deadline is final, and also for send and recv between threads.
// send, recv  A send may block until its receiver receives: two ranks that exchange must order their calls.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_H

#include <assert.h>

#include "kernels/backend.h"
#include "shared/core/topology.h"

// The primitives, one line each: which ranks have a send buffer and which a receive buffer, how many blocks of `count`
// elements each buffer holds (1, or one per rank: N in rank order), and what arrives:
//
//     from rank a to rank b:  a's block for b, or its only one  ->  b's block from a, or its only one
//
// MOVED: unchanged. SUMMED: the sum over all a. SUMMED_IN_PIECES: every rank sums one piece, then receives all pieces.
// OTHERS: all ranks except the root. For send and recv, CALLER is the calling rank and PEER the rank that it names.
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

// All fields except the buffers, the stream and the peer must agree on all ranks of the team.
struct collective_call {
    enum collective_primitive primitive;
    struct stream *stream;
    const void *send;  // NULL if the rank sends nothing
    void *recv;        // NULL if the rank receives nothing
    size_t count;      // elements of a block
    enum dtype dt;
    int root, peer;  // 0 if the primitive has no root, or no peer
    // Set in the calls that collective_plan.h makes of a call of all ranks. A call with a team is not split again.
    size_t stride;                // elements from one block of a buffer to the next; 0: count
    struct collective_team team;  // the ranks of the call; root and peer count within it
    enum reduction reduction;     // only for primitives that reduce
};

enum reduce_mode { REDUCE_ORDERED, REDUCE_NATIVE };

struct collective;

struct collective_ops {
    const char *name;
    void (*enqueue)(struct collective *c, const struct collective_call *call);
    void (*abort)(struct collective *c, const char *why);
    void (*look)(
        struct collective *c);  // receives the reasons that other ranks have sent; NULL: nothing to do
    void (*destroy)(struct collective *c);
};

struct collective {
    const struct collective_ops *ops;
    int rank, size;
    enum reduce_mode mode;
    bool control;             // the bytes count as control
    int group;                // ranks per group, 0: no groups (collective_plan.h)
    int counted_group;        // ranks per group whose outgoing bytes are counted separately, 0: not counted
    struct wire_count *wire;  // the rank's counters; not owned
    double deadline_s;
    const char *method;  // how the last finished call ran: "memory", "exchange" (pairs of ranks) or "library"
    double busy_s;       // seconds in transfers, including waits for peers; written by the stream's thread
};

// The caller provides memory, of the sizes that a kind needs (struct collective_kind).
struct collective_options {
    enum reduce_mode mode;
    bool control;
    int group;          // divides the ranks; 0: none
    int counted_group;  // bytes that leave groups of so many ranks are counted separately; 0: as group
    struct wire_count *wire;
    double deadline_s;
    void *staging;  // in device memory; NULL: none
    size_t staging_bytes;
    void *host_staging;  // in host memory (MEM_HOST); NULL: none
    size_t host_staging_bytes;
    // The rank's device, for heartbeats: peers wait longer while it is busy; NULL: unknown.
    struct device *dev;
};

const char *collective_error(struct collective *c);  // Returns the text of the first failure; "": none.
void collective_destroy(struct collective **c);
// Makes the waits of every rank fail soon. Any thread.
static inline void collective_abort(struct collective *c, const char *why) { c->ops->abort(c, why); }
// Returns why a rank has aborted. NULL: no rank has, or the engine cannot know (NCCL). Any thread; never blocks.
const char *collective_aborted(struct collective *c);

// ---------------------------------------------------------------- the primitives
// N ranks, count elements of type dt. A call is in place if send is the rank's own block of recv.

static inline bool collective_is_grouped(int group, int size) { return group > 1 && group < size; }
void collective_grouped_enqueue(struct collective *c,
                                const struct collective_call *call);  // collective.c

static inline void collective_enqueue(struct collective *c, const struct collective_call *call) {
    assert(call->root >= 0 && call->root < c->size && call->peer >= 0 && call->peer < c->size);
    if (collective_is_grouped(c->group, c->size) && !call->team.count)
        collective_grouped_enqueue(c, call);
    else
        c->ops->enqueue(c, call);
}

// Sends the root's buf (count) to all ranks.
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

// recv (count) is the sum of the rank's blocks of all ranks' send (N*count). In place: recv is the rank's own block of
// send. With groups, send is overwritten with sums of a group.
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

// Sends buf (count) to rank `to`, which calls collective_recv.
static inline void collective_send(struct collective *c, struct stream *s, const void *buf, size_t count,
                                   enum dtype dt, int to) {
    assert(to != c->rank);
    collective_enqueue(c,
                       &(struct collective_call){COLLECTIVE_SEND, s, buf, NULL, count, dt, 0, to, 0, {0}, 0});
}

// Receives buf (count) from rank `from`, which calls collective_send.
static inline void collective_recv(struct collective *c, struct stream *s, void *buf, size_t count,
                                   enum dtype dt, int from) {
    assert(from != c->rank);
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_RECV, s, NULL, buf, count, dt, 0, from, 0, {0}, 0});
}

// The stream continues when the streams of all ranks have reached the barrier.
static inline void collective_barrier(struct collective *c, struct stream *s) {
    collective_enqueue(
        c, &(struct collective_call){COLLECTIVE_BARRIER, s, NULL, NULL, 0, DT_U8, 0, 0, 0, {0}, 0});
}

// ---------------------------------------------------------------- creating communicators
#define COLLECTIVE_CHANNELS 4  // independent communicators, 0 .. 3

// A kind of collectives: one row, in its engine's file.
struct collective_kind {
    const char *name;  // "local", "shm", "tcp", "mpi", "nccl"
    // world: the engine's own, for all channels. Returns NULL after logging.
    struct collective *(*create)(void *world, int rank, int channel, const struct collective_options *o);
    // Bytes of `staging` in which channels reduce blocks of up to max_count elements. NULL: none is needed.
    size_t (*staging_bytes)(int size, size_t max_count, enum dtype dt);
    bool on_host;             // every channel stages device memory in host memory, if the two differ
    bool ordered_16bit_only;  // REDUCE_NATIVE is refused for bf16 and fp16
    bool moves_by_library;    // all-gathers of all ranks are made by its library
};

// A rank's source of communicators, of any kind.
struct collective_source {
    const struct collective_kind *kind;
    void *world;  // NULL: for predictions only
    int rank, size;
    bool device_memory;  // the device's memory is not the host's
};
static inline struct collective *collective_create(const struct collective_source *s, int channel,
                                                   const struct collective_options *o) {
    return s->kind->create(s->world, s->rank, channel, o);
}
// Bytes of collective_options' memory: of channels that reduce blocks of up to max_count elements, and of every channel, in
// which calls run in few chunks: at most 1 MiB per block.
size_t collective_staging(const struct collective_source *s, size_t max_count, enum dtype dt);
size_t collective_host_staging(const struct collective_source *s, size_t max_count, enum dtype dt);

#endif
