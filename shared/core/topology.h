// The hooks between the training loop and a topology (docs/ARCHITECTURE.md). The loop sees only this; a new
// topology is a new file, never an `if` in the loop or the model.
//
// Ownership   The topology owns all weight, gradient and optimizer memory. A view is valid from
//             acquire until the matching release (forward) or grad_ready (backward).
// Threads     All hooks are called by the rank's main thread.
// Order       The loop enqueues compute on `compute`; acquire makes that stream wait until the unit is
//             there (or blocks the host until then), so what is enqueued after it may read the view.
//             release and grad_ready refer to everything enqueued on `compute` so far.
// Errors      -1 after the topology has logged what failed (rank, unit, step). After an error only
//             abort and destroy may be called.
//
// One step:   for each micro-batch:
//                 forward:  units 0..n-1: acquire(u, PASS_FORWARD) .. release(u, PASS_FORWARD)
//                 backward: units n-1..0: acquire(u, PASS_BACKWARD) .. grad_ready(u)
//             step()
// A tied unit 0 is also acquired around the head: forward: acquire(0), release(0) nested in the head's
// acquire/release; backward: acquire(0, PASS_BACKWARD) before the head's backward, which writes the
// head's share of its gradient; its only grad_ready(0) comes after the embedding's backward. Between
// these the same gradient buffer must be kept. acquire(0, PASS_BACKWARD) is then called a second time
// for the embedding itself and returns the same grad.
// Evaluation: forward passes alone, with PASS_EVAL.
// Gradients   The model writes every tensor's elements and, on GPUs, zeros to those reserved behind one,
//             nothing else: gaps, padding and reserved elements of a gradient buffer are the topology's to
//             keep zero (a slot that served another unit must be cleaned).
#ifndef STARRING_SHARED_CORE_TOPOLOGY_H
#define STARRING_SHARED_CORE_TOPOLOGY_H

#include "kernels/backend.h"
#include "shared/core/unit.h"
#include "shared/core/wire_count.h"
#include "shared/state/train_state.h"

enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_EVAL };

struct unit_view {
    const void *weights;  // (n_pad) of the run's dtype
    void *grad;           // (n_pad) of the run's dtype in PASS_BACKWARD, else NULL
    bool accumulate;      // backward: add to grad instead of overwriting it (later micro-batches)
};

// What the loop knows of a step. lr belongs to this update; loss_scale is 1 without fp16.
struct step_input {
    int64_t step;     // 0-based attempt; skipped ones count
    int64_t updates;  // updates applied so far (attempts that were not skipped)
    float lr;
    float loss_scale;
    float clip;              // 0: none
    const double *loss_sum;  // device memory: the rank's summed token losses, behind `compute`'s work so far
    double loss_tokens;      // tokens of the mean: this rank's share of the loss is *loss_sum / loss_tokens
    bool stop;               // this rank was asked to leave
    bool snapshot;           // rank 0 wants the weights behind this step to be kept
};

struct step_stats {
    double loss;       // the mean over the global batch: shares added in rank order
    double grad_norm;  // global, unscaled, before clipping; NAN when the topology computes none
    bool skipped;      // a gradient was not finite: nothing was updated
    // Some rank was asked to leave: all do after this step. Synchronous topologies say so to every rank at
    // the same step, as part of the step's own exchange; asynchronous workers each learn it at a step of
    // their own.
    bool stop;
    bool snapshot;  // what rank 0 wanted: to all ranks that have a part in it
};

// A rank's part of a unit's weights, where they lie: elements [begin, end).
struct weights_part {
    const void *weights;
    int64_t begin, end;
    // Where they are not in memory: brings all of the part there until the next call; any thread, blocks. NULL: after
    // logging.
    const void *(*read)(void *ctx, int unit);
    void *ctx;
};

// The textbook's bytes per parameter that a rank holds: whole, and as its share of what all ranks hold.
struct textbook {
    size_t whole, shared;
};
#define TEXTBOOK_TEXT 32
size_t textbook_bytes(struct textbook t, int64_t params, int ranks);         // whole P + shared P / ranks
void textbook_say(char text[TEXTBOOK_TEXT], struct textbook t, char ranks);  // "4P+12P/N" for ranks 'N'

struct topology_memory {
    size_t predicted_bytes[MEM_CLASSES];  // of this rank's topology part (without the model's activations)
    size_t formula_bytes;                 // of the textbook
};

#define WIRE_REPLICA_FORMULA "P*b/S, padded, b bytes per element"  // of what servers replicate, each way

// Bytes of offloaded state that a rank moves in a step: from the device to the host and up, from disk and to it.
struct offload_traffic {
    uint64_t down, up, read, written;
};

