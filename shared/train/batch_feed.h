// Reads batches for a rank's device into two halves of host memory. The host reads the batch of the next step
// while the device computes the current one. Where the device has its own memory, the halves are page-locked
// (MEM_HOST): a copy from pageable memory would make the host wait for the device.
//
//     host      | read t |          | read t+1 |                | read t+2 | ..
//     half      | even   |          | odd      |                | even     | ..
//     compute            | copy t | forward t | backward t | copy t+1 | ..
//                               ^ an event: the half may be overwritten
//
// One half holds all micro-batches of one step: tokens (own sequences, T), then targets. The batch of step t
// is in half t mod 2.
//
// Owner     The training loop. Its main thread makes all calls. A batch stays valid until the next read into its
//           half.
// Blocking  A read waits for the copies out of the half that it overwrites. Between steps these are done: the host
//           has already waited for that step's results.
#ifndef STARRING_SHARED_TRAIN_BATCH_FEED_H
#define STARRING_SHARED_TRAIN_BATCH_FEED_H

#include "kernels/backend.h"
#include "shared/config/config.h"
#include "shared/data/data.h"

struct batch_feed_options {
    struct device *dev;
    struct stream *compute;  // stream that copies from the halves
    const struct config *config;
    const struct token_source *data;
};

// (sequences, T) each. With whole documents, T differs per micro-batch: data_bucket of its longest document
// (shared/data/data.h).
struct batch {
    const int32_t *tokens, *targets;
    int64_t seq;
};

// The token counts of some samples.
struct batch_count {
    int64_t tokens;         // padding not included
    int64_t padded_tokens;  // padding included
    double squares;         // sum of each sample's squared token count: the cost of attention
};

struct batch_feed;

// Adds the memory that a feed allocates. device_memory: the device has its own memory. Otherwise nothing is added.
void batch_feed_predict(const struct config *c, bool device_memory, size_t bytes[MEM_CLASSES]);
struct batch_feed *batch_feed_create(const struct batch_feed_options *o);  // Returns NULL after logging.
// Call it when no enqueued work reads the halves any more. It may wait for the whole device, as freeing memory does.
void batch_feed_destroy(struct batch_feed **f);

// Reads the batch of `step`: the samples from `first` on. Does nothing if it was the last batch read. Samples
// are numbered over the run: sample s is index s % train_batch of the draw of step s / train_batch
// (shared/data/data.h). Returns 0, or -1 when the device has failed.
int batch_feed_read(struct batch_feed *f, int64_t step, int64_t first);
// Counts `samples` samples from `first` on; `first` begins a micro-batch. A pure function: each rank can
// compute it for every rank's samples.
struct batch_count batch_feed_count(const struct batch_feed *f, int64_t first, int64_t samples);
// Returns micro-batch k of `step`. batch_feed_read must have read that step.
struct batch batch_feed_micro(const struct batch_feed *f, int64_t step, int64_t k);
// The caller has enqueued on compute everything that reads `step`'s batch.
void batch_feed_sent(struct batch_feed *f, int64_t step);

#endif
