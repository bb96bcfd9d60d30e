// The common part of the engines whose ranks are processes that send and receive (Open MPI, tcp). A call becomes the exchanges
// and ordered sums of its plan (collective_plan.h); what waits knows its deadline, and slow peers from dead ones. An engine
// supplies how messages move.
//
// Ownership   struct collective_peers is the first member of an engine's own struct, which owns it.
// Threads     All of it on the stream's thread.
// Staging     Reductions need it where the library does not add up: a channel created without any refuses them. Where device
//             memory is not the host's, every operation, reductions too, passes through host staging instead, which the
//             channels of one stream may share.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PEERS_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_PEERS_H

#include "decentral/collective/collective_impl.h"
#include "decentral/collective/rank_lives.h"

struct collective_peers;

struct peers_engine {
    // Starts m->transfers, one message or more each way. 0, or -1 after failing, with nothing under way.
    int (*begin)(struct collective_peers *m, enum collective_primitive p);
    // Waits until they are done, and counts them (peers_count). 0, or -1 after failing, with nothing under way.
    int (*end)(struct collective_peers *m, enum collective_primitive p);
    // Lets what is under way come on, between two slices of a sum; NULL: it does so by itself.
    void (*push)(struct collective_peers *m);
    // Says why all end to the other ranks; NULL: at the meeting.
    void (*tell)(struct collective_peers *m, const char *why);
    // The library's own sum; NULL: it has none, and integers are exchanged as all others are.
    int (*native)(struct collective_peers *m, const struct collective_call *c,
                  const struct collective_room *staging);
};

struct collective_peers {
    struct collective_impl impl;
    const struct peers_engine *engine;
    struct rank_lives *lives;  // the process's; not owned
    int channel;
    atomic_bool *broken;                   // of the process: calls fail from now on
    struct collective_room staging, host;  // host: page-locked memory; none: device memory is the host's
    struct stream *stream;                 // of the call under way; NULL: the main thread waits
    // Of the exchange under way; one is at most.
    struct collective_transfer *transfers;  // (size) the own entry is empty
    const void **inputs;                    // (size) of the sum under way
};

// 0, or -1 after logging: the staging given does not hold an element a block. The engine has filled in the rest.
int peers_init(struct collective_peers *m, const struct collective_ops *ops, int rank, int size, int channel,
               const struct collective_options *o);
void peers_fini(struct collective_peers *m);
int peers_run(struct collective_impl *impl, const struct collective_call *call);  // collective_impl.run
void peers_abort(struct collective *c, const char *why);                          // of collective_ops
const char *peers_aborted(struct collective *c);
// collective_kind.staging_bytes of these engines.
size_t peers_staging_bytes(int size, size_t max_count, enum dtype dt);

// Bytes of each transfer's message that begins at byte `at`, and has at most `most`, as done. A barrier's are no payload.
void peers_count(struct collective_peers *m, enum collective_primitive p, size_t at, size_t most);

// ---- waits. Keeps the error, marks the process's part as broken. -1.
int peers_fail(struct collective_peers *m, const char *what, const char *why);
// The same, and every rank is told that those in `ranks`, for people, are lost.
int peers_lose(struct collective_peers *m, const char *what, const char *why);
// -1 when all end, or the wait is in vain (rank_lives.h).
int peers_check(struct collective_peers *m, struct lives_wait *w);
// The main thread itself, or the device's stream, begins or ends to wait for others.
void peers_wait_begins(struct collective_peers *m);
void peers_wait_ends(struct collective_peers *m);

#endif
