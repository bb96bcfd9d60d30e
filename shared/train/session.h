// Runs one rank, from its device to its report. It opens the device and the compute stream, has the topology created,
// trains, and writes DIR/ranks/worker-R.json (worker 0: metrics.jsonl and weights/ too).
//
// Threads   Runs on the caller's thread. Several sessions may run at once on threads of one process.
// Ordering  With more than one worker it returns only after every worker has written its report.
#ifndef STARRING_SHARED_TRAIN_SESSION_H
#define STARRING_SHARED_TRAIN_SESSION_H

#include "shared/train/job.h"
#include "shared/train/train.h"

struct session_options {
    const struct job *job;
    int rank;        // -1: the topology assigns it
    int local_rank;  // index among the ranks of this machine; selects the GPU, modulo their number; -1: unknown,
                     // the first GPU
    // Creates the rank's topology on dev and compute, which outlive it. Returns NULL after logging.
    struct topology *(*create)(void *ctx, struct device *dev, struct stream *compute);
    // Called after the topology is destroyed (or was never created) and before the device is closed; or NULL.
    void (*end)(void *ctx);
    void *ctx;
};

struct session_end {
    bool interrupted;  // the stop flag ended the run
    int rank;
    uint64_t job;  // the job of struct topology
};
// Returns 0, or -1 after logging. end may be NULL.
int session_run(const struct session_options *o, struct session_end *end);

#endif
