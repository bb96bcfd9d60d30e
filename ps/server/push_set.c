// Steps to which not all workers belong (--elastic MIN:MAX), or that close without stragglers (ps:backup:B,
// ps:quorum:Q). Gradients are held until the scheduler has fixed the step's set, then only the set's are added.
//
//     PUSH w (t) --> held: a frame is acknowledged and kept, a segment is read later
//     all keys of w are here --> ARRIVED: the workers for which this is true
//     SET (t, mask)   --> per key: the sum over the mask in worker order, times N/n (if token counts differ:
//                         mean_tokens / tokens of the mask), rounded once; all held gradients are released
//                         --> SHARD_SUM, then as in server_core.h
//
// A straggler pushes to a step whose set is fixed: the gradient is dropped and acknowledged as unused. So is a gradient
// that had arrived and is not in the set. A pull is answered with the current weights and their step. Keys may answer
// with different steps, until the worker jumps to the open step and asks for its weights (worker_core_jump). A push
// counts only if the set has the worker, and then no key was further than the push's step while the worker computed.
//
// A worker's next life (its next process) begins when the scheduler announces it: all that the last process left is
// released, and its late messages are dropped. The first pull of a key has the step from which on the worker belongs; a
// key takes no push twice. A segment of a dead worker remains mapped until then: its gradients may belong to the set.
//
// Memory: frames of a whole step of all workers, N P b / S bytes of transport, reported as held.
#include "ps/agree/step_set.h"
#include "ps/net/clock.h"
#include "ps/record/arrivals.h"
#include "ps/server/server_state.h"

// Whether the set of a push's step is already fixed. why: a sentence if the step is none of the open ones, else NULL.
static bool is_over(const struct server_core *c, const struct server_key *k, int64_t step, const char *why) {
    return step < k->step || (!why && round_of(c, step)->fixed);
}

static const char *set_unfit(const struct server_core *c, const struct server_key *k,
                             const struct wire_header *h) {
    const char *why = h->step < k->step ? NULL : in_order_unfit(c, k, h);
    bool over = is_over(c, k, h->step, why);
    if (over && consistency_drops(c->rule)) return NULL;
    return over ? "the step closes without this worker" : why;
}

static void drop_late(struct server_core *c, struct server_key *k, const struct wire_header *h,
                      const struct gradient *g) {
    k->pushed[h->rank] = h->step + 1;
    k->staleness[h->rank] = -1;
    c->totals.pushes++;
    c->totals.dropped++;
    ps_frame_release(g->frame);
    acknowledge(c, k, h->rank, h->step, false);
    answer_pulls(c, k);
}

// The worker pushes to the step of these weights or a later one from now on.
static void set_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m) {
    if (!consistency_drops(c->rule) || k->step <= m->header.step) return;
    m->header.step = k->step;
    if (k->pushed[worker] < k->step) k->pushed[worker] = k->step;
}

static int set_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                     const struct gradient *g) {
    struct server_round *r = round_of(c, h->step);
    if (is_over(c, k, h->step, NULL)) {
        drop_late(c, k, h, g);
        return 0;
    }
    k->staleness[h->rank] = 0;
    if (slot_add_push(c, k, h, g) != 0) return -1;
    if (g->frame) {
        update_held_peak(c);
        acknowledge(c, k, h->rank, h->step,
                    false);  // the server owns the frame from now on, even if the worker dies
    }
    r->parts[h->rank].tokens = h->tokens;
    r->mean_tokens = h->mean_tokens;
    if (++r->parts[h->rank].keys < c->count) return 0;
    r->arrived |= elastic_bit(h->rank);
    port_tell(&c->o.port, PEER_SCHEDULER,
              &(struct wire_header){.kind = WIRE_ARRIVED, .step = h->step, .mask = r->arrived});
    return 0;
}

