// Starts the ranks of a run as child processes, watches them, stops them and restarts them. This process begins and
// ends the run's directory; its children train, as `train --life K ..` with the same words.
//
//     starring train --topology zero:2 ..        this process: passes signals on to the ranks; names a rank that dies
//      ├─ starring train --life 1 ..             rank 0
//      └─ starring train --life 1 ..             rank 1
//
// If one rank is killed, or is stopped beyond the deadline, one message names it and the others are ended at once.
// With --restart all are restarted from the last checkpoint (resume_after_restart in train_command.c); each start of
// all ranks is one life of the run. A rank that exits with a failure ends the run. With --restart the same holds for
// local runs, for ranks that are threads (one child is the whole run), and for mpirun.
//
// This process is member 0 of a rendezvous (shared/fabric/rendezvous.h), and its children have its only role. They
// report there why they failed, and receive the reason why all end. Deaths are reported there too, and this process
// decides what follows (verdict.h).
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_RANKS_H
#define STARRING_SHARED_LAUNCH_LAUNCH_RANKS_H

#include "shared/launch/run.h"

// Returns whether this command starts child processes that train: if ranks are processes, or if the run may be
// restarted.
bool launch_ranks_needed(const struct run *r);
// Runs it. argv: the words after "train". Returns the program's exit status.
int launch_ranks(struct run *r, int argc, char *const *argv);

// --launch mpi outside mpirun: becomes `mpirun -n N starring train <the same words>`.
// argv: the words after "train"; they, or the configuration, name the run directory. Replaces this process. Returns -1
// after logging only if mpirun cannot be started.
int launch_mpi(const struct config *c, int argc, char *const *argv);

#endif
