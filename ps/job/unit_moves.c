#include "ps/job/unit_moves.h"

#include <stdlib.h>

#include "ps/job/consistency.h"
#include "shared/core/error.h"
#include "shared/predict/memory_limits.h"

struct unit_prefetch unit_residence(const struct config *c) {
    return (struct unit_prefetch){.all = !ps_by_units(c)};
}

int64_t unit_pushes(const struct config *c) { return ps_by_units(c) ? c->accumulation : 1; }

int64_t credit_of(const struct config *c, int64_t pushed) {
    struct memory_limit free = {0};
    if (c->ps.credit_bytes) return c->ps.credit_bytes;
    int64_t most = memory_limit_read("", &free) == 0 ? (int64_t)(free.free_bytes / 4) / c->workers : 0;
    if (most < CREDIT_LEAST) most = CREDIT_LEAST;
    if (pushed < CREDIT_LEAST) pushed = CREDIT_LEAST;
    return pushed < most ? pushed : most;
}

void unit_pulls(const struct config *c, const struct layout *l, int64_t *out) {
    const struct unit_prefetch residence = unit_residence(c);
    struct unit_gathers *g = xcalloc((unsigned long)l->count, sizeof *g);
    unit_schedule_step(l, &residence, c->accumulation, g);
    // A push asks for the next weights of a unit that has a slot of its own.
    for (int u = 0; u < l->count; u++) out[u] = residence.all + g[u].forward + g[u].backward;
    free(g);
}

void unit_moves_local(struct wire_prediction *w, uint64_t own_sent, uint64_t own_received) {
    w->local_sent_per_step = own_sent;
    w->local_received_per_step = own_received;
    w->sent_per_step -= own_sent;
    w->received_per_step -= own_received;
}
