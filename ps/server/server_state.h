// The inside of a shard's core, for its files. server_core.c takes messages, each policy for taking pushes has a
// file, and server_state.c has what all of these do with a key. server_core.h has the drawing and the invariants.
#ifndef STARRING_PS_SERVER_SERVER_STATE_H
#define STARRING_PS_SERVER_SERVER_STATE_H

#include "ps/server/key_pass.h"
#include "ps/server/push_policy.h"
#include "ps/server/server_options.h"

// A worker's gradient: in a frame, or in its segment, which the worker leaves unchanged until it is acknowledged.
struct gradient {
    const void *data;  // NULL: none
    size_t bytes;
    struct ps_frame *frame;  // NULL: in the segment
};

// A step of a key. Where pushes are applied on arrival there is one slot, for the last push of each worker.
struct slot {
    struct gradient *held;  // (N) not in the sum yet
    int64_t *ready_ns;  // (N) when the push was ready; once added, the latest of it and those added before
    int next_worker;    // its gradient is added next
    int contributed;    // gradients taken, held ones included; 0: none of this step has arrived
    bool complete;      // summed and rounded, not yet committed
    bool keep;          // the state after the step is to be kept
    float lr;
    int lr_worker;      // the worker that sent it first
    int64_t needed_ns;  // the latest ready_ns of its gradients
};

// The last pull of one worker.
struct server_pull {
    bool pending, final;
    int64_t want;   // the step whose weights it asks for
    int64_t least;  // the oldest step whose weights are accepted
    // An older step is not accepted in any case: the worker has drained its steps before this one, or begun with it.
    int64_t base;
    uint64_t seq;           // 0: none yet
    uint64_t reply_offset;  // offset in the worker's segment where the weights are wanted; 0: none
};

// The last snapshot request.
struct server_shot {
    bool pending;
    int worker;
    int64_t want;  // the key's version
    uint64_t seq;
};

// Where several pushes are averaged: those of the open update, whose sum is in the key's buffer of sums.
struct open_sum {
    int pushes;
    double weight;  // sum of their weights: each push's tokens (1 if it sends none), or less by its age
    double tokens;  // sum of their tokens
    float unit;     // of the rounded mean, for types of small range
    float lr;       // of the last push
    struct summed {
        int64_t batch;
        int worker;
    } * of;     // (K) the pushes
    bool ends;  // no worker pushes any more: the pushes so far make an update
};

// The weights that a worker was sent last, in buf.pulled.
struct sent_weights {
    uint64_t seq;  // of its pull; 0: none yet; SENT_INITIAL: the initial weights
    int64_t version;
};

struct server_key {
    int key;
    const struct partition *part;
    const struct unit *unit;
    int64_t n;  // elements
    struct server_buffers buf;
    bool loaded;
    uint64_t load_seq;
    int64_t version;          // updates applied
    int64_t skew;             // updates that the optimizer's moments have seen, minus version
    int64_t step;             // the key's clock: steps committed
    struct slot *slots;       // (L), step t uses slots[t % L]
    int64_t *old_version;     // (lead) of buf.old; NULL: none
    int64_t update_ready_ns;  // the time that the last update waited for; with a commit round, over all keys
    int64_t *pushed;          // (N) pushes taken; the next step expected
    int64_t *staleness;       // (N) of the last push
    struct server_pull *pulls;  // (N)
    struct server_shot shot;
    void *own;  // the policy's own record; NULL: none
    // Where pushes are applied on arrival:
    int64_t *batches;  // the batches whose gradients the key has (ps/job/batches.h)
    struct open_sum sum;
    struct sent_weights *sent;  // (N) with delay compensation; else NULL
    _Atomic int inflight;       // replies that the transport is reading from buf.weight
    struct server_key *next_waiting;
    bool waits;  // the key is in the core's list `waiting`
};

// A shard's state in the commit round of one step.
struct server_round {
    int keys;       // complete so far
    int committed;  // keys of these that are updated or skipped
    bool reported, decided;
    struct exact_sum sum;
    struct update_scalars scalars;
    int64_t ready_ns;  // the latest of the complete keys; after the decision, of all that it waited for
    // If not all workers belong to the step (push_set.c):
    struct set_part {
        int keys;         // keys that have the worker's gradient
        int64_t tokens;   // tokens of the worker's batch; 0: the worker does not send them
    } * parts;            // (N)
    int64_t mean_tokens;  // tokens over which the gradients are averaged
    uint64_t arrived;     // workers with gradients of all keys
    uint64_t fixed;       // the step's set; 0: not yet
};

