// Pushes that are applied on arrival, each as an update of its own, straight from its frame or segment, or as one of K
// that are averaged (parameter_server.pushes_per_update). The worker of a push has already decided whether to clip or
// skip.
//
//     push  --K = 1-----------------------> optimizer                     weights: as they are when the worker's pull arrives
//           --K > 1--> sum of a g, in fp32 --after K--> mean, rounded once --> optimizer
//
//     K          a worker whose push is in a sum gets the weights as they are, and may push again: K-batch-async (Dutta
//                et al. 2018)
//     max_lead   s: a worker's step t is computed on weights that have the first t - s pushes of every worker that
//                still pushes (SSP, Ho et al. 2013, with updates applied on arrival); s is at least K - 1
//     staleness  max_staleness a: a gradient of an age above a is dropped. It counts as pushed and is acknowledged; its
//                batch is given up and not handed out again. With a = 0 an update is the mean of K gradients that were
//                all computed on the version that it replaces, from any workers: K-batch-sync (Dutta et al. 2018),
//                except that a worker finishes its current batch, which the paper's worker abandons. Age is checked key
//                by key: a gradient may be in time for one key and too old for another
//     age        of a gradient: updates between the weights that it was computed on and those that it is applied to.
//                With age_damping its share a is 1 / max(1, age) instead of 1, and the update's rate is lr times the
//                mean of the a's: for K = 1 lr / age, and for SGD lr / K * sum(g / age) (Zhang et al. 2016, equations 4
//                and 6)
//     cgad       the outer step of local steps (local_steps.outer.type): s g replaces g, s = e^(-alpha age) gate,
//                before it enters Adam's moments (CGAD, Shah and Sun 2026, abstract). The gate falls from 1 at age 0 to
//                0 at the cutoff, and is 0 beyond: here half a wave of the cosine, (1 + cos(pi age / cutoff)) / 2. At
//                age 0 it is Adam
//     lambda     with delay_compensation g + lambda g g (w - w_then) replaces g; w and w_then are the published
//                weights, now and as the worker was sent them (DC-ASGD-c, Zheng et al. 2017, equation 10). A gradient
//                of age 0 does not change. With delay_compensation_decay m lambda / sqrt(s + 1e-7) replaces lambda,
//                element by element, s = m s + (1 - m) g g over every gradient, those of age 0 too, from 0 on
//                (DC-ASGD-a, section 5). For m = 1 s remains 0
//
// A version counts the pushes that the weights hold, hence the job's samples too. An update adds its number of pushes,
// and the moments count updates (skew). When no worker pushes any more, the last update is the mean of the pushes in
// the sum. A skipped push is in no sum. The learning rate is that of the last push. Where batches differ in tokens
// (whole documents), the mean is over the tokens of all of them. A checkpoint leaves out the pushes in the sum: their
// batches are computed again.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_math.h"
#include "ps/job/batches.h"
#include "ps/net/clock.h"
#include "ps/record/arrivals.h"
#include "ps/record/staleness_log.h"
#include "ps/server/server_state.h"
#include "shared/core/error.h"

