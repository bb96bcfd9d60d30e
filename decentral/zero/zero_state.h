// The state of a rank of the ring, and which stream waits for which.
//
// Streams     compute (the loop's)   model, norm, decision, updates
//             gather                 all-gathers of weights, own communicator (channel 0)
//             reduce                 reductions of gradients (channel 1); at the step's end the control
//                                    collectives (channel 2: norm, loss)
// Events      A buffer changes hands only through one:
//     weights       unit.updated (compute -> gather), unit.gathered (gather -> compute)
//     weight slot   slot.ready (gather -> compute), slot.idle (compute -> gather)
//     gradient      unit.grad_done (compute -> reduce)
//     grad slot     slot.idle (reduce -> compute): free to be written again
//     step          norm_done (compute -> reduce), decided (reduce -> compute), stats (compute -> host)
//             Without overlap (opt.in_turn) each collective has two more: turn.begun (compute -> its stream) and
//             turn.over (its stream -> compute). Nothing is fetched ahead then.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_STATE_H
#define STARRING_DECENTRAL_ZERO_ZERO_STATE_H

#include "decentral/zero/zero_policy.h"
#include "shared/core/arena.h"
#include "shared/model/grad_slots.h"
#include "shared/model/grad_sum.h"
#include "shared/offload/disk_store.h"
#include "shared/time/timeline.h"

// 1-bit Adam: zero_onebit.c. Elements of fp32, blocks of the code.
struct zero_onebit_unit {
    float *error;                       // (n_pad)
    float *server_error;                // (S)
    struct onebit_block *said, *heard;  // (n_pad / ONEBIT_BLOCK) each
    struct event *exchanged;            // reduce -> compute
    uint64_t encoded_at, exchange;      // of the timeline
};

// Units that travel together: zero_pack.c.
struct zero_pack {
    struct zero_bundles table;
    void *buf;  // (N, elements of the largest block that is packed)
};

struct zero_unit {
    void *weights;               // (n_pad), or NULL where weights are sharded
    void *weight_shard;          // (S): this rank's part of weights, or a buffer of its own
    void *secondary;             // (n_pad / hpz): the rank's part of its group's copy, or NULL
    void *grad;                  // (n_pad), or NULL where gradients are sharded
    void *grad_shard;            // (S): likewise
    struct update_range update;  // of the unit, or of this rank's shard; in fp32 the weights are the master
    int shape;                   // the first unit with the same gaps between tensors
    size_t region;               // of the file, where its master and states lie there
    size_t weight_region;        // of the other, where its 16-bit weights do
    bool offloaded;  // update.master and update.state are on the host, and weight is where it leaves weights
    struct event *updated, *gathered, *grad_done;
    struct zero_onebit_unit onebit;
    uint64_t updated_at, gather;  // of the timeline: the moment of updated, the transfer before gathered
};

// A buffer that units use one after the other.
struct zero_slot {
    void *buf;
    int64_t elements;  // of the largest unit that uses it
    int unit;          // the last that used it; -1: none. Whether its weights are still valid: the schedule
    bool held;         // between acquire and release or grad_ready
    int shape;         // gradient: the shape whose gaps are zero; -1: none
    struct event *ready, *idle;
    uint64_t idle_at, move;  // of the timeline: the moment of a weight slot's idle, the last transfer
};
#define ZERO_SUM_CHUNK 16

// The timeline's part of the ring: zero_time.c.
enum zero_round { ZERO_ROUND_OPEN, ZERO_ROUND_ENDED, ZERO_ROUND_TOLD, ZERO_ROUNDS };

struct zero_time {
    int room;  // transfers of a round at most, and words that a rank sends of them
    uint64_t *ids[ZERO_ROUNDS];
    int count[ZERO_ROUNDS];
    uint64_t reduced, gathered;  // the last transfers of the two streams
    bool watching, aligned;
    int64_t ahead_ns;   // of the rank's own clock before CLOCK_MONOTONIC; not 0 in tests alone
    int64_t offset_ns;  // rank 0's clock = own clock + offset
    int64_t error_ns;   // at most, as far as is known
};

// State on the host: zero_offload.c. Two units are on their way at a time.
#define ZERO_STAGED 2

