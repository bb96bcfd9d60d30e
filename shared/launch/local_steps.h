// Local steps: a decorator around a topology, in which each rank takes H steps of its own between two exchanges
// (local_steps.c has the algorithm and its papers). The configuration's section local_steps asks for it.
//
//     the loop     | step | step | .. | step | step | step | ..        H steps are a round
//     the inner    |                  round  |                 ..      one step of it each: its gradient is what the round has
//     topology                                                         moved the rank's weights by
//
// Ownership   The decorator owns the topology inside; create takes it in any case.
// Threads     The rank's main thread, as of any topology.
#ifndef STARRING_SHARED_LAUNCH_LOCAL_STEPS_H
#define STARRING_SHARED_LAUNCH_LOCAL_STEPS_H

#include "shared/config/config.h"
#include "shared/core/topology_row.h"

// The configuration as the inner topology sees it: a step is a round, its batch all samples of one, its optimizer the outer one.
// Without local steps: c's. It has c's texts, which it does not own.
struct config local_steps_inner(const struct config *c);
// Adds a worker's own part to the prediction for the inner topology, and divides the bytes of a round among its steps. Nothing
// without local steps.
void local_steps_predict(const struct config *c, const struct layout *l, struct prediction *p);
// The bytes of so many steps' worth as those of one.
struct wire_prediction local_steps_wire(struct wire_prediction w, int64_t steps);
// Adds a worker's own part to the formula of the inner topology's memory, and says that bytes are of a round. Nothing
// without local steps.
void local_steps_formula(const struct config *c, struct topology_formula *f);
// Names worker 0's own samples as those of the loss. Nothing without local steps.
void local_steps_explain(const struct config *c, struct topology_words *w);
// inner: of local_steps_inner, or NULL after logging; without local steps it is what is returned. NULL after logging.
struct topology *local_steps_around(const struct config *c, struct topology *inner);

#endif
