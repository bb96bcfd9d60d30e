// The hooks between the training loop and a topology (docs/ARCHITECTURE.md). The loop uses only these: a new
// topology is a new file, never an `if` in the loop or the model.
//
// Ownership   The topology owns all weight, gradient and optimizer memory. A view is valid from acquire until the
//             matching release (forward) or grad_ready (backward).
// Threads     The rank's main thread calls all hooks.
// Order       The loop enqueues compute on `compute`. acquire makes that stream wait until the unit is available
//             (or blocks the host until then), so work enqueued after it may read the view. release and grad_ready
//             refer to all work enqueued on `compute` so far.
// Errors      Hooks return -1 after the topology has logged what failed (rank, unit, step). After an error only abort
//             and destroy may be called.
//
// One step:   for each micro-batch:
//                 forward:  units 0..n-1: acquire(u, PASS_FORWARD) .. release(u, PASS_FORWARD)
//                 backward: units n-1..0: acquire(u, PASS_BACKWARD) .. grad_ready(u)
//             step()
// A tied unit 0 is also acquired around the head. Forward: acquire(0), release(0) nested in the head's
// acquire/release. Backward: acquire(0, PASS_BACKWARD) before the head's backward, which writes the head's share of
// the gradient. A second acquire(0, PASS_BACKWARD), for the embedding, must return the same gradient buffer. The
// only grad_ready(0) follows the embedding's backward.
// Evaluation: forward passes only, with PASS_EVAL.
// Gradients   The model writes all elements of every tensor and, on GPUs, zeros to the elements reserved after a
//             tensor. It writes nothing else: the topology keeps the gaps, padding and reserved elements of a
//             gradient buffer zero (it must clean a slot that another unit has used).
#ifndef STARRING_SHARED_CORE_TOPOLOGY_H
#define STARRING_SHARED_CORE_TOPOLOGY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "shared/core/train_state.h"
#include "shared/core/unit.h"

// ---------------------------------------------------------------- bytes sent and received
// Bytes sent and received by one rank. Payload is what the textbook formulas
// count: the weights and gradients that TRAINING STEPS move. Everything else is control and is counted separately:
// headers, messages, scalars, and the weights moved by load_unit, by evaluation passes (PASS_EVAL) and by finish.
// After finish, payload / steps is therefore exact.

// Counts of injected faults in messages that arrived (shared/core/trouble.h).
enum wire_fault { FAULT_MESSAGES, FAULT_LOST, FAULT_TWICE, FAULT_OVERTAKEN, WIRE_FAULTS };

struct wire_count {
    _Atomic uint64_t payload_sent, payload_received;  // bytes
    _Atomic uint64_t across_sent, across_received;    // payload to and from ranks of other groups
    // Weights and gradients moved to and from a rank's own server on the same host: no payload.
    _Atomic uint64_t local_sent, local_received;
    _Atomic uint64_t control_sent, control_received;  // bytes
    // Messages that were resent because no answer arrived, and their bytes, which are control.
    _Atomic uint64_t repeats, repeated_bytes;
    _Atomic uint64_t faults[WIRE_FAULTS];  // messages
    // Bytes of copied weights that the transport has not released yet: now, and the most so far.
    _Atomic uint64_t copied, copied_peak;
    // Bytes of offloaded state, in training steps: between device and host, and between host and disk.
    _Atomic uint64_t host_down, host_up, disk_read, disk_written;
};

// Copies the counts while other threads count.
static inline void wire_count_copy(struct wire_count *to, const struct wire_count *from) {
    _Atomic uint64_t *counts = (_Atomic uint64_t *)to;  // struct wire_count consists of these
    const _Atomic uint64_t *others = (const _Atomic uint64_t *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *counts; i++)
        atomic_store(&counts[i], atomic_load(&others[i]));
}

// ---------------------------------------------------------------- hooks
enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_EVAL };

