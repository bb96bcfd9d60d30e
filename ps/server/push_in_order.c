// Pushes of a step, summed in worker order: a slot and a shard's round from the first gradient to the commit.
// server_core.h has the drawing. push_set.c adds other gradients at another time; it shares everything else here.
#include <stdio.h>
#include <string.h>

#include "ps/net/clock.h"
#include "ps/record/arrivals.h"
#include "ps/server/server_state.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- the round of a step
static void report_sum(struct server_core *c, int64_t step) {
    struct server_round *r = round_of(c, step);
    struct wire_header h = {
        .kind = WIRE_SHARD_SUM, .step = step, .has_sum = true, .sum = r->sum, .peers_ready_ns = r->ready_ns};
    exact_sum_carry(&h.sum);
    r->reported = true;
    work_on(c, SERVER_REPLY, SPAN_OF_NOTHING);
    port_tell(&c->o.port, PEER_SCHEDULER, &h);
}

// Returns the scalars of a step's updates, or NULL while the scheduler's decision is missing.
static const struct update_scalars *scalars_of(const struct server_core *c, int64_t step) {
    static const struct update_scalars plain = {.grad_scale = 1.0f};
    const struct server_round *r = round_of(c, step);
    if (!c->commit_waits) return &plain;
    return r->decided ? &r->scalars : NULL;
}

int round_decided(struct server_core *c, const struct wire_header *h) {
    struct server_round *r = round_of(c, h->step);
    if (h->step < c->step || h->step >= c->step + c->slots || !r->reported || r->decided) return 0;
    r->decided = true;
    r->scalars = (struct update_scalars){
        .grad_scale = h->grad_scale, .skip = (h->flags & WIRE_SKIP) != 0, .norm = h->norm};
    r->ready_ns = ps_later(r->ready_ns, h->peers_ready_ns);
    for (int i = 0; i < c->count; i++)
        if (c->policy->advance(c, &c->keys[i]) != 0) return -1;
    return 0;
}

// The key's open step was applied or skipped: frees its slot, and ends the round if this was the last key.
static void committed(struct server_core *c, struct server_key *k) {
    struct slot *s = slot_of(c, k, k->step);
    struct server_round *r = round_of(c, k->step);
    bool keep = s->keep;
    k->update_ready_ns = c->commit_waits ? r->ready_ns : s->needed_ns;
    k->step++;
    *s = (struct slot){.held = s->held, .ready_ns = s->ready_ns};
    c->open--;
    answer_pulls(c, k);
    if (keep) checkpoint_key(c, k, k->step, false);
    if (++r->committed < c->count) return;
    c->step++;
    c->totals.steps = (double)(c->step - c->begin);
    struct set_part *parts = r->parts;
    *r = (struct server_round){.parts = parts};
    if (parts) memset(parts, 0, (size_t)c->rule.workers * sizeof *parts);
}

// Whether the transport no longer reads the key's weights. If it still does, the key's advance is called again soon.
static bool key_free(struct server_core *c, struct server_key *k) {
    if (atomic_load(&k->inflight) == 0) return true;
    if (!k->waits) {
        k->next_waiting = c->waiting;
        c->waiting = k;
    }
    k->waits = true;
    return false;
}

int commit_key(struct server_core *c, struct server_key *k) {
    const struct slot *s = slot_of(c, k, k->step);
    const struct update_scalars *scalars = scalars_of(c, k->step);
    if (!s->complete || !scalars || !key_free(c, k)) return 0;
    work_on(c, SERVER_UPDATE, of_all(c, k));
    keep_old(c, k);
    if (apply(c, k, k->buf.acc, s->lr, scalars) != 0) return -1;
    committed(c, k);
    return 0;
}

// ---------------------------------------------------------------- a slot
int slot_add_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                  const struct gradient *g) {
    struct slot *s = slot_of(c, k, h->step);
    int w = h->rank;
    if (s->contributed == 0) {
        s->lr = h->lr;
        s->lr_worker = w;
        c->open++;
    } else if (f32_to_bits(s->lr) != f32_to_bits(h->lr)) {
        ps_frame_release(g->frame);
        return core_fail(c->error,
                         "key %d, step %lld: worker %d pushed with learning rate %.9g, worker %d with %.9g",
                         k->key, (long long)h->step, w, (double)h->lr, s->lr_worker, (double)s->lr);
    }
    k->pushed[w] = h->step + 1;
    s->ready_ns[w] = h->ready_ns;
    s->keep = s->keep || checkpoint_wanted(c, h);
    s->contributed++;
    s->needed_ns = ps_later(s->needed_ns, h->ready_ns);
    c->totals.pushes++;
    // The age counts each open step as an update, since it is not known yet whether the step will be skipped.
    uint64_t tau = (uint64_t)(k->version - h->version + h->step - k->step);
    if (!c->policy->fix) count_age(c, h, g->data, tau);
    const struct arrival read = {w, (uint32_t)h->version, 0, h->step * c->rule.workers + w};
    if (c->o.record && consistency_reads_vary(c->rule)) arrivals_note(c->o.record, k->key, &read);
    gradient_hold(c, &s->held[w], g);
    return 0;
}

