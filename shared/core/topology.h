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
#include "shared/core/train_state.h"
#include "shared/core/unit.h"
#include "shared/core/wire_count.h"

enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_EVAL };

struct unit_view {
    const void *weights;  // (n_pad) of the run's dtype
    void *grad;           // (n_pad) of the run's dtype in PASS_BACKWARD, else NULL
    bool accumulate;      // backward: add to grad instead of overwriting it (later micro-batches)
};

// The step at hand of this rank, and where the job stands: the topology's, in struct topology. `plan` fills it
// before a step and `step` moves it behind one, so that the loop knows no consistency.
//
//     together   all ranks do the run's steps side by side, worker r takes slice r of each global batch, and the loss and
//                the gradient are means over all of it. Most topologies do so: step_plan_together, step_plan_over
//     alone      ranks share one budget of batches, and each does as many steps as it comes to. A rank's gradient is an
//                update of its own, and a mean over its own batch
//     in part    the ranks of a step are decided step by step (--elastic, ps:backup:B, ps:quorum:Q); else as together. A rank
//                that is late goes through the steps that were closed without it: `over`
struct step_plan {
    bool alone, in_part;  // neither: together. They never change
    int64_t mean;         // samples that the loss and the gradient are means over
    int64_t first;  // the sample of the run (shared/train/batch_feed.h) with which this rank's batch begins
    int slice;      // of the global batch, unless `mean` is over this rank's own: which one that is
    int64_t next;   // the same of the step behind it: a guess that may be wrong; -1: none
    // Samples of the job whose gradients are in the weights that the step computes on, and updates that these hold. Alone:
    // once the step's backward pass has begun. Behind `step`: of the weights behind it.
    int64_t samples, version;
    // Beside `samples` the schedule counts these: of late workers (train_state.h), and of local steps that no other rank has yet.
    int64_t unapplied;
    int64_t dealt;  // samples handed out to all ranks by the end of the last step, as far as this rank knows
    int64_t steps;  // of the run that are done, unless ranks go alone (step_plan_place)
    int workers;    // in part: that the last step's update is the mean of
    int64_t counted;  // in part: the tokens of these
    bool
        over;  // in part: the step was closed before this rank came to it. It computes nothing, and `step` tells how it went
    bool drops;            // in part: steps may be closed without this rank. It never changes
    int64_t late, missed;  // so far: steps that this rank has computed in vain, and those that were over
    // The loop's, before the step's first begin_micro (keep: before finish, too).
    bool keep;  // the state behind the step is to be kept
    // The step behind it computes on the weights behind it, whatever is allowed: what goes on from a checkpoint of it has no
    // others. The same on all ranks.
    bool drain;
    bool
        open;  // the topology's: the state behind the step is none that could be kept, nor may the run end there
    int lag;  // steps whose outcome is open when one begins: 0, unless the loop takes what the topology offers
    float loss_scale;             // 0: it has none
    int64_t tokens, mean_tokens;  // of this rank's batch, and of `mean`
};

// The loop's side of a step, when the backward pass has been enqueued. lr belongs to this update; loss_scale is 1
// without fp16.
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

// Bytes of offloaded state that a rank moves in a step: from the device to the host and up, from disk and to it.
struct offload_traffic {
    uint64_t down, up, read, written;
};

