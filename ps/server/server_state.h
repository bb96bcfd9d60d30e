// The inside of a shard's core, for the files that make it up: server_core.c takes messages; each way of taking pushes is a
// policy with a file of its own; and what all of these do with a key is here. server_core.h has the drawing and the invariants.
#ifndef STARRING_PS_SERVER_SERVER_STATE_H
#define STARRING_PS_SERVER_SERVER_STATE_H

#include "ps/server/key_pass.h"
#include "ps/server/server_options.h"
#include "ps/server/server_time.h"

// A worker's gradient: a frame's, or in its segment, where it stays until the worker hears that it was taken.
struct gradient {
    const void *data;  // NULL: none
    size_t bytes;
    struct ps_frame *frame;  // NULL: in the segment
};

// A step of a key. Where pushes are applied on arrival there is one slot, for each worker's last push.
struct slot {
    struct gradient *held;  // (N) not in the sum yet
    int64_t *ready_ns;      // (N) of the push; once added, with those added before it
    int turn;               // the worker whose gradient is added next
    int contributed;        // gradients taken, held ones included; 0: nothing of this step has come
    bool complete;          // summed and rounded, not yet committed
    bool keep;              // the state behind the step is to be kept
    float lr;
    int lr_worker;      // that said it first
    int64_t needed_ns;  // the latest ready_ns of its gradients
};

// The last pull of one worker.
struct server_pull {
    bool pending, final;
    int64_t want;   // the key's clock that it asks for
    int64_t least;  // and the one that will do
    int64_t base;   // no earlier one will: the worker has drained its steps there, or has begun there
    uint64_t seq;   // 0: none yet
    uint64_t into;  // where in the worker's segment the weights are wanted; 0: nowhere
};

// The snapshot that was asked for last.
struct server_shot {
    bool pending;
    int worker;
    int64_t want;  // the key's version
    uint64_t seq;
};

// Where the mean of several pushes is one update: those that wait for it, which the key's buffer of sums holds.
struct open_sum {
    int pushes;
    double weight;  // of all of them: of each its tokens (1 where nobody says how many), or less for its age
    double tokens;  // of all of them
    float unit;     // of the rounded mean, where the type's range is small
    float lr;       // of the last one
    struct summed {
        int64_t batch;
        int worker;
    } * of;     // (K) the pushes
    bool ends;  // nobody pushes any more: what there is makes an update
};

// What a worker was sent last, in buf.pulled.
struct sent_weights {
    uint64_t seq;  // of its pull; 0: nothing yet, SENT_INITIAL: what the job has begun with
    int64_t version;
};

struct replay_key;  // push_replayed.c
struct micro_key;   // push_units.c
struct server_core;

struct server_key {
    int key;
    const struct partition *part;
    const struct unit *unit;
    int64_t n;  // elements
    struct server_buffers buf;
    bool loaded;
    uint64_t load_seq;
    int64_t version;            // updates applied
    int64_t skew;               // the moments' own count of them minus version
    int64_t step;               // the key's clock: steps committed
    struct slot *slots;         // (L), of step t slots[t % L]
    int64_t *old_version;       // (lead) of buf.old; NULL: there are none
    int64_t update_ready_ns;    // what the last update needed: with a commit round, of all keys
    int64_t *pushed;            // (N) pushes taken; the next step expected
    int64_t *staleness;         // (N) of the last push
    struct server_pull *pulls;  // (N)
    struct server_shot shot;
    // Where pushes are applied on arrival:
    int64_t *batches;           // which it holds (ps/job/batches.h)
    struct replay_key *replay;  // of a run that is repeated; else NULL
    struct micro_key *micro;    // of workers that keep two units at a time; else NULL
    struct open_sum sum;
    struct sent_weights *sent;  // (N) with delay compensation; else NULL
    _Atomic int inflight;       // replies that the transport still reads from buf.weight
    struct server_key *next_waiting;
    bool waits;  // it is in the core's list
};

// A shard's part in the commit round of one step.
struct server_round {
    int keys;       // complete so far
    int committed;  // of these, updated or skipped
    bool reported, decided;
    struct exact_sum sum;
    struct update_scalars scalars;
    int64_t ready_ns;  // of the keys complete so far; after the decision, of all that it needed
    // Of a step to which not all workers belong (push_set.c):
    struct set_part {
        int keys;         // of which the worker's gradient is here
        int64_t tokens;   // of its batch; 0: it does not say
    } * parts;            // (N)
    int64_t mean_tokens;  // that the gradients are means over
    uint64_t arrived;     // workers with all keys
    uint64_t fixed;       // the step's set; 0: not yet
};