// Whether workers' credits, or workers themselves, wait until the gradients are read. This is not so for gradients in
// segments and for frames that were acknowledged on arrival.
static bool awaits_acknowledgement(const struct server_core *c, const struct slot *s) {
    for (int w = 0; w < c->rule.workers && !c->policy->takes_frames; w++)
        if (s->held[w].frame) return true;
    return false;
}

int add_up(struct server_core *c, struct server_key *k, const struct sum_args *sum, bool *at_once) {
    const struct slot *s = slot_of(c, k, k->step);
    const struct update_scalars *scalars = c->commit_waits ? NULL : scalars_of(c, k->step);
    const struct update_step step = {.lr = s->lr, .t = k->version + k->skew + 1, .scalars = scalars};
    *at_once = scalars && atomic_load(&k->inflight) == 0 && !awaits_acknowledgement(c, s);
    struct key_pass p = {.sum = *sum,
                         .squares = &round_of(c, k->step)->sum,
                         .optimizer = &c->o.config->optimizer,
                         .range = range_of(c, k, NULL),
                         .step = *at_once ? &step : NULL,
                         .chunk = c->chunk,
                         .spans = c->o.spans};
    work_on(c, SERVER_SUM, of_all(c, k));
    if (*at_once) keep_old(c, k);
    if (key_pass_run(&p) == 0) return 0;
    return core_fail(c->error, "key %d (%s), step %lld: %s", k->key, k->unit->name, (long long)k->step,
                     error_last());
}

int close_slot(struct server_core *c, struct server_key *k, bool at_once) {
    struct slot *s = slot_of(c, k, k->step);
    struct server_round *r = round_of(c, k->step);
    r->ready_ns = ps_later(r->ready_ns, s->needed_ns);
    if (++r->keys == c->count) report_sum(c, k->step);
    if (at_once) {
        k->version++;
        committed(c, k);
        return 0;
    }
    s->complete = true;
    return commit_key(c, k);
}

// ---------------------------------------------------------------- the policy
// A key may be a step further than later keys of the same shard. Until these commit too, no push can be of a still
// later step, since its worker lacks weights.
const char *in_order_unfit(const struct server_core *c, const struct server_key *k,
                           const struct wire_header *h) {
    if (!consistency_allows(c->rule, h->step - k->step) || h->step >= c->step + c->slots)
        return "an earlier step is not over";
    return consistency_allows(c->rule, k->version - h->version)
               ? NULL
               : "it was computed on a version the server does not have";
}

// A pull is answered when the key has the worker's own pushes and the oldest step that will do (`least`, which on_pull in
// server_core.c derives from the consistency's delay): with `ps:ssp:S` this holds back a worker that is too far ahead.
bool in_order_may_read(const struct server_core *c, const struct server_key *k, int worker) {
    return k->pushed[worker] >= k->pulls[worker].want && k->step >= k->pulls[worker].least &&
           clock_read(c, k, worker) >= 0;
}

// In a replayed run: checks that each worker waits for weights that the key has or may still get.
static int check_reads(struct server_core *c, const struct server_key *k) {
    for (int w = 0; w < c->rule.workers && c->o.replay; w++) {
        const struct server_pull *p = &k->pulls[w];
        const struct arrival *a = p->pending ? recorded_read(c, k, w) : NULL;
        if (!a || clock_read(c, k, w) >= 0 || (a->version > (uint64_t)k->version && k->step < p->want))
            continue;
        return core_fail(
            c->error,
            "key %d, step %lld: worker %d computed on version %u in the recording, which is none of the last "
            "%d here: it is of another run",
            k->key, (long long)p->want, w, a->version, 1 + c->rule.lead);
    }
    return 0;
}

