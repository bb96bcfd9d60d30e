// The training loop of one rank: sees only struct topology. The same for every topology.
#ifndef STARRING_SHARED_TRAIN_TRAIN_H
#define STARRING_SHARED_TRAIN_TRAIN_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/data/data.h"
#include "shared/model/model.h"
#include "shared/report/rank_report.h"
#include "shared/train/batch_feed.h"

struct slowdown;
struct timeline;
struct checkpoint;   // shared/state/checkpoint_read.h
struct saver;        // shared/train/saver.h
struct step_record;  // shared/report/metrics.h

// Filled by train_run on every rank.
struct train_result {
    struct rank_report report;
    int64_t steps;  // attempts done, those before the checkpoint it went on from included
    // Of this start, what the means of steps that were not skipped are over, and their sequences.
    struct batch_count counted;
    int64_t sequences;
    uint64_t weights_hash;  // rank 0 only
    bool has_hash;          // not of an interrupted run whose weights nobody wants
    int64_t place;          // where ranks share a budget: steps of the run that the batches done make
    bool lacks_file;        // a file of this rank could not be left, which has been said
    bool interrupted;       // ended before its last step, because some rank was asked to leave
    // They keep their memory: giving it back may wait for a device on which peers still wait for us.
    struct model *model;
    struct batch_feed *feed;
    struct slowdown *slowdown;
    struct timeline *timeline;  // of the steps; shared/time/timeline.h
};

// Told of every step by rank 0's loop; on the main thread. Other ranks pass NULL. on_start may be NULL.
struct train_observer {
    void (*on_start)(void *ctx, const struct config *c, const struct model_spec *s, int64_t params);
    void (*on_step)(void *ctx, const struct step_record *r);
    void *ctx;
};

struct train_options {
    const struct config *config;
    const struct model_spec *spec;
    const struct token_source *data;
    struct topology *topology;
    const struct train_observer *observer;  // or NULL
    // Non-zero: leave after the step in hand (Ctrl-C), with all other ranks (step_stats.stop); or NULL.
    const _Atomic int *stop;
    bool keep_interrupted;      // an interrupted run's weights are hashed and written too
    struct saver *saver;        // or NULL: this rank keeps nothing
    struct stall_watch *watch;  // of this process, or NULL
    // The checkpoint to go on from, or to take the weights from (recovery.resume_weights_only); NULL: the beginning. The topology's
    // `start` is set.
    struct checkpoint *checkpoint;
    double elapsed_before;     // seconds of training before it, for records
    const char *weights_out;   // rank 0: HF directory to write at the end, or NULL
    const char *weights_in;    // HF directory to start from, or NULL: seeded init
    const char *tokenizer_in;  // HF directory whose tokenizer goes with weights_out, or NULL
    // Made before the topology, on GPUs; train_run takes them. NULL: it makes its own.
    struct model *model;  // of train_model_options
    struct batch_feed *feed;
    struct slowdown *slowdown;
};

// The model of configuration c as prediction and run build it; for a run the caller adds device and stream.
struct model_options train_model_options(const struct config *c, const struct model_spec *s,
                                         const struct layout *l);
// Runs config->steps steps, or fewer when interrupted. 0, or -1 after logging; result is filled as far as it
// got.
int train_run(const struct train_options *o, struct train_result *result);
// After the last thing that ranks do together, and before the device is closed.
void train_result_free(struct train_result *r);

#endif
