#include "ps/server/replay.h"

#include <stdlib.h>

#include "ps/record/arrivals.h"
#include "ps/server/replay_pulls.h"
#include "ps/server/server_step.h"
#include "shared/core/error.h"

// Whether some worker is still to be sent the weights as they are now.
static bool version_needed(const struct server_core *c, const struct server_key *k) {
    for (int w = 0; w < c->o.rule.workers; w++) {
        const struct replay_worker *r = &k->replay->w[w];
        const struct arrival *a = arrivals_of(c->o.replay, k->key, w, r->done);
        if (r->done > 0 && a && a->version == (uint64_t)k->version && r->told < r->done) return true;
    }
    return false;
}

int replay_advance(struct server_core *c, struct server_key *k) {
    const struct arrival *a;
    while ((a = arrivals_at(c->o.replay, k->key, k->replay->next))) {
        struct replay_worker *r = &k->replay->w[a->worker];
        struct gradient g = k->held[a->worker];
        if (!g.data || version_needed(c, k)) return 0;
        if (keep_pinned(k)) {
            keep_waits(c);
            return 0;
        }
        if (r->push->version != a->version || k->version != (int64_t)a->version + a->staleness)
            return core_fail(
                c->error,
                "key %d, step %lld: worker %d pushed a gradient of version %lld onto version %lld, in the "
                "recording of version %u onto %u: it is of another run",
                k->key, (long long)r->push->step, a->worker, (long long)r->push->version,
                (long long)k->version, a->version, a->version + a->staleness);
        if (g.frame) c->totals.held_bytes -= g.bytes;
        k->held[a->worker] = (struct gradient){0};
        r->done++;
        k->replay->next++;
        if (push_on_arrival(c, k, r->push, &g) != 0) return -1;
    }
    return 0;
}

int replay_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                const struct gradient *g) {
    struct replay_worker *r = &k->replay->w[h->rank];
    const struct arrival *a = arrivals_of(c->o.replay, k->key, h->rank, h->step);
    if (!a) {
        ps_frame_release(g->frame);
        return core_fail(c->error, "key %d, step %lld: worker %d pushed more than was recorded", k->key,
                         (long long)h->step, h->rank);
    }
    if (!r->push) r->push = xcalloc(1, sizeof *r->push);
    *r->push = *h;
    replay_drop_copy(c, k, h->rank);
    k->held[h->rank] = *g;
    k->pushed[h->rank] = h->step + 1;
    k->staleness[h->rank] = a->staleness;
    if (g->frame) {
        replay_hold(c, g->bytes);
        acknowledge(c, k, h->rank, false);
    }
    return replay_advance(c, k);
}