const void *gradient_decoded(const struct server_core *c, const struct server_key *k,
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

// ---------------------------------------------------------------- what a worker was sent
#define SENT_INITIAL UINT64_MAX

static char *sent_to(const struct server_core *c, const struct server_key *k, int worker) {
    return (char *)k->buf.pulled + (size_t)worker * (size_t)k->n * dtype_size(c->dtype);
}

static void send_copy(const struct server_core *c, struct server_key *k, int worker, uint64_t seq) {
    k->sent[worker] = (struct sent_weights){seq, k->version};
    memcpy(sent_to(c, k, worker), k->buf.weight, (size_t)k->n * dtype_size(c->dtype));
}

// A resent answer is the same as the first.
void answer_as_sent(struct server_core *c, struct server_key *k, int worker, struct ps_message *m) {
    if (!k->sent) return;
    uint64_t seq = k->pulls[worker].seq;
    if (k->sent[worker].seq != seq) send_copy(c, k, worker, seq);
    m->header.updates -= age_of(c, k->version - k->sent[worker].version);
    m->header.version = k->sent[worker].version;
    m->payload = sent_to(c, k, worker);
}

// Called before the weights change: a worker that has not pulled yet computes on the initial weights.
static void copy_initial(const struct server_core *c, struct server_key *k) {
    for (int w = 0; k->sent && w < c->rule.workers; w++)
        if (!k->sent[w].seq) send_copy(c, k, w, SENT_INITIAL);
}

// ---------------------------------------------------------------- sums
#define CHUNK 1024  // elements

// A gradient's weight in the mean, by its age.
static double share_of(const struct server_core *c, uint64_t age) {
    return c->o.config->ps.age_damping && age > 1 ? 1.0 / (double)age : 1.0;
}

static float cgad_share(const struct server_core *c, uint64_t age) {
    const struct local_steps_config *l = &c->o.config->local_steps;
    double cutoff = l->age_cutoff, gate = 1;
    if (!c->o.config->outer_run || !outer_rows[l->outer].by_age) return 1;
    if (cutoff > 0) gate = (double)age < cutoff ? (1 + exact_cosine(M_PI * (double)age / cutoff)) / 2 : 0;
    return (float)(gate * exact_exp(-(double)l->age_decay * (double)age));
}

static bool is_too_old(const struct server_core *c, uint64_t age) {
    int64_t most = c->o.config->ps.max_staleness;
    return most >= 0 && age > (uint64_t)most;
}

static bool is_used(const struct server_core *c, uint32_t flags, uint64_t age) {
    return !(flags & WIRE_SKIP) && !is_too_old(c, age);
}

int64_t age_for_worker(const struct server_core *c, uint32_t flags, uint64_t age) {
    return is_used(c, flags, age) ? (int64_t)age : -1;
}

void gradient_widen(float *out, const void *in, int64_t at, int64_t n, enum dtype from) {
    const char *why = "", *begin = (const char *)in + (size_t)at * dtype_size(from);
    cpu_ops[OP_CAST](1, &(struct cast_args){.out = out, .in = begin, .n = n, .from = from, .to = DT_F32},
                     &why);
}

#define SQUARE_LEAST 1e-7f

// For a gradient that is not skipped, before it is compensated.
static void add_squares(const struct server_core *c, struct server_key *k, const void *grad, float scale) {
    float x[CHUNK], m = c->o.config->ps.delay_decay;
    for (int64_t at = 0; at < k->n && k->buf.own; at += CHUNK) {
        int64_t n = k->n - at < CHUNK ? k->n - at : CHUNK;
        float *s = k->buf.own + at;
        gradient_widen(x, grad, at, n, c->dtype);
        for (int64_t i = 0; i < n; i++) x[i] *= scale;
        for (int64_t i = 0; i < n; i++) s[i] = fmaf(m, s[i], (1 - m) * x[i] * x[i]);
    }
}

// acc = [acc +] share * (x + lambda x x (w - w_then)), where x is the gradient times scale: without its loss scale,
// clipped.
static void add_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                     const void *grad, float scale, double damped) {
    struct open_sum *s = &k->sum;
    double tokens = h->tokens > 0 ? (double)h->tokens : 1, share = damped * tokens;
    float x[CHUNK], now[CHUNK], then[CHUNK], lambda = c->o.config->ps.delay_compensation, a = (float)share;
    bool compensates = k->sent && h->version < k->version, first = s->pushes == 0;
    for (int64_t at = 0; at < k->n; at += CHUNK) {
        int64_t n = k->n - at < CHUNK ? k->n - at : CHUNK;
        float *acc = k->buf.acc + at;
        gradient_widen(x, grad, at, n, c->dtype);
        for (int64_t i = 0; i < n; i++) x[i] *= scale;
        if (compensates) {
            gradient_widen(now, k->buf.weight, at, n, c->dtype);
            gradient_widen(then, sent_to(c, k, h->rank), at, n, c->dtype);
            for (int64_t i = 0; i < n; i++) {
                float one = k->buf.own ? lambda / sqrtf(k->buf.own[at + i] + SQUARE_LEAST) : lambda;
                x[i] = fmaf(one * x[i] * x[i], now[i] - then[i], x[i]);
            }
        }
        for (int64_t i = 0; i < n; i++) acc[i] = first ? a * x[i] : fmaf(a, x[i], acc[i]);
    }
    // In fp16 the mean is rounded in units of the largest 1 / loss scale of its pushes, so that no value is too large.
    // The unit of a push is the least power of two >= scale. frexpf returns scale as m 2^e with m in [1/2, 1).
    float unit = 1.0f;
    if (c->dtype == DT_F16 && scale > 0) {
        int e;
        float m = frexpf(scale, &e);
        unit = ldexpf(1.0f, m == 0.5f ? e - 1 : e);
    }
    s->unit = first || unit > s->unit ? unit : s->unit;
    s->weight = first ? share : s->weight + share;
    s->tokens = first ? tokens : s->tokens + tokens;
    s->lr = h->lr;
    s->of[s->pushes++] = (struct summed){h->batch, h->rank};
}

