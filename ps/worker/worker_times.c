#include "ps/worker/worker_times.h"

#include <stdlib.h>

#include "shared/core/error.h"

struct worker_times {
    int units, open;           // transfers that are not over
    struct transfer_ids *ids;  // (units); 0: over
};

struct worker_times *worker_times_create(int units) {
    struct worker_times *t = xcalloc(1, sizeof *t);
    t->units = units;
    t->ids = xcalloc((unsigned long)units, sizeof *t->ids);
    return t;
}

void worker_times_destroy(struct worker_times **t) {
    if (!*t) return;
    free((*t)->ids);
    free(*t);
    *t = NULL;
}

void worker_times_open(struct worker_times *t, int u, struct transfer_ids ids) {
    struct transfer_ids *old = &t->ids[u];
    t->open += (ids.gradients && !old->gradients) + (ids.weights && !old->weights);
    *old = ids;
}

struct transfer_ids worker_times_ids(const struct worker_times *t, int u) {
    return t->ids[u];
}

static void tell_gradients(struct worker_times *t, int u, const struct unit_times *at) {
    struct timeline *tl = t->ids[u].in;
    uint64_t id = t->ids[u].gradients;
    if (!id || !at->acknowledged_ns) return;
    timeline_first_byte(tl, id, at->sent_ns);
    timeline_peers_ready(tl, id, at->acknowledged_peers_ns, ps_moment_rank(at->acknowledged_peers_ns));
    timeline_done(tl, id, at->acknowledged_ns);
    t->ids[u].gradients = 0;
    t->open--;
}

static void tell_weights(struct worker_times *t, int u, const struct unit_times *at, bool staged) {
    struct timeline *tl = t->ids[u].in;
    uint64_t id = t->ids[u].weights;
    if (!id || !at->landed_ns) return;
    timeline_first_byte(tl, id, at->landed_first_ns);
    timeline_peers_ready(tl, id, at->landed_peers_ns, ps_moment_rank(at->landed_peers_ns));
    if (!staged) timeline_done(tl, id, at->landed_ns);
    t->ids[u].weights = 0;
    t->open--;
}

void worker_times_tell(struct worker_times *t, const struct worker_core *core, bool staged) {
    for (int u = 0; u < t->units && t->open > 0; u++) {
        const struct unit_times *at = worker_core_times(core, u);
        tell_gradients(t, u, at);
        tell_weights(t, u, at, staged);
    }
}
