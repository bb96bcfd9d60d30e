// Evaluates the snapshots of a run, apart from it: each one's weights on held-out text, alone, on one device,
// with every core. What trained them plays no part, so equal weights have the same loss to the last bit, whatever the
// topology; and nothing of it is in the run's times, bytes or memory.
//
//     DIR/snapshots/step-K   -->   a line of DIR/evals.jsonl; the file goes, unless it is to be kept
//
// The held-out text is cut into windows of seq tokens; as many as make EVALUATE_TOKENS go through the model at once,
// whatever the run's batch was. eval_batches limits the windows to those of so many global batches; by
// itself (EVAL_AUTO) to as many as the steps between two evaluations: a forward pass costs a third of a step, so evaluation stays below
// the cost of training.
//
// Interrupted at any time it leaves whole lines and the snapshots that are still to be evaluated.
#ifndef STARRING_SHARED_EVALUATION_EVALUATE_H
#define STARRING_SHARED_EVALUATION_EVALUATE_H

#include <stdio.h>

#include "shared/config/config.h"
#include "shared/data/data.h"
#include "shared/model/spec.h"

#define EVALUATE_TOKENS 1024

struct evaluate_options {
    const struct config *config;  // resolved for this machine
    const struct model_spec *spec;
    const struct token_source *data;
    const char *dir;          // run directory
    bool keep;                // the snapshots
    const _Atomic int *stop;  // non-zero: leave; or NULL
    FILE *say;                // a line per snapshot, and of a long evaluation what is left; NULL: none
};

enum evaluated {
    EVALUATE_FAILED = -1,  // after logging
    EVALUATE_DONE,
    EVALUATE_INTERRUPTED,
    EVALUATE_BROKEN,  // done but for snapshots that are not whole, each named in a warning and left where it is
};
enum evaluated evaluate_run(const struct evaluate_options *o);

// Snapshots that wait in dir.
int evaluate_waiting(const char *dir);
// Says by which command they are evaluated, if there are any; why: what that sentence begins with, or "".
void evaluate_say_waiting(const char *dir, const char *why);

#endif
