// Device memory, planned before it is taken. The same carving code runs twice: against an arena that
// measures (no device: counts bytes, returns NULL) and against one that allocates. What the first
// says is the ledger's prediction; what the device counted (dev_usage) is the measurement.
//
// The arena owns what it handed out; arena_release gives everything back.
// Not thread-safe: one arena belongs to one thread.
#ifndef STARRING_SHARED_CORE_ARENA_H
#define STARRING_SHARED_CORE_ARENA_H

#include "kernels/backend.h"

struct arena_block {
    void *p;  // NULL: counted alone, somebody else's
    size_t bytes;
    enum mem_class class;
    bool registered;  // p is somebody else's, page-locked
};

struct arena {
    struct device *dev;  // NULL: measuring
    size_t bytes
        [MEM_CLASSES];  // handed out so far, rounded as the device rounds; at most SIZE_TOP (shared/core/sizes.h)
    struct arena_block *blocks;  // NULL while measuring
    int count, capacity;
    int failed;  // an allocation did not succeed
};

void arena_init(struct arena *a, struct device *dev);
// bytes of zeroed device memory of the class; NULL while measuring, for 0 bytes, or when the device
// is out of memory: then the error has been logged and a->failed is set, which makes every later take NULL.
void *arena_take(struct arena *a, enum mem_class c, size_t bytes);
// Counts memory that somebody else maps, once for the ledger.
void arena_count(struct arena *a, enum mem_class c, size_t bytes);

// Page-locks memory that somebody else has mapped, whole pages, for the device, until arena_release, and counts it
// (MEM_HOST); while measuring it counts alone. 0, or -1 with the reason in *why: nothing has changed then.
int arena_register(struct arena *a, void *p, size_t bytes, const char **why);

// Memory that somebody else maps, shared with other processes, given out from its start.
struct arena_room {
    char *base;   // NULL: measuring
    size_t used;  // bytes given out; while measuring: what the room has to hold
};
// The next bytes of the room, rounded up to align, with every page touched; NULL while measuring.
void *arena_room_take(struct arena_room *room, size_t bytes, size_t align);
// The same, counted.
void *arena_place(struct arena *a, enum mem_class c, struct arena_room *room, size_t bytes, size_t align);
size_t arena_total(const struct arena *a);
// Sum over the classes that are device memory: MEM_HOST and MEM_OFFLOAD are counted apart.
size_t mem_device_bytes(const size_t bytes[MEM_CLASSES]);
void arena_release(struct arena *a);

#endif