// Adds a key's gradients over the set, and releases all of them. A worker in the set gets an acknowledgement; a
// straggler learns of it from the answer to its pull.
static int add_set(struct server_core *c, struct server_key *k, uint64_t set) {
    struct slot *s = slot_of(c, k, k->step);
    const struct server_round *r = round_of(c, k->step);
    struct set_share share = {c->rule.workers, elastic_count(set), r->mean_tokens, 0};
    for (int w = 0; w < c->rule.workers; w++)
        if (set & elastic_bit(w)) share.tokens += r->parts[w].tokens;
    struct sum_args sum = {.acc = k->buf.acc,
                           .grads = c->grads,
                           .n = k->n,
                           .dtype = c->dtype,
                           .scale = set_scale(&share),
                           .first = true};
    int64_t ready_ns = 0;
    bool at_once;
    for (int w = 0; w < c->rule.workers; w++) {
        const struct arrival in = {w, (uint32_t)k->version, 0, k->step * c->rule.workers + w};
        const struct wire_header counts = {
            .rank = w, .key = k->key, .step = k->step, .version = k->version, .grad_scale = 1};
        bool here = s->held[w].data != NULL, belongs = set & elastic_bit(w);
        if (here) k->staleness[w] = belongs ? 0 : -1;
        c->totals.dropped += here && !belongs;
        if (!belongs) continue;
        count_age(c, &counts, s->held[w].data, 0);
        c->grads[sum.count++] = s->held[w].data;
        if (c->o.record) arrivals_note(c->o.record, k->key, &in);
    }
    if (add_up(c, k, &sum, &at_once) != 0) return -1;
    for (int w = 0; w < c->rule.workers; w++) {
        bool counts = (set & elastic_bit(w)) != 0, told = s->held[w].frame || k->pulls[w].pending;
        if (counts) ready_ns = s->ready_ns[w] = ps_later(s->ready_ns[w], ready_ns);
        gradient_release(c, &s->held[w]);
        if (counts && !told) acknowledge(c, k, w, k->step, false);
    }
    s->needed_ns = ready_ns;
    return close_slot(c, k, at_once);
}

static int set_advance(struct server_core *c, struct server_key *k) {
    int64_t step;
    do {
        const struct slot *s = slot_of(c, k, step = k->step);
        uint64_t set = s->contributed && !s->complete ? round_of(c, step)->fixed : 0;
        if ((set && add_set(c, k, set) != 0) || commit_key(c, k) != 0) return -1;
    } while (k->step > step);
    return 0;
}

static int set_fix(struct server_core *c, const struct wire_header *h) {
    struct server_round *r = round_of(c, h->step);
    if (h->step < c->step || h->step >= c->step + c->slots || r->fixed || !h->mask) return 0;
    if (h->mask & ~r->arrived)
        return core_fail(c->error, "step %lld: the scheduler counts on gradients that are not here",
                         (long long)h->step);
    r->fixed = h->mask;
    for (int i = 0; i < c->count; i++)
        if (set_advance(c, &c->keys[i]) != 0) return -1;
    return 0;
}

// The pull of a worker that joins, returns or jumps has the step from which on the worker belongs. The pull may be in a
// push of a step that the key has passed: that push is no longer taken.
static void set_before_pull(struct server_core *c, struct server_key *k, const struct wire_header *h,
                            int64_t want) {
    const struct server_pull *p = &k->pulls[h->rank];
    bool drops = consistency_drops(c->rule), first = c->process_no && h->process_no > 1 && p->seq == 0;
    if (h->kind == WIRE_PULL && (first || (drops && want <= k->step + 1)) && want > k->pushed[h->rank])
        k->pushed[h->rank] = want;
    if (h->kind == WIRE_PUSH && drops && h->seq > p->seq && h->step < k->pushed[h->rank])
        k->staleness[h->rank] = -1;
}

static void set_replace_worker(struct server_core *c, int worker) {
    for (int i = 0; i < c->slots; i++) {
        c->rounds[i].parts[worker] = (struct set_part){0};
        c->rounds[i].arrived &= ~elastic_bit(worker);
    }
}

// It takes the place of push_in_order where a step may lack some workers.
const struct push_policy push_set = {.waiting = whole_step_waiting,
                                     .takes_frames = true,
                                     .copies = true,
                                     .unfit = set_unfit,
                                     .admit = set_admit,
                                     .may_read = in_order_may_read,
                                     .advance = set_advance,
                                     .before_pull = set_before_pull,
                                     .answer = set_answer,
                                     .fix = set_fix,
                                     .replace_worker = set_replace_worker};
