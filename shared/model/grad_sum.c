#include "shared/model/grad_sum.h"

#include <stdlib.h>

#include "shared/core/error.h"

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
