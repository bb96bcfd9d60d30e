// Workers that run ahead: cores of workers and of the scheduler whose steps are open two or three at a time, before a server
// in plain loops that adds the gradients of its keys' oldest step in worker order and answers pulls as early as bounded delay
// lets it, and before the star's own. Under any faults of the network the workers computed on the versions that they were given, and the
// weights at the end are those of a plain trainer that uses these versions.
#include <unistd.h>
#include <xxhash.h>

#include "ps/record/arrivals.h"
#include "ps/worker/worker_core_state.h"
#include "test_ps_sim.h"

#define SLOTS_MAX 3

// One key at the server.
struct plain_key {
    float *weights[SIM_STEPS + 1];  // (n) after so many steps
    int64_t clock;                  // steps committed
    bool got[SLOTS_MAX][SIM_WORKERS];
    const void
        *from[SLOTS_MAX][SIM_WORKERS];    // where it lies in the worker's segment; NULL: it came in a frame
    int turn[SLOTS_MAX];                  // workers whose gradients are taken, in worker order
    float *grad[SLOTS_MAX][SIM_WORKERS];  // (n)
    struct {
        bool pending;
        int64_t want;
        uint64_t seq, reply_offset;
    } pull[SIM_WORKERS];
    int64_t used[SIM_WORKERS][SIM_STEPS];  // the version that the worker's step was computed on
};

struct plain {
    struct sim *sim;
    struct plain_key *keys;      // (map->count)
    int complete[8][SIM_STEPS];  // (shards): keys that have committed the step
    const struct sim_order *order;
    bool exact;          // a pull of step t is answered with version max(0, t - lead), else with the newest
    bool ahead;          // workers do not wait for a step's weights, but for those of `lead` steps before
    bool own;            // the servers are the star's
    struct toy_ref ref;  // before them: the plain trainer's optimizer, behind `known` steps
    int64_t known;
    int begun[SIM_STEPS + 1];     // workers that have begun the step
    int unheard;                  // steps that a worker began before it had heard how the one before ended
    uint64_t age[2 * SLOTS_MAX];  // keys whose step was computed on weights so many steps old
    int overtaken;                // reports and sums of a step that was not the oldest
};
static struct plain *plain;  // one simulation at a time

static int64_t size_of(const struct sim *s, int key) {
    return s->map->parts[key].end - s->map->parts[key].begin;
}

static void tell(struct sim *s, int g, int peer, struct ps_message *m) {
    const struct ps_port port = star_link_port(s->shard_links[g]);
    port.send(port.ctx, peer, m);
}

// ---------------------------------------------------------------- the server
// The one definition of a step, for the server and for the plain trainer.
static void plain_update(float *next, const float *weights, float *const *grads, int workers, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int w = 0; w < workers; w++) sum += grads[w][i];
        next[i] = weights[i] - TOY_LR * sum;
    }
}

// The first step whose push of worker w is not taken.
static int64_t pending_pushes(const struct sim *s, const struct plain_key *k, int w) {
    int64_t step = k->clock;
    while (step <= k->clock + s->t.lead && k->turn[step % (1 + s->t.lead)] > w) step++;
    return step;
}

static void answer(struct sim *s, int key, int w) {
    struct plain_key *k = &plain->keys[key];
    int lead = s->t.lead;
    int64_t want = k->pull[w].want, version = plain->exact ? (want > lead ? want - lead : 0) : k->clock;
    int64_t lacks = want - pending_pushes(s, k, w);
    if (!k->pull[w].pending || k->clock < want - lead) return;
    k->pull[w].pending = false;
    struct ps_message m = {.header = {.kind = WIRE_PULL_REPLY,
                                      .key = key,
                                      .step = want,
                                      .version = version,
                                      .seq = k->pull[w].seq,
                                      .pending_pushes = lacks > 0 ? lacks : 0},
                           .payload = k->weights[version],
                           .bytes = (size_t)size_of(s, key) * sizeof(float)};
    if (k->pull[w].reply_offset) {
        memcpy(s->workers[w].segment + k->pull[w].reply_offset, m.payload, m.bytes);
        m.header.data_bytes = m.bytes;
        m = (struct ps_message){.header = m.header};
    }
    tell(s, s->map->parts[key].shard, w, &m);
}