struct unit_view {
    const void *weights;  // (n_pad) of the run's dtype
    // LoRA: the frozen elements of the model's unit (unit.h); NULL: they follow the trained ones in `weights`.
    const void *frozen;
    void *grad;       // (n_pad) of the run's dtype in PASS_BACKWARD, else NULL
    bool accumulate;  // backward: add to grad instead of overwriting it (later micro-batches)
};

// A rank's current step, and the state of the job. It belongs to the topology: `plan` fills it before a step and
// `step` advances it after the step, so that the loop does not depend on the consistency model.
//
//     together     all ranks compute the run's steps at the same time. Worker r takes slice r of each global batch; loss
//                  and gradient are means over the whole batch. Most topologies: step_plan_together, step_plan_advance
//     independent  ranks share one budget of batches, and each computes steps until the budget is used up. Each rank's
//                  gradient is a separate update, and a mean over the rank's own batch
//     partial      as together, but for each step it is decided which ranks count (--elastic, ps:backup:B, ps:quorum:Q).
//                  A late rank skips the steps that were closed without it
struct step_plan {
    bool independent, partial;  // both false: together. Constant
    int64_t mean;               // samples over which loss and gradient are means
    int64_t first;              // first sample of this rank's batch (shared/train/batch_feed.h)
    int slice;     // this rank's slice of the global batch; unused if `mean` is over the rank's own batch
    int64_t next;  // expected `first` of the next step, which may turn out to be another; -1: unknown
    // Samples of the job whose gradients the step's weights contain, and updates that these weights contain. Independent:
    // valid after the step's backward pass has begun. After the hook `step` both describe the weights after the step.
    int64_t samples, version;
    // Samples that the schedule counts besides `samples`: of late workers (train_state.h), and of local steps that
    // no other rank has received yet.
    int64_t unapplied;
    int64_t
        handed_out;  // samples handed out to all ranks by the end of the last step, as far as this rank knows
    int64_t steps;   // steps of the run that are done, unless ranks are independent (step_plan_steps_of_run)
    int workers;     // partial: how many workers' gradients are in the last update
    int64_t counted;  // partial: the tokens of these workers
    // Partial: the step was closed without this rank. The rank computes nothing, and `step` returns the step's
    // outcome.
    bool closed_without_rank;
    bool may_miss_steps;  // partial: steps may be closed without this rank. Constant
    // So far: steps that this rank computed too late to count, and steps that were closed without it.
    int64_t late, missed;
    // The loop sets these before the step's first begin_micro (keep: before finish, too).
    bool keep;  // a checkpoint or snapshot of the state after the step follows
    // The next step must compute on the weights after this step, whatever delay is allowed: a run that resumes from
    // this step's checkpoint has no older weights. The same on all ranks.
    bool drain;
    // The topology sets it: no checkpoint can be made of the state after the step, and the run must not end there.
    bool not_resumable;
    // Steps whose outcome is unknown when a step begins: 0, unless the loop accepts the topology's lag.
    int lag;
    float loss_scale;             // 0: none
    int64_t tokens, mean_tokens;  // tokens of this rank's batch; tokens over which the gradient is a mean
};

// The loop's input to the hook `step`, which it calls after it has enqueued the backward pass. lr is the rate of this
// update; loss_scale is 1 without fp16.
struct step_input {
    int64_t step;     // number of this step, from 0; skipped steps count
    int64_t updates;  // updates applied so far (attempts that were not skipped)
    float lr;
    float loss_scale;
    float clip;              // 0: none
    const double *loss_sum;  // device memory: the rank's summed token losses, after `compute`'s work so far
    double loss_tokens;      // tokens of the mean: this rank's share of the loss is *loss_sum / loss_tokens
    bool stop;               // this rank was asked to stop
    bool snapshot;           // rank 0 wants to keep the weights after this step
};

struct step_stats {
    double loss;       // the mean over the global batch: shares added in rank order
    double grad_norm;  // global, unscaled, before clipping; NAN when the topology computes none
    bool skipped;      // a gradient was not finite: nothing was updated
    // Some rank was asked to stop: all ranks stop after this step. Synchronous topologies report it to every rank
    // at the same step, within the step's own exchange. Asynchronous workers each learn it at a step of their own.
    bool stop;
    bool snapshot;  // rank 0's request, for all ranks that take part in the snapshot
};

