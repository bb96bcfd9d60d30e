// The memory that this machine and its GPUs have left, beside what a run needs.
//
// Blocking   memory_room_read opens each GPU that it asks, and closes it.
#ifndef STARRING_SHARED_MEMORY_MEMORY_ROOM_H
#define STARRING_SHARED_MEMORY_MEMORY_ROOM_H

#include "shared/memory/memory_limits.h"
#include "shared/memory/memory_need.h"

struct memory_room {
    bool host_known;
    struct memory_limit host;
    int gpus;
    struct memory_limit gpu[MEMORY_GPUS_MAX];  // free_bytes < 0: unknown
    struct memory_limit device;                // of each worker, as configured; free_bytes < 0: not limited
};
// Reads the room below root ("": this machine) and on the first `gpus` devices of c.
void memory_room_read(const char *root, const struct config *c, int gpus, struct memory_room *out);

// Whether the limit is known and is less than predicted and allowed bytes together.
bool memory_exceeds(const struct memory_sum *wanted, const struct memory_limit *limit);

// The first limit that need exceeds, with what was wanted of it, or NULL: it fits as far as is known. Pure.
struct memory_short {
    const struct memory_limit *limit;
    struct memory_sum wanted;
};
struct memory_short memory_compare(const struct memory_need *need, const struct memory_room *room);

#endif