// How pushes become updates. One const table a policy, chosen once (policy_of in server_core.c).
struct push_policy {
    // A frame becomes the server's memory as it comes, and is acknowledged as taken. Else it is lent by credits: held ones
    // are acknowledged as held, and once more when they are in the sum.
    bool takes_frames;
    // Weights leave as copies. Else they leave from where they lie, and an update waits until they have left.
    bool copies;
    // Why this push, which is due and fits its key, cannot be taken; NULL: it can.
    const char *(*unfit)(const struct server_core *c, const struct server_key *k,
                         const struct wire_header *h);
    // Takes a push and its gradient over. 0, or -1 with an error.
    int (*admit)(struct server_core *c, struct server_key *k, const struct wire_header *h,
                 const struct gradient *g);
    // Whether the worker's open pull of a key that is loaded can be answered.
    bool (*may_read)(const struct server_core *c, const struct server_key *k, int worker);
    // The rest may be NULL. Adds, applies and commits of what the key holds all that can be: something that it may have waited
    // for has come (a decision, a pull), or is over (a reply has left). 0, or -1 with an error.
    int (*advance)(struct server_core *c, struct server_key *k);
    // A SET of the scheduler. 0, or -1 with an error.
    int (*fix)(struct server_core *c, const struct wire_header *h);
    // A worker's process has another in its place: of its gradients none is here any more.
    void (*begin_life)(struct server_core *c, int worker);
    // A worker pushes no more. 0, or -1 with an error.
    int (*over)(struct server_core *c, int worker);
    // Nobody pushes the key any more. 0, or -1 with an error.
    int (*end)(struct server_core *c, struct server_key *k);
    // The answer to a worker's pull, as it leaves: with other weights than the newest.
    void (*answer)(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);
    // The policy's own part of a key, beside the slots, and its bytes.
    void (*open)(struct server_core *c, struct server_key *k);
    void (*close)(struct server_key *k);
    int64_t (*key_bytes)(const struct config *c);
};
extern const struct push_policy
    push_in_order;  // a step's are summed in worker order; all workers belong to it
extern const struct push_policy
    push_units;  // the same, of each micro-batch, for workers that keep two units at a time
extern const struct push_policy push_set;         // the same over the set that the scheduler fixes
extern const struct push_policy push_on_arrival;  // each is an update of its own, or part of a sum, at once
extern const struct push_policy push_replayed;    // on arrival, in the order that was recorded

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

    int count;  // keys of this shard
    struct server_key *keys;
    int *index;                       // (map->count): key -> place in keys, -1: not ours
    uint64_t *incarnation;            // (N); 0: not heard yet
    uint32_t *life;                   // (N) heard, where workers come and go; 0: none
    bool *over;                       // (N) they push no more
    struct server_segment *segments;  // (N)
    int attached;                     // workers with a segment
    const void **grads;               // (N) of a sum
    void *chunk;                      // scratch of a pass
    double now;                       // of the last message or tick
    int64_t step;                     // the oldest that is not over on every key
    struct server_round *rounds;      // (L), of step t rounds[t % L]
    int open;                         // slots with gradients that are not committed
    struct server_key *waiting;       // keys with an update that waits until nobody reads their buffers
    uint64_t applied;                 // pushes, where each is applied on arrival
    int per_update;                   // of these, whose mean is one update
    int64_t begin;                    // steps that were over before this life of the job
    int64_t *row;                     // (N) scratch
    int64_t *batches;                 // (batches_words) scratch
    struct server_totals totals;
    char error[WIRE_TEXT_MAX];
};

static inline struct slot *slot_of(const struct server_core *c, const struct server_key *k, int64_t step) {
    return &k->slots[(step + c->slots) % c->slots];
}
static inline struct server_round *round_of(const struct server_core *c, int64_t step) {
    return &c->rounds[step % c->slots];
}
// The weights of the key's clock t, which has passed: in buf.old while they are among the last `lead`.
static inline int old_of(const struct server_core *c, int64_t t) { return (int)(t % c->rule.lead); }

