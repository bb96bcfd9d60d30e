// A run whose ranks others have started, each in a process of its own (torchrun, srun, mpirun): from their meeting to the end.
//
//     run_join     all meet (peer.h), and know whether they see the run directory (rank_files.h), which rank 0 begins
//     ...          the rank trains, or starts what does
//     run_part     all say goodbye
//     run_leave    rank 0 ends the run
#ifndef STARRING_SHARED_LAUNCH_JOINED_H
#define STARRING_SHARED_LAUNCH_JOINED_H

#include "shared/launch/run.h"

// Whether this process is one of several ranks that meet in the rendezvous: all that others have started. Those of a run that a
// launcher of this program starts again and again (train --life) have it for their run, and mpirun alone between them.
bool run_meets(const struct run *r);
// Blocks until all ranks are there and rank 0 has begun the run: config.out, job.dir and job.ranks_here are known then. 0, or -1
// where nothing is left to do, as was said: *status is the program's exit status.
int run_join(struct run *r, int *status);
// The rank's exit status, status where it is not 0: with one the others' waits end, for the reason that was logged last. A rank
// that is missed then, or rank 0, has the job fail that went well so far.
int run_part(struct run *r, int status);
// Behind it. status and number as of run_end. The program's exit status.
int run_leave(struct run *r, int status, int number);

#endif
