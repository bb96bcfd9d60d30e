// The epochs of a job. An epoch begins when all members are ready for it and ends with a death. The next one has
// another job number, so messages of an earlier epoch are recognized by their number and dropped.
//
//     epoch 1, job a   ready.. start | steps | a worker dies: it is over
//     epoch 2, job b   ready.. start (names the checkpoint) | steps ..
//
// Without restarts there is one epoch, and a death ends the job. Only scheduler_core.c decides what ends an epoch.
#ifndef STARRING_PS_SCHEDULER_EPOCHS_H
#define STARRING_PS_SCHEDULER_EPOCHS_H

#include "ps/net/wire.h"
#include "shared/launch/verdict.h"

// How a new epoch calls the scheduler's process. Members may be NULL if restarts is 0.
struct epoch_options {
    int restarts;     // deaths that a new epoch, or a new process of the dead rank, may follow; 0: none
    int used;         // of them, by earlier processes of the scheduler
    uint32_t first;   // number of the first epoch; 0 counts as 1
    int start;        // of the run's command (DIR/history.jsonl)
    const char *why;  // of the first epoch, if it follows a death; else NULL
    void *ctx;
    uint64_t (*job)(void *ctx);  // returns a new number, not 0
    // A member was lost by silence, or did not arrive: it may only be frozen, and must not run next to its
    // replacement. pid: 0 if it is not known.
    void (*lost)(void *ctx, int pid, const char *name);
    bool replaced;  // a launcher replaces a lost member. Else the user does, until the start's deadline
};

struct epochs {
    struct epoch_options o;
    uint32_t epoch;
    uint64_t job;
    struct restarts restarts;
    int64_t reached;          // steps decided in the last epoch that began; -1: not known
    char why[WIRE_TEXT_MAX];  // why this epoch has begun; "": it is the first
};

#endif
