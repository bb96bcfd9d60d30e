// A star whose ranks others have started (torchrun, srun, mpirun): rank r's process is the launcher of worker r and of the servers
// that are laid beside it, rank 0's of the scheduler too. They agree through the rendezvous on who starts what, on addresses and
// on the key of the job, and tell each other what one launcher on one machine would know by itself.
//
//     rank 0     star/key          the job's key (shared/fabric/job_key.h), for the environment of every role
//                star/scheduler    where the scheduler listens; it keeps that address when it is started again
//                star/said/K       its lines to its launcher that concern the others too (ps/scheduler/scheduler.c), K = 0, 1, ..
//     rank r     star/dead/r/K     "dead PID WHY" of a child, for the scheduler
//
// Ownership   rank 0's rendezvous outlives it.   Threads   The launcher's alone.
// Blocking    star_ranks_open, star_ranks_scheduler: until the rendezvous' deadline; nothing else.
#ifndef STARRING_PS_STAR_RANKS_H
#define STARRING_PS_STAR_RANKS_H

#include <stdbool.h>

#include "shared/launch/run.h"

struct launcher;
struct star_ranks;

// Places the servers, shares the key, and makes parameter_server.bind an address of this machine that the others reach: loopback where
// there is one machine. Of a run that is not joined: one machine, whose launcher starts all. NULL after logging.
struct star_ranks *star_ranks_open(struct run *r);
bool star_ranks_starts_worker(const struct star_ranks *s, int worker);
bool star_ranks_starts_server(const struct star_ranks *s, int server);
// The address for --bind of a scheduler that this launcher starts.
const char *star_ranks_bind(const struct star_ranks *s);
// Rank 0: address is the scheduler's, and the others hear it; else it is written there. 0, or -1 after logging.
int star_ranks_scheduler(struct star_ranks *s, char *address, int size);

// ---- while it runs
// A line of the scheduler to rank 0's launcher, which the others hear where it concerns them.
void star_ranks_said(struct star_ranks *s, const char *line);
// A child of a rank other than 0 has died: the scheduler hears "dead PID WHY".
void star_ranks_dead(struct star_ranks *s, int pid, const char *why);
// Hands what the scheduler has said to this launcher, and of rank 0 the others' deaths to link, its socket to the scheduler; ends: as
// launch_options.outside. Why the job ends, or NULL.
const char *star_ranks_look(struct star_ranks *s, struct launcher *l, int link, const char *ends);
void star_ranks_close(struct star_ranks **s);

#endif
