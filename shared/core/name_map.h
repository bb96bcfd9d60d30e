// A hash table from names to numbers: readers of objects with many members stay linear. Each map has its own hash
// seed, so that no file can be crafted whose names all collide.
#ifndef STARRING_SHARED_CORE_NAME_MAP_H
#define STARRING_SHARED_CORE_NAME_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name_map {
    struct name_slot {
        const char *name;  // the caller's, at least as long as the map; NULL: a free slot
        uint64_t hash;
        int64_t value;
    } * slots;
    size_t room, count;  // room: the capacity, a power of two or 0
    uint64_t seed;
};

// Returns the value of the name. A new name gets `value`, and *added becomes true.
int64_t name_map_put(struct name_map *m, const char *name, int64_t value, bool *added);
// Returns -1 if the name is absent.
int64_t name_map_get(const struct name_map *m, const char *name);
void name_map_free(struct name_map *m);  // leaves an empty map

#endif
