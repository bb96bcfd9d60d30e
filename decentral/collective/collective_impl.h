// Code that the engines share: enqueuing of calls, staging, storage of errors, counting. An engine supplies `run`, which
// runs one call on the stream's thread and may block there. The device is idle meanwhile, unless the engine enqueues with
// stream_submit and orders its work there itself.
//
// Ownership   struct collective_impl is the first member of an engine's own struct, which owns it.
// Threads     Enqueuing: the rank's thread (one at a time). run: the thread of the stream. Errors: any.
// Memory      Records of calls are from a pool that grows to the longest queue so far and is then reused: in a steady
//             state nothing is allocated.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_IMPL_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "decentral/collective/collective_plan.h"

struct call_record;
struct call_block;
struct rank_liveness;
#define COLLECTIVE_ERROR_BYTES 512

struct collective_room {
    char *at;
    size_t bytes;
};

struct collective_impl {
    struct collective head;
    int channel;
    struct rank_liveness *lives;  // not owned; NULL: this engine does not know why ranks end
    // Runs a call on memory that the engine reaches; staging: for sums. Returns 0, or -1 after collective_impl_fail.
    int (*run)(struct collective_impl *c, const struct collective_call *call,
               const struct collective_room *staging);
    bool on_host;                          // `run` reaches only host memory: see collective_kind
    struct collective_room staging, host;  // host: in page-locked memory
    void (*enqueue)(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);  // stream_host
    pthread_mutex_t lock;       // guards the pool and the error's text until `failed`
    struct call_record *idle;   // records not in flight
    struct call_block *blocks;  // all records, to be freed
    atomic_bool failed;         // error is complete and no longer changes
    char error[COLLECTIVE_ERROR_BYTES];
};

// The caller has set channel, run, on_host and lives. Returns 0, or -1 after logging that the staging does not hold one
// element per block.
int collective_impl_init(struct collective_impl *c, const struct collective_ops *ops, int rank, int size,
                         const struct collective_options *o);
void collective_impl_fini(struct collective_impl *c);
// Keeps the text of the first failure. Returns -1. Logs nothing: the owner of the collective logs.
int collective_impl_fail(struct collective_impl *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
// The same, with the reason why all ranks end. what: the operation's name.
int collective_impl_fail_aborted(struct collective_impl *c, const char *what);
// Adds to the counters of one rank, as payload or control bytes.
void collective_count(struct wire_count *wire, bool control, size_t sent_bytes, size_t received_bytes);
// The same for bytes to and from one peer; also counts those that leave or enter the group.
void collective_count_peer(const struct collective *c, int peer, size_t sent_bytes, size_t received_bytes);

// Runs an ordered sum (OP_REDUCE) on the calling thread; none for a->n = 0. Returns 0, or -1 after
// collective_impl_fail.
int collective_sum(struct collective_impl *c, const struct reduce_args *a);
// collective_ops.enqueue of engines that use `run`.
void collective_impl_enqueue(struct collective *c, const struct collective_call *call);

#endif