static int commit_sum(struct server_core *c, struct server_key *k) {
    struct open_sum *s = &k->sum;
    const struct sum_args a = {.acc = k->buf.acc,
                               .n = k->n,
                               .dtype = c->dtype,
                               .scale = (float)(1.0 / (s->weight * (double)s->unit))};
    const struct update_scalars scalars = {.grad_scale = s->unit};
    sum_finish(&a, 0, k->n, k->buf.acc);
    copy_initial(c, k);
    if (apply(c, k, k->buf.acc, s->lr * (float)(s->weight / s->tokens), &scalars) != 0) return -1;
    k->version += s->pushes - 1;
    k->skew -= s->pushes - 1;
    s->pushes = 0;
    return 0;
}

int commit_last_sum(struct server_core *c, struct server_key *k) {
    k->sum.ends = true;
    if (!k->sum.pushes) return 0;
    if (commit_sum(c, k) != 0) return -1;
    answer_pulls(c, k);
    return 0;
}

// ---------------------------------------------------------------- pushes
// Applies the gradient, or adds it to the sum.
static int take_gradient(struct server_core *c, struct server_key *k, const struct wire_header *h,
                         const void *grad, uint64_t age) {
    const struct update_scalars scalars = {.grad_scale = h->grad_scale * cgad_share(c, age),
                                           .skip = (h->flags & WIRE_SKIP) != 0};
    bool as_it_is = c->rule.per_update == 1 && (!k->sent || h->version == k->version);
    double share = share_of(c, age);
    if (!is_used(c, h->flags, age)) return 0;
    add_squares(c, k, grad, scalars.grad_scale);
    if (as_it_is) {
        work_on(c, SERVER_UPDATE, of_push(k, h->rank, h->step));
        copy_initial(c, k);
        return apply(c, k, grad, h->lr * (float)share, &scalars);
    }
    work_on(c, SERVER_SUM, of_push(k, h->rank, h->step));
    add_push(c, k, h, grad, scalars.grad_scale, share);
    if (k->sum.pushes < c->rule.per_update && !k->sum.ends) return 0;
    work_on(c, SERVER_UPDATE, of_push(k, h->rank, h->step));
    return commit_sum(c, k);
}

int on_arrival_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                     const struct gradient *g) {
    int64_t behind = k->version - h->version;
    uint64_t age = (uint64_t)age_of(c, behind);
    int words = batches_words(c->o.config), w = h->rank;
    if (batches_has(k->batches, words, h->batch)) {
        c->totals.duplicates++;
        ps_frame_release(g->frame);
    } else {
        const void *grad = c->code.kind == CODE_NONE ? g->data : gradient_decoded(c, k, g);
        const struct arrival arrival = {w, (uint32_t)h->version, (uint32_t)behind, h->batch};
        if (is_used(c, h->flags, age)) count_age(c, h, grad, age);
        if (c->o.record) arrivals_note(c->o.record, k->key, &arrival);
        batches_add(k->batches, words, h->batch);
        int rc = take_gradient(c, k, h, grad, age);
        ps_frame_release(g->frame);
        if (rc != 0) return -1;
        c->totals.dropped += is_too_old(c, age);
        c->totals.pushes++;
        c->totals.steps = (double)++c->applied / ((double)c->count * c->rule.workers);
    }
    // Acknowledges the push, answers the pulls that waited for it, and keeps the key for a checkpoint.
    k->pushed[w] = h->step + 1;
    k->staleness[w] = age_for_worker(c, h->flags, age);
    k->slots->ready_ns[w] = h->ready_ns;
    if (g->frame || !k->pulls[w].pending) acknowledge(c, k, w, h->step, false);
    for (int r = 0; r < c->rule.workers; r++)
        if (r != w && pull_ready(c, k, r))
            k->slots->ready_ns[r] = ps_later(k->slots->ready_ns[r], k->slots->ready_ns[w]);
    answer_pulls(c, k);
    if (checkpoint_wanted(c, h)) checkpoint_key(c, k, h->step + 1, false);
    return 0;
}