struct wire_prediction {
    uint64_t sent_per_step, received_per_step;                  // payload bytes
    uint64_t replica_sent_per_step, replica_received_per_step;  // of servers that replicate, beside them
    int group;  // ranks of a group (reduce_group); 0: there are none
    uint64_t across_sent_per_step, across_received_per_step;  // of the payload: to and from other groups
    uint64_t flat_across_sent_per_step;                       // the same if ranks did not exchange in groups
    uint64_t messages_per_step, messages_across_per_step;     // sent; 0: not counted
    struct offload_traffic offload;                           // no part of them
    // Of steps behind so many updates, where these move something else (1-bit Adam); updates 0: there are none.
    struct {
        int64_t updates;
        uint64_t sent_per_step, received_per_step;
    } later;
};
// How many of a run's steps were such ones, and what the payload counters held before the first of them.
struct wire_later {
    int64_t steps;
    uint64_t sent, received;
};
// The mean of `steps` steps, of which the last `later` move other bytes.
static inline double wire_mean(uint64_t bytes, uint64_t later_bytes, int64_t steps, int64_t later) {
    return later ? ((double)bytes * (double)(steps - later) + (double)later_bytes * (double)later) /
                       (double)steps
                 : (double)bytes;
}
// Of a run's first `steps` updates.
static inline int64_t wire_later_steps(const struct wire_prediction *w, int64_t steps) {
    return w->later.updates && steps > w->later.updates ? steps - w->later.updates : 0;
}

struct staleness {
    uint64_t count[64];  // count[tau]; the last bin holds everything above
    uint64_t max;
    double mean;
    // How far apart the versions of the weights are that one step computed on: newest - oldest of all keys.
    uint64_t spreads, spread_max;  // steps counted
    double spread_mean;
};

struct topology;
struct state_range;  // shared/state/part_file.h
struct checkpoint;   // shared/state/checkpoint_read.h
struct snapshot;     // shared/evaluation/snapshots.h
struct timeline;     // shared/time/timeline.h

struct topology_ops {
    const char *name;
    void (*prefetch)(struct topology *t, int u, enum pass pass);  // a hint; never blocks
    int (*acquire)(struct topology *t, int u, enum pass pass, struct unit_view *view);
    int (*release)(struct topology *t, int u, enum pass pass);  // ends PASS_FORWARD or PASS_EVAL use
    // Before each micro-batch; index of `count` in this step. The first overwrites gradients, later
    // ones add; grad_ready of the last may start communication (or of each: stages 2 and 3).
    int (*begin_micro)(struct topology *t, int index, int count);
    // Which samples of the run (numbered as shared/train/batch_feed.h says) this rank's batch of `step` begins with, where
    // ranks come and go: known for the next step, a guess for the one after it. NULL: slice `rank` of each global batch.
    int64_t (*batch)(struct topology *t, int64_t step);
    // Before each step, where ranks share one budget of batches and a fast one takes more: waits until it is known whether
    // there is a batch left for this rank's `step`, which `batch` then says. 1; 0: the budget is used, this rank's steps are
    // over; -1. Called where `shares` says so.
    int (*take)(struct topology *t, int64_t step);
    int (*grad_ready)(struct topology *t, int u);  // u's gradient of this micro-batch is complete
    // Finishes communication, norm, skip/clip, update. The only hook of a step in which the host waits for
    // its device, once: for an event behind the one copy that brings loss and decision (a star's worker: what
    // it reports). Updates may then still be under way; acquire orders what comes next behind them. A star's
    // worker waits for the scheduler's answer besides.
    int (*step)(struct topology *t, const struct step_input *in, struct step_stats *out);
    // Collective. values[i] = sum over ranks, in rank order, of each rank's values[i]. Evaluation.
    int (*sum)(struct topology *t, double *values, int count);
    // Collective; after the last step: all updates of all ranks have been applied, and acquire
    // returns the same final weights everywhere.
    int (*finish)(struct topology *t);
    // A snapshot of the weights (shared/evaluation/snapshots.h). Either a rank of each knows a part of them: after a step,
    // and until the next one, which the caller makes wait; they are there when compute's work so far, and what the hook adds
    // to it, has run. NULL: only others hold them.
    void (*part)(struct topology *t, int u, struct weights_part *out);
    // Or worker 0 has them collected: of the first version that is at least `version`, whenever that comes. Nobody waits but
    // the caller, until the one before is in its file; where workers go at their own pace it does not either. s is the topology's until all pieces are there or finish has been called.
    void (*snapshot)(struct topology *t, int64_t version, struct snapshot *s);
    // This rank's share of what a checkpoint holds: its index-th range (0, 1, ..) and where it lies, in fp32; -1: there are
    // no more. Those of all ranks are disjoint and together everything. NULL: others hold the state, and write it. What
    // lies there is the state behind the last step once what compute has been given so far has run, until the updates of
    // the next step, which the caller makes wait.
    int (*state)(struct topology *t, int index, struct state_range *out);
    // Where others hold the state: what this rank has of its own beside it (STATE_ERROR), in the same way; own_word goes with
    // it. -1 for index 0: nothing. All ranks of a job have it or none. NULL: nothing.
    int (*own)(struct topology *t, int index, struct state_range *out);
    // Instead of load_unit, on every rank, before the first step: takes the state from a checkpoint, whatever wrote it.
    // `start` is set by then. 0, or -1 after logging.
    int (*load)(struct topology *t, struct checkpoint *c);
    // Replaces unit u's weights (and masters) by full (n_pad) fp32 host values; every rank calls it with
    // the same values for every unit, before the first step.
    int (*load_unit)(struct topology *t, int u, const float *values);
    void (*abort)(struct topology *t,
                  const char *why);  // any thread; makes every wait of every rank fail soon
    // Why the device's work has failed, where the topology can say more than dev_error; else "". NULL: never.
    const char *(*why)(struct topology *t);
    void (*destroy)(struct topology *t);
};