struct sum_args next_gradients(struct server_core *c, const struct server_key *k,
                               const struct gradient *held) {
    int first = slot_of(c, k, k->step)->next_worker;
    struct sum_args a = {.acc = k->buf.acc,
                         .grads = c->grads,
                         .n = k->n,
                         .dtype = c->dtype,
                         .first = first == 0,
                         .code = c->code,
                         .group = c->group,
                         .first_worker = first,
                         .group_acc = k->buf.part_acc};
    for (int w = first; w < c->rule.workers && held[w].data; w++) c->grads[a.count++] = held[w].data;
    return a;
}

// If a worker's pull is open, the answer to the pull acknowledges the push as well.
void release_added(struct server_core *c, struct server_key *k, struct gradient *held, int micro, int count) {
    struct slot *s = slot_of(c, k, k->step);
    for (int end = s->next_worker + count; s->next_worker < end; s->next_worker++) {
        int w = s->next_worker;
        bool told = !held[w].frame && k->pulls[w].pending && !c->policy->pulls_apart;
        gradient_release(c, &held[w]);
        if (w > 0) s->ready_ns[w] = ps_later(s->ready_ns[w], s->ready_ns[w - 1]);
        if (!told) acknowledge_micro(c, k, w, k->step, micro, false);
    }
}

// Adds what can be added to the open step. A gradient in a frame is added as soon as it is the next one, for frames use
// memory that credits lend. Waiting gradients in segments cost nothing: if all workers have segments, the gradients are
// added together, in one pass, when the last one has arrived.
static int add_next(struct server_core *c, struct server_key *k) {
    struct slot *s = slot_of(c, k, k->step);
    if (s->complete || !s->contributed) return 0;
    struct sum_args sum = next_gradients(c, k, s->held);
    if (consistency_completes(c->rule, s->next_worker + sum.count)) {
        bool at_once;
        if (add_up(c, k, &sum, &at_once) != 0) return -1;
        release_added(c, k, s->held, 0, sum.count);
        return close_slot(c, k, at_once);
    }
    if (sum.count > 0 && c->attached < c->rule.workers) {
        work_on(c, SERVER_SUM, span_for(k->step, k->key, s->next_worker, sum.count));
        sum_add(&sum);
        release_added(c, k, s->held, 0, sum.count);
    }
    return 0;
}

static int in_order_advance(struct server_core *c, struct server_key *k) {
    int64_t step;
    do {
        step = k->step;
        if (add_next(c, k) != 0 || commit_key(c, k) != 0) return -1;
    } while (k->step > step);
    return check_reads(c, k);
}

static int in_order_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                          const struct gradient *g) {
    int next = slot_of(c, k, h->step)->next_worker, w = h->rank;
    if (slot_add_push(c, k, h, g) != 0) return -1;
    // With a delay the weights that the worker asks for after its push may exist before the step's sum does.
    if (pull_ready(c, k, w)) answer_pull(c, k, w);
    if (h->step == k->step && (w == next || !g->frame)) return in_order_advance(c, k);
    if (!g->frame) return 0;
    update_held_peak(c);
    acknowledge(c, k, w, h->step, true);
    return 0;
}

void in_order_carve(struct arena *a, const struct config *c, int64_t n, struct server_buffers *out) {
    const struct consistency_rule rule = consistency_of(c);
    size_t old = (size_t)rule.lead * (size_t)n * dtype_size(c->dtype);
    if (config_group(c)) out->part_acc = arena_take(a, MEM_GRADIENT, (size_t)n * sizeof(float));
    if (rule.keeps) out->old = arena_take(a, MEM_PARAMETER, old);
}

size_t in_order_textbook(const struct config *c) {
    const struct consistency_rule rule = consistency_of(c);
    return rule.keeps ? (size_t)rule.lead * dtype_size(c->dtype) : 0;
}

// If only one step is open, the gradient of the first worker in order does not wait. With shared memory none wait.
static double in_order_waiting(const struct config *c, double gradients, double weights) {
    (void)weights;
    return c->medium == MEDIUM_SHM ? 0 : (c->workers - !consistency_of(c).lead) * gradients;
}

double whole_step_waiting(const struct config *c, double gradients, double weights) {
    (void)weights;
    return c->medium == MEDIUM_SHM ? 0 : c->workers * gradients;
}

const struct push_policy push_in_order = {.by_units = PUSH_UNITS,
                                          .in_part = PUSH_SET,
                                          .replayed = PUSH_IN_ORDER,
                                          .codes = true,
                                          .groups = true,
                                          .carve = in_order_carve,
                                          .textbook = in_order_textbook,
                                          .waiting = in_order_waiting,
                                          .unfit = in_order_unfit,
                                          .admit = in_order_admit,
                                          .may_read = in_order_may_read,
                                          .advance = in_order_advance};
