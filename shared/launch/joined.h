// A run whose ranks were started by another program (torchrun, srun, mpirun), each as a process, from rendezvous to
// end.
//
//     run_join     all join the rendezvous (rendezvous.h), and check that they see the run directory, which rank 0 begins
//     ...          the rank trains, or starts the processes that do
//     run_part all ranks leave the rendezvous
//     run_leave    rank 0 ends the run
//
// All ranks write into rank 0's directory if they see it:
//
//     rank 0    creates a file with a fresh name in DIR    a rank that sees it  writes into DIR too
//     rank r    looks for that file in its own DIR         one that does not    writes into DIR/.rank-R.NUMBER
//                                                                               (joined.c)
//
// All ranks write a checkpoint together, so they must share its folder. If one does not see it, the run ends before
// its first step, with a message that names the rank and its host. The same happens if a rank does not see the
// checkpoint to resume from.
#ifndef STARRING_SHARED_LAUNCH_JOINED_H
#define STARRING_SHARED_LAUNCH_JOINED_H

#include "shared/launch/run.h"

// Returns whether this process is one of several ranks that another program has started and that join a rendezvous.
// Ranks that a launcher of this program restarts (train --life) do not: the launcher owns their run, and they reach
// each other only over MPI.
bool run_meets(const struct run *r);
// Blocks until all ranks have joined and rank 0 has begun the run. After that config.out, job.dir and job.ranks_here
// are set. Returns 0, or -1 if nothing is left to do, after logging: *status receives the program's exit status.
int run_join(struct run *r, int *status);
// The part of run_join after the rendezvous, before any rank writes. It finds which ranks see DIR; rank 0 begins the
// run (run_begin); job.resume becomes the checkpoint to resume from. On a rank that does not see DIR, config.out and
// job.dir become its own folder. Returns 0; 1: nothing is left to train; -1 after logging and ending all ranks' waits
// (rendezvous_abort).
int run_begin_together(struct run *r);
// Called by all ranks when their training has ended; status: its result. A rank with a folder of its own sends rank 0 its
// small files: reports, spans, records. After that, rank 0's DIR has what run_end merges. Errors end the waits of all
// ranks (rendezvous_abort).
void rank_files_end(struct run *r, int status);
// Returns the rank's exit status; it is `status` if that is not 0. A failure ends the waits of the other ranks, with
// the last logged reason. If a rank or rank 0 is lost during this call, a job that had succeeded so far fails.
int run_part(struct run *r, int status);
// After run_part. status and number: as of run_end. Returns the program's exit status.
int run_leave(struct run *r, int status, int number);

#endif