struct zero_offload_task {
    struct zero *z;
    int unit, at;  // of the staging
    float lr;
    int64_t t;
};

struct zero_offload {
    int64_t elements;                               // of the largest shard that is offloaded; 0: none
    void *grad[ZERO_STAGED], *weight[ZERO_STAGED];  // host: (elements) of the run's type
    struct stream *down, *update, *up;
    struct event *landed[ZERO_STAGED], *updated[ZERO_STAGED], *risen[ZERO_STAGED];
    struct event *over;               // everything that has been asked for
    struct zero_offload_task *tasks;  // (2, layout->count): of this step, and of the one before it
    int turn;                         // which of the two
    // Masters and states on disk: a unit's as they lie in the file, | master | state | state |, each up to DISK_ALIGN.
    struct disk_store *store;
    size_t file_bytes, state_bytes, kind_bytes;  // of the file; of the largest unit, and of one of its kinds
    char *state[ZERO_STAGED], *reading;          // host, aligned: (state_bytes); (kind_bytes), of checkpoints
    struct stream *read, *write;
    struct event *fetched[ZERO_STAGED], *written[ZERO_STAGED];
};

// Weights of stage 3 in a file: zero_disk.c.
struct zero_disk {
    struct disk_store *store;            // NULL in fp32: the masters' is read
    size_t file_bytes;                   // of this one
    char *shard[ZERO_STAGED], *reading;  // host, aligned: of gathers; of loading and of snapshots
    struct stream *read, *write;
    struct event *fetched[ZERO_STAGED], *drawn[ZERO_STAGED];  // it is read, it has gone up
    int turn, drawing;                                        // the next of them, and the one on its way
};

struct zero {
    struct topology base;
    struct zero_options opt;
    struct collective_source source;
    const struct zero_policy *policy;
    struct arena arena;
    struct zero_unit *units;        // (layout->count)
    struct unit_schedule schedule;  // of weights
    struct zero_pack reduced_bundles, gathered_bundles;
    struct zero_slot *weight_slots;  // (unit_schedule_count), or NULL where weights are resident
    struct zero_slot grad_slots[GRAD_SLOTS];
    struct stream *gather_stream, *reduce_stream;
    struct collective *gather, *reduce, *control;
    struct collective *aside;  // gathers of PASS_EVAL: counted as control bytes
    struct event *reduced, *gather_idle, *norm_done, *decided, *stats;
    struct {
        struct event *begun, *over;
    } turn;
    bool lacks_event;                                                        // one could not be created
    struct collective_options gather_memory, reduce_memory, control_memory;  // staging alone
    struct exact_sum *sum;                                                   // device
    // Side by side, so that one copy brings what the host reads of a step: | scalars | shares .. |
    struct update_scalars *scalars;       // device
    double *shares;                       // device: each rank's words of a step, or values of a sum
    struct update_scalars *host_scalars;  // MEM_HOST; on a CPU ordinary memory
    double *host_shares;                  // likewise
    struct grad_sums sums;
    int micro_index, micro_count;
    int64_t step;  // for errors
    struct {
        struct exact_sum *sum;       // device: of this rank's own gradient
        struct update_scalars *own;  // device: how it is scaled
        int64_t updates;             // applied, where known; else base.start's
        bool known;
    } onebit;
    struct zero_time time;
    struct zero_offload offload;
    struct zero_disk disk;
};

// Address of element i of a buffer of the run's type.
static inline void *zero_at(const struct zero *z, void *base, int64_t i) {
    return base ? (char *)base + (size_t)i * dtype_size(z->opt.dtype) : NULL;
}

// Bytes that a rank sends of a unit in a collective.
static inline uint64_t zero_moved(const struct zero *z, int u) {
    return (uint64_t)(z->base.size - 1) * (uint64_t)unit_shard(z->opt.layout, u) * dtype_size(z->opt.dtype);
}

int zero_time_room(const struct zero *z);  // zero_time.c; before zero_time_open

