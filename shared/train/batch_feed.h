// Batches on their way to a rank's device: two halves of host memory, so that the host reads the batch of the
// next step while the device computes this one. Where the device has memory of its own the halves are
// page-locked (MEM_HOST): copies from other memory would make the host wait for the device.
//
//     host      | read t |          | read t+1 |                | read t+2 | ..
//     half      | even   |          | odd      |                | even     | ..
//     compute            | copy t | forward t | backward t | copy t+1 | ..
//                               ^ an event: the half may be written again
//
// A half holds all micro-batches of a step: tokens (own sequences, T), then targets. The batch of step t lies
// in half t mod 2.
//
// Owner     The training loop, whose main thread makes all calls. Batches stay in place until the next read
//           into their half.
// Blocking  Reads wait for copies out of the half they write to: in the steps those have passed, for the host
//           has waited for that step's results.
#ifndef STARRING_SHARED_TRAIN_BATCH_FEED_H
#define STARRING_SHARED_TRAIN_BATCH_FEED_H

#include "kernels/backend.h"
#include "shared/config/config.h"
#include "shared/data/data.h"

struct batch_feed_options {
    struct device *dev;
    struct stream *compute;  // which copies from the halves
    const struct config *config;
    const struct token_source *data;
};

// (sequences, T) each. Of whole documents T is of this micro-batch: data_bucket of its longest one, shared/data/data.h.
struct batch {
    const int32_t *tokens, *targets;
    int64_t seq;
};

// The tokens of samples.
struct batch_count {
    int64_t tokens;  // without padding
    int64_t places;  // with it
    double squares;  // of the samples' tokens, added: attention's cost
};

struct batch_feed;

// Adds what a feed takes. device_memory: the device's memory is not the host's; else there is nothing to add.
void batch_feed_predict(const struct config *c, bool device_memory, size_t bytes[MEM_CLASSES]);
struct batch_feed *batch_feed_create(const struct batch_feed_options *o);  // NULL after logging
// When nothing enqueued reads the halves any more; may wait for the whole device, as freeing memory does.
void batch_feed_destroy(struct batch_feed **f);

// Reads the batch of `step`, the samples from `first` on, unless it is the latest one read. Samples are numbered over the
// run: sample s is index s % train_batch of the draw of step s / train_batch (shared/data/data.h). 0, or -1 when the device
// has failed.
int batch_feed_read(struct batch_feed *f, int64_t step, int64_t first);
// Of the samples from `first` on, which a micro-batch begins with; a pure function: each rank knows it of all ranks' samples.
struct batch_count batch_feed_count(const struct batch_feed *f, int64_t first, int64_t samples);
// Micro-batch k of `step`, which has been read.
struct batch batch_feed_micro(const struct batch_feed *f, int64_t step, int64_t k);
// Everything that reads `step`'s batch has been enqueued on compute.
void batch_feed_sent(struct batch_feed *f, int64_t step);

#endif
