// A replica (replica.h): who keeps whose, its memory, the bytes that travel.
#ifndef STARRING_PS_SERVER_REPLICA_MEMORY_H
#define STARRING_PS_SERVER_REPLICA_MEMORY_H

#include "ps/job/shard_map.h"
#include "shared/core/arena.h"
#include "shared/model/optimizer.h"

// The shard threads of replica_holder and replica_primary (ps/job/shard_map.h).
static inline int replica_holder_shard(const struct shard_map *m, int shard) {
    return (shard + m->threads) % m->shards;
}
static inline int replica_primary_shard(const struct shard_map *m, int shard) {
    return (shard + m->shards - m->threads) % m->shards;
}

// A key's memory, elements n = end - begin.
struct replica_buffers {
    float *master;                       // (n)
    float *state[OPTIMIZER_STATES_MAX];  // (n) each
    void *sum;  // (n) of dtype: the rounded gradient of the step that is not decided yet
};
void replica_carve_key(struct arena *a, const struct config *c, int64_t elements,
                       struct replica_buffers *out);
// The elements that server `rank` holds of its neighbour: none without replication. out (map->count): the others stay as they
// are.
void replica_carve(struct arena *a, const struct config *c, const struct shard_map *m, int rank,
                   struct replica_buffers *out);

#endif
