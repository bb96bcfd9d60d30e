#include "ps/worker/worker_memory.h"

#include <stdlib.h>
#include <string.h>

#include "ps/consistency.h"
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

struct textbook ps_worker_textbook(const struct config *c) {
    return (struct textbook){.whole = 2 * dtype_size(c->dtype)};  // weights and gradients
}

int ps_worker_predict(const struct config *c, const struct layout *l, struct topology_memory *mem,
                      struct wire_prediction *wire) {
    struct arena a;
    arena_init(&a, NULL);
    struct worker_buffers b;
    worker_buffers_init(&b, l);
    worker_carve(&a, c, l, &b);
    *mem = (struct topology_memory){.formula_bytes = textbook_bytes(ps_worker_textbook(c), l->params, 1)};
    memcpy(mem->predicted_bytes, a.bytes, sizeof a.bytes);
    uint64_t bytes = (uint64_t)l->padded * dtype_size(c->dtype);
    *wire = (struct wire_prediction){.sent_per_step = bytes, .received_per_step = bytes};
    worker_buffers_free(&b);
    return 0;
}
