// The state of one rank of the ring, and which stream waits for which.
//
// Streams     compute (the loop's)   model, norm, decision, updates
//             gather                 all-gathers of weights, own communicator (channel 0)
//             reduce                 reductions of gradients (channel 1); at the step's end the control
//                                    collectives (channel 2: norm, loss)
// Events      A stream passes a buffer to another stream only through an event:
//     weights       unit.updated (compute -> gather), unit.gathered (gather -> compute)
//     weight slot   slot.ready (gather -> compute), slot.idle (compute -> gather)
//     gradient      unit.grad_done (compute -> reduce)
//     grad slot     slot.idle (reduce -> compute): free to be written again
//     step          norm_done (compute -> reduce), decided (reduce -> compute), stats (compute -> host)
//             Without overlap (overlap_comm: false) each collective has two more events: serialized.begun (compute -> its stream)
//             and serialized.over (its stream -> compute). Then nothing is prefetched.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_STATE_H
#define STARRING_DECENTRAL_ZERO_ZERO_STATE_H

#include "decentral/zero/zero_policy.h"
#include "shared/core/arena.h"
#include "shared/model/grad_buffers.h"
#include "shared/model/step_tasks.h"
#include "shared/offload/disk_store.h"
#include "shared/time/timeline.h"

// 1-bit Adam (zero_onebit.c), per unit: the fp32 errors, and the codes in blocks.
struct zero_onebit_unit {
    float *error;                // (n_pad)
    float *server_error;         // (S)
    struct onebit_block *codes;  // (n_pad / ONEBIT_BLOCK) this rank's codes; later the results of all shards
    struct onebit_block *shard_codes;  // (n_pad / ONEBIT_BLOCK) codes of this rank's shard from all ranks
    struct event *exchanged;           // event reduce -> compute: the exchange is complete
    uint64_t encoded_at, exchange;     // ids of the timeline: a mark, a transfer
};

// Units that one collective moves together: zero_pack.c.
struct zero_pack {
    struct zero_bundles table;
    void *buf;  // (N, elements of the largest packed block)
};

struct zero_unit {
    void *weights;       // (n_pad), or NULL where weights are sharded
    void *weight_shard;  // (S): this rank's shard inside weights, or a buffer of its own
    void *secondary;     // (n_pad / hpz): this rank's shard of its group's copy, or NULL
    void *grad;          // (n_pad), or NULL where gradients are sharded
    void *grad_shard;    // (S): inside grad, or a buffer of its own
    // The range that this rank updates: the unit, or its shard; in fp32 the master is the weights.
    struct update_range update;
    int shape;             // the first unit with the same gaps between tensors
    size_t region;         // offset of its master and states in offload.file
    size_t weight_region;  // offset of its 16-bit weights in disk.file
    bool offloaded;        // update.master and update.state are on the host or on disk
    struct event *updated, *gathered, *grad_done;
    struct zero_onebit_unit onebit;
    uint64_t updated_at, gather;  // ids of the timeline: the mark at updated, the transfer before gathered
};

// A buffer that units use one after the other.
struct zero_slot {
    void *buf;
    int64_t elements;  // elements of the largest unit that uses it
    int unit;   // the last unit that used it; -1: none. The schedule knows whether its weights are valid
    bool held;  // true from acquire to release, or to grad_ready
    int shape;  // gradient slot: the shape whose gaps are zero; -1: none
    struct event *ready, *idle;
    uint64_t idle_at, move;  // ids of the timeline: the mark at a weight slot's idle, the last transfer
};

// Frozen weights (LoRA), sharded in stage 3. In `units` they follow the trained ones, as in the layout, with weights alone.
// With hpZ the group's copy, which nothing changes, is all that a rank keeps.
struct zero_frozen {
    struct unit_schedule schedule;  // the schedule of layout->rest
    struct zero_slot *slots;        // (unit_schedule_count), or NULL: nothing is sharded
};
#define ZERO_SUM_CHUNK 16

// The ring's records of the timeline (zero_time.c). An interval is the list of transfers between two
// decisions.
enum zero_interval { ZERO_INTERVAL_OPEN, ZERO_INTERVAL_ENDED, ZERO_INTERVAL_SENT, ZERO_INTERVALS };

struct zero_time {
    int capacity;  // the most transfers of an interval; a rank sends one word about each
    uint64_t *ids[ZERO_INTERVALS];
    int count[ZERO_INTERVALS];
    uint64_t reduced, gathered;  // the last transfers of the two streams
    bool watching, aligned;
    int64_t ahead_ns;   // own clock = CLOCK_MONOTONIC + ahead_ns; 0 except in tests
    int64_t offset_ns;  // rank 0's clock = own clock + offset
    int64_t error_ns;   // the largest possible error of the offset
};