// Words that a rank gives to a step's decision: the sum of its losses, stop, snapshot, ready times of earlier transfers.
#define ZERO_STEP_WORDS 3
static inline int zero_step_words(const struct zero *z) { return ZERO_STEP_WORDS + zero_time_room(z); }
static inline size_t zero_words_bytes(const struct zero *z) {
    int words = zero_step_words(z) > ZERO_SUM_CHUNK ? zero_step_words(z) : ZERO_SUM_CHUNK;
    return sizeof *z->scalars + (size_t)z->source.size * (size_t)words * sizeof(double);
}
static inline double *zero_shares_behind(struct update_scalars *s) { return s ? (double *)(s + 1) : NULL; }

// ---- zero_memory.c
// Takes every buffer through z->arena, which measures or allocates.
void zero_carve(struct zero *z);

// ---- zero_weights.c
// The schedule and its slots, without memory; z->opt and z->policy are set.
void zero_weights_open(struct zero *z);
void zero_weights_close(struct zero *z);
static inline int zero_weight_slots(const struct zero *z) {
    return z->weight_slots ? unit_schedule_count(&z->schedule) : 0;
}
void zero_prefetch(struct topology *t, int u, enum pass pass);
// Compute waits until u's weights are there: view->weights. 0, or -1 after logging.
int zero_acquire_weights(struct zero *z, int u, enum pass pass, struct unit_view *view);
// at: the moment, if the compute stream has noted it already; else 0.
void zero_release_weights(struct zero *z, int u, uint64_t at);

// The micro-batch's gradient of u, whole or reduced to the shard, goes into the fp32 sum, if there is one.
static inline void zero_sum_micro(struct zero *z, struct stream *s, int u, void *grad) {
    const struct layout *l = z->opt.layout;
    bool whole = z->policy->grads == RESIDENT_FULL;
    grad_sums_add(&z->sums, s,
                  &(struct grad_micro){.unit = u,
                                       .index = z->micro_index,
                                       .count = z->micro_count,
                                       .grad = grad,
                                       .n = whole ? l->units[u].n_pad : unit_shard(l, u),
                                       .dt = z->opt.dtype});
}

// ---- zero_pack.c
// The tables of bundles, without memory; z->opt and z->policy are set.
void zero_pack_open(struct zero *z);
void zero_pack_close(struct zero *z);
void zero_pack_carve(struct zero *z);
int64_t zero_pack_largest(const struct zero *z);  // elements of the largest block of a collective
// Of units that travel with others, in the place of a collective of their own: copies u's gradient, or this rank's shard of its
// updated weights, into the bundle's buffer; the bundle's last unit sends it off.
void zero_pack_reduce(struct zero *z, int u, uint64_t done_at);
void zero_pack_gather(struct zero *z, int u);

// ---- zero_grads.c
// Where the backward pass writes u's gradient: view->grad, view->accumulate. 0, or -1 after logging.
int zero_acquire_grad(struct zero *z, int u, struct unit_view *view);
// u's gradient is written, which units[u].grad_done and the moment done_at say. Starts its reduction.
void zero_grad_written(
    struct zero *z, int u);  // behind it, on the compute stream: a micro-batch of whole gradients is summed
void zero_reduce_grad(struct zero *z, int u, uint64_t done_at);

// ---- zero_offload.c
enum mem_class zero_offload_class_of_weights(const struct zero *z);
// Whether the master and the states of a unit are kept on the host: elements of the units up to it, it included.
bool zero_offloads(const struct zero *z, int64_t elements);
// Masters and states of a unit that is offloaded, on the host; and what all of them pass through.
void zero_offload_carve_unit(struct zero *z, int u);
void zero_offload_carve(struct zero *z);
struct offload_traffic zero_offload_traffic(const struct zero *z);  // of a step; z is carved or measured
int zero_offload_open(struct zero *z);                              // 0, or -1 after logging
void zero_offload_close(struct zero *z);                            // also of what is half open
// Enqueues the update of u behind `reduced` and `stats`, in the order of units; units[u].updated says when its weights
// are there.
void zero_offload_update(struct zero *z, int u, const struct update_step *step);
// Of weights on the host: this rank's part of u's, for a gather into the whole. It comes up to its place of the whole.
const void *zero_offload_shard(struct zero *z, int u, void *whole, enum pass pass);
// Compute waits for all that has been asked for. Before a step's decision, which the host's updates read.
void zero_offload_settle(struct zero *z);
// Of a unit whose state is on disk: writes a kind's shard there, at once; reads one for a checkpoint, where it stays until
// the next (a state_range's read). -1, or NULL: after logging.
bool zero_offload_on_disk(const struct zero *z, int u);
int zero_offload_put(struct zero *z, int u, int kind, const float *shard);
const void *zero_offload_get(void *z, const struct state_range *r);
int zero_offload_sync(struct zero *z);  // the host waits; 0, or -1

