#include "ps/server/server_memory.h"

#include <string.h>

#include "ps/ps.h"

void server_carve_key(struct arena *a, const struct config *c, const struct partition *p,
                      struct server_buffers *out) {
    size_t n = (size_t)(p->end - p->begin);
    out->master = arena_take(a, MEM_MASTER, n * sizeof(float));
    optimizer_carve(a, c->optimizer.row, p->end - p->begin, out->state);
    out->acc = arena_take(a, MEM_GRADIENT, n * sizeof(float));
    out->weight = out->master;
    if (c->dtype != DT_F32) out->weight = arena_take(a, MEM_PARAMETER, n * dtype_size(c->dtype));
}

struct textbook ps_server_textbook(const struct config *c) {
    return (struct textbook){.shared = optimizer_bytes(c->optimizer.row, true)};
}

int ps_server_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *mem,
                      struct wire_prediction *wire) {
    struct arena a;
    struct shard_map *map = shard_map_of(c, l);
    if (!map) return -1;
    arena_init(&a, NULL);
    struct server_buffers unused;
    for (int key = 0; key < map->count; key++)
        if (map->parts[key].shard / map->threads == rank) server_carve_key(&a, c, &map->parts[key], &unused);
    *mem = (struct topology_memory){.formula_bytes =
                                        textbook_bytes(ps_server_textbook(c), l->params, map->servers)};
    memcpy(mem->predicted_bytes, a.bytes, sizeof a.bytes);
    uint64_t bytes =
        (uint64_t)shard_map_server_elements(map, rank) * dtype_size(c->dtype) * (uint64_t)c->workers;
    *wire = (struct wire_prediction){.sent_per_step = bytes, .received_per_step = bytes};
    shard_map_destroy(&map);
    return 0;
}
