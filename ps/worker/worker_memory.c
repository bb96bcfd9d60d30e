#include "ps/worker/worker_memory.h"

#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/job/push_code.h"
#include "ps/job/unit_moves.h"
#include "ps/net/medium.h"
#include "shared/core/error.h"
#include "shared/core/segment.h"
#include "shared/model/grad_buffers.h"
#include "shared/model/unit_schedule.h"

int worker_buffers_init(struct worker_buffers *b, const struct config *c, const struct layout *l) {
    int lead = consistency_of(c).lead;
    unsigned long units = (unsigned long)ps_units(c, l), open = units * (1 + (unsigned long)lead);
    *b = (struct worker_buffers){.units = (int)units,
                                 .lead = lead,
                                 .weights = xcalloc(units, sizeof(void *)),
                                 .grads = xcalloc(open, sizeof(void *)),
                                 .pushes = xcalloc(open, sizeof(void *)),
                                 .push_bytes = xcalloc(units, sizeof(size_t)),
                                 .errors = xcalloc(units, sizeof(float *)),
                                 .wire_weights = xcalloc(units, sizeof(void *)),
                                 .wire_grads = xcalloc(open, sizeof(void *)),
                                 .grad_at = xcalloc(open, sizeof(uint64_t)),
                                 .weight_at = xcalloc(units, sizeof(uint64_t))};
    return push_bytes_of_units(c, l, b->push_bytes);
}

void worker_buffers_free(struct worker_buffers *b) {
    free(b->weights);
    free(b->grads);
    free(b->pushes);
    free(b->push_bytes);
    free(b->errors);
    free(b->wire_weights);
    free(b->wire_grads);
    free(b->grad_at);
    free(b->weight_at);
    grad_sums_free(&b->sums);
    *b = (struct worker_buffers){0};
}

// *at receives the offset in the room.
static void *take(struct arena *a, enum mem_class class, struct arena_room *room, size_t bytes,
                  uint64_t *at) {
    *at = room ? room->used : 0;
    return room ? arena_place(a, class, room, bytes, DEV_ALIGN) : arena_take(a, class, bytes);
}

// Takes page-locked memory: a block of its own, or a range of the room, which is counted as a whole.
static void *take_twin(struct arena *a, struct arena_room *room, size_t bytes, uint64_t *at) {
    *at = room ? room->used : 0;
    return room ? arena_room_take(room, bytes, DEV_ALIGN) : arena_take(a, MEM_HOST, bytes);
}

// The model's weights and gradients lie in slots (unit_residence): of one unit each, or shared between units.
void worker_carve(struct arena *a, const struct config *c, const struct layout *l, bool in_place,
                  struct arena_room *room, struct worker_buffers *out) {
    bool staged = ps_is_staged(c), codes = ps_codes(c);
    // The room of the model's own buffers: the segment, unless it holds their twins.
    struct arena_room *models = staged ? NULL : room;
    const struct unit_prefetch residence = unit_residence(c);
    size_t size = dtype_size(c->dtype);
    uint64_t at = 0;
    struct unit_schedule s;
    if (models) arena_count(a, MEM_COMM, SEGMENT_HEAD);
    // 1. Weights, unless they are read in place; then those that are only pulled, in slots of their own.
    const struct layout *both[] = {l, ps_frozen(c, l)};
    for (int k = 0; k < 2 && both[k] && !(in_place && room); k++) {
        int before = k ? l->count : 0;
        unit_schedule_open(&s, both[k], &residence);
        for (int i = 0; i < unit_schedule_count(&s); i++) {
            size_t bytes = (size_t)unit_schedule_elements(&s, i) * size;
            void *slot = take(a, residence.all ? MEM_PARAMETER : MEM_COMM, models, bytes, &at);
            void *wire = staged ? take_twin(a, room, bytes, &at) : slot;
            for (int u = unit_schedule_first(&s, i); u < both[k]->count; u = unit_schedule_next(&s, u)) {
                out->weights[before + u] = slot;
                out->wire_weights[before + u] = wire;
                out->weight_at[before + u] = at;
            }
        }
        unit_schedule_close(&s);
    }
    // 2. The errors of codes.
    for (int u = 0; u < l->count && codes; u++)
        out->errors[u] = arena_take(a, MEM_OPTIMIZER, (size_t)l->units[u].n_pad * sizeof(float));
    // 3. Gradients of all steps that may be open, and the codes that are pushed instead of them.
    int buffers = residence.all ? l->count : GRAD_SLOTS;
    for (int i = 0; i < buffers * (1 + out->lead); i++) {
        int of = i % buffers;
        int64_t n = residence.all ? l->units[of].n_pad : grad_slot_elements(l, of);
        size_t bytes = codes ? out->push_bytes[of] : (size_t)n * size;
        void *grad =
            take(a, residence.all ? MEM_GRADIENT : MEM_COMM, codes ? NULL : models, (size_t)n * size, &at);
        void *push = codes ? take(a, MEM_COMM, models, bytes, &at) : grad;
        void *wire = staged ? take_twin(a, room, bytes, &at) : push;
        for (int u = residence.all ? of : 0; u < (residence.all ? of + 1 : l->count); u++) {
            if (!residence.all && grad_slot(l, u) != of) continue;
            int k = worker_buffer(out, u, i / buffers);
            out->grads[k] = grad;
            out->pushes[k] = push;
            out->wire_grads[k] = wire;
            out->grad_at[k] = at;
        }
    }
    if (config_sums_in_fp32(c) && residence.all) grad_sums_carve(&out->sums, a, l, GRAD_WHOLE);
    out->words = consistency_of(c).row->on_arrival ? arena_take(a, MEM_WORKSPACE, sizeof *out->words) : NULL;
    out->wire_words = staged ? arena_take(a, MEM_HOST, sizeof *out->wire_words) : NULL;
}

