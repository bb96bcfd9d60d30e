// Between a worker's device and the wire. Where the device's memory is host memory the wire reads and writes
// the model's own buffers and there is nothing to stage. A device with memory of its own gets a page-locked
// twin of every weight and gradient buffer, and two streams beside compute that keep the twins in step. Where
// servers share memory with this worker the twins lie in its segment (sharing.h), and "wire" below is the server
// itself, which reads gradients and writes weights there:
//
//     main     grad_ready(u)                                      acquire(u)
//     compute  .. backward u | backward u-1 ..                       ..  | forward u
//                          v grad_done                                   ^ copied(u)
//     push                 | device -> twin | hand over                  |
//     wire                                       v push u .. pull u      |
//     pull                                                    | twin -> device |
//
// A buffer changes hands only through one of these:
//     device gradient   compute -> push    event grad_done
//                       push -> compute    as the twin: the copy has ended when its unit is handed over
//     gradient's twin   push -> wire       the hand-over, a host function behind the copy
//                       wire -> push       every key acknowledged, or answered with weights that contain it, and
//                                          no message, repeated ones included, in the transport; acquire for the
//                                          backward pass waits for it
//     weights' twin     wire -> pull       every key of the unit has been answered; one thread does both
//                       pull -> wire       as the device weights
//     device weights    pull -> compute    event copied, recorded before the unit is published as landed
//                       compute -> pull    the hand-over: it is behind grad_done, hence behind the last use
//                                          and, because compute has waited for `copied`, behind the last
//                                          copy. Before pulls that follow no push: a sync of compute, which
//                                          has waited for every copy
//
// Threads   The main thread, which also enqueues on compute; put: the communication thread. So each stream
//           has one enqueuer.
// Blocking  load and destroy alone.
// NULL      stands for a device whose memory is host memory: all functions then do nothing.
#ifndef STARRING_PS_WORKER_STAGING_H
#define STARRING_PS_WORKER_STAGING_H

#include "ps/worker/worker_memory.h"
#include "ps/worker/worker_times.h"

struct staging_options {
    struct device *dev;
    struct stream *compute;
    const struct layout *layout;
    enum dtype dtype;
    const struct worker_buffers *buffers;  // outlive the staging
};

struct staging;
struct staging *staging_create(const struct staging_options *o);  // NULL after logging
void staging_destroy(struct staging **s);                         // what is enqueued runs first

// The stream on which gradients become complete in host memory; where nothing is staged, compute.
struct stream *staging_push_stream(const struct staging *s, struct stream *compute);
// A stream whose next work waits for compute's so far, and compute not for it; where nothing is staged, compute.
struct stream *staging_behind(struct staging *s, struct stream *compute);
// Unit u's gradient of `step`, as compute's earlier work leaves it, goes to its twin on the push stream.
void staging_fetch_grad(struct staging *s, int u, int64_t step);
// Unit u's weights go from their twin to the device, in the order of compute. 0, or -1 when it has failed.
int staging_load_weights(struct staging *s, int u);
// Unit u's weights go from their twin to the device, once for each value of fills; then the transfer is done.
void staging_put_weights(struct staging *s, int u, uint64_t fills, struct transfer_ids ids);
// Compute's later work finds the weights that were put last. It stands still for the transfer alone.
void staging_await_weights(struct staging *s, int u, struct transfer_ids ids);
// Before the first step: has the stream of the copies note when they are done. 0, or -1 after logging.
int staging_watch(struct staging *s, struct timeline *tl);
// The device's failure, "" while there is none: nobody waits for the push stream.
const char *staging_error(const struct staging *s);

#endif
