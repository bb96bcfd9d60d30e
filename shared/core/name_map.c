#include "shared/core/name_map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "shared/core/error.h"

#define FIRST_ROOM 32

// Returns the slot of the name, or the free slot for it. The map has at least one free slot.
static struct name_slot *slot_of(const struct name_map *m, const char *name, uint64_t hash) {
    size_t at = (size_t)hash & (m->room - 1);
    while (m->slots[at].name && (m->slots[at].hash != hash || strcmp(m->slots[at].name, name) != 0))
        at = (at + 1) & (m->room - 1);
    return &m->slots[at];
}

static void grow(struct name_map *m) {
    struct name_map more = {.room = m->room ? 2 * m->room : FIRST_ROOM, .count = m->count, .seed = m->seed};
    if (!m->room && getrandom(&more.seed, sizeof more.seed, 0) != (ssize_t)sizeof more.seed)
        more.seed = (uintptr_t)m;
    more.slots = xcalloc(more.room, sizeof *more.slots);
    for (size_t i = 0; i < m->room; i++)
        if (m->slots[i].name) *slot_of(&more, m->slots[i].name, m->slots[i].hash) = m->slots[i];
    free(m->slots);
    *m = more;
}

int64_t name_map_put(struct name_map *m, const char *name, int64_t value, bool *added) {
    if (2 * (m->count + 1) > m->room) grow(m);
    uint64_t hash = XXH64(name, strlen(name), m->seed);
    struct name_slot *slot = slot_of(m, name, hash);
    *added = !slot->name;
    if (*added) {
        *slot = (struct name_slot){name, hash, value};
        m->count++;
    }
    return slot->value;
}

int64_t name_map_get(const struct name_map *m, const char *name) {
    if (!m->room) return -1;
    const struct name_slot *slot = slot_of(m, name, XXH64(name, strlen(name), m->seed));
    return slot->name ? slot->value : -1;
}

void name_map_free(struct name_map *m) {
    free(m->slots);
    *m = (struct name_map){0};
}
