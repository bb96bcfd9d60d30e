// The sizes of a shard_map (ps/job/shard_map.h), without its keys: how many keys of which size each shard owns. Keys
// are cut evenly, so few sizes occur however many keys there are, and shards differ little. A prediction takes
// microseconds and almost no memory, while the map of a large model has thousands of millions of keys.
//
// Shards that own the same keys of each size have consecutive numbers: keys are assigned largest first to the least
// loaded shard, to the first of equally loaded ones.
#ifndef STARRING_PS_JOB_SHARD_SIZES_H
#define STARRING_PS_JOB_SHARD_SIZES_H

#include "ps/job/shard_map.h"

struct size_class {
    int64_t elements, keys;
};

struct shard_group {
    int first, count;  // shards
    int64_t elements;  // trained elements of each shard
};

struct shard_sizes {
    struct shard_cut cut;
    int servers, threads;
    int classes;
    struct size_class *class;  // (classes), the largest first
    int groups;
    struct shard_group *group;  // (groups), by shard
    int64_t *keys;              // (groups, classes): how many keys of the class each shard of the group owns
};

// How a unit of n_pad elements is cut: up to three sizes, some without keys.
void shard_sizes_of_unit(const struct shard_cut *cut, int64_t n_pad, struct size_class out[3]);
// Returns NULL after logging what is impossible, as shard_map_of does.
struct shard_sizes *shard_sizes_of(const struct config *c, const struct layout *l);
void shard_sizes_destroy(struct shard_sizes **s);
// Returns the elements of server `rank` over all its threads; keys (classes; or NULL) receives its keys of each size.
int64_t shard_sizes_of_server(const struct shard_sizes *s, int rank, int64_t *keys);
// The number of servers from `rank` on that own the same as it: at least 1.
int shard_sizes_same(const struct shard_sizes *s, int rank);

#endif
