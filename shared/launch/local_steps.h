// Local steps: a decorator around a topology. Each rank takes H steps of its own between two exchanges (local_steps.c
// has the algorithm and its papers). The configuration's section local_steps enables it.
//
//     the loop     | step | step | .. | step | step | step | ..        H steps are a round
//     the inner    |                  round  |                 ..      a round is one step of it; its gradient:
//     topology                                                         weights at the round's start minus at its end
//
// Ownership   The decorator owns the inner topology; local_steps_around takes it even if it fails.
// Threads     The rank's main thread, as for any topology.
#ifndef STARRING_SHARED_LAUNCH_LOCAL_STEPS_H
#define STARRING_SHARED_LAUNCH_LOCAL_STEPS_H

#include "shared/config/config.h"
#include "shared/core/topology_row.h"

// If a configuration has no local steps, functions that take it change nothing.
//
// Returns the inner topology's configuration: its step is a round, its batch all samples of a round, its optimizer the
// outer one. It points to c's texts and does not own them.
struct config local_steps_inner(const struct config *c);
// Adds a worker's own memory to the prediction for the inner topology, and divides the bytes of a round by its steps.
void local_steps_predict(const struct config *c, const struct layout *l, struct prediction *p);
// Returns the bytes per step when w moves once in `steps` steps.
struct wire_prediction local_steps_wire(struct wire_prediction w, int64_t steps);
// Adds a worker's own memory to the formula of the inner topology's, and adds that the bytes are per round.
void local_steps_formula(const struct config *c, struct topology_formula *f);
// States that the loss is of worker 0's own samples.
void local_steps_explain(const struct config *c, struct topology_texts *w);
// Wraps inner, which was created with local_steps_inner; without local steps returns inner. inner NULL: returns NULL.
// Returns NULL after logging.
struct topology *local_steps_around(const struct config *c, struct topology *inner);

#endif
