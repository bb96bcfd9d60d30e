// The ring's stages as rows of one table, and the textbook formulas that follow from them.
//
// The parts that are resident on a rank (w: weights, g: gradients, o: masters and the optimizer's states), and the
// payload that it sends, and receives, per step:
//     stage   w                 g                 o       payload
//     0       full              full              full    2U   reduce-scatter + all-gather of g
//     1       full              full              shard   2U   reduce-scatter of g + all-gather of w
//     2       full              2 slots + shard   shard   2U   the same
//     3       slots + shard     2 slots + shard   shard   3U   all-gather of w twice + reduce-scatter of g
// U = (N-1)/N x padded bytes. With A micro-batches a step what is sharded moves for each of them: stage 2
// (1+A)U, stage 3 3AU, which is the textbook's and an upper bound: what the slots of weights still hold is not
// gathered again (unit_schedule.h), and the prediction counts what is.
// Slots of gradients alternate by the unit's parity; each is as large as the largest unit of that parity. A tied
// unit 0 has a slot of its own.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_POLICY_H
#define STARRING_DECENTRAL_ZERO_ZERO_POLICY_H

#include "decentral/collective/collective.h"
#include "decentral/zero/zero_bundle.h"
#include "shared/core/topology.h"
#include "shared/model/optimizer.h"
#include "shared/model/unit_schedule.h"

// Which host's clock a rank has, and by how much it is ahead of CLOCK_MONOTONIC.
struct zero_clock {
    uint64_t host;
    int64_t ahead_ns;
};

// The parts that a rank keeps out of its device's memory (ZeRO-Offload, Ren et al. 2021), in the stages that shard it.
struct zero_offload_options {
    bool optimizer;    // masters and the optimizer's states; the update is the host's
    bool page_locked;  // what lies on the host, where the device's memory is its own
    bool
        params;  // weights too, where they are shards (ZeRO-Infinity, Rajbhandari et al. 2021); with all of optimizer
    bool params_page_locked;
    double ratio;      // of the optimizer's elements, in units from the first one on; 0: all
    int threads;       // of the host's update; 0: one
    const char *disk;  // masters and states lie in a file in this directory; NULL: in memory
    const char
        *params_disk;    // likewise of params: 16-bit weights; in fp32 they are the masters, where these are
    size_t block_bytes;  // aio.block_size and aio.queue_depth (shared/offload/disk_store.h); 0: the store's
    int depth;
};

struct zero_options {
    int stage;  // 0..3
    const struct layout *layout;
    enum dtype dtype;
    struct device *dev;
    bool device_memory;  // dev's memory is not the host's; set for zero_predict, zero_create asks dev
    struct stream *compute;
    struct optimizer_config optimizer;
    enum reduce_mode reduce;
    int group;     // reduce_group: divides the ranks; 0: none
    int hpz;       // ranks that share a secondary shard of the weights, stage 3; divides the ranks; 0: none
    bool in_turn;  // communication and compute never at the same time (zero_optimization.overlap_comm: false)
    struct unit_prefetch prefetch;  // stage 3
    struct zero_buckets buckets;
    double deadline_s;
    const struct collective_source *source;  // rank, size
    bool sums_in_fp32;                       // of micro-batches
    int64_t accumulation;                    // micro-batches a step, for the prediction; 0: one
    bool no_sync;  // stages 2 and 3: whole gradients are kept over a step's micro-batches, and reduced once
    const struct zero_clock *clock;  // NULL: this machine's; tests have others
    struct zero_offload_options offload;
};

#define ZERO_STAGES 4

enum residency { RESIDENT_FULL, RESIDENT_SHARD };

// One row a stage; nothing else in decentral/ asks which stage it is. What is RESIDENT_SHARD and used by the
// model passes through slots: of weights as many as unit_schedule.h says, of gradients two (and one for a tied unit 0).
struct zero_policy {
    const char *name;
    enum residency weights, grads, optimizer;
    bool gather_grads;    // after the reduction every rank gets the whole reduced gradient
    bool gather_weights;  // after the update every rank gets the whole updated weights
};
const struct zero_policy *zero_policy_of(int stage);                      // NULL: no such stage
const struct zero_policy *zero_policy_for(const struct zero_options *o);  // of their stage, no_sync, ranks
// The textbook's bytes (Rajbhandari et al. 2020, section 5, with K = 12 for Adam): each of weights, gradients
// and optimizer states counts in full or as 1/N. In fp32 the weights are their own master: K = 8 and 4-byte
// weights and gradients, so 16P, 8P + 8P/N, 4P + 12P/N, 16P/N. State that is offloaded in full counts nothing.
struct textbook zero_textbook(const struct zero_policy *p, const struct zero_options *o);
// Units whose gradients are reduced together, and whose weights, or in stage 0 reduced gradients, are gathered together. Stage 3
// gathers every unit alone, into its slot.
void zero_bundles_reduced(struct zero_bundles *b, const struct zero_options *o);
void zero_bundles_gathered(struct zero_bundles *b, const struct zero_policy *p, const struct zero_options *o);
// hpZ (ZeRO++, Wang et al. 2023, section 4.2): ranks of a group that hold a secondary copy of the weights between them; 0:
// none, as where one rank is a group or all are, whose secondary shard would be the primary one.
int zero_hpz(const struct zero_options *o);
// The ranks of a group whose edge is counted; 0: none.
int zero_edge(const struct zero_options *o);
// How often each unit's shards are gathered from all ranks in a step; out: (units).
void zero_gathers(const struct zero_policy *p, const struct zero_options *o, int64_t *out);
// Payload of a step, to the byte. With groups of g the same bytes, of which (N/g-1)/N and not (N-g)/N leave the group.
struct wire_prediction zero_wire(const struct zero_policy *p, const struct zero_options *o);
// The textbook's in words: "2U, U = (N-1)/N x padded bytes"; "up to 3U, .." where slots may spare some of it.
void zero_wire_say(char *text, size_t size, const struct zero_policy *p, int64_t accumulation);

#endif
