// The shared code of the engines whose ranks are processes that send and receive (Open MPI, tcp). A call becomes the
// exchanges and ordered sums of its plan (collective_plan.h). Waits have a deadline, and distinguish slow peers from
// dead ones. An engine supplies the transfer of messages.
//
// Ownership   struct collective_peers is the first member of an engine's own struct, which owns it.
// Threads     All calls on the stream's thread.
// Staging     Reductions need it unless the library sums: a channel that was created without staging refuses them. If
//             device memory is not the host's, every operation, reductions too, uses host staging instead
//             (collective_impl.h), which the channels of one stream may share.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PEERS_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PEERS_H

#include "decentral/collective/collective_impl.h"
#include "decentral/collective/rank_liveness.h"

struct collective_peers;

struct peers_engine {
    // Starts m->transfers, one or more messages each way. Returns 0, or -1 after failing, with nothing in flight.
    int (*begin)(struct collective_peers *m, enum collective_primitive p);
    // Waits until they are done, and counts them (peers_count). Returns 0, or -1 after failing, with nothing in
    // flight.
    int (*end)(struct collective_peers *m, enum collective_primitive p);
    // Lets messages in flight progress, between two slices of a sum; NULL: they progress by themselves.
    void (*push)(struct collective_peers *m);
    // Sends the other ranks the reason why all end; NULL: it is sent at the rendezvous.
    void (*send_reason)(struct collective_peers *m, const char *why);
    // The library's own reduction; NULL: it has none, and integers are exchanged like all other types.
    int (*native)(struct collective_peers *m, const struct collective_call *c,
                  const struct collective_room *staging);
};

struct collective_peers {
    struct collective_impl impl;
    const struct peers_engine *engine;
    atomic_bool *broken;    // the process's connections are broken: all calls fail
    struct stream *stream;  // the stream of the call in flight; NULL: the main thread waits
    // The exchange in flight; at most one.
    struct collective_transfer *transfers;  // (size) the own entry is empty
    const void **inputs;                    // (size) the inputs of the current sum
};

// See collective_impl_init. The caller has also set engine and broken.
int peers_init(struct collective_peers *m, const struct collective_ops *ops, int rank, int size,
               const struct collective_options *o);
void peers_fini(struct collective_peers *m);
void peers_abort(struct collective *c, const char *why);  // collective_ops.abort
// collective_kind.staging_bytes of these engines.
size_t peers_staging_bytes(int size, size_t max_count, enum dtype dt);

// Counts the messages of all transfers from byte `at` on, at most `most` bytes each, as done. Those of a barrier are
// not counted.
void peers_count(struct collective_peers *m, enum collective_primitive p, size_t at, size_t most);

// ---- waits. peers_fail keeps the error and marks the process's connections as broken. Returns -1.
int peers_fail(struct collective_peers *m, const char *what, const char *why);
// The same; also ends all ranks: a rank is lost. why names it.
int peers_lose(struct collective_peers *m, const char *what, const char *why);
// Returns -1 if all ranks end, or if the wait cannot succeed (rank_liveness.h).
int peers_check(struct collective_peers *m, struct liveness_wait *w);
// Called when the main thread, or the device's stream, begins or ends a wait for other ranks.
void peers_wait_begins(struct collective_peers *m);
void peers_wait_ends(struct collective_peers *m);

#endif
