// The training loop of one rank, the same for every topology: it sees only struct topology.
#ifndef STARRING_SHARED_TRAIN_TRAIN_H
#define STARRING_SHARED_TRAIN_TRAIN_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/data/data.h"
#include "shared/model/model.h"
#include "shared/report/rank_report.h"
#include "shared/train/batch_feed.h"
#include "shared/train/job.h"

struct slowdown;
struct timeline;
struct checkpoint;   // shared/state/checkpoint_read.h
struct saver;        // shared/train/saver.h
struct step_record;  // shared/report/metrics.h

// Things that a rank trains with, besides its topology. The caller owns them: freeing them may wait for a device on which peers
// still wait for this rank. On GPUs it creates the first three before the topology; train_run creates what is NULL.
struct train_parts {
    struct model *model;  // created with train_model_options
    struct batch_feed *feed;
    struct slowdown *slowdown;  // NULL: the run has none
    struct timeline *timeline;  // the timeline of the steps (shared/time/timeline.h)
};
// Call it after the last collective operation, when the topology is destroyed, and before the device is closed.
void train_parts_destroy(struct train_parts *p);

// Filled by train_run on every rank.
struct train_result {
    struct rank_report report;
    int64_t steps;  // attempts done, including those before the checkpoint that the run resumed from
    // Counts of this start, over which the means of steps that were not skipped are taken; and their sequences.
    struct batch_count counted;
    int64_t sequences;
    uint64_t weights_hash;  // rank 0 only
    bool has_hash;          // false for an interrupted run whose weights are not wanted
    int64_t steps_of_run;  // where ranks share a budget: steps of the run that the finished batches amount to
    bool file_failed;      // a file of this rank could not be written; this was logged
    bool interrupted;      // the run ended before its last step, because some rank was asked to stop
};

// Receives every step from rank 0's loop, on the main thread. Other ranks pass NULL. on_start may be NULL.
struct train_observer {
    void (*on_start)(void *ctx, const struct config *c, const struct model_spec *s, const struct layout *l);
    void (*on_step)(void *ctx, const struct step_record *r);
    void *ctx;
};

struct train_options {
    const struct job *job;
    struct topology *topology;
    const struct train_observer *observer;  // receives the steps; NULL: none
    struct saver *saver;                    // NULL: this rank keeps nothing
    struct stall_watch *watch;              // the process's watch; NULL: none
    // The checkpoint to resume from, or to take the weights from (recovery.resume_weights_only); NULL: start
    // from the beginning. The topology's `start` is set.
    struct checkpoint *checkpoint;
    double elapsed_before;     // seconds of training before this start, for records
    const char *weights_out;   // rank 0: HF directory to write at the end, or NULL
    const char *tokenizer_in;  // HF directory whose tokenizer is copied to weights_out, or NULL
    struct train_parts *parts;
};

// Creates the model, the batches and the slowdown. Returns 0, or -1 after logging.
int train_parts_create(struct train_parts *p, const struct job *j, struct device *dev,
                       struct stream *compute);

// Returns the options of configuration c's model, for prediction and for the run. A run's caller adds device
// and stream.
struct model_options train_model_options(const struct config *c, const struct model_spec *s,
                                         const struct layout *l);
// Adds the memory of worker `rank`'s training besides its topology's to bytes: the model, batches, delays, and copies
// for checkpoints of state_bytes (struct prediction). gpu: the device's memory is not the host's. snapshots: also the
// copies for snapshots. Returns the bytes of these.
size_t train_predict(const struct config *c, const struct model_spec *s, const struct layout *l, int rank,
                     size_t state_bytes, bool gpu, bool snapshots, size_t bytes[MEM_CLASSES]);
// Runs config->steps steps, or fewer when interrupted. Returns 0, or -1 after logging; result is filled as
// far as the run got.
int train_run(const struct train_options *o, struct train_result *result);

#endif
