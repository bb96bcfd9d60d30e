// The lives of a job. An epoch begins when everybody is ready for it and ends with a death; the next one has another job
// number, so that what was sent in an earlier one is known by its number and counts nowhere.
//
//     epoch 1, job a   ready.. start | steps | a worker dies: it is over
//     epoch 2, job b   ready.. start (names the checkpoint) | steps ..
//
// Without restarts there is one epoch, and a death is the job's end. What ends one is decided in scheduler_core.c alone.
#ifndef STARRING_PS_SCHEDULER_EPOCHS_H
#define STARRING_PS_SCHEDULER_EPOCHS_H

#include "ps/net/wire.h"
#include "shared/launch/verdict.h"

// Calls of a new epoch to the scheduler's process. Members may be NULL where restarts is 0.
struct epoch_options {
    int restarts;  // so many deaths may be followed by an epoch, or a process in the dead one's place; 0: none
    int used;      // of them, by earlier lives of the scheduler
    uint32_t first;   // number of the first one; 0 counts as 1
    int start;        // of the run's command (DIR/history.jsonl)
    const char *why;  // of the first one, if it follows a death; else NULL
    void *ctx;
    uint64_t (*job)(void *ctx);  // another number, not 0
    // A member was lost by silence, or did not come: it may only be frozen, and must not go on beside the one that
    // replaces it. pid: 0 where it is not known.
    void (*lost)(void *ctx, int pid, const char *name);
    bool replaced;  // a lost member: by a launcher. Else by people, until the start's deadline
};

struct epochs {
    struct epoch_options o;
    uint32_t epoch;
    uint64_t job;
    struct restarts restarts;
    int64_t reached;          // steps that the last epoch that began had decided; -1: not known
    char why[WIRE_TEXT_MAX];  // this epoch has begun; "": it is the first
};

#endif
