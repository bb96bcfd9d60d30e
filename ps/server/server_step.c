#include "ps/server/server_step.h"

#include <string.h>

#include "ps/job/batches.h"
#include "ps/net/clock.h"
#include "ps/record/arrivals.h"
#include "ps/record/study.h"
#include "ps/server/chain.h"
#include "ps/server/key_pass.h"
#include "ps/server/replay_pulls.h"
#include "ps/server/server_time.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- checkpoints
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

// ---------------------------------------------------------------- answers
static void turn_to(const struct server_core *c, enum server_part part, struct span of) {
    thread_time_enter(c->o.spans, part, of);
}

// Of one worker's push, which is an update of its own or a part of one; or of all.
static struct span of_push(const struct server_key *k, int worker, int64_t step) {
    return span_for(step, k->key, worker, 1);
}
static struct span of_all(const struct server_core *c, const struct server_key *k) {
    return span_for(k->step, k->key, 0, c->o.rule.workers);
}

void acknowledge(struct server_core *c, const struct server_key *k, int worker, bool held) {
    struct wire_header r = {.kind = WIRE_PUSH_ACK,
                            .key = k->key,
                            .step = k->pushed[worker] - 1,
                            .staleness = k->staleness[worker],
                            .peers_ready_ns = held ? 0 : k->ready_ns[worker],
                            .flags = held ? WIRE_HELD : 0};
    turn_to(c, SERVER_REPLY, of_push(k, worker, -1));
    port_tell(&c->o.port, worker, &r);
}

// Only a pull with the largest delay allowed needed the last update. Any other: this worker's push alone.
static int64_t pull_needed_ns(const struct server_core *c, const struct server_key *k, int worker) {
    bool update = k->pulls[worker].want - k->step == c->o.rule.delay;
    return ps_later(k->ready_ns[worker], update ? k->update_ready_ns : 0);
}

// Where steps commit, a commit waits for replies that are still leaving, so weights are sent from where they
// lie. Where pushes are applied on arrival, the next one may come at any time: the reply is a copy. So it is where
// workers may be lost: what leaves for a frozen one would keep the others waiting.
static struct ps_message pull_reply(struct server_core *c, struct server_key *k, int worker) {
    struct server_pull *pull = &k->pulls[worker];
    bool zero_copy = !c->o.rule.row->on_arrival && !c->set;
    struct ps_message m = {.header = {.kind = WIRE_PULL_REPLY,
                                      .key = k->key,
                                      .step = pull->want,
                                      .version = k->version,
                                      .seq = pull->seq,
                                      .staleness = k->staleness[worker],
                                      .peers_ready_ns = pull_needed_ns(c, k, worker),
                                      .flags = pull->final ? WIRE_FINAL : 0},
                           .payload = k->buf.weight,
                           .bytes = (size_t)k->n * dtype_size(c->o.dtype),
                           .inflight = zero_copy ? &k->inflight : NULL};
    if (k->replay) replay_answer(c, k, worker, &m);
    return m;
}

// Through a segment the weights are in the worker's hands: put where it wants them, or read where they are. They are put
// there once: when the link says the answer again, the worker may have read the first one and be at work on what it says.
void answer_pull(struct server_core *c, struct server_key *k, int worker) {
    struct server_pull *pull = &k->pulls[worker];
    const struct server_segment *s = &c->segments[worker];
    turn_to(c, SERVER_REPLY, of_push(k, worker, pull->want - 1));
    pull->pending = false;
    struct ps_message m = pull_reply(c, k, worker);
    if (s->base && pull->into) memcpy(s->base + pull->into, k->buf.weight, m.bytes);
    if (s->base) m.header.place_bytes = m.bytes;
    if (s->base) m = (struct ps_message){.header = m.header};
    c->o.port.send(c->o.port.ctx, worker, &m);
}

static struct ps_message snapshot_reply(const struct server_core *c, const struct server_key *k) {
    return (struct ps_message){
        .header = {.kind = WIRE_SNAPSHOT_REPLY, .key = k->key, .version = k->version, .seq = k->shot.seq},
        .payload = k->buf.weight,
        .bytes = (size_t)k->n * dtype_size(c->o.dtype)};
}

bool renew_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m) {
    bool shot = m->header.kind == WIRE_SNAPSHOT_REPLY;
    if (m->header.seq != (shot ? k->shot.seq : k->pulls[worker].seq)) return false;
    *m = shot ? snapshot_reply(c, k) : pull_reply(c, k, worker);
    return true;
}

bool pull_ready(const struct server_core *c, const struct server_key *k, int worker) {
    const struct server_pull *p = &k->pulls[worker];
    if (k->replay) return replay_ready(c, k, worker);
    if (!k->loaded || keep_late(k, worker)) return false;
    return k->pushed[worker] >= p->want && consistency_allows(&c->o.rule, p->want - k->step);
}

