// How pushes that are applied on arrival become updates: the star's cores over a network that shuffles, drops and repeats, and a plain
// trainer that is told in which order each key's pushes came and on which version they were computed. Sums of several pushes, shares
// by age, compensation of delays, a largest lead; and a recorded run repeated.
#include <unistd.h>

#include "ps/record/arrivals.h"
#include "ps/server/server_state.h"
#include "tests/ps/test_ps_sim.h"

#define SHARDS_MAX 4

struct run {
    struct toy_case t;
    struct sim *s;
    struct shard_map *map;  // of the recording
    struct arrivals *record[SHARDS_MAX];
    int partial, ages, ahead;
    int64_t dropped, cut;
};
static const struct manifest manifest = {.hash = 7, .text = "toy"};

static struct arrivals_options options_of(const struct run *r, const struct shard_map *map, int shard) {
    return (struct arrivals_options){.map = map,
                                     .manifest = &manifest,
                                     .shard = shard,
                                     .workers = r->t.workers,
                                     .steps = r->t.steps,
                                     .per_update = r->t.per_update};
}

// A worker's clip factor and skips are a function of its batch, so that the plain trainer knows them.
static float scale_of(const struct toy_case *t, int64_t batch) {
    float scale = t->clip > 0 ? 0.3f + 0.1f * (float)(batch % 5) : 1.0f;
    return t->dtype == DT_F16 ? scale / (batch % 2 ? 256.0f : 4194304.0f) : scale;  // loss scales far apart
}
static bool skips(const struct toy_case *t, int64_t batch) { return t->overflow_step >= 0 && batch % 7 == 3; }

static void decides(const struct sim *s, const struct sim_worker *x, struct push_info *p) {
    p->grad_scale = scale_of(&s->t, x->batch);
    p->skip = skips(&s->t, x->batch);
    p->lr = TOY_LR * (1.0f + 0.125f * (float)(x->batch % 3));
}

// ---------------------------------------------------------------- the plain trainer
struct plain_key {
    int64_t n, updates;
    int64_t version;
    float *master, *state[2];
    char *weights[SIM_STEPS * SIM_WORKERS + 1];  // (n) of dtype, by version; NULL: there was none such
};

static void publish(const struct run *r, struct plain_key *k) {
    char *out = k->weights[k->version] = xcalloc((unsigned long)k->n, dtype_size(r->t.dtype));
    for (int64_t i = 0; i < k->n; i++) dtype_store(r->t.dtype, out, i, k->master[i]);
}

static void update(const struct run *r, const struct partition *p, struct plain_key *k, const void *grad,
                   float lr, float scale, int pushes) {
    struct update_range range = {.unit = &r->s->l->units[p->unit],
                                 .begin = p->begin,
                                 .end = p->end,
                                 .master = k->master,
                                 .state = {k->state[0], k->state[1]},
                                 .grad = grad,
                                 .dtype = r->t.dtype};
    const struct update_scalars scalars = {.grad_scale = scale};
    const struct update_step step = {lr, ++k->updates, &scalars};
    assert_int_equal(optimizer_apply(&r->s->c.optimizer, &range, &step, 1), 0);
    k->version += pushes;
    publish(r, k);
}

