#include "ps/server/server_set.h"

#include <stdlib.h>

#include "ps/net/clock.h"
#include "ps/server/server_step.h"
#include "shared/core/error.h"

struct server_set *server_set_create(int workers) {
    struct server_set *s = xcalloc(1, sizeof *s);
    s->keys = xcalloc((unsigned long)workers, sizeof *s->keys);
    s->life = xcalloc((unsigned long)workers, sizeof *s->life);
    return s;
}

void server_set_destroy(struct server_set **at) {
    struct server_set *s = *at;
    if (!s) return;
    free(s->keys);
    free(s->life);
    free(s);
    *at = NULL;
}

// ---------------------------------------------------------------- lives
static void let_go(struct server_core *c, struct gradient *g) {
    if (g->frame) c->totals.held_bytes -= g->bytes;
    ps_frame_release(g->frame);
    *g = (struct gradient){0};
}

// Nothing of what a worker's last process has left stays but the count of its pushes: what a key has it does not take
// again.
static void begin_life(struct server_core *c, int worker) {
    for (int i = 0; i < c->count; i++) {
        struct server_key *k = &c->keys[i];
        bool counted = k->held[worker].data && !c->o.rule.row->on_arrival;
        if (counted && --k->contributed == 0) c->open--;
        if (k->late) k->late[worker].order = 0;  // it waited for a pin
        let_go(c, &k->held[worker]);
        k->pulls[worker] = (struct server_pull){0};
    }
    c->set->keys[worker] = 0;
    c->set->arrived &= ~elastic_bit(worker);
    c->attached -= c->segments[worker].base != NULL;
    c->segments[worker] = (struct server_segment){0};
}

bool server_set_member(struct server_core *c, int worker, uint32_t life) {
    uint32_t *known = &c->set->life[worker];
    if (life <= *known) return false;
    if (life > 1) begin_life(c, worker);
    *known = life;
    return true;
}

// ---------------------------------------------------------------- the open step
static void say_arrived(struct server_core *c) {
    port_tell(&c->o.port, PEER_SCHEDULER,
              &(struct wire_header){.kind = WIRE_ARRIVED, .step = c->round.step, .mask = c->set->arrived});
}

int server_set_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                    const struct gradient *g) {
    struct server_set *s = c->set;
    if (note_push(c, k, h, g) != 0) return -1;
    if (g->frame) {
        if (c->totals.held_bytes > c->totals.held_peak_bytes)
            c->totals.held_peak_bytes = c->totals.held_bytes;
        acknowledge(c, k, h->rank, false);  // it is the server's now, whatever becomes of the worker
    }
    if (++s->keys[h->rank] < c->count) return 0;
    s->arrived |= elastic_bit(h->rank);
    say_arrived(c);
    return 0;
}

// Lets go of all gradients of a key. A worker whose gradient counted hears that it was taken.
static void release(struct server_core *c, struct server_key *k) {
    int64_t ready_ns = 0;
    for (int w = 0; w < c->o.rule.workers; w++) {
        bool counts = (c->set->fixed & elastic_bit(w)) != 0, told = k->held[w].frame || k->pulls[w].pending;
        if (counts) ready_ns = k->ready_ns[w] = ps_later(k->ready_ns[w], ready_ns);
        let_go(c, &k->held[w]);
        if (counts && !told) acknowledge(c, k, w, false);
    }
}

int server_set_fix(struct server_core *c, const struct wire_header *h) {
    struct server_set *s = c->set;
    if (h->step != c->round.step || s->fixed || !h->mask) return 0;
    if (h->mask & ~s->arrived)
        return core_fail(c->error, "step %lld: the scheduler counts on gradients that are not here",
                         (long long)h->step);
    s->fixed = h->mask;
    for (int i = 0; i < c->count; i++) {
        struct server_key *k = &c->keys[i];
        struct sum_args sum = {.acc = k->buf.acc,
                               .grads = c->grads,
                               .n = k->n,
                               .dtype = c->o.dtype,
                               .scale = elastic_scale(c->o.rule.workers, elastic_count(h->mask)),
                               .first = true};
        for (int w = 0; w < c->o.rule.workers; w++)
            if (h->mask & elastic_bit(w)) c->grads[sum.count++] = k->held[w].data;
        bool at_once;
        if (add_up(c, k, &sum, &at_once) != 0) return -1;
        release(c, k);
        if (close_key(c, k, at_once) != 0) return -1;
    }
    end_round(c);
    return 0;
}
