// The weight and gradient slots of a worker that keeps two units at a time (parameter_server.resident "units"). A rank
// of a ring's stage 3 has such slots too. A unit's weights are pulled when they are needed, for the forward and again
// for the backward pass. A gradient is pushed when it is complete. Both slots are then free for another unit:
//
//     pull      | u0 -> even | u1 -> odd |      | u2 -> even |        | u3 -> odd | ..
//     compute                | u0 .. even |     | u1 .. odd  |        | u2 .. even | ..
//     push                                  (backward, the same way: a unit's gradient leaves while the next one is computed)
//
// shared/model/unit_schedule.h decides when a unit is pulled and into which slot. Servers may run on any host. With one
// server next to each worker this is a ring's stage 3 whose ranks wait for each other only at the end of a step (ODC,
// arXiv 2601.19362).
//
// A weight slot passes from one side to the other at these points:
//     compute -> pull    the command to pull, a host function after the work on the slot's last unit (staging_behind)
//     pull -> compute    every key has landed, which acquire waits for, and on a GPU is copied (staging.h)
// A gradient's slot:
//     compute -> push    the hand-over, after the unit's backward pass
//     push -> compute    the servers have all of it, in their sums or as their own copies: acquire waits for that
//
// Threads   the main thread; the stream's thread sends the commands to pull.
// Blocking  acquire and quiet.
#ifndef STARRING_PS_WORKER_RESIDENT_UNITS_H
#define STARRING_PS_WORKER_RESIDENT_UNITS_H

#include "ps/worker/staging.h"
#include "ps/worker/worker_comm.h"

struct resident_options {
    struct topology *t;
    struct comm *comm;
    struct staging *staging;               // NULL: the device's memory is host memory
    const struct worker_buffers *buffers;  // all members outlive it
};

struct resident;
struct resident *resident_create(const struct resident_options *o);
// Call it when the compute stream has finished its work.
void resident_destroy(struct resident **r);

// step: the weights after so many steps are wanted.
void resident_prefetch(struct resident *r, int64_t step, int u, enum pass pass);
int resident_acquire(struct resident *r, int64_t step, int u, enum pass pass, struct unit_view *view);
void resident_release(struct resident *r, int u);
// compute's next work hands the unit's gradient over.
void resident_pushed(struct resident *r, int u);
void resident_forget(struct resident *r);  // the weights change
// Waits until the servers have all gradients. 0, or -1 after logging.
int resident_quiet(struct resident *r, int64_t step);

#endif