struct wire_prediction {
    uint64_t sent_per_step, received_per_step;  // payload bytes
    uint64_t local_sent_per_step,
        local_received_per_step;  // to and from the server beside a worker, beside them
    int group;                    // ranks of a group (reduce_group); 0: there are none
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
struct snapshot;     // shared/train/saver.h
struct timeline;     // shared/time/timeline.h

// The hooks. "Never blocks": the host only enqueues. All pointers given to a hook are the caller's again when it returns,
// unless it says otherwise.
struct topology_ops {
    const char *name;
    // A hint: unit u is needed soon. Never blocks.
    void (*prefetch)(struct topology *t, int u, enum pass pass);
    // Fills view, whose memory is the topology's until the matching release or grad_ready. May block until the unit is
    // there, where compute cannot be made to wait for it.
    int (*acquire)(struct topology *t, int u, enum pass pass, struct unit_view *view);
    // Ends the use of PASS_FORWARD or PASS_EVAL. Never blocks.
    int (*release)(struct topology *t, int u, enum pass pass);
    // Before each micro-batch; index of `count` in this step. The first overwrites gradients, later
    // ones add; grad_ready of the last may start communication (or of each: stages 2 and 3). Never blocks.
    int (*begin_micro)(struct topology *t, int index, int count);
    // u's gradient of this micro-batch is complete, and the topology's again. Never blocks, except where nothing may move
    // while a rank computes (overlap_comm false).
    int (*grad_ready)(struct topology *t, int u);
    // Before each step, which is no earlier than start.step: fills t->plan. 1; 0: the budget is used, this rank's steps are
    // over; -1. Blocks until it is known what this rank computes on. NULL: ranks go together.
    int (*plan)(struct topology *t, int64_t step);
    // Finishes communication, norm, skip or clip, update; moves t->plan. The only hook of a step in which the host waits
    // for its device, once: for an event behind the one copy that brings loss and decision (a star's worker: what
    // it reports). Updates may then still be under way; acquire orders what comes next behind them. A star's
    // worker waits for the scheduler's answer besides.
    // With plan.lag > 0 `out` is not filled: the step counts as one that was not skipped, until the loop knows better.
    int (*step)(struct topology *t, const struct step_input *in, struct step_stats *out);
    // What `step` has not said of a step, of the last 1 + plan.lag. Blocks until it is known. NULL: `step` says it, always.
    int (*outcome)(struct topology *t, int64_t step, struct step_stats *out);
    // Collective, blocks. values[i] = sum over ranks, in rank order, of each rank's values[i].
    int (*sum)(struct topology *t, double *values, int count);
    // Collective, blocks; after the last step: all updates of all ranks have been applied, and acquire
    // returns the same final weights everywhere. 0; 1: so it is, but a file of this rank could not be left, which has been
    // said; -1.
    int (*finish)(struct topology *t);
    // A snapshot of the weights (shared/train/saver.h). Either each rank knows a part of them: its index-th range (0, 1, ..)
    // and where it lies, in the run's type; -1: there are no more. After a step, and until the next one, which the caller
    // makes wait; they are there when compute's work so far, and what the hook adds to it, has run. Never blocks. NULL: only
    // others hold them.
    int (*weights)(struct topology *t, int index, struct state_range *out);
    // Or worker 0 has them collected: of the first version that is at least `version`, whenever that comes. Blocks until the
    // one before is in its file, and not where ranks go alone; no other rank waits. s is the topology's until all pieces
    // are there or finish has been called.
    void (*snapshot)(struct topology *t, int64_t version, struct snapshot *s);
    // This rank's part of a checkpoint: its index-th range (0, 1, ..) and where it lies, in fp32; -1: there are no more.
    // Ranges of masters and states of all ranks are disjoint and together everything, or others hold them (`elsewhere`).
    // Beside these a rank may have state of its own (kinds below 0), for as many elements as it likes: all ranks of a job
    // have some, or none. The values there are the state behind the last step once what compute has been given so far has
    // run, until the updates of the next step, or its first pass (`writes_early`), which the caller makes wait. Never blocks.
    int (*state)(struct topology *t, int index, struct state_range *out);
    // Instead of load_unit, on every rank, before the first step: takes the state from a checkpoint, whatever wrote it.
    // `start` is set by then. Blocks. 0, or -1 after logging.
    int (*load)(struct topology *t, struct checkpoint *c);
    // Replaces unit u's weights (and masters) by full (n_pad) fp32 host values; every rank calls it with
    // the same values for every unit, before the first step. Blocks.
    int (*load_unit)(struct topology *t, int u, const float *values);
    // Makes every wait of every rank fail soon. Any thread; never blocks.
    void (*abort)(struct topology *t, const char *why);
    // Why the device's work has failed, where the topology can say more than dev_error; else "". NULL: never.
    const char *(*why)(struct topology *t);
    // Blocks until nothing that is enqueued uses its memory.
    void (*destroy)(struct topology *t);
};

struct topology {
    const struct topology_ops *ops;
    const struct layout *layout;
    struct device *dev;
    struct stream *compute;  // owned by the loop's creator; outlives the topology
    enum dtype dtype;
    int rank, size;  // worker index and number of workers
    struct step_plan plan;

    // Where the run begins. `start` is the loop's, from the checkpoint that it has opened, unless `under_way` says that this
    // rank has come to a job at work: then `start` and the weights are there.
    struct train_state start;  // what the first step goes on from; all zero: from the beginning
    bool under_way;
    int lag;            // outcomes of steps that may be open when one begins: plan.lag is this or 0
    bool writes_early;  // acquire writes to what `state` shows
    int elsewhere;  // so many others, servers 0 and on, hold masters and states, write them, and are told what to start from
    const char *checkpoint;  // elsewhere: what they were told; NULL: nothing was said
    uint64_t job;            // the number that all roles of the job have been given; 0: none
    uint32_t epoch;  // which life of the job, 1, 2, ..; from 2 on the run directory is its own; 0: unknown

    struct {
        const char *name;  // of a number that goes with this rank's own state; NULL: none
        int64_t value;     // behind the last step
    } own_number;
    struct wire_count wire;
    struct timeline *timeline;  // the loop's, from before the first step on; NULL: nothing is recorded
    struct topology_memory memory;
    struct wire_prediction wire_predicted;
    struct wire_later wire_later;
    struct staleness staleness;  // of those that report it
    double
        consensus_distance;  // of a rank with weights of its own: |own - mean|^2, squares added, behind the last step
    const char *medium;  // what payloads take, for people and summary.json: "shm", "tcp", "threads", ..
    const char *launch;  // what its ranks are: "threads", "processes" or "mpi"
};

// A step of ranks that go together. Fills first and next.
int step_plan_together(struct topology *t);
// Moves the plan behind a step. In part: but samples, dealt and workers, which the topology knows.
void step_plan_over(struct topology *t, bool skipped);
void step_plan_undo(struct topology *t);  // one of the steps behind it was skipped, which nobody knew then
// Steps of the run that are done: of a shared budget as many as the samples make that are handed out.
int64_t step_plan_place(const struct topology *t);
// Of a skipped batch no samples are in the weights, but it is done.
static inline int64_t step_plan_dealt(const struct step_plan *p) {
    return p->dealt < p->samples ? p->samples : p->dealt;
}

// The schedule's place in the run.
static inline int64_t step_plan_seen(const struct step_plan *p) { return p->samples + p->unapplied; }

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
static inline int topology_plan(struct topology *t, int64_t step) {
    return t->ops->plan ? t->ops->plan(t, step) : step_plan_together(t);
}
static inline int topology_grad_ready(struct topology *t, int u) { return t->ops->grad_ready(t, u); }
static inline int topology_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    return t->ops->step(t, in, out);
}
static inline int topology_sum(struct topology *t, double *v, int n) { return t->ops->sum(t, v, n); }
static inline int topology_finish(struct topology *t) { return t->ops->finish(t); }
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