// State on the host: zero_offload.c. The staging has buffers for two units.
#define ZERO_STAGED 2

// A file of this rank, and the host's two buffers through which streams of its own read it.
struct zero_file {
    struct disk_store *store;            // NULL: the file is another struct's, and only the buffers are used
    size_t bytes;                        // bytes of the file
    char *buffer[ZERO_STAGED], *once;    // host, aligned; once: for loading, checkpoints and snapshots
    struct stream *read, *write;         // NULL: not open
    struct event *fetched[ZERO_STAGED];  // buffer[i] has been read from the file
    struct event *free_again[ZERO_STAGED];  // the buffer's content has been used
};

struct zero_offload_task {
    struct zero *z;
    int unit, at;  // at: which buffer of the staging
    float lr;
    int64_t t;
};

struct zero_offload {
    int64_t elements;  // elements of the largest offloaded shard; 0: none is offloaded
    void *grad[ZERO_STAGED], *weight[ZERO_STAGED];  // host: (elements) of the run's type
    struct stream *down, *update, *up;
    struct event *grad_on_host[ZERO_STAGED], *updated[ZERO_STAGED], *copied_up[ZERO_STAGED];
    struct event *over;               // recorded after all enqueued work
    struct zero_offload_task *tasks;  // (2, layout->count): the tasks of this step, and of the one before it
    int task_set;                     // 0 or 1: this step's tasks
    // Masters and states on disk. A unit's region of the file is | master | state | state |, each padded to DISK_ALIGN.
    struct zero_file file;
};

// Weights of stage 3 in a file.
struct zero_disk {
    struct zero_file file;  // has no store if the weights are read as masters from the other file
    int64_t elements;       // elements of the largest shard in either file
    int next, copying;      // the next buffer to use; the one being copied
};

struct zero {
    struct topology base;
    struct config config;  // a copy that it owns; c points to it, or to a prediction's configuration
    const struct config *c;
    struct zero_options opt;
    struct collective_source source;
    const struct zero_policy *policy;
    struct arena arena;
    struct zero_unit *units;        // (zero_units)
    struct unit_schedule schedule;  // the schedule of weights
    struct zero_pack reduced_bundles, gathered_bundles;
    struct zero_slot *weight_slots;  // (unit_schedule_count), or NULL where weights are resident
    struct zero_slot grad_slots[GRAD_SLOTS];
    struct zero_frozen frozen;
    struct stream *gather_stream, *reduce_stream;
    struct collective *gather, *reduce, *control;
    struct collective *eval_gather;  // for gathers of PASS_EVAL, which count as control bytes
    struct event *reduced, *gather_idle, *norm_done, *decided, *stats;
    struct {
        struct event *begun, *over;
    } serialized;
    bool event_failed;  // an event could not be created
    // Only their staging fields are set.
    struct collective_options gather_memory, reduce_memory, control_memory;
    struct exact_sum *sum;  // device
    // One block, so that one copy brings all that the host reads of a step: | scalars | shares .. |
    struct update_scalars *scalars;       // device
    double *shares;                       // device: each rank's values of a step, or the terms of a sum
    struct update_scalars *host_scalars;  // MEM_HOST; on a CPU ordinary memory
    double *host_shares;                  // the same memory as host_scalars
    struct grad_sums sums;
    int micro_index, micro_count;
    int64_t step;  // the step, for error messages
    struct {
        struct exact_sum *sum;       // device: the norm of this rank's own gradient
        struct update_scalars *own;  // device: how this gradient is scaled
        int64_t updates;             // updates applied so far
        bool known;                  // whether `updates` is set; else base.start.updates is used
    } onebit;
    struct zero_time time;
    struct zero_offload offload;
    struct zero_disk disk;
};

// Returns the directory of a file for offloaded state; NULL: it is in memory.
static inline const char *zero_folder(const struct offload_config *o) {
    return o->device == OFFLOAD_NVME ? o->nvme_path : NULL;
}
// How far ahead weights are gathered in stage 3.
static inline struct unit_prefetch zero_ahead(const struct config *c) {
    return (struct unit_prefetch){.bounded = c->prefetch_elements != PREFETCH_AUTO,
                                  .elements = c->prefetch_elements,
                                  .live = c->live_elements};
}
static inline enum reduce_mode zero_reduce_mode(const struct config *c) {
    return c->reduce_native ? REDUCE_NATIVE : REDUCE_ORDERED;
}

// Returns the address of element i of a buffer of the run's type.
static inline void *zero_at(const struct zero *z, void *base, int64_t i) {
    return base ? (char *)base + (size_t)i * dtype_size(z->c->dtype) : NULL;
}