// ---- zero_disk.c: zero_offload's part that keeps weights in a file
bool zero_disk_on(const struct zero *z);
// A file of this rank's: o has directory, key and bytes. 0, or -1 after logging.
int zero_disk_store(struct zero *z, struct disk_store **out, const struct disk_store_options *o);
void zero_disk_carve_unit(struct zero *z, int u);
void zero_disk_carve(struct zero *z);  // behind the units
void zero_disk_traffic(const struct zero *z, int u, int64_t gathers, struct offload_traffic *t);
int zero_disk_open(struct zero *z);
void zero_disk_close(struct zero *z);
int zero_disk_sync(struct zero *z);
// This rank's shard of u, on the host for whom the gather stream runs next; zero_disk_drawn: it has been read there.
const void *zero_disk_fetch(struct zero *z, int u, enum pass pass);
void zero_disk_drawn(struct zero *z);
void zero_disk_write(struct zero *z, int u, int at);  // u's new weights, from offload.weight[at]
int zero_disk_put(struct zero *z, int u,
                  const void *shard);  // at once, when all is idle; 0, or -1 after logging
const void *zero_disk_get(
    void *z, const struct state_range *r);  // at once, until the next: host memory, or NULL after logging

// ---- zero_onebit.c
bool zero_onebit_on(const struct zero *z);   // whether momenta ever travel; before zero_carve
bool zero_onebit_due(const struct zero *z);  // whether they do in the step at hand
void zero_onebit_carve(struct zero *z);
void zero_onebit_loads(struct zero *z, const char *checkpoint);  // says what a checkpoint does not hold
void zero_onebit_wire(const struct zero_options *o, struct wire_prediction *wire);
// The parts of zero_step that differ then.
void zero_onebit_begin(struct zero *z);
void zero_onebit_norm(struct zero *z);
void zero_onebit_decide(struct zero *z, const struct step_input *in);
void zero_onebit_update(struct zero *z, const struct step_input *in);
void zero_onebit_end(struct zero *z, const struct step_input *in, bool skipped);  // of every step

// ---- zero_time.c
void zero_time_open(struct zero *z);
void zero_time_close(struct zero *z);
int zero_time_watch(
    struct zero *z);  // collective, before a step; does something once. 0, or -1 after logging

// Around a collective on stream s. It waits for up to two moments of compute; 0: none. The id goes to the waits.
// Without overlap it also waits for what compute has been given so far, and compute for it.
struct zero_move {
    enum transfer_kind kind;
    int unit;  // -1: none
    uint64_t bytes;
    uint64_t after[2];
};
uint64_t zero_move_begin(struct zero *z, struct stream *s, const struct zero_move *m);
void zero_move_end(struct zero *z, struct stream *s, uint64_t id);
void zero_turn_begin(struct zero *z, struct stream *s, uint64_t id);  // what they do of it; id 0: unrecorded

// words (room): this rank's times of the round that has ended; it becomes the one told, the open one ends.
void zero_time_tell(struct zero *z, double *words);
// words (N, stride): what all ranks told.
void zero_time_hear(struct zero *z, const double *words, int stride);
// Collective, when every stream of the ring is idle: the last rounds. 0, or -1; the caller says what failed.
int zero_time_finish(struct zero *z);

// ---- zero_step.c: the hooks of a step's end, and what else all ranks do together (shared/core/topology.h)
int zero_step(struct topology *t, const struct step_input *in, struct step_stats *out);
int zero_sum(struct topology *t, double *values, int count);
int zero_finish(struct topology *t);
int zero_weights(struct topology *t, int u, struct state_range *out);
int zero_load_unit(struct topology *t, int u, const float *values);
int zero_state(struct topology *t, int index, struct state_range *out);
int zero_load(struct topology *t, struct checkpoint *c);
void zero_abort(struct topology *t, const char *why);
const char *zero_why(struct topology *t);

#endif
