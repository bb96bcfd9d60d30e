// What the implementations of collectives share: the enqueuing half of the eleven primitives, error
// storage and counting. An implementation supplies `run`, which carries out one call on the stream's
// thread and may block there; everything before that is common. The device is idle meanwhile, unless the
// implementation enqueues by stream_submit and orders what it does there itself.
//
// Ownership   struct collective_impl is the first member of an implementation's own struct, which owns it.
// Threads     Enqueuing: the rank's thread (one at a time). run: the thread of the stream. Errors: any.
// Memory      Records of calls come from a pool that grows to the deepest queue seen and is then reused:
//             nothing is allocated in a steady state.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_IMPL_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "decentral/collective/collective.h"

enum collective_op {
    COLLECTIVE_BROADCAST,
    COLLECTIVE_SCATTER,
    COLLECTIVE_REDUCE,
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_GATHER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_SEND,
    COLLECTIVE_RECV,
    COLLECTIVE_BARRIER,
    COLLECTIVE_OPS
};
const char *collective_op_name(enum collective_op op);  // "broadcast", ...

// One call as enqueued. count and dt must agree on all ranks, and so must op and root.
struct collective_call {
    enum collective_op op;
    enum dtype dt;
    int root;          // root; the peer of send and recv; -1 where there is none
    size_t count;      // elements, as in struct collective_ops
    const void *send;  // NULL where the rank sends nothing
    void *recv;        // NULL where the rank receives nothing
};

struct call_record;
struct call_block;
#define COLLECTIVE_ERROR_BYTES 512

struct collective_impl {
    struct collective head;
    int (*run)(struct collective_impl *c, struct stream *s,
               const struct collective_call *call);  // 0, or -1 after ..._fail
    void (*enqueue)(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);  // stream_host
    pthread_mutex_t lock;       // guards the pool and the error's text until `failed`
    struct call_record *idle;   // records not in flight
    struct call_block *blocks;  // all records, for the end
    atomic_bool failed;         // error is complete and no longer changes
    char error[COLLECTIVE_ERROR_BYTES];
};

void collective_impl_init(struct collective_impl *c, const struct collective_ops *ops, int rank, int size,
                          const struct collective_options *o);
void collective_impl_fini(struct collective_impl *c);
// Keeps the text of the first failure; always -1. Logs nothing: whoever owns the collective does.
int collective_impl_fail(struct collective_impl *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
// Adds to the counters of one rank, as payload or control bytes.
void collective_count(struct wire_count *wire, bool control, size_t sent_bytes, size_t received_bytes);
// "3 and 5": ranks for which missing[i] is set, cut short when they are many. Returns buf.
const char *collective_rank_list(char *buf, size_t buf_bytes, const bool *missing, int size);

// Piece i of count elements cut into size nearly equal ones: [begin(i), begin(i+1)).
static inline size_t collective_piece_begin(size_t count, int size, int i) {
    return count / (size_t)size * (size_t)i + count % (size_t)size * (size_t)i / (size_t)size;
}
// out(n) = sum of inputs in rank order (OP_REDUCE) on the calling thread; nothing for n = 0.
int collective_sum(struct collective_impl *c, void *out, const void *const *inputs, int64_t n, enum dtype dt);

// The enqueuing half; an implementation's table points to these.
void collective_enqueue_broadcast(struct collective *c, struct stream *s, void *buf, size_t count,
                                  enum dtype dt, int root);
void collective_enqueue_scatter(struct collective *c, struct stream *s, const void *send, void *recv,
                                size_t count, enum dtype dt, int root);
void collective_enqueue_reduce(struct collective *c, struct stream *s, const void *send, void *recv,
                               size_t count, enum dtype dt, int root);
void collective_enqueue_all_reduce(struct collective *c, struct stream *s, const void *send, void *recv,
                                   size_t count, enum dtype dt);
void collective_enqueue_gather(struct collective *c, struct stream *s, const void *send, void *recv,
                               size_t count, enum dtype dt, int root);
void collective_enqueue_all_gather(struct collective *c, struct stream *s, const void *send, void *recv,
                                   size_t count, enum dtype dt);
void collective_enqueue_reduce_scatter(struct collective *c, struct stream *s, const void *send, void *recv,
                                       size_t count, enum dtype dt);
void collective_enqueue_all_to_all(struct collective *c, struct stream *s, const void *send, void *recv,
                                   size_t count, enum dtype dt);
void collective_enqueue_send(struct collective *c, struct stream *s, const void *buf, size_t count,
                             enum dtype dt, int to);
void collective_enqueue_recv(struct collective *c, struct stream *s, void *buf, size_t count, enum dtype dt,
                             int from);
void collective_enqueue_barrier(struct collective *c, struct stream *s);

#endif
