// Which shard owns which range of which unit. A key is a partition: a range of one unit.
//
//     unit u:   | key k | key k+1 | .. |       boundaries: multiples of SUMSQ_BLOCK elements, or of pages if keys
//                                              are at least a page
//     shard g = server * threads + thread owns a set of keys, assigned largest first to the least
//     loaded shard (Graham 1969, "Bounds on multiprocessing timing anomalies": LPT).
//
// If servers are next to workers that keep two units at a time, server r has the r-th of N equal parts of every unit.
// Rank r of a ring's stage 3 has the same. A unit is then pulled from all of them in equal shares, (N-1)/N of it from
// other servers.
//
// Workers that keep two units at a time also pull what LoRA freezes. Those units come after the trained ones, as in the
// layout, and so do their keys. Each of the two is cut and spread over the servers by itself.
//
// Plain data, a pure function of (layout, configuration): every role builds the same map by itself and the
// manifest proves it. The creator owns it.
#ifndef STARRING_PS_JOB_SHARD_MAP_H
#define STARRING_PS_JOB_SHARD_MAP_H

#include "shared/config/config.h"
#include "shared/core/unit.h"

struct partition {
    int unit;
    int64_t begin, end;  // range of elements of the unit
    int shard;
};

// How units are cut: into as few partitions of at most `most` grains as possible, whose sizes differ by at most one
// grain. A grain is `grain` elements.
struct shard_cut {
    int64_t grain, most;
    int64_t keys;  // keys of all units
    bool pages;    // grains are pages
    int parts;     // equal parts that a unit is cut into first, one per server; 1: it is cut as a whole
};

struct shard_map {
    int count;                // keys
    int trained;              // trained keys; the others are only pulled
    int units;                // frozen ones included
    struct partition *parts;  // (count), by unit, then by begin
    int *first;               // (units+1): keys of unit u are first[u] .. first[u+1]-1
    // Every key begins at a page of its unit: its weights can be mapped separately.
    bool pages;
    int servers, threads;
    int shards;               // servers * threads
    int64_t *shard_elements;  // (shards) trained elements
    int *shard_keys;          // (shards) trained keys
};

// Returns the frozen units that servers hold; NULL: none.
static inline const struct layout *ps_frozen(const struct config *c, const struct layout *l) {
    return c->ps.resident == PS_RESIDENT_UNITS ? l->rest : NULL;
}
static inline int ps_units(const struct config *c, const struct layout *l) {
    return ps_frozen(c, l) ? layout_units(l) : l->count;
}
// Only the cut of l's own units, for any number of keys. Returns 0, or -1 after logging what is impossible.
int shard_cut_of(const struct config *c, const struct layout *l, struct shard_cut *out);

#define SHARD_KEYS_MAX (1 << 22)  // the most keys of a map: the map and its users keep a record per key
// A partition has at most ps.partition_bytes, and less if balance needs it. Returns NULL after logging what is
// impossible.
struct shard_map *shard_map_of(const struct config *c, const struct layout *l);
void shard_map_destroy(struct shard_map **m);
#define SHARD_PAGE 4096  // bytes
// The offsets of each key's weights in the segment that its server publishes: place (count), bytes from the
// segment's start, multiples of a page. head: bytes before the first, a multiple of a page.
void shard_map_offsets(const struct shard_map *m, size_t element_bytes, size_t head, size_t *place);
// xxh64 over every partition and its shard.
uint64_t shard_map_hash(const struct shard_map *m);
// Trained elements that server `rank` owns over all its shard threads.
int64_t shard_map_server_elements(const struct shard_map *m, int rank);

#endif
