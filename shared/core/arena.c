#include "shared/core/arena.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"

void arena_init(struct arena *a, struct device *dev) { *a = (struct arena){.dev = dev}; }

static void remember(struct arena *a, const struct arena_block *block) {
    if (a->count == a->capacity) {
        a->capacity = a->capacity ? 2 * a->capacity : 32;
        a->blocks = xrealloc(a->blocks, (size_t)a->capacity * sizeof *a->blocks);
    }
    a->blocks[a->count++] = *block;
}

static void say_out(const struct arena *a, enum mem_class c, size_t bytes) {
    struct mem_usage used;
    size_t limit = dev_memory_limit(a->dev), all = arena_total(a) - bytes;
    dev_usage(a->dev, &used);
    if (limit && !mem_class_is_host(c) && mem_device_bytes(used.current_bytes) + bytes > limit)
        fail(
            "out of device memory: %zu bytes for %s, after %zu bytes in all, are more than the %zu bytes of "
            "memory.device_bytes (--device-memory); offload, a smaller batch, a higher ZeRO stage or more ranks need less",
            bytes, mem_class_name(c), mem_device_bytes(used.current_bytes), limit);
    else
        fail(
            "out of %s memory: %zu bytes for %s, after %zu bytes in all; "
            "use a smaller batch, a higher ZeRO stage or more ranks",
            c == MEM_HOST      ? "page-locked host"
            : c == MEM_OFFLOAD ? "host"
                               : "device",
            bytes, mem_class_name(c), all);
}

void *arena_take(struct arena *a, enum mem_class c, size_t bytes) {
    if (!bytes || a->failed) return NULL;
    bytes = dev_round(bytes);
    a->bytes[c] = (size_t)size_plus((int64_t)a->bytes[c], (int64_t)bytes);
    if (!a->dev) return NULL;
    void *p = size_is_too_large(a->bytes[c]) ? NULL : dev_alloc(a->dev, c, bytes);
    if (!p) {
        a->failed = 1;
        say_out(a, c, bytes);
        a->bytes[c] -= bytes;
        return NULL;
    }
    remember(a, &(struct arena_block){.p = p, .bytes = bytes, .class = c});
    return p;
}

void arena_count(struct arena *a, enum mem_class c, size_t bytes) {
    bytes = dev_round(bytes);
    a->bytes[c] = (size_t)size_plus((int64_t)a->bytes[c], (int64_t)bytes);
    if (!a->dev || !bytes) return;
    dev_count(a->dev, c, bytes);
    remember(a, &(struct arena_block){.bytes = bytes, .class = c});
}

int arena_register(struct arena *a, void *p, size_t bytes, const char **why) {
    if (a->dev && dev_host_register(a->dev, p, bytes, why) != 0) return -1;
    a->bytes[MEM_HOST] += dev_round(bytes);
    if (a->dev) remember(a, &(struct arena_block){p, bytes, MEM_HOST, .registered = true});
    return 0;
}

void *arena_room_take(struct arena_room *room, size_t bytes, size_t align) {
    size_t rounded = (bytes + align - 1) / align * align;
    char *p = room->base ? room->base + room->used : NULL;
    room->used += rounded;
    if (p) memset(p, 0, rounded);
    return p;
}

void *arena_place(struct arena *a, enum mem_class c, struct arena_room *room, size_t bytes, size_t align) {
    size_t before = room->used;
    void *p = arena_room_take(room, bytes, align);
    arena_count(a, c, room->used - before);
    return p;
}

size_t arena_total(const struct arena *a) {
    int64_t total = 0;
    for (int i = 0; i < MEM_CLASSES; i++) total = size_plus(total, (int64_t)a->bytes[i]);
    return (size_t)total;
}

size_t mem_device_bytes(const size_t bytes[MEM_CLASSES]) {
    int64_t total = 0;
    for (int c = 0; c < MEM_CLASSES; c++)
        if (!mem_class_is_host((enum mem_class)c)) total = size_plus(total, (int64_t)bytes[c]);
    return (size_t)total;
}

void arena_release(struct arena *a) {
    for (int i = a->count - 1; i >= 0; i--) {
        const struct arena_block *b = &a->blocks[i];
        if (b->registered)
            dev_host_unregister(a->dev, b->p, b->bytes);
        else if (b->p)
            dev_free(a->dev, b->class, b->p, b->bytes);
        else
            dev_uncount(a->dev, b->class, b->bytes);
    }
    free(a->blocks);
    *a = (struct arena){.dev = a->dev};
}
