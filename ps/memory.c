#include "ps/memory.h"

#include <stdlib.h>
#include <string.h>

#include "ps/ps.h"
#include "shared/core/error.h"

void worker_buffers_init(struct worker_buffers *b, const struct layout *l) {
    unsigned long units = (unsigned long)l->count;
    *b = (struct worker_buffers){.weights = xcalloc(units, sizeof(void *)),
                                 .grads = xcalloc(units, sizeof(void *)),
                                 .wire_weights = xcalloc(units, sizeof(void *)),
                                 .wire_grads = xcalloc(units, sizeof(void *))};
}

void worker_buffers_free(struct worker_buffers *b) {
    free(b->weights);
    free(b->grads);
    free(b->wire_weights);
    free(b->wire_grads);
    *b = (struct worker_buffers){0};
}

void worker_carve(struct arena *a, const struct config *c, const struct layout *l,
                  struct worker_buffers *out) {
    bool staged = ps_is_staged(c);
    for (int u = 0; u < l->count; u++) {
        size_t bytes = (size_t)l->units[u].n_pad * dtype_size(c->dtype);
        out->weights[u] = arena_take(a, MEM_PARAMETER, bytes);
        out->grads[u] = arena_take(a, MEM_GRADIENT, bytes);
        out->wire_weights[u] = staged ? arena_take(a, MEM_HOST, bytes) : out->weights[u];
        out->wire_grads[u] = staged ? arena_take(a, MEM_HOST, bytes) : out->grads[u];
    }
    out->words = consistency_of(c).row->on_arrival ? arena_take(a, MEM_WORKSPACE, sizeof *out->words) : NULL;
    out->wire_words = staged ? arena_take(a, MEM_HOST, sizeof *out->wire_words) : NULL;
}

void server_carve_key(struct arena *a, const struct config *c, const struct partition *p,
                      struct server_buffers *out) {
    size_t n = (size_t)(p->end - p->begin);
    out->master = arena_take(a, MEM_MASTER, n * sizeof(float));
    optimizer_carve(a, c->optimizer.row, p->end - p->begin, out->state);
    out->acc = arena_take(a, MEM_GRADIENT, n * sizeof(float));
    out->weight = out->master;
    if (c->dtype != DT_F32) out->weight = arena_take(a, MEM_PARAMETER, n * dtype_size(c->dtype));
}

struct shard_map *ps_map_create(const struct config *c, const struct layout *l) {
    struct shard_map_options o = {.dtype = c->dtype,
                                  .partition_bytes = c->ps.partition_bytes,
                                  .servers = c->ps.servers,
                                  .threads = c->ps.threads};
    if (l->world != c->workers) {
        fail("the layout is padded for %d workers, the configuration has %d", l->world, c->workers);
        return NULL;
    }
    return shard_map_create(l, &o);
}

int ps_worker_predict(const struct config *c, const struct layout *l, struct topology_memory *mem,
                      struct wire_prediction *wire) {
    struct arena a;
    arena_init(&a, NULL);
    struct worker_buffers b;
    worker_buffers_init(&b, l);
    worker_carve(&a, c, l, &b);
    *mem = (struct topology_memory){.formula_bytes = 2 * (size_t)l->params * dtype_size(c->dtype)};
    memcpy(mem->predicted_bytes, a.bytes, sizeof a.bytes);
    uint64_t bytes = (uint64_t)l->padded * dtype_size(c->dtype);
    *wire = (struct wire_prediction){.sent_per_step = bytes, .received_per_step = bytes};
    arena_release(&a);
    worker_buffers_free(&b);
    return 0;
}

int ps_server_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *mem,
                      struct wire_prediction *wire) {
    struct arena a;
    struct shard_map *map = ps_map_create(c, l);
    if (!map) return -1;
    arena_init(&a, NULL);
    struct server_buffers unused;
    for (int key = 0; key < map->count; key++)
        if (map->parts[key].shard / map->threads == rank) server_carve_key(&a, c, &map->parts[key], &unused);
    *mem = (struct topology_memory){.formula_bytes = optimizer_bytes(c->optimizer.row, true) *
                                                     (size_t)l->params / (size_t)map->servers};
    memcpy(mem->predicted_bytes, a.bytes, sizeof a.bytes);
    uint64_t bytes =
        (uint64_t)shard_map_server_elements(map, rank) * dtype_size(c->dtype) * (uint64_t)c->workers;
    *wire = (struct wire_prediction){.sent_per_step = bytes, .received_per_step = bytes};
    arena_release(&a);
    shard_map_destroy(&map);
    return 0;
}