// A copy, and the last answer that an update gives: nobody waits for it.
void answer_snapshot(struct server_core *c, struct server_key *k) {
    struct server_shot *s = &k->shot;
    if (!s->pending || !k->loaded || k->version < s->want) return;
    const struct ps_message m = snapshot_reply(c, k);
    turn_to(c, SERVER_REPLY, of_push(k, s->worker, -1));
    s->pending = false;
    c->o.port.send(c->o.port.ctx, s->worker, &m);
}

void answer_pulls(struct server_core *c, struct server_key *k) {
    for (int w = 0; w < c->o.rule.workers; w++)
        if (k->pulls[w].pending && pull_ready(c, k, w)) answer_pull(c, k, w);
    answer_snapshot(c, k);
}

static struct update_range range_of(const struct server_core *c, const struct server_key *k,
                                    const void *grad) {
    struct update_range r = {.unit = k->unit,
                             .begin = k->part->begin,
                             .end = k->part->end,
                             .master = k->buf.master,
                             .weight = k->buf.weight,
                             .grad = grad,
                             .dtype = c->o.dtype};
    memcpy(r.state, k->buf.state, sizeof r.state);
    return r;
}

static int apply(struct server_core *c, struct server_key *k, const void *grad, float lr,
                 const struct update_scalars *scalars) {
    struct update_range r = range_of(c, k, grad);
    const struct update_step step = {.lr = lr, .t = k->version + k->skew + 1, .scalars = scalars};
    if (scalars->skip) return 0;
    if (optimizer_apply(&c->o.optimizer, &r, &step, 1) != 0)
        return core_fail(c->error, "key %d (%s), update %lld: the optimizer failed", k->key, k->unit->name,
                         (long long)k->version + 1);
    k->version++;
    return 0;
}

// ---------------------------------------------------------------- pushes summed in worker order
void report_sum(struct server_core *c) {
    const struct server_round *r = &c->round;
    struct wire_header h = {.kind = WIRE_SHARD_SUM, .step = r->step, .has_sum = true, .sum = r->sum};
    exact_sum_carry(&h.sum);
    h.peers_ready_ns = r->ready_ns;
    c->round.reported = true;
    turn_to(c, SERVER_REPLY, SPAN_OF_NOTHING);
    port_tell(&c->o.port, PEER_SCHEDULER, &h);
}

static const struct update_scalars *round_scalars(const struct server_core *c) {
    static const struct update_scalars plain = {.grad_scale = 1.0f};
    if (!c->o.commit_round) return &plain;
    return c->round.decided ? &c->round.scalars : NULL;
}

// The step of a key has been applied, or skipped.
static void committed(struct server_core *c, struct server_key *k) {
    k->update_ready_ns = c->o.commit_round ? c->round.ready_ns : k->open_ready_ns;
    k->step++;
    k->turn = 0;
    k->contributed = 0;
    c->open--;
    answer_pulls(c, k);
    if (k->keep) keep_key(c, k, k->step, false);
    k->keep = false;
}

// Applies the step of a complete key, unless the decision is out, or a reply or a checkpoint still reads its buffers.
static int commit_key(struct server_core *c, struct server_key *k) {
    const struct update_scalars *scalars = round_scalars(c);
    if (!k->complete || !scalars) return 0;
    if (keep_pinned(k)) keep_waits(c);
    if (atomic_load(&k->inflight) > 0) c->waiting_for_transport = true;
    if (atomic_load(&k->inflight) > 0 || keep_pinned(k)) return 0;
    turn_to(c, SERVER_UPDATE, of_all(c, k));
    if (apply(c, k, k->buf.acc, k->lr, scalars) != 0) return -1;
    k->complete = k->replicated = false;
    c->uncommitted--;
    committed(c, k);
    return 0;
}

int commit_all(struct server_core *c) {
    c->waiting_for_transport = false;
    for (int i = 0; i < c->count && c->uncommitted > 0; i++)
        if (commit_key(c, &c->keys[i]) != 0) return -1;
    return 0;
}

void end_round(struct server_core *c) {
    if (!c->round.reported || !c->round.decided || c->uncommitted > 0) return;
    int64_t next = c->round.step + 1;
    c->decided = c->round.scalars;
    c->round = (struct server_round){.step = next};
    c->totals.steps = (double)(next - c->begin);
    if (!c->set) return;
    memset(c->set->keys, 0, (size_t)c->o.rule.workers * sizeof *c->set->keys);
    c->set->arrived = c->set->fixed = 0;
}