static void train_key(struct run *r, int key) {
    const struct toy_case *t = &r->t;
    const struct partition *p = &r->s->map->parts[key];
    const struct arrivals *a = r->record[p->shard];
    int64_t most = t->per_update > 1 ? t->per_update : 1, n = p->end - p->begin,
            total = t->workers * t->steps;
    struct plain_key k = {.n = n};
    float *init = xcalloc((unsigned long)r->s->l->units[p->unit].n_pad, sizeof *init);
    double share = 0;
    float *acc = xcalloc((unsigned long)n, sizeof *acc), lr = 0, unit = 0;
    float *square = xcalloc((unsigned long)n, sizeof *square);
    void *grad = xcalloc((unsigned long)n, 4);
    int pushes = 0;
    toy_init(r->s->l, p->unit, init);
    k.master = xcalloc((unsigned long)n, sizeof(float));
    for (int i = 0; i < 2; i++) k.state[i] = xcalloc((unsigned long)n, sizeof(float));
    memcpy(k.master, init + p->begin, (size_t)n * sizeof(float));
    publish(r, &k);
    for (int64_t i = 0; i < total; i++) {
        const struct arrival *x = arrivals_at(a, key, i), *next = arrivals_at(a, key, i + 1);
        assert_int_equal(x->version + x->staleness, k.version);
        assert_non_null(k.weights[x->version]);
        int64_t age = 0;
        for (int64_t v = x->version + 1; v <= k.version; v++) age += k.weights[v] != NULL;
        r->ages += age > 1;
        toy_key_grad(&r->t, r->s->l, p, k.weights[x->version], x->batch, grad);
        double own = t->damping && age > 1 ? 1.0 / (double)age : 1.0;
        float scale = scale_of(t, x->batch);
        double gate = age < t->age_cutoff ? (1 + cos(M_PI * (double)age / (double)t->age_cutoff)) / 2 : 0;
        if (t->age_decay > 0) scale *= (float)(gate * exp(-(double)t->age_decay * (double)age));
        r->cut += t->age_decay > 0 && gate == 0;
        bool old = t->fresh > 0 && age >= t->fresh;
        r->dropped += old;
        if (skips(t, x->batch) || old) continue;
        for (int64_t e = 0; e < n; e++) {
            float g = dtype_load(t->dtype, grad, e) * scale;
            square[e] = fmaf(t->decay, square[e], (1 - t->decay) * g * g);
        }
        lr = TOY_LR * (1.0f + 0.125f * (float)(x->batch % 3));
        if (most == 1 && (t->lambda == 0 || age == 0)) {
            update(r, p, &k, grad, lr * (float)own, scale, 1);
            continue;
        }
        for (int64_t e = 0; e < n; e++) {
            float g = dtype_load(t->dtype, grad, e) * scale;
            float then = dtype_load(t->dtype, k.weights[x->version], e);
            float now = dtype_load(t->dtype, k.weights[k.version], e);
            float lambda = t->decay > 0 ? t->lambda / sqrtf(square[e] + 1e-7f) : t->lambda;
            if (t->lambda > 0 && age > 0) g = fmaf(lambda * g * g, now - then, g);
            acc[e] = pushes ? fmaf((float)own, g, acc[e]) : (float)own * g;
        }
        float one = t->dtype == DT_F16 ? exp2f(ceilf(log2f(scale))) : 1.0f;
        unit = !pushes || one > unit ? one : unit;
        share = pushes ? share + own : own;
        pushes++;
        bool whole = pushes == most, recorded = next && next->version + next->staleness > k.version;
        if (next) assert_int_equal(whole, recorded);
        r->partial += !whole && (recorded || !next);
        if (!whole && !recorded && next) continue;
        for (int64_t e = 0; e < n; e++)
            dtype_store(t->dtype, grad, e, acc[e] * (float)(1.0 / (share * (double)unit)));
        update(r, p, &k, grad, lr * (float)(share / pushes), unit, pushes);
        pushes = 0;
    }
    if (pushes) {  // those behind it were skipped
        for (int64_t e = 0; e < n; e++)
            dtype_store(t->dtype, grad, e, acc[e] * (float)(1.0 / (share * (double)unit)));
        update(r, p, &k, grad, lr, unit, pushes);
    }
    const struct server_buffers *b = &r->s->buffers[key];
    assert_int_equal(server_core_version(r->s->shards[p->shard], key), k.version);
    assert_memory_equal(b->master, k.master, (size_t)n * sizeof(float));
    for (int i = 0; i < 2; i++) assert_memory_equal(b->state[i], k.state[i], (size_t)n * sizeof(float));
    for (int w = 0; w < t->workers; w++)
        assert_memory_equal(
            (char *)r->s->workers[w].weights[p->unit] + (size_t)p->begin * dtype_size(t->dtype),
            k.weights[k.version], (size_t)n * dtype_size(t->dtype));
    for (int64_t v = 0; v <= total; v++) free(k.weights[v]);
    for (int i = 0; i < 2; i++) free(k.state[i]);
    free(k.master);
    free(init);
    free(square);
    free(acc);
    free(grad);
}

// ---------------------------------------------------------------- runs
// No worker computes a step for which another, which still pushes, lacks more than max_lead of its own: though it sleeps.
static void check_lead(struct sim *s, struct sim_worker *x) {
    bool computes = worker_core_status(x->core)->taken >= 0;
    for (int w = 0; w < s->t.workers && s->t.max_lead && computes; w++) {
        const struct sim_worker *other = &s->workers[w];
        bool over = false;  // as a shard knows, which may be before the worker does
        for (int g = 0; g < s->map->shards; g++) over = over || s->shards[g]->over[w];
        int64_t pushed = other->step + (other->phase == SIM_CLOSING || other->phase == SIM_PUSHING);
        assert_true(over || x->step <= pushed + s->t.max_lead);
        for (int key = 0; key < s->map->count && !over; key++) {
            const struct server_core *c = s->shards[s->map->parts[key].shard];
            const struct server_key *k = &c->keys[c->index[key]];
            int64_t lacks = 0;
            for (int i = 0; i < k->sum.pushes; i++) lacks += k->sum.of[i].worker == w;
            assert_true(k->pushed[w] - lacks >= x->step - s->t.max_lead);
        }
        s->looks += x->step >= other->step + s->t.max_lead;
    }
}

