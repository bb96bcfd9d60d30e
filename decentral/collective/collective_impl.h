// Code that the engines share: enqueuing of calls, storage of errors, counting. An engine supplies `run`, which runs
// one call on the stream's thread and may block there. The device is idle meanwhile, unless the engine enqueues with
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
#define COLLECTIVE_ERROR_BYTES 512

struct collective_impl {
    struct collective head;
    int (*run)(struct collective_impl *c, const struct collective_call *call);  // 0, or -1 after ..._fail
    void (*enqueue)(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);  // stream_host
    pthread_mutex_t lock;       // guards the pool and the error's text until `failed`
    struct call_record *idle;   // records not in flight
    struct call_block *blocks;  // all records, to be freed
    atomic_bool failed;         // error is complete and no longer changes
    char error[COLLECTIVE_ERROR_BYTES];
};

void collective_impl_init(struct collective_impl *c, const struct collective_ops *ops, int rank, int size,
                          const struct collective_options *o);
void collective_impl_fini(struct collective_impl *c);
// Keeps the text of the first failure. Returns -1. Logs nothing: the owner of the collective logs.
int collective_impl_fail(struct collective_impl *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
// Adds to the counters of one rank, as payload or control bytes.
void collective_count(struct wire_count *wire, bool control, size_t sent_bytes, size_t received_bytes);
// The same for bytes to and from one peer; also counts those that leave or enter the group.
void collective_count_peer(const struct collective *c, int peer, size_t sent_bytes, size_t received_bytes);
// Writes the ranks for which missing[i] is set to buf: "3, 5". A list that does not fit ends in "...". Returns buf.
const char *collective_rank_list(char *buf, size_t buf_bytes, const bool *missing, int size);

// Runs an ordered sum (OP_REDUCE) on the calling thread; none for a->n = 0. Returns 0, or -1 after
// collective_impl_fail.
int collective_sum(struct collective_impl *c, const struct reduce_args *a);
// Runs a call on device memory that is not the host's: copies each block chunk by chunk to host memory and calls `run`
// there. host is page-locked; run also gets the memory that a chunk leaves free (2*size blocks are enough for any
// call). Called in a host function of the call's stream.
//
//     host | blocks to send | blocks received | rest |
//
struct collective_room {
    char *at;
    size_t bytes;
};
int collective_staged(struct collective_impl *c, const struct collective_call *call,
                      const struct collective_room *host,
                      int (*run)(struct collective_impl *c, const struct collective_call *call,
                                 const struct collective_room *rest));
// Returns the bytes of page-locked memory with which calls of max_count elements per block run in few chunks: at most
// 1 MiB per block.
size_t collective_host_bytes(int size, size_t max_count, enum dtype dt);
// collective_ops.enqueue of engines that use `run`.
void collective_impl_enqueue(struct collective *c, const struct collective_call *call);

#endif