int worker_lock(struct arena *a, const struct config *c, const struct arena_room *room, const char **why) {
    return ps_is_staged(c) ? arena_register(a, room->base, segment_pages(room->used), why) : 0;
}

void worker_count_unshared(struct arena *a, const struct config *c, const struct shard_map *m,
                           const bool *shared) {
    for (int key = 0; key < m->count; key++) {
        const struct partition *p = &m->parts[key];
        size_t bytes = (size_t)(p->end - p->begin) * dtype_size(c->dtype);
        if (!shared[p->shard]) arena_count(a, MEM_PARAMETER, segment_pages(bytes));
    }
}

// Carves in an arena that only counts.
static void measure(struct arena *a, const struct config *c, const struct layout *l, bool in_place) {
    struct worker_buffers b;
    struct arena_room room = {.used = SEGMENT_HEAD};
    const char *why;
    arena_init(a, NULL);
    // worker_buffers_init has logged why the cut is impossible.
    if (worker_buffers_init(&b, c, l) == 0)
        worker_carve(a, c, l, in_place, ps_shares_any(c) ? &room : NULL, &b);
    if (ps_shares_any(c)) worker_lock(a, c, &room, &why);
    worker_buffers_free(&b);
}

static void put(const struct arena *a, const struct config *c, const struct layout *l,
                struct topology_memory *out) {
    *out = (struct topology_memory){.formula_bytes = textbook_bytes(ps_worker_textbook(c), l->params, 1)};
    memcpy(out->predicted_bytes, a->bytes, sizeof a->bytes);
}

void worker_predict_memory(const struct config *c, const struct layout *l, const struct shard_map *m,
                           const bool *shared, struct topology_memory *out) {
    struct arena a;
    bool in_place = ps_weights_in_place(c, m->pages, m->count);
    measure(&a, c, l, in_place);
    if (in_place) worker_count_unshared(&a, c, m, shared);
    put(&a, c, l, out);
}

struct textbook ps_worker_textbook(const struct config *c) {
    if (ps_by_units(c)) return (struct textbook){0};  // only slots, which the formula does not count
    // Weights, and the gradients of all steps that may be open.
    return (struct textbook){.whole = (2 + (size_t)consistency_of(c).lead) * dtype_size(c->dtype)};
}

int ps_worker_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *mem,
                      struct wire_prediction *wire) {
    struct shard_cut cut;
    struct arena a;
    if (shard_cut_of(c, l, &cut)) return -1;
    measure(&a, c, l, ps_weights_in_place(c, cut.pages, cut.keys));
    put(&a, c, l, mem);
    struct step_tasks t = {.micro_batches = c->accumulation};
    if (unit_tasks(c, l, &t)) return -1;
    *wire = step_tasks_wire(&t);
    step_tasks_free(&t);
    if (!ps_beside(c)) return 0;
    // The traffic with the server next to it is that server's with this worker.
    struct topology_memory of_server;
    struct wire_prediction other_end;
    if (ps_server_predict(c, l, rank, &of_server, &other_end)) return -1;
    unit_moves_local(wire, other_end.local_received_per_step, other_end.local_sent_per_step);
    return 0;
}
