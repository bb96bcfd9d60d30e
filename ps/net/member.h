// How a worker or server takes part in the rendezvous of its job (shared/fabric/rendezvous.h; what is sent there: notices.h).
//
//     member_enter      the first call: from here on its process counts as alive, whatever it reads
//     member_find      waits until it is admitted: which epoch of the job is open
//     member_ready     it has all that it needs for the epoch              -->  the scheduler compares its identity
//     member_starts    all are ready: what the epoch resumes from, and with which members
//     member_goes_on   called all the time, also while it waits: whether the epoch, or the job, is over
//     member_exec_again      its epoch is over: the same process executes its program again
//     member_failed    the last call: it cannot continue
//
// Threads     Any.   Blocking   Only member_find.
#ifndef STARRING_PS_NET_MEMBER_H
#define STARRING_PS_NET_MEMBER_H

#include "ps/job/manifest.h"
#include "ps/job/ps.h"
#include "ps/job/timing.h"
#include "ps/net/clock.h"
#include "ps/net/link.h"
#include "ps/net/net.h"
#include "ps/net/notices.h"
#include "shared/fabric/rendezvous.h"

// The reason of a role that a signal ends; the other roles report it as "server 0: interrupted".
#define PS_INTERRUPTED "interrupted"

// Sets the rendezvous options of a star that all its processes have in common (topology_row.meet).
void member_rendezvous_options(const struct config *c, struct rendezvous_options *o);

// Opens the rendezvous, in the process of the scheduler, its only rank. open: without a key. Returns NULL after
// logging.
struct rendezvous *member_open(const struct config *c, const struct endpoint *at, bool open);
// Enters the rendezvous at o->scheduler with so many ranks (rendezvous_options.size), as role and o->rank. open: it has
// no key although the job has one. Returns NULL after logging.
struct rendezvous *member_enter(const struct ps_role_options *o, enum ps_role role, int ranks, bool open);
// For a process that has entered. Blocks for at most the deadline if there is no answer. scheduler receives the
// scheduler's address for rounds. Returns 0, or -1 after logging.
int member_find(const struct ps_role_options *o, struct ps_identity *id, char scheduler[FABRIC_ADDRESS_MAX]);
// endpoints: a server's shards, one line each (notices.h); else NULL.
void member_ready(const struct ps_role_options *o, const struct ps_identity *id, const struct manifest *m,
                  const char *endpoints);
// Prints from time to time which ranks are waited for, if a user has started the role.
void member_log_waiting(const struct ps_role_options *o, struct waiting *w, const char *for_whom);
// Returns 1 with *out (roster_destroy frees its roster) and whether the worker joins in id; 0: not yet; -1 after
// logging.
int member_starts(const struct ps_role_options *o, struct ps_identity *id, int shards,
                  struct notice_start *out);
// Returns 0; -1 after logging. Does not return if the role executes its program again, for the next epoch.
int member_goes_on(const struct ps_role_options *o, const struct ps_identity *id);
// The role starts again as the same process: it executes its program with its own arguments. So every epoch of a job
// starts from clean processes, and no code has to undo half a step. The effect is that of killing the process and
// starting it again: threads end where they are, and files remain as the last write left them. The kernel frees
// descriptors, mappings and memory on the GPU. The pid does not change: its launcher still waits for it, and a run
// directory that it has taken is its own. why: printed. Does not return if the program is executed. Returns -1 after
// logging if the role was asked to leave meanwhile (o->stop), or there are no restarts. (The scheduler counts the
// restarts of a job.)
int member_exec_again(const struct ps_role_options *o, const char *why);
// Whether this role's launcher logs why it has ended.
bool member_launcher_logs(const struct ps_role_options *o);
// lost: a peer is missing, so a new epoch may help. The scheduler decides what happens to the job, unless that has
// ended.
void member_failed(const struct ps_role_options *o, const struct ps_identity *id, bool lost, const char *why);
// A role ends with rc, which is returned. If it has failed, and was not asked to leave, the scheduler learns why.
int member_left(const struct ps_role_options *o, const struct ps_identity *id, int rc);

uint64_t ps_random_id(void);  // Returns a random number, never 0.
// Logs why the job is over for this role; returns -1. If a launcher has ended the job, it has printed the reason: its
// roles keep the text and print nothing.
int ps_fail(const char *why);
bool ps_was_interrupted(const char *why);  // Whether the reason ends with PS_INTERRUPTED.
static inline bool ps_stopped(const _Atomic int *stop) { return stop && *stop; }
// For a role that waits for the start. Returns 0, or -1 after logging if it must leave.
int member_interrupted(const struct ps_role_options *o);

#endif