// ---------------------------------------------------------------- what all do with a key (server_state.c)
// The worker's push of `step` was taken; held: it has come, and its turn has not.
void acknowledge(struct server_core *c, const struct server_key *k, int worker, int64_t step, bool held);
// Keeps a gradient at a place, and lets go of it; the same in a slot. note_held: what is held now stays for a while, and counts for the peak.
void keep_gradient(struct server_core *c, struct gradient *place, const struct gradient *g);
void drop_gradient(struct server_core *c, struct gradient *place);
void hold(struct server_core *c, struct slot *s, int worker, const struct gradient *g);
void let_go(struct server_core *c, struct slot *s, int worker);
void note_held(struct server_core *c);
// Answers what can be answered. Behind each update, and each push that changes what its worker may read.
void answer_pulls(struct server_core *c, struct server_key *k);
bool pull_ready(const struct server_core *c, const struct server_key *k, int worker);
// The key's clock whose weights the worker's pull is answered with; -1: of a run that is repeated, the recorded ones are not there.
int64_t clock_read(const struct server_core *c, const struct server_key *k, int worker);
// What was recorded of the step that the worker's pull is for; NULL: nothing, or nothing is computed on it.
const struct arrival *recorded_read(const struct server_core *c, const struct server_key *k, int worker);
void answer_pull(struct server_core *c, struct server_key *k, int worker);
void answer_snapshot(struct server_core *c, struct server_key *k);  // once its version has come
bool renew_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);
// Writes masters and states over with one update, unless it is skipped. 0, or -1 with an error.
int apply(struct server_core *c, struct server_key *k, const void *grad, float lr,
          const struct update_scalars *scalars);
// Sets the weights aside that the open step's update will write over, where old ones are read.
void keep_old(const struct server_core *c, struct server_key *k);
struct update_range range_of(const struct server_core *c, const struct server_key *k, const void *grad);
// Whether the state behind this push's step is to be kept; hands the key over as it is, behind `step` steps.
bool keep_wanted(const struct server_core *c, const struct wire_header *h);
void keep_key(struct server_core *c, struct server_key *k, int64_t step, bool last);
// The thread is at this part of its work, for one worker's push or for all of the key's open step.
void work_on(const struct server_core *c, enum server_part part, struct span of);
static inline struct span of_push(const struct server_key *k, int worker, int64_t step) {
    return span_for(step, k->key, worker, 1);
}
static inline struct span of_all(const struct server_core *c, const struct server_key *k) {
    return span_for(k->step, k->key, 0, c->rule.workers);
}

// ---------------------------------------------------------------- steps that commit (push_in_order.c)
// Writes down a push, and holds its gradient in its step's slot. 0, or -1 with an error.
int note_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
              const struct gradient *g);
// A gradient is part of an update: counts its age, in updates, and logs it.
void note_age(struct server_core *c, const struct wire_header *h, const void *grad, uint64_t tau);
// All gradients of the key's open step that count are here: they are added, and the key joins the shard's sum. Where nothing has
// to be decided or waited for, and nobody is owed an acknowledgement (*at_once), the update is part of the same pass. The
// caller then lets go of them, and close_slot commits if that can be. 0, or -1 with an error.
int add_up(struct server_core *c, struct server_key *k, const struct sum_args *sum, bool *at_once);
int close_slot(struct server_core *c, struct server_key *k, bool at_once);
// Commits the open step of a key if it is complete, decided, and free to change. 0, or -1 with an error.
int commit_key(struct server_core *c, struct server_key *k);
const char *in_order_unfit(const struct server_core *c, const struct server_key *k,
                           const struct wire_header *h);
bool in_order_may_read(const struct server_core *c, const struct server_key *k, int worker);
// A DECISION. 0, or -1 with an error.
int round_decided(struct server_core *c, const struct wire_header *h);

int64_t push_units_bytes(const struct config *c);  // beside the key's record (push_units.c)

// ---------------------------------------------------------------- pushes applied on arrival (push_on_arrival.c)
const char *on_arrival_unfit(const struct server_core *c, const struct server_key *k,
                             const struct wire_header *h);
// The age of a gradient so many versions behind, in updates, of which all have as many pushes, but for the last one of a key.
static inline int64_t age_of(const struct server_core *c, int64_t versions) {
    return (versions + c->per_update - 1) / c->per_update;
}
// The age of a gradient that its worker is told; -1: the gradient is skipped or too old, and no update has it.
int64_t told_age(const struct server_core *c, uint32_t flags, uint64_t age);
// Applies a push at once.
int on_arrival_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                     const struct gradient *g);
void on_arrival_open(struct server_core *c, struct server_key *k);
int64_t on_arrival_bytes(const struct config *c);
// What is in the sum becomes the last update. 0, or -1 with an error.
int sum_end(struct server_core *c, struct server_key *k);
// The answer has the weights that this pull was answered with first, which are kept where delays are compensated.
void note_sent(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);

#endif
