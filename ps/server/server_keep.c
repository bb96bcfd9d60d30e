#include "ps/server/server_keep.h"

#include "ps/server/replay_pulls.h"

bool keep_wanted(const struct server_core *c, const struct wire_header *h) {
    return c->o.keep.keep && h->rank < crew_of(c) && (h->flags & WIRE_KEEP);
}

void keep_waits(struct server_core *c) { c->waiting_for_transport = c->waiting_for_pin = true; }

void keep_note_wait(struct server_core *c) {
    struct server_totals *t = &c->totals;
    double seconds = c->now - c->pin_since_s;
    if (c->waiting_for_pin && c->pin_since_s <= 0) c->pin_since_s = c->now;
    if (c->waiting_for_pin || c->pin_since_s <= 0) return;
    c->pin_since_s = 0;
    t->pin_waits++;
    t->pin_seconds += seconds;
    if (seconds > t->pin_seconds_most) t->pin_seconds_most = seconds;
}

bool keep_late(const struct server_key *k, int worker) { return k->late && k->late[worker].order > 0; }

// Pushes of the worker that are in the key's state.
static int64_t applied(const struct server_key *k, int worker) {
    return k->replay ? k->replay->w[worker].done : k->pushed[worker] - keep_late(k, worker);
}

void keep_key(struct server_core *c, struct server_key *k, int64_t step, bool last) {
    for (int w = 0; w < c->o.rule.workers; w++) c->row[w] = applied(k, w);
    c->o.keep.keep(c->o.keep.ctx, &(struct kept_key){.counts = {k->key, k->version, k->version + k->skew,
                                                                k->step, c->row, k->batches},
                                                     .step = step,
                                                     .last = last,
                                                     .buf = &k->buf,
                                                     .pins = &k->pins});
}
