// The inputs of blocks that keep nothing else (recompute.h), where they lie on the host.
//
// Only two are on the device, by parity of the block. A stream of the model's own copies; events
// order it, and the host never waits:
//
//     compute   | x0 .. block 0 | x1 .. block 1 | x2 .. block 2 |    ..    | back 3 | back 2 | back 1 |
//     copies         | x0 out       | x1 out                                        | x1 in  | x0 in  |
//                                                 ^ x0 is out                                ^ x1 is in
//
// The last two need no copy: they are still there.
#ifndef STARRING_SHARED_MODEL_KEPT_INPUTS_H
#define STARRING_SHARED_MODEL_KEPT_INPUTS_H

#include "shared/model/activations.h"

// The stream and the events; nothing where inputs stay on the device. 0, or -1 after fail().
int kept_inputs_open(struct model *m);
void kept_inputs_close(struct model *m);

// Around the writing of x[i] in the forward: before it is written, and behind it.
void kept_input_begins(struct model *m, int i);
void kept_input_ends(struct model *m, int i);
// Around the use of x[i] in the backward.
void kept_input_needed(struct model *m, int i);
void kept_input_done(struct model *m, int i);

#endif
