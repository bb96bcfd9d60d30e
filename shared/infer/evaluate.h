// Evaluates the snapshots of a run, separately from training. It computes each snapshot's loss on held-out text, one
// at a time, on one device, with all cores, in the process that represents the run (closing.h). The result does not depend on the topology: equal weights have the same
// loss to the last bit. Evaluation is not part of the run's times, bytes or memory.
//
//     DIR/snapshots/step-K   -->   a line of DIR/evals.jsonl; the snapshot is removed, unless it is to be kept
//
// The held-out text is cut into windows of seq tokens. Each forward pass takes as many windows as have EVALUATE_TOKENS
// together, whatever the run's batch size is. eval_batches limits the windows to that many global batches.
// EVAL_AUTO limits them to as many batches as there are steps between two evaluations: a forward pass costs a third of
// a step, so evaluation costs less than training.
//
// If it is interrupted, evals.jsonl has only whole lines, and the snapshots that are not evaluated yet stay.
#ifndef STARRING_SHARED_INFER_EVALUATE_H
#define STARRING_SHARED_INFER_EVALUATE_H

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
    bool keep;                // keep the snapshots
    const _Atomic int *stop;  // non-zero: stop; or NULL
    FILE *output;             // receives a line per snapshot and progress lines; NULL: none
};

enum evaluated {
    EVALUATE_FAILED = -1,  // the reason has been logged
    EVALUATE_DONE,
    EVALUATE_INTERRUPTED,
    EVALUATE_BROKEN,  // done, except for incomplete snapshots: each is named in a warning and stays
};
enum evaluated evaluate_run(const struct evaluate_options *o);

// Returns the number of snapshots in dir that are not evaluated yet.
int evaluate_waiting(const char *dir);
// If snapshots are not evaluated yet, prints the command that evaluates them. why: the start of that sentence, or "".
void evaluate_report_waiting(const char *dir, const char *why);

#endif
