// The ranks of a run as processes that this one starts, watches, stops and starts again: this process begins the run's
// directory and ends it, its children train, `train --life K ..` with the same words.
//
//     starring train --topology zero:2 ..        this process: signals on to the ranks; names who dies
//      ├─ starring train --life 1 ..             rank 0
//      └─ starring train --life 1 ..             rank 1
//
// They live and die together. One that was killed, or is stopped beyond the deadline, is named in one message and the others
// are ended at once; with --restart all are started again, from the last checkpoint. One that says itself that it has failed
// ends the run. So with --restart are local runs and ranks that are threads, of which one child is the whole run, and mpirun.
//
// This process is the first of a meeting (shared/fabric/peer.h), its children are the others: they say there why they have failed,
// and hear why all end. Deaths are told there too, and what becomes of the job is decided here (verdict.h).
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_RANKS_H
#define STARRING_SHARED_LAUNCH_LAUNCH_RANKS_H

#include "shared/launch/run.h"

// Whether this command starts others for the run, which train it: where ranks are processes, or it may be started again.
bool launch_ranks_needed(const struct run *r);
// The run as a whole. argv: what followed "train". The program's exit status.
int launch_ranks(struct run *r, int argc, char *const *argv);

#endif
