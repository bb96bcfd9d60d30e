#include "shared/time/timeline_room.h"

#include "shared/core/sizes.h"

#define ROOM_MAX ((int64_t)1 << 18)

size_t timeline_room(const struct layout *l, int64_t micro_batches) {
    int64_t micro = micro_batches > 0 ? micro_batches : 1;
    // Of a unit at most: two gathers of weights and a reduction for each micro-batch, a gather behind them.
    int64_t most = size_times(TIMELINE_STEPS, size_plus(size_times(l->count, 3 * micro + 2), 16));
    return (size_t)(most < ROOM_MAX ? most : ROOM_MAX);
}

size_t timeline_bytes(const struct layout *l, int64_t micro_batches) {
    return timeline_room(l, micro_batches) * TIMELINE_RECORD_BYTES;
}
