#include "shared/model/grad_watch.h"

#include <assert.h>
#include <stdlib.h>

#include "kernels/operations.h"
#include "shared/core/error.h"
#include "shared/model/activations.h"

// op_sumsq takes whole blocks. A tensor's last partial block is copied to a block of zeros, because the unit's
// next elements belong to the next tensor.
void grad_watch_unit(struct model *m, int u, const void *grad, int micro) {
    const struct unit *unit = &m->layout->units[u];
    size_t e = dtype_size(m->dt);
    int64_t place = 0;
    assert(m->watch && "a model that was created without watch_gradients");
    for (int i = 0; i < u; i++) place += m->layout->units[i].count;
    for (int i = 0; i < unit->count; i++, place++) {
        const struct tensor *t = &unit->tensors[i];
        const char *from = (const char *)grad + (size_t)t->offset * e;
        int64_t whole = t->numel / SUMSQ_BLOCK * SUMSQ_BLOCK, rest = t->numel - whole;
        struct sumsq_args a = {
            .out = m->watch + place, .x = from, .n = whole, .zero_out = micro == 0, .dt = m->dt};
        if (whole) op_sumsq(m->s, &a);
        if (!rest) continue;
        char *block = (char *)m->watch_rest + (size_t)(place * SUMSQ_BLOCK) * e;
        dev_copy(m->s, block, from + (size_t)whole * e, (size_t)rest * e);
        a.x = block;
        a.n = SUMSQ_BLOCK;
        a.zero_out = micro == 0 && !whole;
        op_sumsq(m->s, &a);
    }
}

int grad_watch_read(struct model *m, struct grad_watched *out) {
    int64_t n = layout_tensors(m->layout);
    struct exact_sum *sums = xcalloc((size_t)n, sizeof *sums);
    *out = (struct grad_watched){.tensor = -1};
    dev_copy(m->s, sums, m->watch, (size_t)n * sizeof *sums);
    int rc = stream_sync(m->s);
    for (int64_t i = 0; i < n && !rc && out->tensor < 0; i++)
        if (sums[i].nonfinite)
            *out = (struct grad_watched){i, grad_watch_name(m->layout, i), sums[i].nonfinite};
    free(sums);
    return rc ? -1 : 0;
}

const char *grad_watch_name(const struct layout *l, int64_t tensor) {
    int u = 0;
    while (tensor >= l->units[u].count) tensor -= l->units[u++].count;
    return l->units[u].tensors[tensor].name;
}