// The textbook's bytes per parameter of a rank: `whole`, of which each rank holds a full copy, and `shared`, which is
// divided by the number of ranks.
struct textbook {
    size_t whole, shared;
};
#define TEXTBOOK_TEXT 32
size_t textbook_bytes(struct textbook t, int64_t params, int ranks);          // whole P + shared P / ranks
void textbook_text(char text[TEXTBOOK_TEXT], struct textbook t, char ranks);  // "4P+12P/N" for ranks 'N'

struct topology_memory {
    size_t predicted_bytes[MEM_CLASSES];  // of this rank's topology, without the model's activations
    size_t formula_bytes;                 // by the textbook
};

// Bytes of offloaded state that a rank moves per step: device to host (down), host to device (up), and from and to
// disk.
struct offload_traffic {
    uint64_t down, up, read, written;
};

struct wire_prediction {
    uint64_t sent_per_step, received_per_step;  // payload bytes
    // To and from a worker's own server, on the same host; not in the payload above.
    uint64_t local_sent_per_step, local_received_per_step;
    int group;                                                // ranks of a group (reduce_group); 0: no groups
    uint64_t across_sent_per_step, across_received_per_step;  // payload to and from other groups
    uint64_t flat_across_sent_per_step;                       // the same without groups
    uint64_t messages_per_step, messages_across_per_step;     // sent messages; 0: not counted
    struct offload_traffic offload;                           // not in the payload above
    // The same for steps after `updates` updates, if they move other bytes (1-bit Adam). updates 0: they do not.
    struct {
        int64_t updates;
        uint64_t sent_per_step, received_per_step;
    } later;
};
// How many of a run's steps came after these `updates`, and the payload counters before the first of them.
struct wire_later {
    int64_t steps;
    uint64_t sent, received;
};
// Returns the mean bytes of `steps` steps, of which the last `later` move later_bytes each.
static inline double wire_mean(uint64_t bytes, uint64_t later_bytes, int64_t steps, int64_t later) {
    return later ? ((double)bytes * (double)(steps - later) + (double)later_bytes * (double)later) /
                       (double)steps
                 : (double)bytes;
}
// Returns how many of a run's first `steps` steps come after `updates` updates.
static inline int64_t wire_later_steps(const struct wire_prediction *w, int64_t steps) {
    return w->later.updates && steps > w->later.updates ? steps - w->later.updates : 0;
}

struct staleness {
    uint64_t count[64];  // count[tau]; the last bin holds all larger values
    uint64_t max;
    double mean;
    // Spread of a step: the newest minus the oldest version among the keys of the weights that it computed on.
    uint64_t spreads, spread_max;  // steps counted
    double spread_mean;
};

struct topology;
struct state_range;  // shared/state/part_file.h
struct checkpoint;   // shared/state/checkpoint_read.h
struct snapshot;     // shared/train/saver.h
struct timeline;     // shared/time/timeline.h

