// The rendezvous of a job's processes, on one host or several: one TCP address, where rank 0 listens. They
// learn there which rank is on which host, exchange small values by name, and detect which of them has gone.
//
//     rank 0    rendezvous_open ... listens at host:port, and is a member as the others are
//     rank r    rendezvous_open ... joins with its rank, host and identity; returns when all have joined
//               rendezvous_put / _get / _allgather    values by name, sent in pieces (meet.h)
//               rendezvous_close                     says goodbye; rank 0 waits until all have, or until one is lost
//
// Trust       Without a key every process that reaches the port may join, as with torchrun's store. With the job's key
//             in the environment (shared/fabric/job_key.h) all is encrypted, and only processes with the key may join.
// Ownership   One struct rendezvous per process. Its own thread answers the others (rank 0) and detects who has gone.
//             It touches no file.
// Threads     All calls from any thread.
// Blocking    _open, _wait, _get, _allgather, _close: until their deadline. No other call blocks. The deadline of _open
//             starts again with each rank that joins for the first time: at most as many deadlines as there are ranks.
// Errors      -1 or NULL after logging one sentence that names host and port, the rank and what to do.
#ifndef STARRING_SHARED_FABRIC_RENDEZVOUS_H
#define STARRING_SHARED_FABRIC_RENDEZVOUS_H

#include "shared/fabric/registry.h"

struct rendezvous;

// A role member may join at any time, and this returns when it has joined. A role member that is stopped prints
// nothing (error_last has the reason).
struct rendezvous *rendezvous_open(const struct rendezvous_options *o);
// After rendezvous_open with options.no_wait: waits for what rendezvous_open would have waited for. stop: as the
// option. Returns 0, or -1 after logging.
int rendezvous_wait(struct rendezvous *r, const _Atomic int *stop);
// Returns the number of ranks, which is also the number of the first role member.
int rendezvous_size(const struct rendezvous *r);
int rendezvous_port(const struct rendezvous *r);
// The descriptors that a thread with its own descriptor table needs for calls of the rendezvous
// (shared/core/background.h).
void rendezvous_descriptors(const struct rendezvous *r, int out[2]);
// Returns the address at which other processes reach this one.
const char *rendezvous_address(const struct rendezvous *r);
// Returns this process's random number, never 0.
uint64_t rendezvous_incarnation(const struct rendezvous *r);
// turns: the counter of a thread that must make progress (shared/time/poll_clock.h, poll_watch_idle_s). If it does not
// change for more than deadline_s, this process sends no heartbeat. NULL: none; rendezvous_close removes it.
void rendezvous_watch_progress(struct rendezvous *r, const _Atomic uint64_t *turns);
// is_at returns what this process does now, 0 to 255. Each heartbeat carries this value, and a get of MEET_HEARTBEATS
// returns the values of all ranks. is_at is called on the rendezvous' thread with the rendezvous locked, and must not
// call the rendezvous. NULL: removes it.
void rendezvous_set_activity(struct rendezvous *r, int (*is_at)(void *ctx), void *ctx);
// Seconds between two heartbeats, if processes wait for each other up to that deadline.
double rendezvous_heartbeat_s(double deadline_s);
// Only for ranks:
const struct rendezvous_member *rendezvous_member(const struct rendezvous *r, int rank);
int rendezvous_machines(const struct rendezvous *r);

// Stores bytes of data under the name, for all members; a second put replaces the value.
int rendezvous_put(struct rendezvous *r, const char *name, const void *data, size_t bytes);
// Removes a name that no member needs any more; its last reader or its writer calls this.
int rendezvous_drop(struct rendezvous *r, const char *name);
// Waits until the name exists. Returns its value, malloc'd, with a closing zero that is not counted. Returns NULL
// after logging, also if a member is lost during the wait. After a loss, later calls still return names that exist.
void *rendezvous_get(struct rendezvous *r, const char *name, size_t *bytes);
// As rendezvous_get, but it never blocks. Returns NULL without logging while the name does not exist; the name is
// requested meanwhile.
void *rendezvous_try_get(struct rendezvous *r, const char *name, size_t *bytes);
// An allgather, called by all ranks in the same order: `bytes` bytes of each rank into all (size x bytes), in rank
// order.
int rendezvous_allgather(struct rendezvous *r, const void *mine, size_t bytes, void *all);

// ---- between member 0's process and the others
// To member 0's process: each message arrives once, and those of one member in order (MEMBER_SENT).
int rendezvous_send(struct rendezvous *r, const char *word, const void *data, size_t bytes);
// Only for member 0, if there are roles. The descriptor is readable while there is news. rendezvous_news takes the
// oldest item, or returns false. News concerns ranks too. Neither call blocks.
int rendezvous_news_fd(const struct rendezvous *r);
bool rendezvous_news(struct rendezvous *r, struct member_news *out);
// Only for member 0: ends the job for that process of a role member. The process receives the reason
// (rendezvous_end_reason), and its entry is free. For an incarnation that has already ended only the reason changes.
void rendezvous_end_process(struct rendezvous *r, int member, uint64_t incarnation, const char *why);

// The first rank that has gone without a goodbye; -1: none. Never blocks.
int rendezvous_lost(struct rendezvous *r);
bool rendezvous_is_lost(struct rendezvous *r, int rank);  // Whether this rank has gone without a goodbye.
// Why the job cannot continue: rank 0 has gone, a rank has aborted, or rank 0 has lost this one. NULL: it can
// continue. Never blocks. The rendezvous owns the text.
const char *rendezvous_end_reason(struct rendezvous *r);
enum meet_end rendezvous_end_kind(struct rendezvous *r);  // Returns the same as an enum.
// Seconds since the last message of member 0, on this process's poll clock.
double rendezvous_silent_s(struct rendezvous *r);
// Calls act once, on the rendezvous' thread, when the first member is lost or the job ends. why: a sentence about it.
void rendezvous_on_loss(struct rendezvous *r, void (*act)(void *ctx, const char *why), void *ctx);
// This rank aborts the job: the waits of all members end with `why`. A role member reports its own failure in the same
// way.
void rendezvous_abort(struct rendezvous *r, const char *why);
// Says goodbye. Returns 0, or -1 after logging that rank 0 did not acknowledge it, or that a rank has gone without one
// or has aborted. A rank that has itself aborted logs nothing more, nor does a role member for which the job has
// ended. Member 0 gives the roles ROLES_LEAVE_S to leave.
int rendezvous_close(struct rendezvous **r);

#endif