const char *on_arrival_unfit(const struct server_core *c, const struct server_key *k,
                             const struct wire_header *h) {
    bool fits = h->batch < batches_total(c->o.config) &&
                batches_fits(k->batches, batches_words(c->o.config), h->batch);
    return fits ? NULL : "its batch is none that the job has handed out";
}

// Pushes of the worker that the weights do not have yet: they are in a sum that is not applied.
static int64_t pushes_in_sum(const struct server_key *k, int worker) {
    int64_t n = 0;
    for (int i = 0; i < k->sum.pushes; i++) n += k->sum.of[i].worker == worker;
    return n;
}

// Whether the worker may have weights without the last max_lead pushes of others, but with all earlier ones. An open
// sum has at most K - 1 pushes, which is at most max_lead (ps/star.c), so the slowest worker always may.
static bool is_within_lead(const struct server_core *c, const struct server_key *k, int worker) {
    int64_t lead = c->o.config->ps.max_lead, want = k->pulls[worker].want;
    for (int w = 0; w < c->rule.workers && lead > 0; w++)
        if (!c->over[w] && k->pushed[w] - pushes_in_sum(k, w) < want - lead) return false;
    return true;
}

// A worker that no longer pushes computes no gradient on the weights, so it may read any.
static bool on_arrival_may_read(const struct server_core *c, const struct server_key *k, int worker) {
    if (k->pushed[worker] < k->pulls[worker].want) return false;
    return c->over[worker] || is_within_lead(c, k, worker);
}

// Answers pulls that waited for a worker which no longer pushes.
static int on_arrival_over(struct server_core *c, int worker) {
    (void)worker;
    for (int i = 0; i < c->count; i++) answer_pulls(c, &c->keys[i]);
    return 0;
}

int64_t on_arrival_bytes(const struct config *c) {
    return batches_words(c) * (int64_t)sizeof(int64_t) +
           consistency_of(c).per_update * (int64_t)sizeof(struct summed) +
           c->workers * (int64_t)sizeof(struct sent_weights);
}

void on_arrival_open(struct server_core *c, struct server_key *k) {
    int words = batches_words(c->o.config);
    k->batches = xcalloc((unsigned long)words, sizeof *k->batches);
    batches_clear(k->batches, words);
    k->sum.of = xcalloc((unsigned long)c->rule.per_update, sizeof *k->sum.of);
    if (k->buf.pulled) k->sent = xcalloc((unsigned long)c->rule.workers, sizeof *k->sent);
}

// own: (n) the mean of squared gradients.
void on_arrival_carve(struct arena *a, const struct config *c, int64_t n, struct server_buffers *out) {
    size_t copies = (size_t)n * dtype_size(c->dtype) * (size_t)c->workers;
    if (c->ps.delay_compensation > 0) out->pulled = arena_take(a, MEM_SERVER, copies);
    if (c->ps.delay_decay > 0) out->own = arena_take(a, MEM_SERVER, (size_t)n * sizeof(float));
}

const struct push_policy push_on_arrival = {.replayed = PUSH_REPLAYED,
                                            .codes = true,
                                            .carve = on_arrival_carve,
                                            .key_bytes = on_arrival_bytes,
                                            .copies = true,
                                            .unfit = on_arrival_unfit,
                                            .admit = on_arrival_admit,
                                            .may_read = on_arrival_may_read,
                                            .answer = answer_as_sent,
                                            .over = on_arrival_over,
                                            .end = commit_last_sum,
                                            .open = on_arrival_open};
