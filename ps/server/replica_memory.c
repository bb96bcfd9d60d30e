#include "ps/server/replica_memory.h"

static bool is_of(const struct shard_map *m, int key, int server) {
    return m->parts[key].shard / m->threads == server;
}

void replica_carve_key(struct arena *a, const struct config *c, int64_t elements,
                       struct replica_buffers *out) {
    size_t n = (size_t)elements;
    out->master = arena_take(a, MEM_SERVER, n * sizeof(float));
    for (int i = 0; i < c->optimizer.row->states; i++)
        out->state[i] = arena_take(a, MEM_SERVER, n * sizeof(float));
    out->sum = arena_take(a, MEM_SERVER, n * dtype_size(c->dtype));
}

void replica_carve(struct arena *a, const struct config *c, const struct shard_map *m, int rank,
                   struct replica_buffers *out) {
    if (!c->ps.replicate) return;
    for (int key = 0; key < m->count; key++)
        if (is_of(m, key, replica_primary(rank, m->servers)))
            replica_carve_key(a, c, m->parts[key].end - m->parts[key].begin, &out[key]);
}