// Gradients of a step whose turn it is. Weights that leave at once tell the worker so, or, where no credit is to be given
// back, some that it has asked for; else a word of its own does.
static void take_turns(struct sim *s, int key, int64_t step) {
    struct plain_key *k = &plain->keys[key];
    int slot = (int)(step % (1 + s->t.lead));
    bool commits = step == k->clock;
    for (int w = 0; w < s->t.workers; w++) commits = commits && k->got[slot][w];
    for (int w; (w = k->turn[slot]) < s->t.workers && k->got[slot][w];) {
        struct ps_message ack = {.header = {.kind = WIRE_PUSH_ACK, .key = key, .step = step}};
        k->turn[slot]++;
        const void *from = k->from[slot][w];
        bool told =
            (from ? pending_pushes(s, k, w) > step : commits) && k->pull[w].pending && k->pull[w].want > step;
        if (from) memcpy(k->grad[slot][w], from, (size_t)size_of(s, key) * sizeof(float));
        if (!told) tell(s, s->map->parts[key].shard, w, &ack);
    }
}

static bool commit(struct sim *s, int key) {
    struct plain_key *k = &plain->keys[key];
    int g = s->map->parts[key].shard, slot = (int)(k->clock % (1 + s->t.lead));
    if (k->turn[slot] < s->t.workers) return false;
    plain_update(k->weights[k->clock + 1], k->weights[k->clock], k->grad[slot], s->t.workers,
                 size_of(s, key));
    memset(k->got[slot], 0, sizeof k->got[slot]);
    k->turn[slot] = 0;
    int64_t step = k->clock++;
    for (int w = 0; w < s->t.workers; w++) answer(s, key, w);
    if (++plain->complete[g][step] < s->map->shard_keys[g]) return true;
    struct ps_message sum = {.header = {.kind = WIRE_SHARD_SUM, .step = step, .has_sum = true}};
    tell(s, g, PEER_SCHEDULER, &sum);
    return true;
}

static void on_push(struct sim *s, const struct wire_header *h, const struct ps_frame *f) {
    struct plain_key *k = &plain->keys[h->key];
    int slot = (int)(h->step % (1 + s->t.lead)), w = h->rank;
    assert_in_range(h->step, k->clock, k->clock + s->t.lead);
    assert_false(k->got[slot][w]);
    assert_int_equal(f ? f->bytes : h->data_bytes, (size_t)size_of(s, h->key) * sizeof(float));
    if (f) memcpy(k->grad[slot][w], f->data, f->bytes);
    k->from[slot][w] = f ? NULL : s->workers[w].segment + h->data_offset;
    k->got[slot][w] = true;
    struct ps_message held = {
        .header = {.kind = WIRE_PUSH_ACK, .key = h->key, .step = h->step, .flags = WIRE_HELD}};
    if (k->turn[slot] < w) tell(s, s->map->parts[h->key].shard, w, &held);
    if (h->seq > k->pull[w].seq) {  // else a later one has come before it
        k->pull[w].pending = true;
        k->pull[w].want = h->step + 1;
        k->pull[w].seq = h->seq;
        k->pull[w].reply_offset = h->reply_offset;
        answer(s, h->key, w);
    }
    take_turns(s, h->key, h->step);
    while (commit(s, h->key)) continue;
}

// The scheduler's open step.
static int64_t oldest(const struct sim *s) {
    int64_t steps = scheduler_core_steps(s->scheduler);
    return steps < 0 ? 0 : steps;
}

