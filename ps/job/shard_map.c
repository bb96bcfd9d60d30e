#include "ps/job/shard_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "kernels/exact_sum.h"
#include "shared/core/error.h"

// With so many partitions per shard, largest-first assignment is within 1/21 < 5% of the mean.
#define PIECES_PER_SHARD 21
// Below this size more messages cost more than better balance gains.
#define PIECE_MIN_BYTES 16384

static int parts_of(const struct config *c) {
    bool beside = c->ps.servers_on_workers && c->ps.resident == PS_RESIDENT_UNITS;
    return beside ? c->ps.servers : 1;
}

// The largest partition, in blocks of SUMSQ_BLOCK elements.
static int64_t piece_blocks(const struct config *c, const struct layout *l) {
    int64_t bytes = c->ps.partition_bytes, size = (int64_t)dtype_size(c->dtype);
    int shards = c->ps.servers * c->ps.threads;
    bool even = parts_of(c) > 1 && c->ps.threads == 1;
    if (shards > 1 && !c->ps.whole_units && !even) {
        int64_t fair = l->padded * size / ((int64_t)PIECES_PER_SHARD * shards);
        if (fair < PIECE_MIN_BYTES) fair = PIECE_MIN_BYTES;
        if (fair < bytes) bytes = fair;
    }
    int64_t blocks = bytes / (size * SUMSQ_BLOCK);
    return blocks > 0 ? blocks : 1;
}

// Even partitions of whole grains: no unit, nor part of one, ends in a very small partition. Returns where partition i
// begins.
static int64_t piece_begin(const struct shard_cut *cut, const struct unit *u, int64_t pieces, int64_t i) {
    int64_t part = u->n_pad / cut->parts, grains = (part + cut->grain - 1) / cut->grain;
    int64_t each = pieces / cut->parts, at = i % each;
    return i / each * part + (int64_t)((__int128)grains * at / each) * cut->grain;
}
static int64_t pieces_of(const struct shard_cut *cut, const struct unit *u) {
    int64_t grains = (u->n_pad / cut->parts + cut->grain - 1) / cut->grain;
    return (grains + cut->most - 1) / cut->most * cut->parts;
}

static void cut_units(struct shard_map *m, const struct layout *l, const struct shard_cut *cut) {
    m->parts = xcalloc((unsigned long)cut->keys, sizeof *m->parts);
    for (int u = 0; u < l->count; u++) {
        int64_t pieces = pieces_of(cut, &l->units[u]);
        m->first[u] = m->count;
        for (int64_t i = 0; i < pieces; i++) {
            struct partition *p = &m->parts[m->count++];
            p->unit = u;
            p->begin = piece_begin(cut, &l->units[u], pieces, i);
            p->end = piece_begin(cut, &l->units[u], pieces, i + 1);
            // The first shard of the server that owns this part.
            p->shard = (int)(i / (pieces / cut->parts)) * m->threads;
        }
    }
    m->first[l->count] = m->count;
}

struct sized_key {
    int64_t elements;
    int key;
};

static int larger_first(const void *a, const void *b) {
    const struct sized_key *x = a, *y = b;
    if (x->elements != y->elements) return x->elements > y->elements ? -1 : 1;
    return x->key - y->key;
}

// Whether shard a gets the next key before shard b.
static bool is_before(const struct shard_map *m, int a, int b) {
    int64_t x = m->shard_elements[a], y = m->shard_elements[b];
    return x != y ? x < y : a < b;
}

// Restores the heap after its first shard has become heavier.
static void sink(const struct shard_map *m, int *heap) {
    int shard = heap[0], at = 0;
    for (int child; (child = 2 * at + 1) < m->shards; at = child) {
        if (child + 1 < m->shards && is_before(m, heap[child + 1], heap[child])) child++;
        if (!is_before(m, heap[child], shard)) break;
        heap[at] = heap[child];
    }
    heap[at] = shard;
}

// Gives each key to a shard, the largest keys first: to the least loaded shard. With parts > 1 the key's part decides
// the server, and the key goes to the least loaded thread of that server.
static void assign(struct shard_map *m, int parts) {
    struct sized_key *order = xcalloc((unsigned long)m->count, sizeof *order);
    // A heap of shards; the first one gets the next key.
    int *heap = xcalloc((unsigned long)m->shards, sizeof *heap);
    for (int g = 0; g < m->shards; g++) heap[g] = g;
    for (int k = 0; k < m->count; k++) order[k] = (struct sized_key){m->parts[k].end - m->parts[k].begin, k};
    qsort(order, (size_t)m->count, sizeof *order, larger_first);
    for (int i = 0; i < m->count; i++) {
        struct partition *p = &m->parts[order[i].key];
        int best = parts > 1 ? p->shard : heap[0];
        for (int g = p->shard; parts > 1 && g < p->shard + m->threads; g++)
            if (is_before(m, g, best)) best = g;
        p->shard = best;
        m->shard_elements[best] += order[i].elements;
        m->shard_keys[best]++;
        sink(m, heap);
    }
    free(heap);
    free(order);
}