struct topology {
    const struct topology_ops *ops;
    const struct layout *layout;
    struct device *dev;
    struct stream *compute;  // owned by the loop's creator; outlives the topology
    enum dtype dtype;
    int rank, size;  // worker index and number of workers
    uint64_t job;    // star: the number that the scheduler gave this job, to all roles the same; else 0
    uint64_t
        life;  // of this start of the job, the same on all its ranks: the loop's, for the names of checkpoints' files
    struct train_state start;  // what the first step goes on from; all zero: from the beginning
    // Where workers came and went (--elastic) before the checkpoint, fewer samples were handed out and applied than
    // steps and updates times the global batch: what to add to either product, 0 or less. The loop's.
    struct {
        int64_t dealt, samples;
    } beside;
    // The state behind the step that begins is to be kept. Set by the loop before the step's first begin_micro, and, where
    // ranks share a budget, before finish: the state behind all steps.
    bool keep;
    float loss_scale;  // of the step that begins; set likewise. 0: it has none
    const char
        *checkpoint;  // star: what its ranks were told to start from, the topology's; NULL: nothing was said
    uint32_t
        epoch;  // star: which life of the job, 1, 2, ..; from 2 on the run directory is its own, and gone on with
    bool
        lacks_file;  // finish could not leave a file of this rank, and has said so: the run ends with exit status 1
    struct wire_count wire;
    struct timeline *timeline;  // the loop's, from before the first step on; NULL: nothing is recorded
    struct topology_memory memory;
    struct wire_prediction wire_predicted;
    struct wire_later wire_later;
    struct staleness staleness;  // star only
    const char *medium;    // what payloads take, for people and summary.json: "shm", "tcp", "threads", ..
    const char *launch;    // what its ranks are: "threads", "processes" or "mpi"
    int64_t own_word;      // behind the last step
    bool mean_per_worker;  // async: gradients and loss are means over the worker's own batch
    bool shares;           // ranks take their batches from one budget: each does as many steps as it comes to
    // Who belongs to a step is decided step by step (--elastic): `samples` are the topology's, in the weights behind the last
    // step, `dealt` of them have been handed out (train_state; where ranks share a budget, as far as this one knows), and `contributors` is how many ranks' gradients that step's update is the mean of.
    bool deals;
    int64_t dealt;
    int contributors;
    bool joined;  // this rank has come to a run under way: `start` and the weights are there
    // async: samples of the whole job whose gradients are in the weights of the step in hand; set once its backward pass
    // has begun. Elsewhere the loop counts them.
    int64_t samples;
};

static inline void topology_prefetch(struct topology *t, int u, enum pass p) { t->ops->prefetch(t, u, p); }
static inline int topology_acquire(struct topology *t, int u, enum pass p, struct unit_view *v) {
    return t->ops->acquire(t, u, p, v);
}
static inline int topology_release(struct topology *t, int u, enum pass p) {
    return t->ops->release(t, u, p);
}
static inline int topology_begin_micro(struct topology *t, int i, int n) {
    return t->ops->begin_micro(t, i, n);
}
static inline int64_t topology_batch(struct topology *t, int64_t step) { return t->ops->batch(t, step); }
static inline int topology_take(struct topology *t, int64_t step) { return t->ops->take(t, step); }
static inline int topology_grad_ready(struct topology *t, int u) { return t->ops->grad_ready(t, u); }
static inline int topology_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    return t->ops->step(t, in, out);
}
static inline int topology_sum(struct topology *t, double *v, int n) { return t->ops->sum(t, v, n); }
static inline int topology_finish(struct topology *t) { return t->ops->finish(t); }
static inline void topology_part(struct topology *t, int u, struct weights_part *out) {
    t->ops->part(t, u, out);
}
static inline void topology_snapshot(struct topology *t, int64_t version, struct snapshot *s) {
    t->ops->snapshot(t, version, s);
}
static inline int topology_state(struct topology *t, int index, struct state_range *out) {
    return t->ops->state(t, index, out);
}
static inline int topology_load(struct topology *t, struct checkpoint *c) { return t->ops->load(t, c); }
static inline int topology_load_unit(struct topology *t, int u, const float *v) {
    return t->ops->load_unit(t, u, v);
}
static inline void topology_abort(struct topology *t, const char *why) { t->ops->abort(t, why); }
// The text to show when dev_error says that something has failed.
static inline const char *topology_why(struct topology *t) {
    const char *why = t->ops->why ? t->ops->why(t) : "";
    return *why ? why : dev_error(t->dev);
}
void topology_destroy(struct topology **t);

#endif