static bool takes(struct sim *s, const struct sim_packet *p, struct wire_header *h, struct ps_frame *f) {
    int g = p->to.index;
    if (p->to.role == PS_SCHEDULER)
        plain->overtaken += (h->kind == WIRE_REPORT || h->kind == WIRE_SHARD_SUM) && h->step > oldest(s);
    if (p->to.role != PS_SHARD) return false;
    bool fresh = star_link_receive(s->shard_links[g],
                                   p->from.role == PS_SCHEDULER ? PEER_SCHEDULER : p->from.index, h, s->now);
    if (fresh && h->kind == WIRE_INIT) {
        struct ps_message ack = {.header = {.kind = WIRE_INIT_ACK, .key = h->key, .seq = h->seq}};
        memcpy(plain->keys[h->key].weights[0], f->data, f->bytes);
        tell(s, g, h->rank, &ack);
    } else if (fresh && h->kind == WIRE_PUSH) {
        on_push(s, h, f);
    }
    ps_frame_release(f);
    return true;
}

// A message that no worker waits for is not resent: weights for which the worker has asked for newer ones.
static bool renews(struct sim *s, int g, int peer, struct ps_message *m) {
    (void)s, (void)g;
    return m->header.seq == plain->keys[m->header.key].pull[peer].seq;
}

// ---------------------------------------------------------------- the workers
static void train_plainly(const struct sim *s);

// Notes which version of each key x's step is computed on.
static void note_versions(struct sim *s, struct sim_worker *x) {
    int64_t lead = s->t.lead, least = x->step - lead - (plain->ahead ? lead : 0);
    int64_t drained = s->keep_every ? x->step / s->keep_every * s->keep_every : 0;
    if (least < drained) least = drained;
    for (int key = 0; key < s->map->count; key++) {
        const struct partition *p = &s->map->parts[key];
        struct plain_key *k = &plain->keys[key];
        bool exact = plain->exact && !plain->ahead;
        int64_t v = exact ? least : plain->own ? x->core->keys[key].version : k->clock;
        const float *has = (const float *)x->weights[p->unit] + p->begin;
        while (!exact && !plain->own && v > 0 &&
               memcmp(has, k->weights[v], (size_t)size_of(s, key) * sizeof(float)) != 0)
            v--;
        assert_memory_equal(has, k->weights[v], (size_t)size_of(s, key) * sizeof(float));
        assert_true(v >= least && v <= x->step);
        k->used[x->end.index][x->step] = v;
        if (x->step < s->t.steps) plain->age[x->step - v]++;
    }
    plain->begun[x->step]++;
    plain->unheard += worker_core_status(x->core)->steps_done < x->step;
    if (plain->own) train_plainly(s);
}

// A gradient that counts as acknowledged is the server's.
static void check_acknowledged(struct sim *s) {
    for (int i = 0; i < s->t.workers * s->l->count; i++) {
        int w = i / s->l->count, u = i % s->l->count;
        for (int64_t slot = 0; slot <= s->t.lead; slot++) {
            const struct unit_times *at = worker_core_times(s->workers[w].core, u, slot);
            for (int key = s->map->first[u]; key < s->map->first[u + 1] && at->acknowledged_ns; key++) {
                const struct plain_key *k = &plain->keys[key];
                assert_true(at->step < k->clock || k->turn[slot] > w);
            }
        }
    }
}

// ---------------------------------------------------------------- the plain trainer
// Gradients of the workers' step on the versions that they had.
static void grads_of(const struct sim *s, int u, int64_t step, float *const *grads) {
    float *weights = xcalloc((unsigned long)s->l->units[u].n_pad, sizeof *weights);
    for (int w = 0; w < s->t.workers; w++) {
        for (int key = s->map->first[u]; key < s->map->first[u + 1]; key++) {
            const struct plain_key *k = &plain->keys[key];
            memcpy(weights + s->map->parts[key].begin, k->weights[k->used[w][step]],
                   (size_t)size_of(s, key) * sizeof(float));
        }
        toy_grad(&s->t, s->l, u, w, step, weights, grads[w]);
    }
    free(weights);
}

