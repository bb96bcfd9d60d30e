// What a worker keeps where it keeps two units at a time (parameter_server.resident "units"): slots of weights and of gradients,
// as a rank of a ring's stage 3 has. Weights are pulled when a unit is needed, for the forward and again for the backward pass;
// a gradient is pushed when it is complete, and both slots are another unit's then:
//
//     pull      | u0 -> even | u1 -> odd |      | u2 -> even |        | u3 -> odd | ..
//     compute                | u0 .. even |     | u1 .. odd  |        | u2 .. even | ..
//     push                                  (backward, likewise: a unit's gradient leaves while the next one is computed)
//
// Which unit is pulled when and into which slot: shared/model/unit_schedule.h. Servers may be anywhere; with one beside each
// worker this is a ring's stage 3 whose ranks wait for each other at the end of a step alone (ODC, arXiv 2601.19362).
//
// A weight slot changes hands through these:
//     compute -> pull    the command to pull, a host function behind the work on the slot's last unit (staging_behind)
//     pull -> compute    every key has landed, which acquire waits for, and on a GPU been copied (staging.h)
// A gradient's slot:
//     compute -> push    the hand-over, behind the unit's backward
//     push -> compute    the servers have all of it, in their sums or as their own copies: acquire waits for that
//
// Threads   the main thread; the commands to pull are given on the stream's.
// Blocking  acquire and quiet.
#ifndef STARRING_PS_WORKER_RESIDENT_UNITS_H
#define STARRING_PS_WORKER_RESIDENT_UNITS_H

#include "ps/worker/staging.h"
#include "ps/worker/worker_comm.h"

struct resident_options {
    struct topology *t;
    struct comm *comm;
    struct staging *staging;               // NULL: the device's memory is host memory
    const struct worker_buffers *buffers;  // outlive it, as the others do
};

struct resident;
struct resident *resident_create(const struct resident_options *o);
// Behind the end of the compute stream's work.
void resident_destroy(struct resident **r);

// step: steps behind which the weights are wanted.
void resident_prefetch(struct resident *r, int64_t step, int u, enum pass pass);
int resident_acquire(struct resident *r, int64_t step, int u, enum pass pass, struct unit_view *view);
void resident_release(struct resident *r, int u);
// The unit's gradient is handed over with what compute does next.
void resident_pushed(struct resident *r, int u);
void resident_forget(struct resident *r);  // the weights change
// Waits until the servers have all gradients. 0, or -1 after logging.
int resident_quiet(struct resident *r, int64_t step);

#endif
