#include "ps/server/server_memory.h"

#include <string.h>

#include "ps/medium.h"
#include "ps/net/segment.h"
#include "ps/ps.h"

static void *take(struct arena *a, enum mem_class class, struct arena_room *room, size_t bytes) {
    return room ? arena_place(a, class, room, bytes, SHARD_PAGE) : arena_take(a, class, bytes);
}

void server_carve_key(struct arena *a, const struct config *c, const struct partition *p,
                      struct arena_room *room, struct server_buffers *out) {
    size_t n = (size_t)(p->end - p->begin);
    bool whole = c->dtype == DT_F32;
    out->master = take(a, MEM_MASTER, whole ? room : NULL, n * sizeof(float));
    optimizer_carve(a, c->optimizer.row, p->end - p->begin, out->state);
    out->acc = arena_take(a, MEM_GRADIENT, n * sizeof(float));
    out->weight = whole ? (void *)out->master : take(a, MEM_PARAMETER, room, n * dtype_size(c->dtype));
}

size_t server_segment_bytes(const struct config *c, const struct shard_map *m, int rank) {
    size_t bytes = SEGMENT_HEAD;
    if (!ps_weights_in_place(c, m)) return 0;
    for (int key = 0; key < m->count; key++)
        if (m->parts[key].shard / m->threads == rank)
            bytes += segment_pages((size_t)(m->parts[key].end - m->parts[key].begin) * dtype_size(c->dtype));
    return bytes;
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
    struct arena_room room = {.used = SEGMENT_HEAD};
    bool publishes = ps_weights_in_place(c, map);
    if (publishes) arena_count(&a, MEM_COMM, SEGMENT_HEAD);
    for (int key = 0; key < map->count; key++)
        if (map->parts[key].shard / map->threads == rank)
            server_carve_key(&a, c, &map->parts[key], publishes ? &room : NULL, &unused);
    *mem = (struct topology_memory){.formula_bytes =
                                        textbook_bytes(ps_server_textbook(c), l->params, map->servers)};
    memcpy(mem->predicted_bytes, a.bytes, sizeof a.bytes);
    uint64_t bytes =
        (uint64_t)shard_map_server_elements(map, rank) * dtype_size(c->dtype) * (uint64_t)c->workers;
    *wire = (struct wire_prediction){.sent_per_step = bytes, .received_per_step = bytes};
    shard_map_destroy(&map);
    return 0;
}