// The steps that all workers have begun, by the star's own optimizer.
static void train_plainly(const struct sim *s) {
    struct toy_ref *r = &plain->ref;
    while (plain->known < s->t.steps && plain->begun[plain->known] == s->t.workers) {
        struct exact_sum sum = {{0}, 0};
        float *total[TOY_UNITS];
        const char *why = "";
        int64_t step = plain->known++;
        for (int u = 0; u < s->l->count; u++) {
            int64_t n = s->l->units[u].n_pad;
            float *grads[SIM_WORKERS];
            for (int w = 0; w < SIM_WORKERS; w++) grads[w] = xcalloc((unsigned long)n, sizeof(float));
            total[u] = xcalloc((unsigned long)n, sizeof(float));
            grads_of(s, u, step, grads);
            toy_reduce(&s->t, total[u], (void *const *)grads, n);
            struct sumsq_args a = {.out = &sum, .x = total[u], .n = n, .dt = DT_F32};
            cpu_ops[OP_SUMSQ](1, &a, &why);
            for (int w = 0; w < SIM_WORKERS; w++) free(grads[w]);
        }
        struct update_scalars scalars = update_decide(&sum, 1.0f, s->t.clip);
        const struct update_step update = {TOY_LR, ++r->updates, &scalars};
        for (int u = 0; u < s->l->count; u++) {
            struct update_range range = {.unit = &s->l->units[u],
                                         .end = s->l->units[u].n_pad,
                                         .master = r->master[u],
                                         .state = {r->m[u], r->v[u]},
                                         .weight = r->weight[u],
                                         .grad = total[u],
                                         .dtype = DT_F32};
            optimizer_apply(&s->c.optimizer, &range, &update, 1);
            free(total[u]);
            for (int key = s->map->first[u]; key < s->map->first[u + 1]; key++)
                memcpy(plain->keys[key].weights[step + 1], (float *)r->weight[u] + s->map->parts[key].begin,
                       (size_t)size_of(s, key) * sizeof(float));
        }
    }
}

static void check_weights(const struct sim *s) {
    for (int u = 0; u < s->l->count; u++) {
        unsigned long n = (unsigned long)s->l->units[u].n_pad;
        float *grads[SIM_WORKERS] = {NULL}, *now = xcalloc(n, sizeof *now), *next = xcalloc(n, sizeof *next);
        for (int w = 0; w < SIM_WORKERS; w++) grads[w] = xcalloc(n, sizeof(float));
        toy_init(s->l, u, now);
        for (int64_t step = 0; step < s->t.steps; step++) {
            grads_of(s, u, step, grads);
            plain_update(next, now, grads, s->t.workers, (int64_t)n);
            memcpy(now, next, n * sizeof *now);
            for (int key = s->map->first[u]; key < s->map->first[u + 1]; key++)
                assert_memory_equal(plain->keys[key].weights[step + 1], now + s->map->parts[key].begin,
                                    (size_t)size_of(s, key) * sizeof(float));
        }
        for (int w = 0; w < SIM_WORKERS; w++) free(grads[w]);
        free(now);
        free(next);
    }
}

static struct sim *plain_create(struct plain *p, const struct toy_case *t) {
    struct sim *s = sim_create_ordered(t, 0, p->order);
    plain = p;
    p->sim = s;
    p->keys = xcalloc((unsigned long)s->map->count, sizeof *p->keys);
    for (int key = 0; key < s->map->count; key++) {
        unsigned long n = (unsigned long)size_of(s, key);
        for (int i = 0; i <= SIM_STEPS; i++) p->keys[key].weights[i] = xcalloc(n, sizeof(float));
        for (int i = 0; i < SLOTS_MAX; i++)
            for (int w = 0; w < SIM_WORKERS; w++) p->keys[key].grad[i][w] = xcalloc(n, sizeof(float));
    }
    s->on_landed = note_versions;
    if (!p->own) {
        s->takes = takes;
        s->renews = renews;
        s->on_turn = check_acknowledged;
    } else {
        p->ref = toy_ref_start(t, s->l);
        p->begun[0] = t->workers;
        for (int key = 0; key < s->map->count; key++)
            memcpy(p->keys[key].weights[0],
                   (float *)p->ref.weight[s->map->parts[key].unit] + s->map->parts[key].begin,
                   (size_t)size_of(s, key) * sizeof(float));
        train_plainly(s);
    }
    s->ahead = p->ahead;
    return s;
}