static int64_t recorded(void *ctx, int worker, int64_t step) { return arrivals_batch(ctx, worker, step); }

static void go(struct run *r, struct arrivals **replay) {
    struct toy_case *t = &r->t;
    uint64_t known[64] = {0};  // pushes by their age
    struct config c = toy_config(t);
    struct layout *l = toy_layout(t->workers, 80);
    struct shard_map *map = r->map = shard_map_of(&c, l);
    assert_true(map->shards <= SHARDS_MAX);
    for (int g = 0; g < map->shards; g++) {
        struct arrivals_options o = options_of(r, map, g);
        r->record[g] = arrivals_create(&o);
    }
    struct sim_order order = {.record = r->record, .replay = replay};
    if (replay) {
        order.recorded = recorded;
        for (int g = 0; g < map->shards && !order.ctx; g++)
            if (map->shard_keys[g]) order.ctx = replay[g];
    }
    r->s = sim_create_ordered(t, 0, &order);
    r->s->decides = decides;
    r->s->drop_percent = (int)(t->seed % 4) * 8;
    r->s->repeat_percent = (int)(t->seed % 5) * 6;
    r->s->asleep = t->max_lead ? (int)(t->seed % (uint64_t)t->workers) : -1;
    r->s->wake = 4;
    if (!replay) r->s->on_landed = check_lead;
    sim_run(r->s);
    sim_end(r->s);
    r->ahead += r->s->looks;
    for (int g = 0; g < map->shards; g++) {
        struct server_totals totals;
        server_core_totals(r->s->shards[g], &totals);
        assert_int_equal(totals.pushes, (uint64_t)(map->shard_keys[g] * t->workers * t->steps));
        for (int i = 0; i < 64; i++) known[i] += totals.staleness.count[i];
    }
    for (int i = 0; i < 64; i++) {
        uint64_t heard = 0;
        for (int w = 0; w < t->workers; w++)
            heard += worker_core_status(r->s->workers[w].core)->staleness.count[i];
        assert_int_equal(heard, known[i]);
    }
    layout_destroy(&l);
}

static void end(struct run *r) {
    for (int g = 0; g < r->s->map->shards; g++) arrivals_destroy(&r->record[g]);
    shard_map_destroy(&r->map);
    sim_destroy(r->s);
}

static struct toy_case case_of(uint64_t seed) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    return (struct toy_case){.dtype = types[seed % 3],
                             .consistency = "async",
                             .workers = 2 + (int)(seed % 3),
                             .servers = 1 + (int)(seed / 2 % 2),
                             .threads = 1 + (int)(seed / 4 % 2),
                             .steps = 6,
                             .overflow_step = seed % 4 == 1 ? 0 : -1,
                             .clip = seed % 5 == 2 ? 1.0f : 0.0f,
                             .share = seed / 3 % 2 ? SHARE_WRITTEN : SHARE_NOTHING,
                             .seed = seed};
}

// Every run equals the plain trainer.
static void every_run(struct toy_case (*of)(uint64_t), int *partial, int *ages, int *ahead) {
    *partial = *ages = *ahead = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct run r = {.t = of(seed)};
        go(&r, NULL);
        for (int key = 0; key < r.s->map->count; key++) train_key(&r, key);
        *partial += r.partial;
        *ages += r.ages;
        *ahead += r.ahead;
        end(&r);
    }
}

static struct toy_case any_of(uint64_t seed) {
    struct toy_case t = case_of(seed);
    t.per_update = 2 + (int)(seed % 4);
    return t;
}
static struct toy_case lead_of(uint64_t seed) {
    struct toy_case t = case_of(seed);
    t.max_lead = 1 + (int)(seed % 2);
    t.per_update = 1 + (int)(seed / 2) % (1 + t.max_lead);  // a sum has no more than a worker may lack
    return t;
}
static struct toy_case aged_of(uint64_t seed) {
    struct toy_case t = case_of(seed);
    t.damping = true;
    t.per_update = (int)(seed % 3);
    return t;
}
static struct toy_case compensated_of(uint64_t seed) {
    struct toy_case t = case_of(seed);
    t.lambda = 0.7f;
    t.dtype = seed % 2 ? DT_F32 : DT_BF16;
    t.per_update = (int)(seed / 2 % 3);
    t.damping = seed % 4 == 0;
    t.decay = seed % 3 == 2 ? 0.95f : 0;
    return t;
}
static struct toy_case fresh_of(uint64_t seed) {
    struct toy_case t = case_of(seed);
    t.fresh = 1 + (int)(seed / 2 % 3);
    t.per_update = (int)(seed % 4);
    t.lambda = seed % 5 == 0 && t.dtype != DT_F16 ? 0.7f : 0;
    return t;
}
static struct toy_case square_of(uint64_t seed) {
    struct toy_case t = compensated_of(seed);
    t.lambda = 1e-3f;
    t.decay = 1;
    return t;
}
static struct toy_case (*const options[])(uint64_t) = {any_of,         lead_of,  aged_of,
                                                       compensated_of, fresh_of, square_of};