struct server_core {
    struct server_core_options o;
    // Derived from the configuration:
    const struct push_policy *policy;
    struct consistency_rule rule;
    int slots;                // L
    enum dtype dtype;         // of gradients and weights
    struct code_format code;  // of pushes; of kind CODE_NONE: they are gradients
    int group;                // workers of a group that is summed first; 0: none
    bool commit_waits;        // updates wait for the scheduler's decision

    int count;  // keys of this shard that are trained
    int all;    // the same and, after them, those that are only pulled (shard_map.h)
    struct server_key *keys;
    int *index;             // (map->count): index in keys of each key; -1: not of this shard
    uint64_t *incarnation;  // (N) processes that have the ranks; 0: not known yet
    uint32_t *process_no;   // (N) the last known process of each rank, where workers join and leave; 0: none
    bool *over;             // (N) they no longer push
    struct server_segment *segments;  // (N)
    int attached;                     // workers with a segment
    const void **grads;               // (N) the inputs of a sum
    void *chunk;                      // scratch of a pass
    double now;                       // time of the last message or tick
    int64_t step;                     // the oldest step that is not over on every key
    struct server_round *rounds;      // (L), step t uses rounds[t % L]
    int open;                         // slots with gradients that are not committed
    struct server_key *waiting;       // keys whose update waits until the transport has sent their weights
    uint64_t applied;                 // pushes applied so far, if they are applied on arrival
    int64_t begin;                    // steps that were over when this process of the job began
    int64_t *row;                     // (N) scratch
    int64_t *batches;                 // (batches_words) scratch
    struct server_totals totals;
    char error[WIRE_TEXT_MAX];
};

static inline struct slot *slot_of(const struct server_core *c, const struct server_key *k, int64_t step) {
    return &k->slots[(step + c->slots) % c->slots];
}
// Whether the key is only pulled: no policy sees it.
static inline bool is_frozen(const struct server_core *c, const struct server_key *k) {
    return k->key >= c->o.map->trained;
}
static inline struct server_round *round_of(const struct server_core *c, int64_t step) {
    return &c->rounds[step % c->slots];
}
// The index in buf.old of the weights of the key's past clock t, while t is among the last `lead`.
static inline int old_of(const struct server_core *c, int64_t t) { return (int)(t % c->rule.lead); }

// ---------------------------------------------------------------- what all policies do with a key (server_state.c)
// A gradient is used in an update: counts its age, in updates, and logs it.
void count_age(struct server_core *c, const struct wire_header *h, const void *grad, uint64_t tau);
// Acknowledges the worker's push of `step`, or of one of its micro-batches; held: it has arrived and is not added yet.
void acknowledge_micro(struct server_core *c, const struct server_key *k, int worker, int64_t step, int micro,
                       bool held);
static inline void acknowledge(struct server_core *c, const struct server_key *k, int worker, int64_t step,
                               bool held) {
    acknowledge_micro(c, k, worker, step, 0, held);
}
// Stores a gradient, and releases it. update_held_peak: gradients held now count for the peak.
void gradient_hold(struct server_core *c, struct gradient *place, const struct gradient *g);
void gradient_release(struct server_core *c, struct gradient *place);
void update_held_peak(struct server_core *c);
// Whether the worker's last push is held, where pushes wait for their place in an order.
static inline bool is_held(const struct server_key *k, int worker) {
    return k->slots->held[worker].data != NULL;
}
// Answers the pulls that can be answered. Call it after each update, and after each push that changes what its worker
// may read.
void answer_pulls(struct server_core *c, struct server_key *k);
bool pull_ready(const struct server_core *c, const struct server_key *k, int worker);
// The key's clock whose weights answer the worker's pull; -1: in a replayed run, the recorded ones are missing.
int64_t clock_read(const struct server_core *c, const struct server_key *k, int worker);
// The record of the step of the worker's pull; NULL: none, or nothing is computed on the weights.
const struct arrival *recorded_read(const struct server_core *c, const struct server_key *k, int worker);
void answer_pull(struct server_core *c, struct server_key *k, int worker);
// Called when the key has reached the wanted version.
void answer_snapshot(struct server_core *c, struct server_key *k);
bool renew_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);
// Applies one update to masters and states, unless it is skipped. Returns 0, or -1 with an error.
int apply(struct server_core *c, struct server_key *k, const void *grad, float lr,
          const struct update_scalars *scalars);