// Returns the bytes that a rank sends of a unit in a collective.
static inline uint64_t zero_moved(const struct zero *z, int u) {
    return (uint64_t)(z->base.size - 1) * (uint64_t)unit_shard(z->opt.layout, u) * dtype_size(z->c->dtype);
}

int zero_time_capacity(const struct zero *z);  // In zero_time.c. May be called before zero_time_open.

// Words that a rank sends for a step's decision: its sum of losses, stop, snapshot, ready times of earlier transfers.
#define ZERO_STEP_WORDS 3
static inline int zero_step_words(const struct zero *z) { return ZERO_STEP_WORDS + zero_time_capacity(z); }
static inline size_t zero_words_bytes(const struct zero *z) {
    int words = zero_step_words(z) > ZERO_SUM_CHUNK ? zero_step_words(z) : ZERO_SUM_CHUNK;
    return sizeof *z->scalars + (size_t)z->source.size * (size_t)words * sizeof(double);
}
static inline double *zero_shares_after(struct update_scalars *s) { return s ? (double *)(s + 1) : NULL; }

// ---- zero.c: hooks (shared/core/topology.h)
int zero_begin_micro(struct topology *t, int index, int count);
void zero_prefetch(struct topology *t, int u, enum pass pass);
int zero_acquire(struct topology *t, int u, enum pass pass, struct unit_view *view);
int zero_release(struct topology *t, int u, enum pass pass);
void zero_prefetch_frozen(struct topology *t, int u, enum pass pass);
int zero_acquire_frozen(struct topology *t, int u, enum pass pass, const void **weights);
int zero_release_frozen(struct topology *t, int u);
int zero_grad_ready(struct topology *t, int u);
int zero_step(struct topology *t, const struct step_input *in, struct step_stats *out);
int zero_sum(struct topology *t, double *values, int count);
int zero_finish(struct topology *t);
void zero_abort(struct topology *t, const char *why);
const char *zero_why(struct topology *t);
// Logs what failed and where, and aborts the other ranks. Returns -1.
int zero_fail_all(struct zero *z, const char *doing);
// Whether this rank holds shards of what LoRA freezes.
static inline bool zero_shards_frozen(const struct zero *z) {
    return z->policy->weights == RESIDENT_SHARD && z->opt.layout->rest;
}
static inline int zero_units(const struct zero *z) {
    return zero_shards_frozen(z) ? layout_units(z->opt.layout) : z->opt.layout->count;
}
static inline int zero_frozen_slots(const struct zero *z) {
    return z->frozen.slots ? unit_schedule_count(&z->frozen.schedule) : 0;
}
// The number of weight_slots; 0 where weights are resident.
static inline int zero_weight_slots(const struct zero *z) {
    return z->weight_slots ? unit_schedule_count(&z->schedule) : 0;
}

// Adds the micro-batch's gradient of u, whole or reduced to the shard, to the fp32 sum if the run has one.
static inline void zero_sum_micro(struct zero *z, struct stream *s, int u, void *grad) {
    const struct layout *l = z->opt.layout;
    bool whole = z->policy->grads == RESIDENT_FULL;
    grad_sums_add(&z->sums, s,
                  &(struct grad_micro){.unit = u,
                                       .index = z->micro_index,
                                       .count = z->micro_count,
                                       .grad = grad,
                                       .n = whole ? l->units[u].n_pad : unit_shard(l, u),
                                       .dt = z->c->dtype});
}

// ---- zero_tasks.c. z is measured or carved; t: micro-batches, and steps of a round, are set.
void zero_tasks(const struct zero *z, struct step_tasks *t);
struct wire_prediction zero_wire(const struct zero *z);  // Returns the payload of a step.

// ---- zero_pack.c
void zero_pack_carve(struct zero *z);
// Returns the elements of the largest block of a collective.
int64_t zero_pack_largest(const struct zero *z);
// Reduces u's gradient, which is complete at the mark done_at; gathers its updated weights. Units that share a bundle move
// together, with the last one.
void zero_pack_reduce(struct zero *z, int u, uint64_t done_at);
void zero_pack_gather(struct zero *z, int u);

