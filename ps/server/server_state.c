#include "ps/server/server_state.h"

#include <string.h>

#include "ps/job/batches.h"
#include "ps/net/clock.h"
#include "ps/record/arrivals.h"
#include "ps/record/staleness_log.h"
#include "shared/core/error.h"

void work_on(const struct server_core *c, enum server_part part, struct span of) {
    thread_time_enter(c->o.spans, part, of);
}

void gradient_hold(struct server_core *c, struct gradient *place, const struct gradient *g) {
    *place = *g;
    if (g->frame) c->totals.held_bytes += g->bytes;
}

void gradient_release(struct server_core *c, struct gradient *g) {
    if (g->frame) c->totals.held_bytes -= g->bytes;
    ps_frame_release(g->frame);
    *g = (struct gradient){0};
}

void update_held_peak(struct server_core *c) {
    if (c->totals.held_bytes > c->totals.held_peak_bytes) c->totals.held_peak_bytes = c->totals.held_bytes;
}

struct update_range range_of(const struct server_core *c, const struct server_key *k, const void *grad) {
    struct update_range r = {.unit = k->unit,
                             .begin = k->part->begin,
                             .end = k->part->end,
                             .master = k->buf.master,
                             .weight = k->buf.weight,
                             .grad = grad,
                             .dtype = c->dtype};
    memcpy(r.state, k->buf.state, sizeof r.state);
    return r;
}

int apply(struct server_core *c, struct server_key *k, const void *grad, float lr,
          const struct update_scalars *scalars) {
    struct update_range r = range_of(c, k, grad);
    const struct update_step step = {.lr = lr, .t = k->version + k->skew + 1, .scalars = scalars};
    if (scalars->skip) return 0;
    if (optimizer_apply(&c->o.config->optimizer, &r, &step, 1) != 0)
        return core_fail(c->error, "key %d (%s), update %lld: the optimizer failed", k->key, k->unit->name,
                         (long long)k->version + 1);
    k->version++;
    return 0;
}

void keep_old(const struct server_core *c, struct server_key *k) {
    size_t bytes = (size_t)k->n * dtype_size(c->dtype);
    if (!k->buf.old) return;
    memcpy((char *)k->buf.old + (size_t)old_of(c, k->step) * bytes, k->buf.weight, bytes);
    k->old_version[old_of(c, k->step)] = k->version;
}

// ---------------------------------------------------------------- pushes that wait
struct held_push held_push_of(const struct wire_header *h) {
    return (struct held_push){h->step,   h->version, h->batch,      h->ready_ns,
                              h->tokens, h->lr,      h->grad_scale, h->flags};
}

struct wire_header held_push_header(const struct held_push *p, int key, int worker) {
    return (struct wire_header){.kind = WIRE_PUSH,
                                .rank = worker,
                                .key = key,
                                .step = p->step,
                                .version = p->version,
                                .batch = p->batch,
                                .ready_ns = p->ready_ns,
                                .tokens = p->tokens,
                                .lr = p->lr,
                                .grad_scale = p->grad_scale,
                                .flags = p->flags};
}

int check_recorded(struct server_core *c, const struct server_key *k, const struct held_push *p,
                   const struct arrival *a) {
    if (p->version == a->version && p->batch == a->batch) return 0;
    return core_fail(
        c->error,
        "key %d, step %lld: worker %d pushed a gradient of batch %lld on version %lld, in the recording of batch %lld on "
        "version %u: it is of another run",
        k->key, (long long)p->step, a->worker, (long long)p->batch, (long long)p->version,
        (long long)a->batch, a->version);
}

// ---------------------------------------------------------------- checkpoints
bool checkpoint_wanted(const struct server_core *c, const struct wire_header *h) {
    // Worker 0 may be late, and all workers set the flag for the same steps.
    bool says = h->rank == 0 || consistency_drops(c->rule);
    return c->o.keep.keep && says && (h->flags & WIRE_KEEP);
}

// Gradients of worker w for steps before `end` that have arrived and are not in the key's state.
static int64_t pending_pushes(const struct server_core *c, const struct server_key *k, int w, int64_t end) {
    int64_t n = 0, begin = end - c->slots > 0 ? end - c->slots : 0;
    for (int64_t step = begin; step < end; step++) n += slot_of(c, k, step)->held[w].data != NULL;
    return n;
}

void checkpoint_key(struct server_core *c, struct server_key *k, int64_t step, bool last) {
    int words = batches_words(c->o.config);
    for (int w = 0; w < c->rule.workers; w++)
        c->row[w] = k->pushed[w] - pending_pushes(c, k, w, k->pushed[w]);
    // Leaves out the batches of a sum that is not in the masters yet.
    if (k->batches) memcpy(c->batches, k->batches, (size_t)words * sizeof *c->batches);
    for (int i = 0; i < k->sum.pushes; i++) batches_remove(c->batches, words, k->sum.of[i].batch);
    c->o.keep.keep(c->o.keep.ctx,
                   &(struct kept_key){.counts = {k->key, k->version, k->version + k->skew, k->step, c->row,
                                                 k->batches ? c->batches : NULL},
                                      .step = step,
                                      .last = last,
                                      .buf = &k->buf});
}

// ---------------------------------------------------------------- answers
void count_age(struct server_core *c, const struct wire_header *h, const void *grad, uint64_t tau) {
    staleness_count(&c->totals.staleness, tau);
    if (c->o.staleness_log) staleness_log_push(c->o.staleness_log, h, grad, tau);
}