// Copies the weights that the open step's update will overwrite, if old ones are read.
void keep_old(const struct server_core *c, struct server_key *k);
struct update_range range_of(const struct server_core *c, const struct server_key *k, const void *grad);
// checkpoint_wanted: whether the state after this push's step is to be kept. checkpoint_key hands the key's current state over, as
// the state after `step` steps.
bool checkpoint_wanted(const struct server_core *c, const struct wire_header *h);
void checkpoint_key(struct server_core *c, struct server_key *k, int64_t step, bool last);
// Sets the kind of the thread's work, for one worker's push or for all of the key's open step.
void work_on(const struct server_core *c, enum server_part part, struct span of);
static inline struct span of_push(const struct server_key *k, int worker, int64_t step) {
    return span_for(step, k->key, worker, 1);
}
static inline struct span of_all(const struct server_core *c, const struct server_key *k) {
    return span_for(k->step, k->key, 0, c->rule.workers);
}

// ---------------------------------------------------------------- pushes that wait for their place in an order
// The fields that are needed later from the header of a push whose gradient is held.
struct held_push {
    int64_t step, version, batch, ready_ns, tokens;
    float lr, grad_scale;
    uint32_t flags;
};
struct held_push held_push_of(const struct wire_header *h);
struct wire_header held_push_header(const struct held_push *p, int key, int worker);
// Returns 0, or -1 with an error if the push is not the recorded one.
int check_recorded(struct server_core *c, const struct server_key *k, const struct held_push *p,
                   const struct arrival *a);

// ---------------------------------------------------------------- steps that commit (push_in_order.c)
// Records a push, and holds its gradient in its step's slot. Returns 0, or -1 with an error.
int slot_add_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                  const struct gradient *g);
// The gradients that are added next to the open step's sum, or to the sum of its micro-batch: those of `held` (N) from the
// slot's next worker on that are here.
struct sum_args next_gradients(struct server_core *c, const struct server_key *k,
                               const struct gradient *held);
// `count` of these are in the sum: releases and acknowledges them.
void release_added(struct server_core *c, struct server_key *k, struct gradient *held, int micro, int count);
// All counting gradients of the key's open step are here: adds them, and the key to the shard's sum. If nothing has to
// be decided or waited for, and no worker waits for an acknowledgement (*at_once), the same pass makes the update. The
// caller then releases the gradients and calls close_slot, which commits if possible. Returns 0, or -1 with an error.
int add_up(struct server_core *c, struct server_key *k, const struct sum_args *sum, bool *at_once);
int close_slot(struct server_core *c, struct server_key *k, bool at_once);
// Commits the open step of a key if it is complete, decided, and its weights may change. Returns 0, or -1 with an
// error.
int commit_key(struct server_core *c, struct server_key *k);
const char *in_order_unfit(const struct server_core *c, const struct server_key *k,
                           const struct wire_header *h);
void in_order_carve(struct arena *a, const struct config *c, int64_t n, struct server_buffers *out);
size_t in_order_textbook(const struct config *c);
// Frames of a whole step of all workers are held, whatever the credits. With shared memory none are.
double whole_step_waiting(const struct config *c, double gradients, double weights);
bool in_order_may_read(const struct server_core *c, const struct server_key *k, int worker);
// Takes a DECISION. Returns 0, or -1 with an error.
int round_decided(struct server_core *c, const struct wire_header *h);

// ---------------------------------------------------------------- pushes applied on arrival (push_on_arrival.c)
const char *on_arrival_unfit(const struct server_core *c, const struct server_key *k,
                             const struct wire_header *h);
// The age in updates of a gradient so many versions old. All updates have the same number of pushes, except a key's
// last one.
static inline int64_t age_of(const struct server_core *c, int64_t versions) {
    return (versions + c->rule.per_update - 1) / c->rule.per_update;
}
// out[0 .. n) = elements at .. at + n of a gradient or of weights, in fp32.
void gradient_widen(float *out, const void *in, int64_t at, int64_t n, enum dtype from);
// Returns the gradient that a push's code means, rounded to the gradients' type, in the key's buffer of sums.
const void *gradient_decoded(const struct server_core *c, const struct server_key *k,
                             const struct gradient *g);
// A gradient's age for its worker; -1: it was skipped or too old, and no update has it.
int64_t age_for_worker(const struct server_core *c, uint32_t flags, uint64_t age);
// Applies a push at once.
int on_arrival_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                     const struct gradient *g);
void on_arrival_open(struct server_core *c, struct server_key *k);
void on_arrival_carve(struct arena *a, const struct config *c, int64_t n, struct server_buffers *out);
int64_t on_arrival_bytes(const struct config *c);
// The pushes in the sum become the last update. Returns 0, or -1 with an error.
int commit_last_sum(struct server_core *c, struct server_key *k);
// The answer repeats the weights that this pull was first answered with, which are kept if delays are compensated.
void answer_as_sent(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);

#endif
