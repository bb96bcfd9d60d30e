#include "ps/job/unit_moves.h"

#include <stdlib.h>

#include "ps/job/consistency.h"
#include "shared/core/error.h"
#include "shared/model/unit_schedule.h"

int64_t unit_pushes(const struct config *c) { return ps_by_units(c) ? c->accumulation : 1; }

void unit_pulls(const struct config *c, const struct layout *l, int64_t *out) {
    struct unit_gathers *g = xcalloc((unsigned long)l->count, sizeof *g);
    if (ps_by_units(c)) unit_schedule_step(l, &(struct unit_prefetch){0}, c->accumulation, g);
    for (int u = 0; u < l->count; u++) out[u] = ps_by_units(c) ? g[u].forward + g[u].backward : 1;
    free(g);
}

void unit_moves_local(struct wire_prediction *w, uint64_t own_sent, uint64_t own_received) {
    w->local_sent_per_step = own_sent;
    w->local_received_per_step = own_received;
    w->sent_per_step -= own_sent;
    w->received_per_step -= own_received;
}
