// A star whose ranks others have started (torchrun, srun, mpirun): rank r's process is the launcher of worker r and of the servers
// that are laid beside it; rank 0's has the scheduler in it. They agree through the rendezvous on who starts what, on addresses and
// on the key of the job, and tell each other what one launcher on one machine would know by itself.
//
//     rank 0     star/key          the job's key (shared/fabric/job_key.h), for the environment of every role
//                star/scheduler    where the scheduler listens
//                star/said/K       a verdict of the scheduler's (shared/launch/verdict.h), K = 0, 1, ..
//     rank r     star/dead/r/K     a death of a child, for the scheduler
//
// Ownership   rank 0's rendezvous outlives it.   Threads   The launcher's alone.
// Blocking    star_ranks_open, star_ranks_scheduler: until the rendezvous' deadline; nothing else.
#ifndef STARRING_PS_STAR_RANKS_H
#define STARRING_PS_STAR_RANKS_H

#include <stdbool.h>

#include "shared/launch/run.h"
#include "shared/launch/verdict.h"

struct star_ranks;

// Places the servers, shares the key, and makes parameter_server.bind an address of this machine that the others reach: loopback where
// there is one machine. Of a run that is not joined: one machine, whose launcher starts all. NULL after logging.
struct star_ranks *star_ranks_open(struct run *r);
bool star_ranks_starts_worker(const struct star_ranks *s, int worker);
bool star_ranks_starts_server(const struct star_ranks *s, int server);
// Where a scheduler that this launcher starts listens.
const char *star_ranks_bind(const struct star_ranks *s);
// Rank 0: address is the scheduler's, and the others hear it; else it is written there. 0, or -1 after logging.
int star_ranks_scheduler(struct star_ranks *s, char *address, int size);

// ---- while it runs
// What the scheduler has said to rank 0's launcher: the others hear it. Of another rank: nothing.
void star_ranks_said(struct star_ranks *s, const struct verdict *v);
// A child of a rank other than 0 has died: the scheduler hears it.
void star_ranks_dead(struct star_ranks *s, const struct death *d);
// What the others have said since it was asked last: to rank 0 a death, to another rank a verdict. False: nothing more.
bool star_ranks_death(struct star_ranks *s, struct death *out);
bool star_ranks_verdict(struct star_ranks *s, struct verdict *out);
// Why the job ends, as the others know; NULL: it goes on. ends: as launch_options.outside.
const char *star_ranks_ends(struct star_ranks *s, const char *ends);
void star_ranks_close(struct star_ranks **s);

#endif