// The hooks. "Never blocks": the host only enqueues. Pointers given to a hook belong to the caller again when the
// hook returns, unless stated otherwise.
struct topology_ops {
    const char *name;
    // A hint: unit u is needed soon. Never blocks. prefetch, release, sum and abort may be NULL: there is nothing to do.
    void (*prefetch)(struct topology *t, int u, enum pass pass);
    // Fills view. The view's memory belongs to the topology and is valid until the matching release or grad_ready.
    // Makes the compute stream wait until the unit is available; if that is impossible, the host blocks.
    int (*acquire)(struct topology *t, int u, enum pass pass, struct unit_view *view);
    // Called when the pass (PASS_FORWARD or PASS_EVAL) no longer uses unit u's weights. Never blocks.
    int (*release)(struct topology *t, int u, enum pass pass);
    // Called before each micro-batch, number `index` of `count` in this step. The first one overwrites gradients,
    // later ones add. grad_ready of the last one may start communication (stages 2 and 3: grad_ready of each).
    // Never blocks.
    int (*begin_micro)(struct topology *t, int index, int count);
    // Called when the gradient of u for this micro-batch is complete; it belongs to the topology again. Never blocks, unless
    // communication must not overlap with compute (overlap_comm false).
    int (*grad_ready)(struct topology *t, int u);
    // Called before each step, from start.step on: fills t->plan. Returns 1; 0 if the budget is used up and this
    // rank has no more steps; -1. Blocks until the plan is known. NULL: step_plan_together.
    int (*plan)(struct topology *t, int64_t step);
    // Finishes communication, norm, skip or clip, update; advances t->plan. It is the only hook of a step in which
    // the host waits for its device, and it waits once: for an event after the one copy that brings loss and
    // decision (a star's worker: what it reports). Updates may still be running then; acquire orders later work
    // after them. A star's worker also waits for the scheduler's answer.
    // With plan.lag > 0 `out` is not filled: the step counts as not skipped until `outcome` returns.
    int (*step)(struct topology *t, const struct step_input *in, struct step_stats *out);
    // Fills the outcome of one of the last 1 + plan.lag steps, if `step` has not returned it. Blocks until it is known.
    // NULL: `step` always returns it.
    int (*outcome)(struct topology *t, int64_t step, struct step_stats *out);
    // Collective, blocks. Replaces values[i] by the sum over all ranks' values[i], in rank order.
    int (*sum)(struct topology *t, double *values, int count);
    // Collective, blocks; called after the last step. Afterwards all updates of all ranks are applied, and acquire
    // returns the same final weights on every rank. Returns 0; 1 if all of this is done but a file of this rank could not be
    // written (logged); -1.
    int (*finish)(struct topology *t);
    // A snapshot of the weights (shared/train/saver.h), by one of two hooks. `weights`, if each rank holds a share:
    // returns this rank's index-th range (0, 1, ..) and its address, in the run's type; -1: no more. Called after a
    // step; valid until the next one, which the caller makes wait. The values are there when compute's work so far,
    // and what the hook adds to it, has run. Never blocks. NULL: only other roles hold the weights.
    int (*weights)(struct topology *t, int index, struct state_range *out);
    // `snapshot`: worker 0 has the weights collected, of the first version that is at least `version`, whenever it
    // is reached. Blocks until the snapshot before it is in its file, except where ranks are independent; no other rank
    // waits. s belongs to the topology until all ranges have arrived or finish has been called.
    void (*snapshot)(struct topology *t, int64_t version, struct snapshot *s);
    // This rank's share of a checkpoint. Returns its index-th range (0, 1, ..) and the range's address, in fp32;
    // -1: no more. The ranges of masters and states of all ranks are disjoint and together complete, or other roles
    // hold them (`state_servers`). A rank may also have state of its own (kinds below 0), with any number of elements;
    // all ranks of a job have some, or none. The values are the state after the last step once compute's work so
    // far has run. They stay until the updates of the next step, or its first pass (`writes_early`), which the
    // caller makes wait. Never blocks.
    int (*state)(struct topology *t, int index, struct state_range *out);
    // Called instead of load_unit, on every rank, before the first step: loads the state from a checkpoint of any
    // writer. `start` is set before. Blocks. Returns 0, or -1 after logging.
    int (*load)(struct topology *t, struct checkpoint *c);
    // Replaces unit u's weights (and masters) by full (n_pad) fp32 host values. Every rank calls it with the same
    // values for every unit, before the first step. Blocks.
    int (*load_unit)(struct topology *t, int u, const float *values);
    // Of a topology whose row shards what LoRA freezes (unit.h): as prefetch, acquire, release and load_unit, but of the
    // frozen elements of the model's unit u, which have no gradient and no updates.
    void (*prefetch_frozen)(struct topology *t, int u, enum pass pass);
    int (*acquire_frozen)(struct topology *t, int u, enum pass pass, const void **weights);
    int (*release_frozen)(struct topology *t, int u);
    int (*load_frozen)(struct topology *t, int u, const float *values);
    // Makes every wait of every rank fail soon. Any thread may call it; never blocks.
    void (*abort)(struct topology *t, const char *why);
    // Returns why the device's work has failed, if the topology knows more than dev_error; else "". NULL: it never does.
    const char *(*why)(struct topology *t);
    // Blocks until no enqueued work uses the topology's memory.
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