// A gradient is in the sum: the worker may have it back. The answer to a pull that is open tells that as well.
static void gradient_taken(struct server_core *c, struct server_key *k, int worker) {
    struct gradient *g = &k->held[worker];
    bool told = !g->frame && k->pulls[worker].pending;
    if (g->frame) c->totals.held_bytes -= g->bytes;
    ps_frame_release(g->frame);
    *g = (struct gradient){0};
    if (k->turn > 0)
        k->ready_ns[worker] = ps_later(k->ready_ns[worker], k->ready_ns[worker_of_turn(c, k, k->turn - 1)]);
    if (!told) acknowledge(c, k, worker, false);
}

// The gradients whose turn it is, as a sum's arguments.
static struct sum_args turns_of(struct server_core *c, const struct server_key *k) {
    struct sum_args a = {.acc = k->buf.acc,
                         .n = k->n,
                         .dtype = c->o.dtype,
                         .first = k->turn == 0,
                         .code = c->o.code,
                         .group = c->o.group,
                         .turn = k->turn,
                         .group_acc = k->buf.group_acc};
    for (int most = c->o.rule.workers / crew_of(c) - k->turn; a.count < most; a.count++) {
        const struct gradient *g = &k->held[worker_of_turn(c, k, k->turn + a.count)];
        if (!g->data) break;
        c->grads[a.count] = g->data;
    }
    a.grads = c->grads;
    return a;
}

static void take_turns(struct server_core *c, struct server_key *k, int count) {
    for (int end = k->turn + count; k->turn < end; k->turn++)
        gradient_taken(c, k, worker_of_turn(c, k, k->turn));
}

// Whether a worker's credits, and what it waits for, hang on the gradients' being read: not where they lie in segments,
// and not where they were acknowledged as they came.
static bool owes_acknowledgement(const struct server_core *c, const struct server_key *k) {
    for (int w = 0; w < c->o.rule.workers && !c->set; w++)
        if (k->held[w].frame) return true;
    return false;
}

int add_up(struct server_core *c, struct server_key *k, const struct sum_args *sum, bool *at_once) {
    const struct update_scalars *scalars = c->o.commit_round ? NULL : round_scalars(c);
    const struct update_step step = {.lr = k->lr, .t = k->version + k->skew + 1, .scalars = scalars};
    *at_once = scalars && atomic_load(&k->inflight) == 0 && !keep_pinned(k) && !owes_acknowledgement(c, k);
    struct key_pass p = {.sum = *sum,
                         .squares = &c->round.sum,
                         .optimizer = &c->o.optimizer,
                         .range = range_of(c, k, NULL),
                         .step = *at_once ? &step : NULL,
                         .chunk = c->chunk,
                         .spans = c->o.spans};
    turn_to(c, SERVER_SUM, of_all(c, k));
    if (key_pass_run(&p) == 0) return 0;
    return core_fail(c->error, "key %d (%s), step %lld: %s", k->key, k->unit->name, (long long)k->step,
                     error_last());
}

int close_key(struct server_core *c, struct server_key *k, bool at_once) {
    c->round.ready_ns = ps_later(c->round.ready_ns, k->open_ready_ns);
    c->round.keys++;
    if (chain_complete(c)) report_sum(c);
    if (at_once) {
        k->version++;
        committed(c, k);
        return 0;
    }
    k->complete = true;
    c->uncommitted++;
    if (c->o.replicate) chain_send(c, k);
    return commit_key(c, k);
}

int note_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
              const struct gradient *g) {
    int w = h->rank;
    // A worker begins step t+1 only after the scheduler has closed step t, and with all weights of it: the
    // scheduler's decision, which only ends the round here, is still on its way to this shard.
    if (h->step > c->round.step && c->round.reported && !c->o.commit_round) {
        c->round.decided = true;
        end_round(c);
    }
    if (k->contributed == 0) {
        k->lr = h->lr;
        k->lr_worker = w;
        c->open++;
    } else if (f32_to_bits(k->lr) != f32_to_bits(h->lr)) {
        ps_frame_release(g->frame);
        return core_fail(c->error,
                         "key %d, step %lld: worker %d pushed with learning rate %.9g, worker %d with %.9g",
                         k->key, (long long)h->step, w, (double)h->lr, k->lr_worker, (double)k->lr);
    }
    for (int i = 0, first = w - w % crew_of(c); i < crew_of(c); i++) {
        k->pushed[first + i] = h->step + 1;
        k->ready_ns[first + i] = h->ready_ns;
    }
    k->keep = k->keep || keep_wanted(c, h);
    k->contributed++;
    k->open_ready_ns = ps_later(k->open_ready_ns, h->ready_ns);
    c->totals.pushes++;
    staleness_count(&c->totals.staleness, (uint64_t)(k->version - h->version));
    if (c->o.study) study_push(c->o.study, h, g->data, (uint64_t)(k->version - h->version));
    k->held[w] = *g;
    if (g->frame) c->totals.held_bytes += g->bytes;
    return 0;
}

