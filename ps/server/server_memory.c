#include "ps/server/server_memory.h"

#include <stdlib.h>

#include "ps/job/batches.h"
#include "ps/job/ps.h"
#include "ps/job/push_code.h"
#include "ps/job/shard_sizes.h"
#include "ps/job/unit_moves.h"
#include "ps/net/medium.h"
#include "ps/record/arrivals.h"
#include "ps/server/policy_list.h"
#include "ps/server/server_core.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/segment.h"

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
    out->part_acc = out->own = NULL;
    out->pulled = out->old = NULL;
    const struct push_policy *policy = push_policy_configured(c);
    if (policy->carve) policy->carve(a, c, p->end - p->begin, out);
    out->weight = whole ? (void *)out->master : take(a, MEM_PARAMETER, room, n * dtype_size(c->dtype));
}

void server_carve_frozen(struct arena *a, const struct config *c, const struct partition *p,
                         struct server_buffers *out) {
    *out = (struct server_buffers){0};
    out->weight = arena_take(a, MEM_PARAMETER, (size_t)(p->end - p->begin) * dtype_size(c->dtype));
}

void server_carve_copy(struct arena *a, const struct config *c, const struct partition *p,
                       struct server_buffers *out) {
    size_t bytes = (size_t)(p->end - p->begin) * sizeof(float);
    if (c->recovery.checkpoint_every == 0) return;
    out->master = arena_take(a, MEM_CHECKPOINT, bytes);
    for (int i = 0; i < c->optimizer.row->states; i++) out->state[i] = arena_take(a, MEM_CHECKPOINT, bytes);
}

size_t server_segment_bytes(const struct config *c, const struct shard_map *m, int rank) {
    size_t bytes = SEGMENT_HEAD;
    if (!ps_weights_in_place(c, m->pages, m->count)) return 0;
    for (int key = 0; key < m->count; key++)
        if (m->parts[key].shard / m->threads == rank)
            bytes += segment_pages((size_t)(m->parts[key].end - m->parts[key].begin) * dtype_size(c->dtype));
    return bytes;
}

struct textbook ps_server_textbook(const struct config *c) {
    size_t master_and_states = optimizer_bytes(c->optimizer.row, true);
    const struct push_policy *policy = push_policy_configured(c);
    return (struct textbook){.shared = master_and_states + (policy->textbook ? policy->textbook(c) : 0)};
}

// With resident units, keys of the same size may be pulled different numbers of times.
int ps_server_same_ranks(const struct config *c, const struct layout *l, int rank) {
    if (ps_by_units(c) && !ps_beside(c)) return 1;
    struct shard_sizes *s = shard_sizes_of(c, l);
    int alike = s ? shard_sizes_same(s, rank) : 1;
    shard_sizes_destroy(&s);
    return alike;
}

// With resident units: elements that a worker pulls from server `rank` in a step; -1 after logging.
static int64_t pulled_by_units(const struct config *c, const struct layout *l, int rank) {
    struct shard_map *m = shard_map_of(c, l);
    if (!m) return -1;
    int64_t *pulls = xcalloc((unsigned long)m->units, sizeof *pulls), n = 0;
    int rc = unit_pulls(c, l, pulls);
    for (const struct partition *p = m->parts; p < m->parts + m->count; p++)
        if (p->shard / m->threads == rank) n += pulls[p->unit] * (p->end - p->begin);
    free(pulls);
    shard_map_destroy(&m);
    return rc ? -1 : n;
}

static void add_keys(struct topology_memory *mem, const struct arena *one, int64_t keys) {
    for (int k = 0; k < MEM_CLASSES; k++) {
        int64_t all = size_times((int64_t)one->bytes[k], keys);
        mem->predicted_bytes[k] = (size_t)size_plus((int64_t)mem->predicted_bytes[k], all);
    }
}

// Adds the memory of keys that are only pulled.
static int predict_frozen(const struct config *c, const struct layout *l, int rank,
                          struct topology_memory *mem) {
    struct shard_sizes *s = shard_sizes_of(c, l->rest);
    if (!s) return -1;
    int64_t *own = xcalloc((unsigned long)s->classes, sizeof *own);
    shard_sizes_of_server(s, rank, own);
    for (int i = 0; i < s->classes; i++) {
        struct server_buffers unused;
        struct arena one;
        arena_init(&one, NULL);
        server_carve_frozen(&one, c, &(struct partition){.end = s->class[i].elements}, &unused);
        add_keys(mem, &one, own[i]);
    }
    mem->formula_bytes += (size_t)l->frozen * dtype_size(c->dtype) / (size_t)c->ps.servers;
    free(own);
    shard_sizes_destroy(&s);
    return 0;
}

