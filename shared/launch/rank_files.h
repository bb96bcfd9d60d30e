// What ranks that others have started write of a run: all into rank 0's directory, which most of them see.
//
//     rank 0    leaves a file of a fresh name in DIR        a rank that sees it    writes into DIR as well
//     rank r    looks whether its own DIR has it            one that does not      writes into DIR/.rank-R.NUMBER, and at its end
//                                                                                  rank 0 takes what is small: reports, spans, records
//
// All ranks write a checkpoint together, so its folder has to be one: where it is not, the run ends before its first step, in a
// sentence that names the rank and its host. So it does where a rank does not see the checkpoint to go on from.
//
// Files that stand still are waited for, in words, as long as the rank that waits for them is alive.
//
// Threads   The main thread.   Errors    -1 after logging, and everybody's waits end (rendezvous_abort).
#ifndef STARRING_SHARED_LAUNCH_RANK_FILES_H
#define STARRING_SHARED_LAUNCH_RANK_FILES_H

#include "shared/launch/run.h"

// All ranks, before any of them writes: finds who sees DIR, rank 0's is taken (run_begin), and the job knows the checkpoint to go
// on from. Of a rank that does not see it config.out and job.dir name its own folder from now on. 1: nothing is left to train.
int rank_files_begin(struct run *r);
// All ranks, when what they have started has ended; status: with what. Behind it rank 0's DIR has what run_end merges.
void rank_files_end(struct run *r, int status);

#endif
