// A process that watches over a run whose ranks live and die together: of every ring under mpirun, and, with --restart N, of
// local runs and of rings of threads. The command starts itself as a child, `train --life K ..`.
//
//     starring train --launch mpi ..           this process: signals on to the ranks, what they print to its own streams
//      ├─ mpirun, which the child becomes
//      │   └─ starring train --life 1 ..       the ranks
//      └─ starring-guard                       outlives all of them and cleans up (mpi_guard.h)
//
// However it ends, the exit status is that of any other launch: 0, 1, 2, or 128 + the signal that asked it to end. A rank
// that was killed, or is stopped beyond the deadline, is named in one message, everybody is ended, and nothing is left. With
// restarts a run of which a signal has killed the child or a rank, or whose ranks give up one that does not come (stop.h), is
// started again instead; a rank that says itself that it has failed ends it as ever.
//
// The child has a process group of its own, so that it gets each signal once, from here. It dies with this process. Ranks
// whose mpirun was killed become this process's children, and are gone before the next life begins.
#ifndef STARRING_SHARED_SUPERVISE_SUPERVISE_H
#define STARRING_SHARED_SUPERVISE_SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>

struct supervise_options {
    int restarts;  // 0: the first death is the end; only with mpirun
    int argc;
    char *const *argv;   // what follows "train"
    const char *dir;     // the run directory
    bool adds_out;       // argv does not name it
    bool checkpoints;    // are written
    const char *resume;  // of the configuration, for DIR/lives.jsonl; NULL: none
    int mpirun;          // the child becomes mpirun, with so many ranks; 0: it is the run
    double deadline_s;   // how long one of them may be stopped
};

// The run's exit status; EXIT_RUN_FAILED after logging where somebody was killed and no restart is left.
int supervise(const struct supervise_options *o);

// What the child of a supervisor was told, "K-JOB": which life it is, and of which job, a random number. A life after the
// first goes on with the run directory, which is its own. 0, or -1: it makes no sense.
int supervise_life(const char *text, int *life, uint64_t *job);

#endif
