// Names and a number for each, found in the time of one: what keeps the readers of objects with many members linear.
// The hash has a seed of its own in each map, so that no file can be made whose names all collide.
#ifndef STARRING_SHARED_CORE_NAME_MAP_H
#define STARRING_SHARED_CORE_NAME_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name_map {
    struct name_slot {
        const char *name;  // the caller's, as long as the map; NULL: free
        uint64_t hash;
        int64_t value;
    } * slots;
    size_t room, count;  // room: a power of two, or 0
    uint64_t seed;
};

// The value that the name has; it is `value` where the name was not there, and then *added is true.
int64_t name_map_put(struct name_map *m, const char *name, int64_t value, bool *added);
// -1: it is not there.
int64_t name_map_get(const struct name_map *m, const char *name);
void name_map_free(struct name_map *m);  // leaves an empty one

#endif
