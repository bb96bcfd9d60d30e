// Requests of the scheduler's state machine to its process where the state of survivors is to become a checkpoint
// (ps/scheduler/rescue.h).
#ifndef STARRING_PS_SCHEDULER_RESCUE_PORT_H
#define STARRING_PS_SCHEDULER_RESCUE_PORT_H

#include "ps/net/wire.h"
#include "shared/core/train_state.h"

// The figures that worker 0 writes down of a step, as far as the scheduler knows them.
struct step_figures {
    double loss, norm, lr, loss_scale;
    double seconds;  // since the decision before; 0: there was none
    bool skipped;
};

// A checkpoint to be completed: what the scheduler knows of it.
struct rescue_job {
    struct train_state train;
    struct step_figures last;  // of the step that it is behind
    uint64_t life;
    const char *identity;  // of the run, as the first worker said; NULL: as the scheduler's own
};

enum rescue_state { RESCUE_WAITS, RESCUE_DONE, RESCUE_FAILED };

// The half that waits for files (ps/scheduler/rescue_files.h). NULL members: nothing is rescued.
struct rescue_port {
    void *ctx;
    // The training state of a checkpoint; "": of the beginning. 0 or -1.
    int (*read)(void *ctx, const char *checkpoint, struct train_state *out);
    int (*begin)(void *ctx,
                 const struct rescue_job *job);  // 0, or -1: it cannot. Touches no file, as all here
    // Of the one that has begun; failed: why says so.
    enum rescue_state (*state)(void *ctx, char why[WIRE_TEXT_MAX]);
    void (*give_up)(void *ctx);  // it will soon be over
};

#endif
