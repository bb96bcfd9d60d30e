// A run whose ranks others have started, each in a process of its own (torchrun, srun, mpirun): from their meeting to the end.
//
//     run_join     all meet (peer.h), and know whether they see the run directory, which rank 0 begins
//     ...          the rank trains, or starts what does
//     run_part     all say goodbye
//     run_leave    rank 0 ends the run
//
// All write into rank 0's directory, which most of them see:
//
//     rank 0    leaves a file of a fresh name in DIR        a rank that sees it    writes into DIR as well
//     rank r    looks whether its own DIR has it            one that does not      writes into DIR/.rank-R.NUMBER (rank_files.h)
//
// All ranks write a checkpoint together, so its folder has to be one: where it is not, the run ends before its first step, in a
// sentence that names the rank and its host. So it does where a rank does not see the checkpoint to go on from.
#ifndef STARRING_SHARED_LAUNCH_JOINED_H
#define STARRING_SHARED_LAUNCH_JOINED_H

#include "shared/launch/run.h"

// Whether this process is one of several ranks that meet in the rendezvous: all that others have started. Those of a run that a
// launcher of this program starts again and again (train --life) have it for their run, and mpirun alone between them.
bool run_meets(const struct run *r);
// Blocks until all ranks are there and rank 0 has begun the run: config.out, job.dir and job.ranks_here are known then. 0, or -1
// where nothing is left to do, as was said: *status is the program's exit status.
int run_join(struct run *r, int *status);
// Of that, behind the meeting, before any rank writes: finds who sees DIR, rank 0's is taken (run_begin), and the job knows the
// checkpoint to go on from. Of a rank that does not see it config.out and job.dir name its own folder from now on. 1: nothing is left
// to train. -1 after logging: everybody's waits end (rendezvous_abort).
int run_begin_together(struct run *r);
// The rank's exit status, status where it is not 0: with one the others' waits end, for the reason that was logged last. A rank
// that is missed then, or rank 0, has the job fail that went well so far.
int run_part(struct run *r, int status);
// Behind it. status and number as of run_end. The program's exit status.
int run_leave(struct run *r, int status, int number);

#endif
