// The ring's stages as rows of one table, and the textbook formulas that follow from them.
//
// The state that is resident on a rank (w: weights, g: gradients, o: masters and the optimizer's states), and the
// payload that it sends, and receives, per step:
//     stage   w                 g                 o       payload
//     0       full              full              full    2U   reduce-scatter + all-gather of g
//     1       full              full              shard   2U   reduce-scatter of g + all-gather of w
//     2       full              2 slots + shard   shard   2U   the same
//     3       slots + shard     2 slots + shard   shard   3U   all-gather of w twice + reduce-scatter of g
// U = (N-1)/N x padded bytes. With A micro-batches per step, sharded weights and gradients move for each of them:
// stage 2 (1+A)U, stage 3 3AU. This is the textbook's number, an upper bound: weights that their slots hold are not
// gathered again (unit_schedule.h). The prediction counts the gathers that happen.
// Slots of gradients alternate by the unit's parity; each is as large as the largest unit of that parity. A tied
// unit 0 has a slot of its own.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_POLICY_H
#define STARRING_DECENTRAL_ZERO_ZERO_POLICY_H

#include "decentral/collective/collective.h"
#include "decentral/zero/zero_bundle.h"
#include "shared/core/topology.h"
#include "shared/model/optimizer.h"
#include "shared/model/unit_schedule.h"

// The host whose clock a rank reads, and by how much that clock is ahead of CLOCK_MONOTONIC.
struct zero_clock {
    uint64_t host;
    int64_t ahead_ns;
};

// The state that a rank keeps outside its device's memory (ZeRO-Offload, Ren et al. 2021), in the stages that shard it.
struct zero_offload_options {
    bool optimizer;    // masters and the optimizer's states; the host runs the update
    bool page_locked;  // pinned host memory, if the device has memory of its own
    // Sharded weights too (ZeRO-Infinity, Rajbhandari et al. 2021); requires that the whole optimizer is offloaded.
    bool params;
    bool params_page_locked;
    double ratio;      // of the optimizer's elements, in whole units from the first on; 0: all
    int threads;       // of the host's update; 0: one
    const char *disk;  // directory of a file for masters and states; NULL: in memory
    // Directory of a file for 16-bit weights, with params; NULL: in memory. In fp32 the weights are the masters.
    const char *params_disk;
    size_t block_bytes;  // aio.block_size and aio.queue_depth (shared/offload/disk_store.h); 0: its default
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
    bool in_turn;  // communication and compute never overlap (zero_optimization.overlap_comm: false)
    struct unit_prefetch prefetch;  // stage 3
    struct zero_buckets buckets;
    double deadline_s;
    const struct collective_source *source;  // rank, size
    bool sums_in_fp32;                       // of micro-batches
    int64_t accumulation;                    // micro-batches per step, for the prediction; 0: one
    bool no_sync;  // stages 2 and 3: gradients stay whole over a step's micro-batches, and are reduced once
    const struct zero_clock *clock;  // NULL: this machine's; tests set others
    struct zero_offload_options offload;
};

#define ZERO_STAGES 4

enum residency { RESIDENT_FULL, RESIDENT_SHARD };

// One row per stage; no other code in decentral/ tests the stage. Weights and gradients that are RESIDENT_SHARD
// become whole in slots: unit_schedule.h has the number for weights; gradients have two (and one for a tied unit 0).
struct zero_policy {
    const char *name;
    enum residency weights, grads, optimizer;
    bool gather_grads;    // after the reduction every rank gets the whole reduced gradient
    bool gather_weights;  // after the update every rank gets the whole updated weights
};
const struct zero_policy *zero_policy_of(int stage);                      // NULL: no such stage
const struct zero_policy *zero_policy_for(const struct zero_options *o);  // by stage, no_sync and ranks
// Returns the textbook's bytes (Rajbhandari et al. 2020, section 5, with K = 12 for Adam): each of weights,
// gradients and optimizer states counts in full or as 1/N. In fp32 the weights are their own master: K = 8 and
// 4-byte weights and gradients, so 16P, 8P + 8P/N, 4P + 12P/N, 16P/N. Fully offloaded state counts 0.
struct textbook zero_textbook(const struct zero_policy *p, const struct zero_options *o);
// Open the bundles of units whose gradients are reduced together, and of units whose weights (in stage 0: reduced
// gradients) are gathered together. Stage 3 gathers each unit separately, into its slot.
void zero_bundles_reduced(struct zero_bundles *b, const struct zero_options *o);
void zero_bundles_gathered(struct zero_bundles *b, const struct zero_policy *p, const struct zero_options *o);
// hpZ (ZeRO++, Wang et al. 2023, section 4.2): returns the number of ranks in a group that shares a secondary copy
// of the weights. 0: no hpZ, also if a group is one rank or all ranks, because it would change nothing.
int zero_hpz(const struct zero_options *o);
// Returns the ranks per group if traffic that leaves a group is counted; 0: it is not.
int zero_edge(const struct zero_options *o);
// out (units) receives how often each unit's shards are gathered from all ranks in a step.
void zero_gathers(const struct zero_policy *p, const struct zero_options *o, int64_t *out);
// Returns the exact payload of a step. Groups of g ranks move the same bytes, but only (N/g-1)/N of them leave the
// group, instead of (N-g)/N.
struct wire_prediction zero_wire(const struct zero_policy *p, const struct zero_options *o);
// Writes the textbook's payload to text: "2U, U = (N-1)/N x padded bytes"; "up to 3U, .." if slots may save gathers.
void zero_wire_say(char *text, size_t size, const struct zero_policy *p, int64_t accumulation);

#endif