static void plain_destroy(struct sim *s) {
    for (int key = 0; key < s->map->count; key++) {
        for (int i = 0; i <= SIM_STEPS; i++) free(plain->keys[key].weights[i]);
        for (int i = 0; i < SLOTS_MAX; i++)
            for (int w = 0; w < SIM_WORKERS; w++) free(plain->keys[key].grad[i][w]);
    }
    free(plain->keys);
    sim_destroy(s);
}

// A gradient that a server has added may still wait for its update: the last weights are there when all have pulled them.
static void pull_last(struct sim *s) {
    for (int w = 0; w < s->t.workers; w++) {
        worker_core_pull_all(s->workers[w].core, false, sim_clock(s, &s->workers[w]));
        s->workers[w].phase = SIM_RESUMING;
    }
    sim_run(s);
}

// Runs the case and hands out a hash of the weights at the end.
static uint64_t run(const struct toy_case *t, struct plain p, int *overtaken) {
    struct sim *s = plain_create(&p, t);
    s->drop_percent = (int)(t->seed % 4) * 8;
    s->repeat_percent = (int)(t->seed % 5) * 6;
    s->in_order = t->seed % 6 == 0;
    sim_run(s);
    if (p.own) pull_last(s);
    if (!p.own) check_weights(s);
    uint64_t hash = 0;
    for (int key = 0; key < s->map->count; key++) {
        size_t bytes = (size_t)size_of(s, key) * sizeof(float);
        const float *end = p.keys[key].weights[t->steps];
        assert_int_equal(p.own ? p.known : p.keys[key].clock, t->steps);
        if (p.own) assert_memory_equal(s->buffers[key].master, end, bytes);
        hash = toy_hash(hash) ^ XXH64(end, bytes, 0);
    }
    for (int w = 0; w < t->workers; w++) {
        const struct worker_status *now = worker_core_status(s->workers[w].core);
        assert_true(now->steps_done == t->steps && now->pulling == 0);
        assert_false(worker_core_transferring(s->workers[w].core));
        double loss = 0;
        for (int i = 0; i < t->workers; i++) loss += toy_loss(t, i, t->steps - 1);
        assert_true(worker_core_outcome(s->workers[w].core, t->steps - 1)->stats.loss == loss);
    }
    *overtaken += p.overtaken;
    if (p.own) toy_ref_free(&p.ref);
    plain_destroy(s);
    return hash;
}

static struct toy_case lead_case(int lead, uint64_t seed) {
    return (struct toy_case){.dtype = DT_F32,
                             .consistency = "sync",
                             .lead = lead,
                             .share = seed / 3 % 2 ? SHARE_WRITTEN : SHARE_NOTHING,
                             .workers = 2 + (int)(seed % 3),
                             .servers = 1 + (int)(seed / 2 % 2),
                             .threads = 1,
                             .steps = 6,
                             .overflow_step = -1,
                             .seed = seed};
}

static void test_weights(void **state) {
    (void)state;
    int overtaken = 0;
    for (uint64_t seed = 1; seed <= 24; seed++)
        for (int lead = 0; lead < SLOTS_MAX; lead++) {
            struct toy_case t = lead_case(lead, seed);
            run(&t, (struct plain){.exact = seed % 2, .ahead = seed % 3 == 0}, &overtaken);
        }
    assert_true(overtaken > 50);
}

