#include "ps/worker/sharing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ps/net/medium.h"
#include "shared/core/error.h"

static size_t unit_bytes(const struct sharing *s, int u) {
    return (size_t)s->l->units[u].n_pad * dtype_size(s->c->dtype);
}

static int open_window(struct sharing *s, struct worker_buffers *b) {
    size_t at = 0;
    for (int u = 0; u < s->l->count; u++) s->window_bytes += segment_pages(unit_bytes(s, u));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *window = mmap(NULL, s->window_bytes, PROT_NONE, flags, -1, 0);
    if (window == MAP_FAILED)
        return fail("no room for a window of %zu bytes: %s", s->window_bytes, strerror(errno));
    s->window = window;
    for (int u = 0; u < s->l->count; u++) {
        b->weights[u] = b->wire_weights[u] = s->window + at;
        at += segment_pages(unit_bytes(s, u));
    }
    return 0;
}

// The segment's memory cannot be page-locked: if it may, this worker behaves as if given --medium tcp.
static int fall_back_to_tcp(struct sharing *s, const char *why) {
    size_t bytes = s->own.bytes;
    if (ps_beside(s->c))
        return fail(
            "--servers-on workers: the %zu bytes of memory that a worker on a GPU shares with the server next to it cannot be "
            "page-locked: %s. Use --servers-on hosts",
            bytes, why);
    if (s->c->medium == MEDIUM_SHM)
        return fail(
            "--medium shm: the %zu bytes of memory that a worker on a GPU shares cannot be page-locked: %s. Give "
            "--medium auto, which takes tcp where that is so, or tcp",
            bytes, why);
    warn("payloads go over tcp: %zu bytes of shared memory cannot be page-locked for the GPU: %s", bytes,
         why);
    segment_close(&s->own);
    s->tcp = *s->c;
    s->tcp.medium = MEDIUM_TCP;
    s->c = &s->tcp;
    return 0;
}

int sharing_create(struct sharing *s, const struct config *c, const struct layout *l,
                   const struct shard_map *m, struct arena *a, struct worker_buffers *out) {
    struct arena measured;
    struct arena_room room = {.used = SEGMENT_HEAD};
    *s = (struct sharing){.c = c, .l = l, .map = m, .own.fd = -1};
    s->servers = xcalloc((unsigned long)m->servers, sizeof *s->servers);
    s->shared = xcalloc((unsigned long)m->shards, sizeof *s->shared);
    for (int r = 0; r < m->servers; r++) s->servers[r].fd = -1;
    s->in_place = ps_weights_in_place(c, m->pages, m->count);
    arena_init(&measured, NULL);
    // The own segment, page-locked if a GPU copies to and from it.
    if (ps_shares_any(c)) {
        const char *why = "";
        worker_carve(&measured, c, l, s->in_place, &room, out);
        if (segment_create(&s->own, room.used) != 0) return -1;
        struct arena_room own = {s->own.base, s->own.bytes};
        if (worker_lock(a, s->c, &own, &why) != 0 && fall_back_to_tcp(s, why) != 0) return -1;
    }
    room = (struct arena_room){.base = s->own.base, .used = SEGMENT_HEAD};
    worker_carve(a, c, l, s->in_place, s->own.base ? &room : NULL, out);
    if (a->failed) return -1;
    return s->in_place ? open_window(s, out) : 0;
}

void sharing_destroy(struct sharing *s) {
    for (int r = 0; s->servers && r < s->map->servers; r++) segment_close(&s->servers[r]);
    if (s->map) segment_close(&s->own);
    if (s->window) munmap(s->window, s->window_bytes);
    free(s->servers);
    free(s->shared);
    *s = (struct sharing){.own.fd = -1};
}

int sharing_attach(struct sharing *s, int shard, const char *name, char why[SEGMENT_WHY_MAX]) {
    struct segment *server = &s->servers[shard / s->map->threads];
    if (s->in_place && !name[0]) {
        snprintf(why, SEGMENT_WHY_MAX, "the server shares no weights: it was started for workers on GPUs");
        return -1;
    }
    if (s->in_place && !server->base && segment_open(server, name, SEGMENT_READ, why) != 0) return -1;
    s->shared[shard] = true;
    return 0;
}

// Private zeroed pages of this worker.
static int take_pages(char *at, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return fail("no memory for %zu bytes of weights: %s", bytes, strerror(errno));
    memset(at, 0, bytes);
    return 0;
}

static int map_keys(const struct sharing *s, const size_t *place) {
    char *unit = s->window;
    size_t size = dtype_size(s->c->dtype);
    for (int u = 0; u < s->l->count; u++) {
        for (int key = s->map->first[u]; key < s->map->first[u + 1]; key++) {
            const struct partition *p = &s->map->parts[key];
            const struct segment *server = &s->servers[p->shard / s->map->threads];
            char *at = unit + (size_t)p->begin * size;
            size_t bytes = segment_pages((size_t)(p->end - p->begin) * size);
            bool mapped = s->shared[p->shard];
            if (mapped && !segment_holds(server, place[key], bytes))
                return fail("server %d shares %zu bytes, and key %d is not among them",
                            p->shard / s->map->threads, server->bytes, key);
            if (mapped ? segment_map_at(server, at, place[key], bytes) : take_pages(at, bytes)) return -1;
        }
        unit += segment_pages(unit_bytes(s, u));
    }
    return 0;
}

int sharing_settle(struct sharing *s, struct arena *a) {
    if (!s->in_place) return 0;
    size_t *place = xcalloc((unsigned long)s->map->count, sizeof *place);
    shard_map_offsets(s->map, dtype_size(s->c->dtype), SEGMENT_HEAD, place);
    int rc = map_keys(s, place);
    free(place);
    if (!rc) worker_count_unshared(a, s->c, s->map, s->shared);
    return rc;
}

int sharing_load(const struct sharing *s, int u, const float *values, void *weights) {
    const char *why = "";
    size_t size = dtype_size(s->c->dtype);
    for (int key = s->map->first[u]; key < s->map->first[u + 1]; key++) {
        const struct partition *p = &s->map->parts[key];
        struct cast_args cast = {.out = (char *)weights + (size_t)p->begin * size,
                                 .in = values + p->begin,
                                 .n = p->end - p->begin,
                                 .from = DT_F32,
                                 .to = s->c->dtype};
        if (s->in_place && s->shared[p->shard]) continue;
        if (cpu_ops[OP_CAST](1, &cast, &why) != 0) return fail("unit %s: %s", s->l->units[u].name, why);
    }
    return 0;
}

const char *sharing_medium(const struct sharing *s) {
    int shared = 0;
    for (int g = 0; g < s->map->shards; g++) shared += s->shared[g];
    return shared == s->map->shards ? "shm" : shared ? "shm and tcp" : "tcp";
}
