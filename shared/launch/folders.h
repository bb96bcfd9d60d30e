// The run directory of ranks that others have started (rendezvous.h). Where all of them see one folder, rank 0's, there is
// nothing to do. Else each folder has a leader, the lowest rank that sees it, and the leaders hand rank 0 what is small:
//
//     a leader's DIR                                    rank 0's DIR
//     ranks/*, arrivals.*, updates.jsonl     ---------> the same, at the end: before the reports are merged
//     checkpoints: a sidecar, and its host   ---------> so that worker 0 commits without seeing the part
//     checkpoints/step-N/manifest.json       <--------- when it has; it says on which host each part is
//     snapshots: sidecar and part            ---------> they are evaluated there
//
// What is big stays where it was written. A checkpoint that a run goes on from is whole in each folder before anybody opens
// it: the parts that a folder lacks come from the one that has them.
//
// Files that stand still are waited for, in words, as long as the rank that waits for them is alive.
//
// Threads   One of its own in each leader while the run lasts. The functions are the main thread's.
// Errors    -1 after logging, and everybody's waits end (rendezvous_abort).
#ifndef STARRING_SHARED_LAUNCH_FOLDERS_H
#define STARRING_SHARED_LAUNCH_FOLDERS_H

#include "shared/launch/rendezvous.h"
#include "shared/launch/run.h"

struct folders;

// All ranks, before any of them writes to its DIR: finds out who shares one, brings the checkpoint to go on from where it is
// lacking, and takes the directories: rank 0's is run_begin's.
struct folders *folders_begin(struct run *r, struct rendezvous *meeting);
bool folders_one(const struct folders *f);   // all ranks see one folder
bool folders_over(const struct folders *f);  // nothing is left to train: rank 0 shows the run
// All ranks, when what they have started has ended; status: with what. Behind it rank 0's DIR has what run_end merges.
void folders_end(struct folders **f, int status);

#endif