static int check(const struct config *c, const struct layout *l) {
    if (l->world != c->workers)
        return fail("the layout is padded for %d workers, the configuration has %d", l->world, c->workers);
    if (c->ps.servers < 1 || c->ps.threads < 1 || (int64_t)c->ps.servers * c->ps.threads > 4096)
        return fail(
            "parameter_server: %d servers of %d threads are impossible; give 1 to 4096 shard threads in all",
            c->ps.servers, c->ps.threads);
    if (c->ps.partition_bytes < 1)
        return fail("parameter_server.partition_bytes is %lld; give at least 1",
                    (long long)c->ps.partition_bytes);
    for (int u = 0; u < l->count; u++)
        if (l->units[u].n_pad <= 0 || l->units[u].n_pad % SUMSQ_BLOCK)
            return fail("unit %s has %lld elements, not a multiple of %d", l->units[u].name,
                        (long long)l->units[u].n_pad, SUMSQ_BLOCK);
    return 0;
}

int shard_cut_of(const struct config *c, const struct layout *l, struct shard_cut *out) {
    if (check(c, l) != 0) return -1;
    int64_t blocks = piece_blocks(c, l), page = SHARD_PAGE / (int64_t)dtype_size(c->dtype) / SUMSQ_BLOCK;
    int parts = parts_of(c);
    bool pages = blocks >= page && parts == 1;
    *out = (struct shard_cut){.grain = (pages ? page : 1) * SUMSQ_BLOCK,
                              .most = pages ? blocks / page : blocks,
                              .pages = pages,
                              .parts = parts};
    for (int u = 0; u < l->count; u++) out->keys += pieces_of(out, &l->units[u]);
    return 0;
}

static int too_many(const struct config *c, const struct layout *l, const struct shard_cut *cut) {
    double least = (double)l->padded * (double)dtype_size(c->dtype) / SHARD_KEYS_MAX;
    char help[64] = "the model is too large for a star";
    if (least < (double)((int64_t)1 << 29))
        snprintf(help, sizeof help, "give at least %lld", (long long)(2 * least));
    return fail(
        "parameter_server.partition_bytes %lld cuts this model into %lld keys, at most %d are handled: %s",
        (long long)c->ps.partition_bytes, (long long)cut->keys, SHARD_KEYS_MAX, help);
}

static struct shard_map *map_of(const struct config *c, const struct layout *l) {
    struct shard_cut cut;
    if (shard_cut_of(c, l, &cut) != 0) return NULL;
    if (cut.keys > SHARD_KEYS_MAX) {
        too_many(c, l, &cut);
        return NULL;
    }
    struct shard_map *m = xcalloc(1, sizeof *m);
    m->servers = c->ps.servers;
    m->threads = c->ps.threads;
    m->shards = c->ps.servers * c->ps.threads;
    m->first = xcalloc((unsigned long)l->count + 1, sizeof *m->first);
    m->shard_elements = xcalloc((unsigned long)m->shards, sizeof *m->shard_elements);
    m->shard_keys = xcalloc((unsigned long)m->shards, sizeof *m->shard_keys);
    m->pages = cut.pages;
    cut_units(m, l, &cut);
    assign(m, cut.parts);
    m->trained = m->count;
    m->units = l->count;
    return m;
}

// Appends the frozen units' keys.
static void append(struct shard_map *m, const struct shard_map *frozen) {
    m->parts = xrealloc(m->parts, (size_t)(m->count + frozen->count) * sizeof *m->parts);
    m->first = xrealloc(m->first, (size_t)(m->units + frozen->units + 1) * sizeof *m->first);
    for (int k = 0; k < frozen->count; k++) {
        m->parts[m->count + k] = frozen->parts[k];
        m->parts[m->count + k].unit += m->units;
    }
    for (int u = 0; u <= frozen->units; u++) m->first[m->units + u] = m->count + frozen->first[u];
    m->count += frozen->count;
    m->units += frozen->units;
}

struct shard_map *shard_map_of(const struct config *c, const struct layout *l) {
    struct shard_map *m = map_of(c, l), *frozen = NULL;
    if (!m || !ps_frozen(c, l)) return m;
    if ((frozen = map_of(c, l->rest)))
        append(m, frozen);
    else
        shard_map_destroy(&m);
    shard_map_destroy(&frozen);
    return m;
}

void shard_map_offsets(const struct shard_map *m, size_t element_bytes, size_t head, size_t *place) {
    size_t *used = xcalloc((unsigned long)m->servers, sizeof *used);
    for (int r = 0; r < m->servers; r++) used[r] = head;
    for (int k = 0; k < m->count; k++) {
        const struct partition *p = &m->parts[k];
        size_t bytes = (size_t)(p->end - p->begin) * element_bytes, *at = &used[p->shard / m->threads];
        place[k] = *at;
        *at += (bytes + SHARD_PAGE - 1) / SHARD_PAGE * SHARD_PAGE;
    }
    free(used);
}

void shard_map_destroy(struct shard_map **m) {
    if (!*m) return;
    free((*m)->parts);
    free((*m)->first);
    free((*m)->shard_elements);
    free((*m)->shard_keys);
    free(*m);
    *m = NULL;
}

uint64_t shard_map_hash(const struct shard_map *m) {
    uint64_t h = XXH64(NULL, 0, (uint64_t)m->threads);
    for (int k = 0; k < m->count; k++) {
        const struct partition *p = &m->parts[k];
        int64_t row[4] = {p->unit, p->begin, p->end, p->shard};
        h = XXH64(row, sizeof row, h);
    }
    return h;
}

int64_t shard_map_server_elements(const struct shard_map *m, int rank) {
    int64_t n = 0;
    for (int t = 0; t < m->threads; t++) n += m->shard_elements[rank * m->threads + t];
    return n;
}