// Weights of exactly version max(0, t - lead) are the same however the messages went; without a lead those of any star.
static void test_exact(void **state) {
    (void)state;
    int overtaken = 0;
    for (int lead = 0; lead < SLOTS_MAX; lead++) {
        uint64_t first = 0;
        for (uint64_t seed = 3; seed <= 27; seed += 12) {
            struct toy_case t = lead_case(lead, seed);
            uint64_t hash = run(&t, (struct plain){.exact = true}, &overtaken);
            if (!first) first = hash;
            assert_true(hash == first);
        }
    }
}

// Bounded delay by clock, as ps:ssp:S has it, with steps that drain, and workers that stand still for a while: what is computed
// on which version is the oracle's, and is counted; at the end all pull the same weights. Returns their hash. order: what is recorded or
// repeated, or NULL; versions: takes up those that were computed on.
static uint64_t run_ssp_ordered(struct toy_case *t, bool drains, struct plain *p,
                                const struct sim_order *order, uint64_t *versions) {
    char name[16];
    snprintf(name, sizeof name, "ssp:%d", t->lead);
    t->consistency = name;
    *p = (struct plain){.own = true, .exact = t->oldest, .order = order};
    struct sim *s = plain_create(p, t);
    s->drop_percent = (int)(t->seed % 4) * 8;
    s->repeat_percent = (int)(t->seed % 5) * 6;
    s->keep_every = drains ? 4 : 0;
    if (t->seed % 3 == 0) s->asleep = (int)(t->seed % (uint64_t)t->workers);
    s->wake = 3;
    sim_run(s);
    assert_int_equal(p->known, t->steps);
    pull_last(s);
    uint64_t hash = 0, counted[SLOTS_MAX] = {0};
    for (int key = 0; key < s->map->count; key++) {
        const struct partition *part = &s->map->parts[key];
        const float *end = p->keys[key].weights[t->steps];
        size_t bytes = (size_t)size_of(s, key) * sizeof(float);
        for (int w = 0; w < t->workers; w++)
            assert_memory_equal((float *)s->workers[w].weights[part->unit] + part->begin, end, bytes);
        hash = toy_hash(hash) ^ XXH64(end, bytes, 0);
    }
    // The first step is nobody's look: it computes on what was loaded.
    p->age[0] += (uint64_t)(s->map->count * t->workers);
    for (int w = 0; w < t->workers; w++)
        for (int i = 0; i < SLOTS_MAX; i++)
            counted[i] += worker_core_status(s->workers[w].core)->staleness.count[i];
    assert_memory_equal(counted, p->age, sizeof counted);
    memset(counted, 0, sizeof counted);
    for (int g = 0; g < s->map->shards; g++) {
        struct server_totals totals;
        server_core_totals(s->shards[g], &totals);
        assert_int_equal(totals.refused, 0);
        for (int i = 0; i < SLOTS_MAX; i++) counted[i] += totals.staleness.count[i];
    }
    assert_memory_equal(counted, p->age, sizeof counted);
    for (int key = 0; key < s->map->count; key++)
        *versions = toy_hash(*versions) ^ XXH64(p->keys[key].used, sizeof p->keys[key].used, 0);
    toy_ref_free(&p->ref);
    plain_destroy(s);
    return hash;
}

static uint64_t run_ssp(struct toy_case *t, bool drains, struct plain *p) {
    uint64_t versions = 0;
    return run_ssp_ordered(t, drains, p, NULL, &versions);
}

