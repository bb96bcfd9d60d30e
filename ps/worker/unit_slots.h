// The slots of a worker's weights and gradients. With parameter_server.resident "all" each unit has slots of its own:
// its weights stay, and each push asks for the next ones. With "units" two units at a time have slots, as in a rank of a
// ring's stage 3: a unit's weights are pulled when they are needed, for the forward and again for the backward pass, and
// its gradient is pushed when it is complete. Both slots are then free for another unit:
//
//     pull      | u0 -> even | u1 -> odd |      | u2 -> even |        | u3 -> odd | ..
//     compute                | u0 .. even |     | u1 .. odd  |        | u2 .. even | ..
//     push                                  (backward, the same way: a unit's gradient leaves while the next one is computed)
//
// shared/model/unit_schedule.h decides which slot a unit has, and when it is pulled. Servers may run on any host. With one
// server next to each worker, "units" is a ring's stage 3 whose ranks wait for each other only at the end of a step (ODC,
// arXiv 2601.19362).
//
// A weight slot passes from one side to the other at these points:
//     compute -> pull    the push that asks for the next weights; or the request to pull, a host function after the work on
//                        the slot's last unit (staging_behind)
//     pull -> compute    every key has landed, which acquire waits for, and on a GPU is copied (staging.h)
// A gradient's buffer:
//     compute -> push    the hand-over, after the unit's backward pass
//     push -> compute    the servers have all of it, in their sums or as their own copies: acquire waits for that
//
// Threads   the main thread; the stream's thread requests pushes and pulls.
// Blocking  acquire and the two awaits.
#ifndef STARRING_PS_WORKER_UNIT_SLOTS_H
#define STARRING_PS_WORKER_UNIT_SLOTS_H

#include "ps/worker/staging.h"
#include "ps/worker/worker_comm.h"

struct unit_slots_options {
    const struct config *config;
    struct topology *t;
    struct comm *comm;
    struct staging *staging;  // NULL: the device's memory is host memory
    const struct worker_buffers *buffers;
    const struct layout *layout;  // all pointers outlive the slots
    int first;  // first of the worker's units that these slots are for; above 0: frozen units, which are only pulled and have no gradients
};

struct unit_slots;
struct unit_slots *unit_slots_create(const struct unit_slots_options *o);
void unit_slots_destroy(struct unit_slots **s);  // Called when the compute stream has finished its work.

// Whether each unit has slots of its own. If so, a buffer sums a step's micro-batches; else each micro-batch's gradient
// is pushed.
bool unit_slots_all_resident(const struct unit_slots *s);

// step: the weights after so many steps are wanted.
void unit_slots_prefetch(struct unit_slots *s, int64_t step, int u, enum pass pass);
int unit_slots_acquire(struct unit_slots *s, int64_t step, int u, enum pass pass, struct unit_view *view);
void unit_slots_release(struct unit_slots *s, int u);
// Sends the unit's gradient once compute's work so far is done. phase: compute's phase after the hand-over.
void unit_slots_push(struct unit_slots *s, int u, const struct push_info *info, enum phase phase);
void unit_slots_invalidate(struct unit_slots *s);  // The weights have changed: they are pulled again.
// Wait until the weights after `step` steps have landed in the unit's own slot, if it has one; and until the servers have
// what was pushed from the unit's buffer of `step`. Return 0, or -1 after logging.
int unit_slots_await_weights(struct unit_slots *s, int u, int64_t step);
int unit_slots_await_buffer(struct unit_slots *s, int u, int64_t step);

#endif
