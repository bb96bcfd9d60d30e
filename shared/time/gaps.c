#include "shared/time/gaps.h"

#include <stdlib.h>

#include "shared/core/error.h"

const char *transfer_kind_name(enum transfer_kind k) {
    static const char *const names[TRANSFER_KINDS] = {"weights", "gradients", "control"};
    return names[k];
}

struct gaps *gaps_create(int ranks, bool traced) {
    struct gaps *g = xcalloc(1, sizeof *g);
    g->ranks = ranks;
    g->waited = xcalloc((unsigned long)ranks + 1, sizeof *g->waited);
    g->exposed = xcalloc(GAPS_KEPT, sizeof *g->exposed);
    g->waits = xcalloc(GAPS_KEPT, sizeof *g->waits);
    g->all_room = traced ? GAPS_TRACED : 0;
    if (traced) g->all = xcalloc(GAPS_TRACED, sizeof *g->all);
    return g;
}

void gaps_destroy(struct gaps **gaps) {
    struct gaps *g = *gaps;
    if (!g) return;
    free(g->waited);
    free(g->exposed);
    free(g->waits);
    free(g->all);
    free(g);
    *gaps = NULL;
}

static int64_t length(const struct gap *g) { return g->of.end - g->of.begin; }

// The shortest makes room for a longer one.
static void keep_longest(struct gap *kept, size_t *count, const struct gap *one) {
    size_t least = 0;
    if (length(one) < GAPS_LEAST_NS) return;
    if (*count < GAPS_KEPT) {
        kept[(*count)++] = *one;
        return;
    }
    for (size_t i = 1; i < GAPS_KEPT; i++)
        if (length(&kept[i]) < length(&kept[least])) least = i;
    if (length(one) > length(&kept[least])) kept[least] = *one;
}

void gaps_note(struct gaps *g, const struct gap *one) {
    const struct split_gap *of = &one->of;
    bool named = of->wait && of->peer >= 0 && of->peer < g->ranks;
    if (named) g->waited[of->peer] += (double)length(one) * 1e-9;
    if (named) keep_longest(g->waits, &g->wait_count, one);
    if (!of->wait) keep_longest(g->exposed, &g->exposed_count, one);
    if (g->all_count < g->all_room)
        g->all[g->all_count++] = *one;
    else if (g->all_room)
        g->lost++;
}