// ---- zero_offload.c
enum mem_class zero_offload_class_of_weights(const struct zero *z);
// Returns whether the master and the states of a unit are offloaded. elements: of the units up to and including it.
bool zero_offloads(const struct zero *z, int64_t elements);
// Takes the memory of an offloaded unit's master and states; then that of the staging.
void zero_offload_carve_unit(struct zero *z, int u);
void zero_offload_carve(struct zero *z);
// Add tasks: what moves and runs for the update of u; and before a gather of u from the host.
void zero_offload_tasks_update(const struct zero *z, struct step_tasks *t, int u);
void zero_offload_tasks_fetch(const struct zero *z, struct step_tasks *t, int u);
int zero_offload_open(struct zero *z);    // Returns 0, or -1 after logging.
void zero_offload_close(struct zero *z);  // May be called after a failed open.
// Enqueues the update of u after `reduced` and `stats`. The caller goes through the units in order. At
// units[u].updated the weights of u are new.
void zero_offload_update(struct zero *z, int u, const struct update_step *step);
// For weights on the host: copies this rank's shard of u to its offset in `whole` and returns its address there.
const void *zero_offload_shard(struct zero *z, int u, void *whole, enum pass pass);
// Makes compute wait for all enqueued offload work. Called before a step's decision, which the host's updates read.
void zero_offload_settle(struct zero *z);
// For a unit whose state is on disk. kind: the master or one state. put writes this rank's shard at once. get (a
// state_range's read, for checkpoints) returns memory that is valid until the next get. -1, or NULL: after logging.
bool zero_offload_on_disk(const struct zero *z, int u);
int zero_offload_put(struct zero *z, int u, int kind, const float *shard);
const void *zero_offload_get(void *z, const struct state_range *r);
int zero_offload_sync(struct zero *z);  // Blocks the host. Returns 0 or -1.

// Weights in a file. zero_disk_on: whether weights are in a file at all. zero_disk_writes_weights: whether that
// file is their own; else they are the masters, which the update writes.
bool zero_disk_on(const struct zero *z);
bool zero_disk_writes_weights(const struct zero *z);
void zero_disk_carve_unit(struct zero *z, int u);
// Writes a shard at once; all streams are idle. Returns 0, or -1 after logging.
int zero_disk_put(struct zero *z, int u, const void *shard);
// Reads a shard at once. Returns host memory that is valid until the next call, or NULL after logging.
const void *zero_disk_get(void *z, const struct state_range *r);

// ---- zero_onebit.c
// Whether momenta are exchanged in some step. May be called before zero_carve.
bool zero_onebit_on(const struct zero *z);
bool zero_onebit_due(const struct zero *z);  // Whether momenta are exchanged in the current step.
void zero_onebit_carve(struct zero *z);
// Warns that the checkpoint has no errors of codes.
void zero_onebit_loads(struct zero *z, const char *checkpoint);
void zero_onebit_wire(const struct zero_options *o, struct wire_prediction *wire);
// The parts of zero_step if momenta are exchanged.
void zero_onebit_begin(struct zero *z);
void zero_onebit_norm(struct zero *z);
void zero_onebit_decide(struct zero *z, const struct step_input *in);
void zero_onebit_update(struct zero *z, const struct step_input *in);
void zero_onebit_end(struct zero *z, const struct step_input *in, bool skipped);  // Called in every step.

// ---- zero_time.c
// Gathers `count` words per rank in z->host_shares, where the caller has written its own. The host waits. Returns 0 or -1.
int zero_exchange(struct zero *z, int count);
void zero_time_open(struct zero *z);
void zero_time_close(struct zero *z);
// Starts the records of the two streams; only the first call has an effect. Collective, before a step. Returns 0, or
// -1 after logging.
int zero_time_watch(struct zero *z);

// begin and end enclose a collective on stream s. The collective waits for up to two marks of compute (`after`); 0:
// none. begin returns the transfer's id, for timeline_wait. Without overlap the collective also waits for all work that
// is enqueued on compute, and compute waits for the collective.
struct zero_move {
    enum transfer_kind kind;
    int unit;  // -1: none
    uint64_t bytes;
    uint64_t after[2];
};
uint64_t zero_move_begin(struct zero *z, struct stream *s, const struct zero_move *m);
void zero_move_end(struct zero *z, struct stream *s, uint64_t id);
void zero_serialize_begin(struct zero *z, struct stream *s,
                          uint64_t id);  // without overlap, s waits for compute too

// Writes this rank's ready times of the ended interval to words (capacity). Then the ended interval becomes the sent
// one, and the open interval the ended one.
void zero_time_send(struct zero *z, double *words);
// Reads the times of all ranks for the sent interval from words (N, stride).
void zero_time_receive(struct zero *z, const double *words, int stride);
// Exchanges the last intervals. Collective; every stream of the ring is idle. Returns 0, or -1; the caller logs.
int zero_time_finish(struct zero *z);

// ---- zero_checkpoint.c: hooks (shared/core/topology.h)
int zero_weights(struct topology *t, int u, struct state_range *out);
int zero_load_unit(struct topology *t, int u, const float *values);
int zero_load_frozen(struct topology *t, int u, const float *values);
int zero_state(struct topology *t, int index, struct state_range *out);
int zero_load(struct topology *t, struct checkpoint *c);

#endif
