// Staging between a worker's device and the wire. If the device's memory is host memory, the wire uses the
// model's own buffers and nothing is staged. A device with memory of its own gets a page-locked
// twin of every weight and gradient buffer, and two streams besides compute that copy to and from the twins. If
// servers share memory with this worker, the twins are in its segment (sharing.h). "wire" below is then the server
// itself, which reads gradients and writes weights there:
//
//     main     grad_ready(u)                                      acquire(u)
//     compute  .. backward u | backward u-1 ..                       ..  | forward u
//                          v grad_done                                   ^ copied(u)
//     push                 | device -> twin | hand over                  |
//     wire                                       v push u .. pull u      |
//     pull                                                    | twin -> device |
//
// A buffer passes from one side to the other only at these points:
//     device gradient   compute -> push    event grad_done
//                       push -> compute    as the twin: the copy has ended when its unit is handed over
//     gradient's twin   push -> wire       the hand-over, a host function after the copy
//                       wire -> push       every key is acknowledged, or answered with weights that contain it, and
//                                          the transport holds no message of it, repeats included; acquire for the
//                                          backward pass waits for this
//     weights' twin     wire -> pull       every key of the unit is answered; one thread does both
//                       pull -> wire       as the device weights
//     device weights    pull -> compute    event copied, recorded before the unit is published as landed
//                       compute -> pull    the hand-over: it follows grad_done, hence the last use of the
//                                          weights and, because compute has waited for `copied`, the last
//                                          copy. Before pulls that follow no push: a sync of compute, which
//                                          has waited for every copy
//
// Threads   The main thread, which also enqueues on compute; staging_put_weights: the communication thread. So each
//           stream has one enqueuer.
// Blocking  Only load and destroy.
// NULL      A device whose memory is host memory: all functions then do nothing.
#ifndef STARRING_PS_WORKER_STAGING_H
#define STARRING_PS_WORKER_STAGING_H

#include "ps/worker/worker_core.h"
#include "ps/worker/worker_memory.h"
#include "shared/time/timeline.h"

struct staging_options {
    struct device *dev;
    struct stream *compute;
    const struct layout *layout;
    enum dtype dtype;
    const struct worker_buffers *buffers;  // outlive the staging
};

struct staging;
struct staging *staging_create(const struct staging_options *o);  // Returns NULL after logging.
void staging_destroy(struct staging **s);                         // Waits for enqueued work.

// The stream on which gradients become complete in host memory; compute if nothing is staged.
struct stream *staging_push_stream(const struct staging *s, struct stream *compute);
// A stream whose next work waits for compute's work so far, while compute does not wait for it; compute if nothing is
// staged.
struct stream *staging_behind(struct staging *s, struct stream *compute);
// Copies unit u's gradient of `step` to its twin on the push stream, after compute's earlier work.
void staging_fetch_grad(struct staging *s, int u, int64_t step);
// Copies unit u's weights from their twin to the device, on compute. Returns 0, or -1 if that failed.
int staging_load_weights(struct staging *s, int u);
// Copies unit u's weights from their twin to the device, once per value of fills; then the transfer is done.
void staging_put_weights(struct staging *s, int u, uint64_t fills, struct transfer_ids ids);
// Makes compute's later work wait for the weights that were put last.
void staging_await_weights(struct staging *s, int u, struct transfer_ids ids);
// Called before the first step: the copies' stream records in the timeline when they are done. Returns 0, or -1 after
// logging.
int staging_watch(struct staging *s, struct timeline *tl);
// The device's error, "" if none. No other call reports it: no thread waits for the push stream.
const char *staging_error(const struct staging *s);

#endif
