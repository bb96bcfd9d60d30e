// Device memory that is planned before it is allocated. The same code runs twice: with an arena that
// measures (it has no device, counts bytes and returns NULL) and with one that allocates. The first run predicts
// the ledger; the measured value is dev_usage, which the device counts.
//
// The arena owns the blocks that it allocated; arena_release frees them.
// One thread owns an arena: it is not thread-safe.
#ifndef STARRING_SHARED_CORE_ARENA_H
#define STARRING_SHARED_CORE_ARENA_H

#include "kernels/backend.h"

struct arena_block {
    void *p;  // NULL: the block is only counted, and another owner has its memory
    size_t bytes;
    enum mem_class class;
    bool registered;  // p belongs to another owner and is page-locked
};

struct arena {
    struct device *dev;  // NULL: the arena measures
    // Bytes of all blocks, rounded as the device rounds; at most SIZE_TOP (shared/core/numbers.h).
    size_t bytes[MEM_CLASSES];
    struct arena_block *blocks;  // NULL while measuring
    int count, capacity;
    int failed;  // an allocation has failed
};

void arena_init(struct arena *a, struct device *dev);
// Returns zeroed device memory of the class. Returns NULL while measuring, for 0 bytes, and when the device is out
// of memory. In the last case the error is logged and a->failed is set; every later arena_take then returns NULL.
void *arena_take(struct arena *a, enum mem_class c, size_t bytes);
// Counts memory that another owner maps.
void arena_count(struct arena *a, enum mem_class c, size_t bytes);

// Page-locks whole pages that another owner has mapped, until arena_release, and counts them (MEM_HOST). While
// measuring it only counts. Returns 0, or -1 with the reason in *why; then nothing has changed.
int arena_register(struct arena *a, void *p, size_t bytes, const char **why);

// Memory that another owner maps and shares with other processes. Blocks are taken from its start.
struct arena_room {
    char *base;   // NULL: measuring
    size_t used;  // bytes taken; while measuring: the bytes that the room must hold
};
// Returns the next bytes of the room, rounded up to align, and zeroes them. Returns NULL while measuring.
void *arena_room_take(struct arena_room *room, size_t bytes, size_t align);
// As arena_room_take, and also counts the bytes under class c.
void *arena_place(struct arena *a, enum mem_class c, struct arena_room *room, size_t bytes, size_t align);
size_t arena_total(const struct arena *a);
// Returns the sum over the classes that are device memory: all but MEM_HOST and MEM_OFFLOAD.
size_t mem_device_bytes(const size_t bytes[MEM_CLASSES]);
void arena_release(struct arena *a);

#endif