void acknowledge_micro(struct server_core *c, const struct server_key *k, int worker, int64_t step, int micro,
                       bool held) {
    int64_t age = k->staleness[worker];
    struct wire_header r = {.kind = WIRE_PUSH_ACK,
                            .key = k->key,
                            .step = step,
                            .batch = micro,
                            .staleness = age < 0 ? 0 : age,
                            .peers_ready_ns = held ? 0 : slot_of(c, k, step)->ready_ns[worker],
                            .flags = (held ? WIRE_HELD : 0) | (age < 0 ? (uint32_t)WIRE_UNUSED : 0)};
    work_on(c, SERVER_REPLY, of_push(k, worker, -1));
    port_tell(&c->o.port, worker, &r);
}

const struct arrival *recorded_read(const struct server_core *c, const struct server_key *k, int worker) {
    const struct server_pull *p = &k->pulls[worker];
    return c->o.replay && k->old_version && !p->final ? arrivals_of(c->o.replay, k->key, worker, p->want)
                                                      : NULL;
}

int64_t clock_read(const struct server_core *c, const struct server_key *k, int worker) {
    const struct server_pull *p = &k->pulls[worker];
    const struct arrival *a = recorded_read(c, k, worker);
    if (c->rule.oldest) return p->least < k->step ? p->least : k->step;
    if (!a || a->version == (uint64_t)k->version) return k->step;
    for (int64_t t = k->step - 1; t >= 0 && t >= k->step - c->rule.lead; t--)
        if (k->old_version[old_of(c, t)] == (int64_t)a->version) return t;
    return -1;
}

// peers_ready_ns is when the worker's own push of the step before could be answered, and the last update if the pull
// needs that update. Where steps commit, a commit waits for replies that are still being sent, so weights are sent from
// the key's buffer. Where pushes are applied on arrival the next one may arrive at any time, so the reply is a copy. It
// is a copy too where workers may be lost: a reply to a frozen worker would block the others.
static struct ps_message pull_reply(struct server_core *c, struct server_key *k, int worker) {
    struct server_pull *pull = &k->pulls[worker];
    size_t bytes = (size_t)k->n * dtype_size(c->dtype);
    int64_t clock = clock_read(c, k, worker);
    bool old = clock < k->step, update = !c->rule.row->on_arrival && pull->least == k->step;
    int64_t own_ns = slot_of(c, k, pull->want - 1)->ready_ns[worker], age = k->staleness[worker];
    struct ps_message m = {
        .header = {.kind = WIRE_PULL_REPLY,
                   .key = k->key,
                   .step = pull->want,
                   .version = old ? k->old_version[old_of(c, clock)] : k->version,
                   .updates = (old ? k->old_version[old_of(c, clock)] : k->version) + k->skew,
                   .seq = pull->seq,
                   .staleness = c->rule.lead ? pull->want - clock
                                : age < 0    ? 0
                                             : age,
                   .pending_pushes = pending_pushes(c, k, worker, pull->want),
                   .peers_ready_ns = ps_later(own_ns, update ? k->update_ready_ns : 0),
                   .flags = (pull->final ? WIRE_FINAL : 0) | (age < 0 ? (uint32_t)WIRE_UNUSED : 0)},
        .payload = old ? (char *)k->buf.old + (size_t)old_of(c, clock) * bytes : k->buf.weight,
        .bytes = bytes,
        .inflight = c->policy->copies ? NULL : &k->inflight};
    if (c->policy->answer) c->policy->answer(c, k, worker, &m);
    return m;
}

bool pull_ready(const struct server_core *c, const struct server_key *k, int worker) {
    return k->loaded && k->pulls[worker].pending && c->policy->may_read(c, k, worker);
}

// With a segment no frame is sent: the weights are copied to where the worker wants them, or read in place. The copy is
// made once: when the link resends the answer, the worker may already compute on the first copy.
void answer_pull(struct server_core *c, struct server_key *k, int worker) {
    struct server_pull *pull = &k->pulls[worker];
    const struct server_segment *s = &c->segments[worker];
    work_on(c, SERVER_REPLY, of_push(k, worker, pull->want - 1));
    pull->pending = false;
    struct ps_message m = pull_reply(c, k, worker);
    if (s->base && pull->reply_offset) memcpy(s->base + pull->reply_offset, m.payload, m.bytes);
    if (s->base) m.header.data_bytes = m.bytes;
    if (s->base) m = (struct ps_message){.header = m.header};
    c->o.port.send(c->o.port.ctx, worker, &m);
}

static struct ps_message snapshot_reply(const struct server_core *c, const struct server_key *k) {
    return (struct ps_message){.header = {.kind = WIRE_SNAPSHOT_REPLY,
                                          .key = k->key,
                                          .version = k->version,
                                          .updates = k->version + k->skew,
                                          .seq = k->shot.seq},
                               .payload = k->buf.weight,
                               .bytes = (size_t)k->n * dtype_size(c->dtype)};
}

// Answers the last snapshot request once the key has its version: with a copy, and after all other answers of an
// update, since no worker waits for it.
void answer_snapshot(struct server_core *c, struct server_key *k) {
    struct server_shot *s = &k->shot;
    if (!s->pending || !k->loaded || k->version < s->want) return;
    const struct ps_message m = snapshot_reply(c, k);
    work_on(c, SERVER_REPLY, of_push(k, s->worker, -1));
    s->pending = false;
    c->o.port.send(c->o.port.ctx, s->worker, &m);
}

void answer_pulls(struct server_core *c, struct server_key *k) {
    for (int w = 0; w < c->rule.workers; w++)
        if (pull_ready(c, k, w)) answer_pull(c, k, w);
    answer_snapshot(c, k);
}

bool renew_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m) {
    bool shot = m->header.kind == WIRE_SNAPSHOT_REPLY;
    if (m->header.seq != (shot ? k->shot.seq : k->pulls[worker].seq)) return false;
    *m = shot ? snapshot_reply(c, k) : pull_reply(c, k, worker);
    return true;
}
