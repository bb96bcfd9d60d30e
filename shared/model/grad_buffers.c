#include "shared/model/grad_buffers.h"

#include <stdlib.h>

#include "shared/core/error.h"

// ---------------------------------------------------------------- slots
int64_t grad_slot_elements(const struct layout *l, int slot) {
    int64_t most = 0;
    for (int u = 0; u < l->count; u++)
        if (grad_slot(l, u) == slot && l->units[u].n_pad > most) most = l->units[u].n_pad;
    return most;
}

static bool same_shape(const struct unit *a, const struct unit *b) {
    if (a->count != b->count || a->n_pad != b->n_pad) return false;
    for (int i = 0; i < a->count; i++)
        if (a->tensors[i].offset != b->tensors[i].offset || a->tensors[i].numel != b->tensors[i].numel)
            return false;
    return true;
}

int grad_shape(const struct layout *l, int u) {
    int v = 0;
    while (!same_shape(&l->units[u], &l->units[v])) v++;
    return v;
}

void grad_zero_gaps(struct stream *s, const struct unit *u, void *grad, enum dtype dt) {
    int64_t at = 0;
    for (int i = 0; i <= u->count; i++) {
        int64_t next = i < u->count ? u->tensors[i].offset : u->n_pad;
        int64_t bytes = (next - at) * (int64_t)dtype_size(dt);
        if (bytes > 0)
            op_fill_zero(s, &(struct fill_zero_args){.out = (char *)grad + (size_t)at * dtype_size(dt),
                                                     .bytes = bytes});
        if (i < u->count) at = next + u->tensors[i].numel;
    }
}

// ---------------------------------------------------------------- sums of micro-batches
void grad_sums_carve(struct grad_sums *g, struct arena *a, const struct layout *l, enum grad_extent extent) {
    int64_t most = 0;
    if (!g->sum) g->sum = xcalloc((size_t)l->count, sizeof *g->sum);
    for (int u = 0; u < l->count; u++) {
        int64_t n = extent == GRAD_SHARD ? unit_shard(l, u) : l->units[u].n_pad;
        if (n > most) most = n;
        g->sum[u] = arena_take(a, MEM_GRADIENT, (size_t)n * sizeof(float));
    }
    g->spare = arena_take(a, MEM_WORKSPACE, (size_t)most * sizeof(float));
}

void grad_sums_free(struct grad_sums *g) {
    free(g->sum);
    *g = (struct grad_sums){0};
}

void grad_sums_add(const struct grad_sums *g, struct stream *s, const struct grad_micro *m) {
    if (!g->sum) return;
    float *sum = g->sum[m->unit], *to = m->index ? g->spare : sum;
    op_cast(s, &(struct cast_args){.out = to, .in = m->grad, .n = m->n, .from = m->dt, .to = DT_F32});
    if (m->index) op_add(s, &(struct add_args){.y = sum, .a = sum, .b = to, .n = m->n, .dt = DT_F32});
    if (m->index + 1 < m->count) return;
    op_cast(s, &(struct cast_args){.out = m->grad, .in = sum, .n = m->n, .from = DT_F32, .to = m->dt});
}