    // Where the run begins. The loop sets `start` from the checkpoint that it has opened. If `joined_running_job` is true,
    // this rank has joined a running job: then `start` and the weights are already set.
    struct train_state start;  // the first step continues from it; all zero: from the beginning
    bool joined_running_job;
    int lag;            // steps whose outcome may be unknown when one begins: plan.lag is this or 0
    bool writes_early;  // acquire writes to the memory that `state` returns
    // The number of servers that hold and write masters and states, and that receive where to start from.
    int state_servers;
    const char *checkpoint;  // with state_servers: the checkpoint that was sent to them; NULL: none
    uint64_t job;            // the job's number, which all its roles have; 0: none
    // The epoch of the job: 1, 2, ..; from 2 on the run directory already belongs to the job; 0: unknown.
    uint32_t epoch;

    struct {
        const char *name;  // of a number that is stored with this rank's own state; NULL: none
        int64_t value;     // after the last step
    } own_number;
    struct wire_count wire;
    struct timeline *timeline;  // the loop's, set before the first step; NULL: nothing is recorded
    struct topology_memory memory;
    struct wire_prediction wire_predicted;
    struct wire_later wire_later;
    struct staleness staleness;  // of topologies that report it
    // For ranks with different weights: |own - mean|^2, the sum of squares, after the last step.
    double consensus_distance;
    const char *medium;  // what carries payloads, as printed and in summary.json: "shm", "tcp", "threads", ..
    const char *launch;  // what the ranks are: "threads", "processes" or "mpi"
};

// Plans a step of kind "together": fills slice, first and next.
int step_plan_together(struct topology *t);
// Advances the plan after a step. In a partial plan the topology itself sets samples, handed_out and workers.
void step_plan_advance(struct topology *t, bool skipped);
void step_plan_undo(struct topology *t);  // corrects the plan after an earlier step turned out to be skipped
// Returns the completed steps of the run. With a shared budget: the samples that are handed out, in global batches.
int64_t step_plan_steps_of_run(const struct topology *t);
// Returns the samples handed out. Those of a skipped batch count, although their gradients are not in the weights.
static inline int64_t step_plan_handed_out(const struct step_plan *p) {
    return p->handed_out < p->samples ? p->samples : p->handed_out;
}

// Returns the samples that the learning rate schedule counts.
static inline int64_t step_plan_seen(const struct step_plan *p) { return p->samples + p->unapplied; }

static inline void topology_prefetch(struct topology *t, int u, enum pass p) {
    if (t->ops->prefetch) t->ops->prefetch(t, u, p);
}
static inline int topology_acquire(struct topology *t, int u, enum pass p, struct unit_view *v) {
    return t->ops->acquire(t, u, p, v);
}
static inline int topology_release(struct topology *t, int u, enum pass p) {
    return t->ops->release ? t->ops->release(t, u, p) : 0;
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
static inline int topology_sum(struct topology *t, double *v, int n) {
    return t->ops->sum ? t->ops->sum(t, v, n) : 0;
}
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
static inline void topology_abort(struct topology *t, const char *why) {
    if (t->ops->abort) t->ops->abort(t, why);
}
// Returns the text to print when dev_error reports a failure.
static inline const char *topology_why(struct topology *t) {
    const char *why = t->ops->why ? t->ops->why(t) : "";
    return *why ? why : dev_error(t->dev);
}
void topology_destroy(struct topology **t);

#endif
