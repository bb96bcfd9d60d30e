// The ring's stages as rows of one table, and what follows from them without ranks and streams: which units share a
// collective, the bytes of a step, the textbook formulas.
//
// The state that is resident on a rank (w: weights, g: gradients, o: masters and the optimizer's states), and the
// payload that it sends, and receives, per step:
//     stage   w                 g                 o       payload
//     0       full              full              full    2U   reduce-scatter + all-gather of g
//     1       full              full              shard   2U   reduce-scatter of g + all-gather of w
//     2       full              2 slots + shard   shard   2U   the same
//     3       slots + shard     2 slots + shard   shard   3U   all-gather of w twice + reduce-scatter of g
// With one rank or with ring.no_sync, stages 2 and 3 keep full gradients (`unsynchronised` in zero_policy.c).
// U = (N-1)/N x padded bytes. With A micro-batches per step, sharded weights and gradients move for each of them:
// stage 2 (1+A)U, stage 3 3AU. This is the textbook's number, an upper bound: weights that their slots hold are not
// gathered again (unit_schedule.h). The prediction counts the gathers that happen.
// Slots of gradients alternate by the unit's parity; each is as large as the largest unit of that parity. A tied
// unit 0 has a slot of its own.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_POLICY_H
#define STARRING_DECENTRAL_ZERO_ZERO_POLICY_H

#include "decentral/collective/collective.h"
#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/model/optimizer.h"
#include "shared/model/unit_schedule.h"

// ---------------------------------------------------------------- bundles
// Bundles: which neighbouring units share one collective. The run and the prediction use the same table.
//
//     units        u0 | u1 u2 u3 | u4 u5       in the order of their transfers: weights ascend, gradients descend
//     buffer       block of rank 0        | block of rank 1        | ..
//                  | u1's | u2's | u3's   | u1's | u2's | u3's   | ..      adjacent shards
//
// A unit joins the previous bundle as long as the bundle's elements fit in the bucket. A unit larger than the bucket
// has a bundle of its own (0: every unit), as in DeepSpeed's reduce_ipg_grads (runtime/zero/stage_1_and_2.py). Bundles change no
// element's sum, and so no bit.
enum zero_order { ZERO_ASCENDING, ZERO_DESCENDING };

// Units first .. first + count - 1.
struct zero_bundle {
    int first, count;
    int64_t shard;  // elements of a rank's block: its shards of all these units
};

struct zero_bundles {
    int count;
    struct zero_bundle *list;  // (count) in the order of their transfers
    int *of;                   // (units) index of the unit's bundle
    int64_t *at;               // (units) offset of the unit's shard in a block, in elements
};

void zero_bundles_open(struct zero_bundles *b, const struct layout *l, int64_t bucket, enum zero_order way);
void zero_bundles_close(struct zero_bundles *b);

static inline const struct zero_bundle *zero_bundle_of(const struct zero_bundles *b, int u) {
    return &b->list[b->of[u]];
}
// Returns the elements of the largest block.
int64_t zero_bundles_largest(const struct zero_bundles *b);
// Returns the elements of the largest block of several units, which needs a buffer; 0: every bundle is one unit.
int64_t zero_bundles_packed(const struct zero_bundles *b);

// ---------------------------------------------------------------- options
// The host whose clock a rank reads, and by how much that clock is ahead of CLOCK_MONOTONIC.
struct zero_clock {
    uint64_t host;
    int64_t ahead_ns;
};

struct zero_options {
    // The ring's own configuration, without the outer optimizer of local steps (shared/launch/local_steps.h).
    const struct config *config;
    const struct layout *layout;
    struct device *dev;
    bool device_memory;  // dev's memory is not the host's; set for zero_predict, zero_create asks dev
    struct stream *compute;
    const struct collective_source *source;  // creates the collectives; has rank and size
    const struct zero_clock *clock;          // NULL: this machine's clock; tests set others
    int threads;                             // threads of the host's update of offloaded state; 0: one
};

// ---------------------------------------------------------------- stages
#define ZERO_STAGES 4

enum residency { RESIDENT_FULL, RESIDENT_SHARD };

// One row per stage; no other code in decentral/ tests the stage. Weights and gradients that are RESIDENT_SHARD
// become whole in slots: unit_schedule.h has the number for weights; gradients have two (and one for a tied unit 0).
struct zero_policy {
    const char *name;
    enum residency weights, grads, optimizer;
    bool gather_grads;    // after the reduction all ranks gather the whole reduced gradient
    bool gather_weights;  // after the update all ranks gather the whole updated weights
};
const struct zero_policy *zero_policy_of(int stage);  // Returns NULL if there is no such stage.
// Returns the row for the stage, no_sync and the number of ranks.
const struct zero_policy *zero_policy_for(const struct zero_options *o);
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
int zero_counted_group(const struct zero_options *o);
// Writes the textbook's payload to text: "2U, U = (N-1)/N x padded bytes"; "up to 3U, .." if slots may save gathers.
void zero_wire_text(char *text, size_t size, const struct zero_policy *p, int64_t accumulation);

#endif
