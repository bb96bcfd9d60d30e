#include "shared/core/unit.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kernels/exact_sum.h"
#include "shared/core/numbers.h"

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

void layout_finish(struct layout *l, int world) {
    int64_t logical = 0;
    l->world = world;
    l->params = l->padded = 0;
    for (int u = 0; u < l->count; u++) {
        struct unit *unit = &l->units[u];
        int64_t at = 0;
        for (int i = 0; i < unit->count; i++) {
            struct tensor *t = &unit->tensors[i];
            t->numel = t->shape[0] * (t->dims > 1 ? t->shape[1] : 1);
            at = round_up(at, UNIT_ALIGN);
            t->offset = at;
            t->logical_start = logical;
            at = size_plus(at, t->numel + t->reserved);
            logical = size_plus(logical, t->numel);
        }
        unit->n = at;
        unit->n_pad = unit->trained = round_up(at, (int64_t)SUMSQ_BLOCK * world);
        l->padded = size_plus(l->padded, unit->n_pad);
    }
    l->params = logical;
}

void layout_destroy(struct layout **l) {
    if (!*l) return;
    layout_destroy(&(*l)->model);
    if ((*l)->rest) (*l)->rest->units = NULL;  // a part of these units
    layout_destroy(&(*l)->rest);
    free((*l)->units);
    free(*l);
    *l = NULL;
}

uint64_t layout_hash(const struct layout *l, int dtype) {
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    int64_t head[4] = {l->count, l->world, l->tied, dtype};
    XXH64_update(h, head, sizeof head);
    for (int u = 0; u < l->count; u++) {
        const struct unit *unit = &l->units[u];
        XXH64_update(h, unit->name, strlen(unit->name));
        XXH64_update(h, &unit->n_pad, sizeof unit->n_pad);
        for (int i = 0; i < unit->count; i++) {
            const struct tensor *t = &unit->tensors[i];
            int64_t facts[6] = {t->shape[0], t->shape[1], t->dims, t->offset, t->reserved, t->decay};
            XXH64_update(h, t->name, strlen(t->name));
            XXH64_update(h, facts, sizeof facts);
        }
    }
    uint64_t out = XXH64_digest(h);
    XXH64_freeState(h);
    return out;
}
