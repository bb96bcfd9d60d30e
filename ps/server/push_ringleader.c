// Ringleader ASGD (Maranjyan and Richtarik 2025, arXiv 2509.22860, Algorithms 1 and 2): asynchronous updates that weigh
// every worker equally, however fast it is, with a bounded delay. Each worker has one entry in a table: the sum G of its
// gradients and their number b. Every update uses the whole table, the mean per worker and then over the N workers:
//
//     x <- optimizer(x, 1/N sum_i G_i / b_i)            (with SGD: x - lr 1/N sum_i G_i / b_i)
//
// Time is cut into rounds of N updates, one for each worker:
//
//     phase 1    a push of worker i          G_i += g, b_i += 1. i computes on with the model that it has
//                until every b_i >= 1        the last of these pushes is the first of phase 2
//     phase 2    a push of worker i that     G_i += g, b_i += 1; one update; i gets the new model
//                has no update yet
//                a push of worker i that     G'_i += g, b'_i += 1: the table of the next round. i computes on with the
//                has had its update          model that it got
//     after N updates: G, b = G', b', and the next round begins. No gradient is thrown away.
//
// So a worker gets a new model once a round, all gradients in an entry are of one model, and a gradient is at most
// 2N - 2 updates old when it is used (the paper's Lemma on delays). Workers never wait for each other: a worker whose
// model stays the same gets a copy of it, as fast as the order of its push is known.
//
// One order for all keys    The paper has one x. So all keys take pushes in one order, which the scheduler fixes when a
//                           push has arrived at every shard (consistency_row.ordered): ARRIVED (worker), then SET
//                           (position, worker). With that order each key does the same, without a further message.
// Memory of a key           own (N, n) fp32: row i is G_i; when i has had its update, its row is G'_i, since the mean
//                           of its G_i is in part_acc. part_acc (n): the sum of the means of workers that have had
//                           their update, in the order of these. pulled (N, n): each worker's model.
// Version                   counts the pushes in the table, as where each push is an update of its own. The moments
//                           count updates (skew).
// Age                       updates between a push's model and the first update that uses the push. It is known when the
//                           push is taken: a push into G' is first used by the next round's first update.
// The end                   Pushes that no update has used when nobody pushes any more are in no update, and the
//                           version does not count them.
// A checkpoint              has no table. A job that resumes begins a round; the gradients in the table are given up.
// A skipped push            (not finite, with clipping) is in no entry, and no update follows it.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps/agree/step_set.h"
#include "ps/job/batches.h"
#include "ps/record/arrivals.h"
#include "ps/server/server_state.h"
#include "shared/core/error.h"

struct table_entry {
    struct held_push push;  // the header of the push whose gradient is held until the push is next in order
    double count;           // b, or b' after its update; in tokens if batches differ in them
    bool updated;           // the worker has had its update of this round
    int64_t model;          // the number of updates in the worker's model
    int64_t version;        // the key's version when the worker's last push was taken
};

struct table_key {
    int workers;
    bool begun;  // there was an update: buf.pulled has the workers' models. Else all have the key's weights
    int64_t taken;     // pushes taken from all workers: the next position in the order
    int64_t updates;   // updates by this process
    int updated;       // updates in this round; 0: phase 1
    int unused, next;  // pushes in G that no update has used; pushes in G'
    int *order;        // (N) the worker at position p, at p mod N; -1: not known yet
    struct table_entry w[];
};

static char *model_of(const struct server_core *c, const struct server_key *k, int worker) {
    return (char *)k->buf.pulled + (size_t)worker * (size_t)k->n * dtype_size(c->dtype);
}
static void give_model(const struct server_core *c, const struct server_key *k, int worker) {
    memcpy(model_of(c, k, worker), k->buf.weight, (size_t)k->n * dtype_size(c->dtype));
}

// ---------------------------------------------------------------- the table
#define CHUNK 1024  // elements

static float *row_of(const struct server_key *k, int worker) { return k->buf.own + (int64_t)worker * k->n; }

// row [+]= tokens * scale * gradient. scale: without its loss scale, clipped.
static void add_to_entry(const struct server_core *c, struct server_key *k, const struct wire_header *h,
                         const void *grad) {
    struct table_key *r = k->own;
    struct table_entry *x = &r->w[h->rank];
    float chunk[CHUNK], *row = row_of(k, h->rank), a = h->tokens > 0 ? (float)h->tokens : 1.0f;
    for (int64_t at = 0; at < k->n; at += CHUNK) {
        int64_t n = k->n - at < CHUNK ? k->n - at : CHUNK;
        gradient_widen(chunk, grad, at, n, c->dtype);
        for (int64_t i = 0; i < n; i++) {
            float g = chunk[i] * h->grad_scale;
            row[at + i] = x->count > 0 ? fmaf(a, g, row[at + i]) : a * g;
        }
    }
    x->count += (double)a;
    if (x->updated)
        r->next++;
    else
        r->unused++;
}

