#include "decentral/zero/zero_bundle.h"

#include <stdlib.h>

#include "shared/core/error.h"

void zero_bundles_open(struct zero_bundles *b, const struct layout *l, int64_t bucket, enum zero_way way) {
    size_t units = (size_t)l->count;
    *b = (struct zero_bundles){.list = xcalloc(units, sizeof *b->list),
                               .of = xcalloc(units, sizeof *b->of),
                               .at = xcalloc(units, sizeof *b->at)};
    int64_t held = 0;
    for (int i = 0; i < l->count; i++) {
        int u = way == ZERO_UP ? i : l->count - 1 - i;
        int64_t n = l->units[u].n_pad;
        if (i == 0 || l->world == 1 || n > bucket - held) {
            b->list[b->count++] = (struct zero_bundle){.first = u};
            held = 0;
        }
        struct zero_bundle *last = &b->list[b->count - 1];
        held += n;
        if (u < last->first) last->first = u;
        b->of[u] = b->count - 1;
        b->at[u] = last->shard;
        last->shard += unit_shard(l, u);
        last->count++;
    }
}

void zero_bundles_close(struct zero_bundles *b) {
    free(b->list);
    free(b->of);
    free(b->at);
    *b = (struct zero_bundles){0};
}

static int64_t largest(const struct zero_bundles *b, int least) {
    int64_t most = 0;
    for (int i = 0; i < b->count; i++)
        if (b->list[i].count >= least && b->list[i].shard > most) most = b->list[i].shard;
    return most;
}

int64_t zero_bundles_largest(const struct zero_bundles *b) { return largest(b, 1); }
int64_t zero_bundles_packed(const struct zero_bundles *b) { return largest(b, 2); }