static void test_sums(void **state) {
    (void)state;
    int partial, ages, ahead;
    every_run(any_of, &partial, &ages, &ahead);
    assert_true(partial > 0 && ages > 0);
}

static void test_lead(void **state) {
    (void)state;
    int partial, ages, ahead;
    every_run(lead_of, &partial, &ages, &ahead);
    assert_true(ahead > 0);
}

static void test_age(void **state) {
    (void)state;
    int partial, ages, ahead;
    every_run(aged_of, &partial, &ages, &ahead);
    assert_true(ages > 50);
    every_run(compensated_of, &partial, &ages, &ahead);
    assert_true(ages > 50);
}

// The pushes that shards count as dropped are those that the plain trainer leaves out.
static void test_freshness(void **state) {
    (void)state;
    int64_t fresh[2] = {0};
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct run r = {.t = fresh_of(seed)};
        int64_t counted = 0;
        go(&r, NULL);
        for (int key = 0; key < r.s->map->count; key++) train_key(&r, key);
        for (int g = 0; g < r.s->map->shards; g++) {
            struct server_totals totals;
            server_core_totals(r.s->shards[g], &totals);
            counted += totals.dropped;
        }
        assert_int_equal(counted, r.dropped);
        fresh[r.t.fresh > 1] += counted;
        end(&r);
    }
    assert_true(fresh[0] > 0 && fresh[1] > 0);
}

static struct toy_case cgad_of(uint64_t seed) {
    struct toy_case t = case_of(seed);
    t.dtype = seed % 2 ? DT_F32 : DT_BF16;
    t.age_decay = 0.3f;
    t.age_cutoff = seed % 3 ? 3.5f : 2;
    t.per_update = (int)(seed / 2 % 3);
    t.lambda = seed % 5 == 0 ? 0.7f : 0;
    return t;
}

static void test_cgad(void **state) {
    (void)state;
    int64_t cut = 0, ages = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct run r = {.t = cgad_of(seed)};
        go(&r, NULL);
        for (int key = 0; key < r.s->map->count; key++) train_key(&r, key);
        cut += r.cut;
        ages += r.ages;
        end(&r);
    }
    assert_true(cut > 0 && ages > cut);
}

// Over another network, in the recorded order: the same bits.
static void test_replays(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        for (uint64_t seed = 1; seed <= 8; seed++) {
            struct run first = {.t = options[i](seed)}, again = first;
            char dir[] = "/tmp/arrivals-XXXXXX", path[64];
            struct arrivals *replay[SHARDS_MAX] = {NULL};
            assert_non_null(mkdtemp(dir));
            go(&first, NULL);
            for (int g = 0; g < first.s->map->shards; g++) {
                struct arrivals_options o = options_of(&first, first.s->map, g);
                assert_int_equal(arrivals_write(first.record[g], dir), 0);
                assert_non_null(replay[g] = arrivals_read(&o, dir));
                snprintf(path, sizeof path, "%s/arrivals.%d", dir, g);
                unlink(path);
            }
            rmdir(dir);
            again.t.seed = 1000 + seed;
            if (again.t.decay == 1) {  // then the squares stay 0
                again.t.decay = 0;
                again.t.lambda /= sqrtf(1e-7f);
            }
            go(&again, replay);
            for (int key = 0; key < first.s->map->count; key++) {
                const struct partition *p = &first.s->map->parts[key];
                assert_memory_equal(first.s->buffers[key].master, again.s->buffers[key].master,
                                    (size_t)(p->end - p->begin) * sizeof(float));
            }
            end(&again);
            for (int g = 0; g < first.s->map->shards; g++) arrivals_destroy(&replay[g]);
            end(&first);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),      cmocka_unit_test(test_lead), cmocka_unit_test(test_age),
        cmocka_unit_test(test_freshness), cmocka_unit_test(test_cgad), cmocka_unit_test(test_replays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