// out = row / count, or out += row / count if this is not the first.
static void add_mean(const struct server_key *k, float *out, int worker, bool first) {
    const struct table_key *r = k->own;
    const float *row = row_of(k, worker), share = (float)(1.0 / r->w[worker].count);
    for (int64_t i = 0; i < k->n; i++) out[i] = first ? share * row[i] : fmaf(share, row[i], out[i]);
}

static bool is_full(const struct table_key *r) {
    for (int w = 0; w < r->workers; w++)
        if (!r->w[w].updated && !(r->w[w].count > 0)) return false;
    return true;
}

// Makes one update from the whole table, and gives `worker` the new model.
static int update(struct server_core *c, struct server_key *k, int worker, float lr) {
    static const struct update_scalars plain = {.grad_scale = 1.0f};
    struct table_key *r = k->own;
    struct table_entry *x = &r->w[worker];
    work_on(c, SERVER_UPDATE, of_push(k, worker, x->push.step));
    // 1. The worker's entry is complete: its mean joins those of the workers before it, and its row is free for G'.
    add_mean(k, k->buf.part_acc, worker, r->updated == 0);
    x->updated = true;
    x->count = 0;
    r->updated++;
    // 2. The direction: their means, then those of the others in worker order, rounded once.
    memcpy(k->buf.acc, k->buf.part_acc, (size_t)k->n * sizeof(float));
    for (int w = 0; w < r->workers; w++)
        if (!r->w[w].updated) add_mean(k, k->buf.acc, w, false);
    const struct sum_args a = {
        .acc = k->buf.acc, .n = k->n, .dtype = c->dtype, .scale = 1.0f / (float)r->workers};
    sum_finish(&a, 0, k->n, k->buf.acc);
    // 3. Until the first update all workers compute on the weights that it replaces.
    for (int w = 0; w < r->workers && !r->begun; w++) give_model(c, k, w);
    r->begun = true;
    if (apply(c, k, k->buf.acc, lr, &plain) != 0) return -1;
    k->version--;
    k->skew++;
    give_model(c, k, worker);
    x->model = ++r->updates;
    r->unused = 0;
    // 4. The last update of the round: G' is the table of the next one.
    if (r->updated < r->workers) return 0;
    for (int w = 0; w < r->workers; w++) r->w[w].updated = false;
    r->updated = 0;
    r->unused = r->next;
    r->next = 0;
    return 0;
}

// ---------------------------------------------------------------- pushes
static int64_t age_in_table(const struct table_key *r, int worker) {
    const struct table_entry *x = &r->w[worker];
    int64_t first_use = x->updated ? r->updates - r->updated + r->workers : r->updates;
    return first_use - x->model;
}

// Takes the worker's held push, which is next in order.
static int take(struct server_core *c, struct server_key *k, int w) {
    struct table_key *r = k->own;
    struct table_entry *x = &r->w[w];
    const struct gradient g = k->slots->held[w];
    const struct wire_header h = held_push_header(&x->push, k->key, w);
    int words = batches_words(c->o.config), rc = 0;
    bool known = batches_has(k->batches, words, h.batch), uses = !known && !(h.flags & WIRE_SKIP);
    k->staleness[w] = uses ? age_in_table(r, w) : -1;
    if (c->o.record && !known) {
        const struct arrival a = {w, (uint32_t)h.version, (uint32_t)(k->version - h.version), h.batch};
        arrivals_note(c->o.record, k->key, &a);
    }
    if (uses) {
        const void *grad = c->code.kind == CODE_NONE ? g.data : gradient_decoded(c, k, &g);
        work_on(c, SERVER_SUM, of_push(k, w, h.step));
        count_age(c, &h, grad, (uint64_t)k->staleness[w]);
        add_to_entry(c, k, &h, grad);
        k->version++;
        k->skew--;
        if (!x->updated && is_full(r)) rc = update(c, k, w, h.lr);
    }
    gradient_release(c, &k->slots->held[w]);
    if (rc != 0) return -1;
    c->totals.duplicates += known;
    if (!known) {
        batches_add(k->batches, words, h.batch);
        c->totals.pushes++;
        c->totals.steps = (double)++c->applied / ((double)c->count * c->rule.workers);
    }
    r->taken++;
    x->version = k->version;
    k->slots->ready_ns[w] = h.ready_ns;
    if (!g.frame && !k->pulls[w].pending) acknowledge(c, k, w, h.step, false);
    answer_pulls(c, k);
    if (checkpoint_wanted(c, &h)) checkpoint_key(c, k, h.step + 1, false);
    return 0;
}

