// Pushes that are applied on arrival, each an update of its own, straight out of its frame or segment. Their worker alone has
// decided whether to clip or skip.
//
// Where checkpoints read keys that stay where they lie, a push that finds its key pinned is held, one a worker, and so is one that
// comes behind such a push: they are applied in the order in which they came when the pin is gone, and their workers' pulls
// wait with them.
#include <stdlib.h>

#include "ps/job/batches.h"
#include "ps/record/arrivals.h"
#include "ps/record/staleness_log.h"
#include "ps/server/server_state.h"
#include "shared/core/error.h"

// The decoded gradient, rounded to the gradients' type, in the key's buffer of sums.
static const void *decoded(const struct server_core *c, const struct server_key *k,
                           const struct gradient *g) {
    struct sum_args a = {.acc = k->buf.acc,
                         .grads = &g->data,
                         .count = 1,
                         .n = k->n,
                         .dtype = c->dtype,
                         .first = true,
                         .code = c->code};
    sum_add(&a);
    a.count = 0;
    a.first = false;
    sum_finish(&a, 0, k->n, k->buf.acc);
    return k->buf.acc;
}

static int apply_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                      const struct gradient *g) {
    uint64_t tau = (uint64_t)(k->version - h->version);
    int words = batches_words(c->rule.workers), w = h->rank;
    if (batches_has(k->batches, words, h->batch)) {
        c->totals.duplicates++;
        ps_frame_release(g->frame);
    } else {
        const void *grad = c->code.kind == CODE_NONE ? g->data : decoded(c, k, g);
        const struct update_scalars scalars = {.grad_scale = h->grad_scale,
                                               .skip = (h->flags & WIRE_SKIP) != 0};
        const struct arrival arrival = {w, (uint32_t)h->version, (uint32_t)tau, h->batch};
        if (c->o.staleness_log) staleness_log_push(c->o.staleness_log, h, grad, tau);
        if (c->o.record) arrivals_note(c->o.record, k->key, &arrival);
        work_on(c, SERVER_UPDATE, of_push(k, w, h->step));
        int rc = apply(c, k, grad, h->lr, &scalars);
        ps_frame_release(g->frame);
        if (rc != 0) return -1;
        batches_add(k->batches, words, h->batch);
        staleness_count(&c->totals.staleness, tau);
        c->totals.pushes++;
        c->totals.steps = (double)++c->applied / ((double)c->count * c->rule.workers);
    }
    // Its worker hears of it, and those who waited for it.
    k->pushed[w] = h->step + 1;
    k->staleness[w] = (int64_t)tau;
    k->slots->ready_ns[w] = h->ready_ns;
    if (g->frame || !k->pulls[w].pending) acknowledge(c, k, w, h->step, false);
    answer_pulls(c, k);
    if (keep_wanted(c, h)) keep_key(c, k, h->step + 1, false);
    return 0;
}

const char *on_arrival_unfit(const struct server_core *c, const struct server_key *k,
                             const struct wire_header *h) {
    bool fits = h->batch < batches_total(c->o.config) &&
                batches_fits(k->batches, batches_words(c->rule.workers), h->batch);
    return fits ? NULL : "its batch is none that the job has handed out";
}

static bool on_arrival_may_read(const struct server_core *c, const struct server_key *k, int worker) {
    (void)c;
    return k->pushed[worker] >= k->pulls[worker].want;
}

static int on_arrival_advance(struct server_core *c, struct server_key *k) {
    (void)c, (void)k;
    return 0;
}

static int64_t on_arrival_bytes(int workers) { return batches_words(workers) * (int64_t)sizeof(int64_t); }

static void on_arrival_open(struct server_core *c, struct server_key *k) {
    int words = batches_words(c->rule.workers);
    k->batches = xcalloc((unsigned long)words, sizeof *k->batches);
    batches_clear(k->batches, words);
}

const struct push_policy push_on_arrival = {.copies = true,
                                            .unfit = on_arrival_unfit,
                                            .admit = apply_push,
                                            .may_read = on_arrival_may_read,
                                            .advance = on_arrival_advance,
                                            .key_bytes = on_arrival_bytes,
                                            .open = on_arrival_open};

// ---------------------------------------------------------------- pushes that are held
void late_open(struct server_core *c, struct server_key *k) {
    on_arrival_open(c, k);
    k->late = xcalloc((unsigned long)c->rule.workers, sizeof *k->late);
}

int64_t late_bytes(int workers) {
    return on_arrival_bytes(workers) + workers * (int64_t)sizeof(struct late_push);
}

void late_hold(struct server_core *c, struct server_key *k, const struct wire_header *h,
               const struct gradient *g) {
    k->late[h->rank] = (struct late_push){++c->lates,  h->step, h->version,    h->batch,
                                          h->ready_ns, h->lr,   h->grad_scale, h->flags};
    hold(c, k->slots, h->rank, g);
    note_held(c);
    k->pushed[h->rank] = h->step + 1;
}

int late_apply(struct server_core *c, struct server_key *k, int worker) {
    const struct late_push *l = &k->late[worker];
    const struct wire_header h = {.kind = WIRE_PUSH,
                                  .rank = worker,
                                  .key = k->key,
                                  .step = l->step,
                                  .version = l->version,
                                  .batch = l->batch,
                                  .ready_ns = l->ready_ns,
                                  .lr = l->lr,
                                  .grad_scale = l->grad_scale,
                                  .flags = l->flags};
    const struct gradient g = k->slots->held[worker];
    k->slots->held[worker] = (struct gradient){0};
    if (g.frame) c->totals.held_bytes -= g.bytes;
    return apply_push(c, k, &h, &g);
}

// The worker whose held push came first; -1: none is held.
static int first_late(const struct server_core *c, const struct server_key *k) {
    int first = -1;
    for (int w = 0; w < c->rule.workers; w++)
        if (is_late(k, w) && (first < 0 || k->late[w].order < k->late[first].order)) first = w;
    return first;
}

static int pinned_advance(struct server_core *c, struct server_key *k) {
    for (int w; (w = first_late(c, k)) >= 0 && key_free(c, k);)
        if (late_apply(c, k, w) != 0) return -1;
    return 0;
}

static int pinned_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                        const struct gradient *g) {
    if (first_late(c, k) < 0 && key_free(c, k)) return apply_push(c, k, h, g);
    late_hold(c, k, h, g);
    if (g->frame) acknowledge(c, k, h->rank, h->step, true);
    return 0;
}

static bool pinned_may_read(const struct server_core *c, const struct server_key *k, int worker) {
    return !is_late(k, worker) && on_arrival_may_read(c, k, worker);
}

const struct push_policy push_pinned = {.copies = true,
                                        .unfit = on_arrival_unfit,
                                        .admit = pinned_admit,
                                        .may_read = pinned_may_read,
                                        .advance = pinned_advance,
                                        .key_bytes = late_bytes,
                                        .open = late_open};