// Fresh reads that were recorded are read again, whatever the network does then, and are recorded again.
static void test_replays(void **state) {
    (void)state;
    static const struct manifest manifest = {.hash = 0x77, .text = "toy"};
    uint64_t others = 0, runs = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct toy_case t = lead_case(1 + (int)(seed % 2), seed);
        struct config c = toy_config(&t);
        struct layout *l = toy_layout(t.workers, 80);
        struct shard_map *map = shard_map_of(&c, l);
        uint64_t first = 0, hash = 0, newest = 0;
        char dir[] = "/tmp/reads-XXXXXX", path[64];
        assert_non_null(mkdtemp(dir));
        t.clip = seed % 4 ? 0.0f : 0.5f;
        for (int again = 0; again < 3; again++) {
            struct arrivals *record[8] = {NULL}, *replay[8] = {NULL};
            struct sim_order order = {.record = record, .replay = again ? replay : NULL};
            struct plain p;
            uint64_t versions = 0, now;
            for (int g = 0; g < map->shards; g++) {
                struct arrivals_options o = {.map = map,
                                             .manifest = &manifest,
                                             .shard = g,
                                             .workers = t.workers,
                                             .steps = t.steps,
                                             .reads = true};
                record[g] = arrivals_create(&o);
                if (again) assert_non_null(replay[g] = arrivals_read(&o, dir));
            }
            t.seed = seed + 50 * (uint64_t)again;
            now = run_ssp_ordered(&t, seed % 3 == 0, &p, &order, &versions);
            if (!again) hash = now;
            if (!again) first = versions;
            assert_true(now == hash && versions == first);
            for (int g = 0; g < map->shards; g++) {
                assert_int_equal(arrivals_write(record[g], dir), 0);
                arrivals_destroy(&record[g]);
                arrivals_destroy(&replay[g]);
            }
            runs++;
        }
        run_ssp_ordered(&t, seed % 3 == 0, &(struct plain){0}, NULL, &newest);
        others += newest != first;
        for (int g = 0; g < map->shards; g++) {
            snprintf(path, sizeof path, "%s/arrivals.%d", dir, g);
            unlink(path);
        }
        rmdir(dir);
        shard_map_destroy(&map);
        layout_destroy(&l);
    }
    assert_true(others > 5);  // without the recording they are others
}

// Where nothing is decided about a step the next one begins with its weights, whatever has been heard of its end; the outcomes
// are all heard, in their order, and the weights are those of any run. With a decision, or with too little room, nobody is ahead.
static void test_no_wait(void **state) {
    (void)state;
    int unheard = 0;
    for (uint64_t seed = 1; seed <= 18; seed++) {
        struct toy_case t = lead_case(0, seed);
        struct plain p;
        t.lag = 1 + (int)(seed % 2);
        run_ssp(&t, false, &p);
        unheard += p.unheard;
        t.lag = 0;
        run_ssp(&t, false, &p);
        assert_int_equal(p.unheard, 0);
    }
    assert_true(unheard > 50);
}

static void test_ssp(void **state) {
    (void)state;
    uint64_t age[SLOTS_MAX] = {0};
    for (int lead = 0; lead < SLOTS_MAX; lead++)
        for (int drains = 0; drains < 2; drains++) {
            uint64_t first[3] = {0};  // by the number of workers
            for (uint64_t seed = 1; seed <= 18; seed++) {
                struct toy_case t = lead_case(lead, seed);
                struct plain p;
                t.oldest = lead && seed > 9;
                t.clip = drains ? 0.0f : 0.5f;
                uint64_t hash = run_ssp(&t, drains, &p), *same = &first[seed % 3];
                if (lead && !t.oldest)
                    for (int i = 0; i < SLOTS_MAX; i++) age[i] += p.age[i];
                if (lead && !t.oldest) continue;
                if (!*same) *same = hash;
                assert_true(hash == *same);
            }
        }
    // The freshest version differs from key to key.
    for (int i = 0; i < SLOTS_MAX; i++) assert_true(age[i] > 100);
}

// All cores are the star's, with and without a commit round.
static void test_star(void **state) {
    (void)state;
    int none = 0;
    for (uint64_t seed = 1; seed <= 18; seed++)
        for (int lead = 0; lead < SLOTS_MAX; lead++) {
            struct toy_case t = lead_case(lead, seed);
            t.clip = seed / 6 % 2 ? 0.5f : 0.0f;
            run(&t, (struct plain){.own = true}, &none);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights), cmocka_unit_test(test_exact),   cmocka_unit_test(test_star),
        cmocka_unit_test(test_ssp),     cmocka_unit_test(test_no_wait), cmocka_unit_test(test_replays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