// Takes pushes as far as their order is known, from the scheduler or from a recording.
static int table_advance(struct server_core *c, struct server_key *k) {
    struct table_key *r = k->own;
    for (;;) {
        const struct arrival *a = c->o.replay ? arrivals_at(c->o.replay, k->key, r->taken) : NULL;
        int *next = &r->order[r->taken % r->workers], w = c->o.replay ? (a ? a->worker : -1) : *next;
        if (w < 0 || !is_held(k, w)) return 0;
        if (a && check_recorded(c, k, &r->w[w].push, a) != 0) return -1;
        *next = -1;
        if (take(c, k, w) != 0) return -1;
    }
}

static int table_admit(struct server_core *c, struct server_key *k, const struct wire_header *h,
                       const struct gradient *g) {
    struct table_key *r = k->own;
    int w = h->rank;
    r->w[w].push = held_push_of(h);
    gradient_hold(c, &k->slots->held[w], g);
    update_held_peak(c);
    k->pushed[w] = h->step + 1;
    if (g->frame) acknowledge(c, k, w, h->step, false);  // the answer with the weights has its age
    if (c->o.replay) return table_advance(c, k);
    struct set_part *part = &c->rounds->parts[w];
    if (++part->keys < c->count) return 0;
    part->keys = 0;
    port_tell(&c->o.port, PEER_SCHEDULER,
              &(struct wire_header){.kind = WIRE_ARRIVED, .step = h->step, .mask = elastic_bit(w)});
    return 0;
}

// The scheduler has fixed which worker's push is at a position of the order.
static int table_fix(struct server_core *c, const struct wire_header *h) {
    int w = h->mask ? __builtin_ctzll(h->mask) : c->rule.workers;
    for (int i = 0; i < c->count; i++) {
        struct server_key *k = &c->keys[i];
        struct table_key *r = k->own;
        if (w >= r->workers || h->step < r->taken || h->step >= r->taken + r->workers || !is_held(k, w))
            return core_fail(c->error,
                             "key %d: the scheduler has put a push of worker %d, which is not here, at "
                             "position %lld of the order",
                             k->key, w, (long long)h->step);
        r->order[h->step % r->workers] = w;
        if (table_advance(c, k) != 0) return -1;
    }
    return 0;
}

// ---------------------------------------------------------------- pulls, and the end
static bool table_may_read(const struct server_core *c, const struct server_key *k, int worker) {
    (void)c;
    return k->pushed[worker] - is_held(k, worker) >= k->pulls[worker].want;
}

// Answers with the worker's own model, or with the newest weights if the worker no longer pushes. A resent answer is
// the same as the first.
static void table_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m) {
    const struct table_key *r = k->own;
    if (k->pulls[worker].final) return;
    if (r->begun) m->payload = model_of(c, k, worker);
    m->header.updates -= r->updates - r->w[worker].model;
    m->header.version = r->w[worker].version;
}

static int table_end(struct server_core *c, struct server_key *k) {
    (void)c;
    struct table_key *r = k->own;
    int unused = r->unused + r->next;
    k->version -= unused;
    k->skew += unused;
    r->unused = r->next = 0;
    return 0;
}

// ---------------------------------------------------------------- the policy
static void table_open(struct server_core *c, struct server_key *k) {
    unsigned long workers = (unsigned long)c->rule.workers;
    on_arrival_open(c, k);
    struct table_key *r = k->own = xcalloc(1, sizeof *r + workers * sizeof *r->w);
    r->workers = c->rule.workers;
    r->order = xcalloc(workers, sizeof *r->order);
    for (int w = 0; w < r->workers; w++) r->order[w] = -1;
}

static void table_close(struct server_key *k) {
    free(((struct table_key *)k->own)->order);
    free(k->own);
}

static int64_t table_bytes(const struct config *c) {
    return on_arrival_bytes(c) + (int64_t)sizeof(struct table_key) +
           c->workers * (int64_t)(sizeof(struct table_entry) + sizeof(int));
}

static void table_carve(struct arena *a, const struct config *c, int64_t n, struct server_buffers *out) {
    size_t elements = (size_t)n * (size_t)c->workers;
    out->part_acc = arena_take(a, MEM_GRADIENT, (size_t)n * sizeof(float));
    out->own = arena_take(a, MEM_SERVER, elements * sizeof(float));
    out->pulled = arena_take(a, MEM_SERVER, elements * dtype_size(c->dtype));
}

static size_t table_textbook(const struct config *c) {
    return (size_t)c->workers * (sizeof(float) + dtype_size(c->dtype)) + sizeof(float);
}

const struct push_policy push_ringleader = {.replayed = PUSH_RINGLEADER,
                                            .codes = true,
                                            .carve = table_carve,
                                            .textbook = table_textbook,
                                            .key_bytes = table_bytes,
                                            .waiting = whole_step_waiting,
                                            .takes_frames = true,
                                            .copies = true,
                                            .unfit = on_arrival_unfit,
                                            .admit = table_admit,
                                            .may_read = table_may_read,
                                            .advance = table_advance,
                                            .fix = table_fix,
                                            .end = table_end,
                                            .answer = table_answer,
                                            .open = table_open,
                                            .close = table_close};