// Holds a gradient until it is added. A gradient in a frame is added as soon as its turn has come, for frames are
// memory that credits lend. Gradients in segments cost nothing while they wait: where all workers have one, they
// are added together, in one pass, when the last has come.
int push_in_order(struct server_core *c, struct server_key *k, const struct wire_header *h,
                  const struct gradient *g) {
    int w = h->rank;
    if (note_push(c, k, h, g) != 0) return -1;
    if (w != worker_of_turn(c, k, k->turn) && g->frame) {
        if (c->totals.held_bytes > c->totals.held_peak_bytes)
            c->totals.held_peak_bytes = c->totals.held_bytes;
        acknowledge(c, k, w, true);
        return 0;
    }
    struct sum_args sum = turns_of(c, k);
    if (consistency_completes(&c->o.rule, (k->turn + sum.count) * crew_of(c))) {
        bool at_once;
        if (add_up(c, k, &sum, &at_once) != 0) return -1;
        take_turns(c, k, sum.count);
        if (close_key(c, k, at_once) != 0) return -1;
        end_round(c);
    } else if (sum.count > 0 && c->attached < c->o.rule.workers) {
        turn_to(c, SERVER_SUM, span_for(k->step, k->key, k->turn, sum.count));
        sum_add(&sum);
        take_turns(c, k, sum.count);
    }
    return 0;
}

int reach_step(struct server_core *c, struct server_key *k, int64_t steps,
               const struct update_scalars *last) {
    if (k->loaded && k->step == steps) return 0;
    if (!k->loaded || !k->complete || k->step != steps - 1)
        return core_fail(c->error, "key %d (%s): it is at step %lld and cannot reach step %lld", k->key,
                         k->unit->name, (long long)k->step, (long long)steps);
    if (apply(c, k, k->buf.acc, k->lr, last) != 0) return -1;
    k->complete = false;
    k->step++;
    return 0;
}

// ---------------------------------------------------------------- pushes applied on arrival
// The decoded gradient, rounded to the gradients' type, in the key's buffer of sums.
static const void *decoded(const struct server_core *c, const struct server_key *k,
                           const struct gradient *g) {
    struct sum_args a = {.acc = k->buf.acc,
                         .grads = &g->data,
                         .count = 1,
                         .n = k->n,
                         .dtype = c->o.dtype,
                         .first = true,
                         .code = c->o.code};
    sum_add(&a);
    a.count = 0;
    a.first = false;
    sum_finish(&a, 0, k->n, k->buf.acc);
    return k->buf.acc;
}

// Its worker hears so, and those who waited for it.
static void taken(struct server_core *c, struct server_key *k, const struct wire_header *h,
                  const struct gradient *g, int64_t tau) {
    k->pushed[h->rank] = h->step + 1;
    k->staleness[h->rank] = tau;
    k->ready_ns[h->rank] = h->ready_ns;
    if (g->frame || !k->pulls[h->rank].pending) acknowledge(c, k, h->rank, false);
    answer_pulls(c, k);
    if (keep_wanted(c, h)) keep_key(c, k, h->step + 1, false);
}

int push_on_arrival(struct server_core *c, struct server_key *k, const struct wire_header *h,
                    const struct gradient *g) {
    struct update_scalars scalars = {.grad_scale = h->grad_scale, .skip = (h->flags & WIRE_SKIP) != 0};
    uint64_t tau = (uint64_t)(k->version - h->version);
    int words = batches_words(c->o.rule.workers), rc = 0;
    if (batches_has(k->batches, words, h->batch)) {
        c->totals.duplicates++;
        ps_frame_release(g->frame);
        taken(c, k, h, g, (int64_t)tau);
        return 0;
    }
    const void *grad = c->o.code.kind == CODE_NONE ? g->data : decoded(c, k, g);
    const struct arrival arrival = {h->rank, (uint32_t)h->version, (uint32_t)tau, h->batch};
    if (c->o.study) study_push(c->o.study, h, grad, tau);
    if (c->o.record) arrivals_note(c->o.record, k->key, &arrival);
    turn_to(c, SERVER_UPDATE, of_push(k, h->rank, h->step));
    rc = apply(c, k, grad, h->lr, &scalars);
    ps_frame_release(g->frame);
    if (rc != 0) return -1;
    batches_add(k->batches, words, h->batch);
    staleness_count(&c->totals.staleness, tau);
    c->totals.pushes++;
    c->totals.steps = (double)++c->applied / ((double)c->count * c->o.rule.workers);
    taken(c, k, h, g, (int64_t)tau);
    return 0;
}
