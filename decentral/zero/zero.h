// ZeRO stages 0-3 (Rajbhandari et al. 2020) as a struct topology over collectives.
//
// What is resident on a rank, per stage (w: weights 16-bit, g: gradients, o: master and moments):
//     stage   w            g                          o        traffic a step (payload, out = in)
//     0       full         full                       full     2U  reduce-scatter + all-gather of g
//     1       full         full                       shard    2U  reduce-scatter g + all-gather w
//     2       full         2 slots + shard            shard    2U
//     3       2 slots + shard   2 slots + shard       shard    3U  all-gather w twice + reduce-scatter g
// U = (N-1)/N x padded bytes. With A micro-batches a step what is sharded moves for each of them: stage 2
// (1+A)U, stage 3 3AU. Slots alternate by the unit's parity; each is as large as the largest
// unit of that parity. A tied unit 0 has slots of its own.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_H
#define STARRING_DECENTRAL_ZERO_ZERO_H

#include "decentral/collective/collective.h"
#include "shared/core/topology.h"
#include "shared/model/optimizer.h"

struct zero_options {
    int stage;  // 0..3
    const struct layout *layout;
    enum dtype dtype;
    struct device *dev;
    bool device_memory;  // its memory is not the host's: for zero_predict, zero_create asks dev
    struct stream *compute;
    struct optimizer_config optimizer;
    enum reduce_mode reduce;
    double deadline_s;
    const struct collective_source *source;  // rank, size
    int64_t accumulation;                    // micro-batches a step, for the prediction; 0: one
};

// Predictions alone; allocates nothing. src may be {name, rank, size, staging_bytes} without impl.
int zero_predict(const struct zero_options *o, struct topology_memory *mem, struct wire_prediction *wire);
struct topology *zero_create(const struct zero_options *o);  // NULL after logging why

#endif