int ps_server_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *mem,
                      struct wire_prediction *wire) {
    struct shard_sizes *s = shard_sizes_of(c, l);
    if (!s) return -1;
    *mem = (struct topology_memory){.formula_bytes =
                                        textbook_bytes(ps_server_textbook(c), l->params, s->servers)};
    bool publishes = ps_weights_in_place(c, s->cut.pages, s->cut.keys);
    int64_t *own = xcalloc((unsigned long)s->classes, sizeof *own), pushed = 0;
    int64_t elements = shard_sizes_of_server(s, rank, own);
    for (int i = 0; i < s->classes; i++) {
        const struct partition p = {.end = s->class[i].elements};
        struct server_buffers unused;
        struct arena_room room = {.used = SEGMENT_HEAD};
        struct arena one;
        arena_init(&one, NULL);
        server_carve_key(&one, c, &p, publishes ? &room : NULL, &unused);
        server_carve_copy(&one, c, &p, &unused);
        add_keys(mem, &one, own[i]);
        pushed = size_plus(pushed, size_times((int64_t)push_bytes(&c->ps.code, c->dtype, p.end), own[i]));
    }
    if (ps_frozen(c, l) && predict_frozen(c, l, rank, mem)) return -1;
    if (publishes) mem->predicted_bytes[MEM_COMM] += dev_round(SEGMENT_HEAD);
    int64_t size = (int64_t)dtype_size(c->dtype), pulled = elements;
    if (ps_by_units(c)) pulled = pulled_by_units(c, l, rank);
    pushed *= unit_pushes(c);
    *wire = (struct wire_prediction){.sent_per_step = (uint64_t)size_times(pulled * size, c->workers),
                                     .received_per_step = (uint64_t)size_times(pushed, c->workers)};
    if (ps_beside(c)) unit_moves_local(wire, (uint64_t)(pulled * size), (uint64_t)pushed);
    free(own);
    shard_sizes_destroy(&s);
    return pulled < 0 ? -1 : 0;
}

// ---------------------------------------------------------------- records outside the ledger
// For every key of the job, its own and others'.
static int64_t of_any_key(const struct config *c) {
    int64_t each_thread = sizeof(int) + sizeof(int64_t);  // its shard; its pushes (ps/record/staleness_log.h)
    if (c->ps.record_arrivals) each_thread += ARRIVALS_KEY_BYTES;
    if (c->ps.replay_arrivals) each_thread += ARRIVALS_KEY_BYTES;
    int64_t bytes =
        (int64_t)(sizeof(struct partition) + 3 * sizeof(struct server_buffers)) + each_thread * c->ps.threads;
    // The rows to write and those that were read (ps/agree/key_rows.h): pushes and batches of each worker.
    const int64_t rows = (c->workers + batches_words(c)) * (int64_t)sizeof(int64_t);
    if (c->recovery.checkpoint_every > 0)
        bytes += (int64_t)(sizeof(struct key_counts) + sizeof(struct server_buffers)) + rows;
    if (c->recovery.resume || c->recovery.restart > 0) bytes += (int64_t)sizeof(struct key_counts) + rows;
    return bytes;
}

// Keys of l's own units only.
static int64_t records_of(const struct config *c, const struct layout *l, int rank) {
    struct shard_sizes *s = shard_sizes_of(c, l);
    if (!s) return -1;
    int64_t *of_size = xcalloc((unsigned long)s->classes, sizeof *of_size), own = 0;
    // A key that the server owns: its record, and what the key keeps of each worker.
    int64_t of_own_key = server_core_key_bytes(c), pushes = size_times(c->workers, c->steps);
    if (c->ps.record_arrivals) of_own_key = size_plus(of_own_key, arrivals_bytes(pushes, false));
    if (c->ps.replay_arrivals) of_own_key = size_plus(of_own_key, arrivals_bytes(pushes, true));
    shard_sizes_of_server(s, rank, of_size);
    for (int i = 0; i < s->classes; i++) own += of_size[i];
    int64_t bytes = size_plus(size_times(of_own_key, own), size_times(of_any_key(c), s->cut.keys));
    free(of_size);
    shard_sizes_destroy(&s);
    return bytes;
}

int64_t ps_server_records(const struct config *c, const struct layout *l, int rank) {
    int64_t frozen = ps_frozen(c, l) ? records_of(c, l->rest, rank) : 0, trained = records_of(c, l, rank);
    return frozen < 0 || trained < 0 ? -1 : size_plus(trained, frozen);
}
