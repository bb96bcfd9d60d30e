// A worker's or server's part at the meeting of its job (shared/fabric/peer.h; what is said there: meeting.h).
//
//     member_come      first of all: from here on its process is alive in the eyes of the others, whatever it reads
//     member_find      waits until it is in: which epoch of the job is open
//     member_ready     it has all that it needs for it                     -->  the scheduler compares what it is of
//     member_starts    all are there: where the epoch goes on, and with whom
//     member_goes_on   all the time, also while it waits: whether the epoch, or the job, is over
//     member_anew      its epoch is over: the same process begins at the first line again
//     member_failed    last: it cannot go on
//
// Threads     Any.   Blocking   member_find alone.
#ifndef STARRING_PS_NET_MEMBER_H
#define STARRING_PS_NET_MEMBER_H

#include "ps/job/manifest.h"
#include "ps/job/ps.h"
#include "ps/job/timing.h"
#include "ps/net/clock.h"
#include "ps/net/link.h"
#include "ps/net/meeting.h"
#include "ps/net/net.h"
#include "shared/fabric/peer.h"

// The reason of a role that a signal ends; the others report it as "server 0: interrupted".
#define PS_INTERRUPTED "interrupted"

// A place where a job meets, "tcp://HOST:PORT", without the brackets of IPv6; "*" is any port, and any host. 0, or -1 after logging.
struct member_place {
    char host[256];
    int port;
};
int member_place(const char *address, struct member_place *out);
// A star's options of its meeting, those that all its processes have in common (topology_row.meet).
void member_meeting(const struct config *c, struct rendezvous_options *o);

// Opens the meeting, in the process that has the scheduler in it and is its only rank. open: without a key. NULL after logging.
struct rendezvous *member_open(const struct config *c, const struct member_place *at, bool open);
// To the meeting at o->scheduler of so many ranks (rendezvous_options.size), as role and o->rank. open: it has no key although
// the job has one. NULL after logging.
struct rendezvous *member_come(const struct ps_role_options *o, enum ps_role role, int ranks, bool open);
// Of a process that has come; nobody may answer until the deadline. scheduler: where that listens for rounds. 0, or -1 after logging.
int member_find(const struct ps_role_options *o, struct ps_identity *id, char scheduler[NET_ADDRESS_MAX]);
// endpoints: of a server, its shards, a line each (roster.h); else NULL.
void member_ready(const struct ps_role_options *o, const struct ps_identity *id, const struct manifest *m,
                  const char *endpoints);
// A line of who is waited for, now and then, of a role that people have started.
void member_say_waiting(const struct ps_role_options *o, struct waiting *w, const char *for_whom);
// 1: *out says how (roster_destroy frees what it holds), and id whether it joins; 0: not yet; -1 after logging.
int member_starts(const struct ps_role_options *o, struct ps_identity *id, int shards,
                  struct meeting_start *out);
// 0; -1 after logging. It does not return where the role begins anew, for the next epoch.
int member_goes_on(const struct ps_role_options *o, const struct ps_identity *id);
// The role begins anew, as the same process: it executes its program with its own arguments. So every epoch of a job starts from
// clean processes, and nothing has to undo half a step. The same holds as for a process that is killed and started again: threads
// end where they are, descriptors, mappings and what a GPU holds are given up by the kernel, files are as the last write left them.
// The number of the process stays: its launcher still waits for it, and a run directory that it has taken is its own.
// why: for people. Does not return where the process begins anew. -1 after logging: it was asked to leave meanwhile (o->stop), or
// there are no restarts. (How many lives a job has, the scheduler counts.)
int member_anew(const struct ps_role_options *o, const char *why);
// Whether the launcher of this role says why it has ended.
bool member_quoted(const struct ps_role_options *o);
// lost: what it lacks is a peer: a new epoch may help. The scheduler decides what becomes of the job, unless that has ended.
void member_failed(const struct ps_role_options *o, const struct ps_identity *id, bool lost, const char *why);
// A role ends with rc, which is returned. Where it has failed, and nobody has asked it to leave, the scheduler hears why.
int member_left(const struct ps_role_options *o, const struct ps_identity *id, int rc);

uint64_t ps_random_id(void);  // never 0
// Logs why the job is over for this role; -1. If a launcher has ended the job, it has printed the reason: its
// roles keep the text and print nothing.
int ps_fail(const char *why);
bool ps_was_interrupted(const char *why);  // it ends so
static inline bool ps_stopped(const _Atomic int *stop) { return stop && *stop; }
// Of a role that waits to begin: 0, or -1 after logging: it is to leave.
int member_interrupted(const struct ps_role_options *o);

#endif
