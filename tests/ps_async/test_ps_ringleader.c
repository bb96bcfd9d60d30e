// ps:ringleader: the star's cores over a network that shuffles, drops and repeats, and a plain trainer that does what the paper says
// (arXiv 2509.22860, Algorithm 1), with two tables, over the order in which pushes were taken. The same bits; one order for all
// keys; no gradient is older than 2N - 2 updates; a recorded run repeated.
#include <unistd.h>

#include "ps/record/arrivals.h"
#include "ps/server/server_state.h"
#include "tests/ps/test_ps_sim.h"

#define SHARDS_MAX 4

struct run {
    struct toy_case t;
    struct sim *s;
    struct shard_map *map;
    struct arrivals *record[SHARDS_MAX];
    uint64_t ages[64];  // of the plain trainer, over all keys
    int several;        // entries of several gradients that an update used
    int later;          // pushes that belong to the next round's table
    int unused;         // pushes that no update used
};
static const struct manifest manifest = {.hash = 7, .text = "toy"};

static struct arrivals_options options_of(const struct run *r, int shard) {
    return (struct arrivals_options){
        .map = r->map, .manifest = &manifest, .shard = shard, .workers = r->t.workers, .steps = r->t.steps};
}

// A worker's clip factor, skips, learning rate and tokens are a function of its batch, so that the plain trainer knows them.
static float scale_of(const struct toy_case *t, int64_t batch) {
    return t->clip > 0 ? 0.3f + 0.1f * (float)(batch % 5) : 1.0f;
}
static bool skips(const struct toy_case *t, int64_t batch) { return t->overflow_step >= 0 && batch % 7 == 3; }
static float lr_of(int64_t batch) { return TOY_LR * (1.0f + 0.125f * (float)(batch % 3)); }
static int64_t tokens_of(const struct toy_case *t, int64_t batch) {
    return t->seed % 4 == 3 ? 5 + batch % 11 : 0;
}

static void decides(const struct sim *s, const struct sim_worker *x, struct push_info *p) {
    p->grad_scale = scale_of(&s->t, x->batch);
    p->skip = skips(&s->t, x->batch);
    p->lr = lr_of(x->batch);
    p->tokens = tokens_of(&s->t, x->batch);
    p->mean_tokens = p->tokens ? 16 : 0;
}

// ---------------------------------------------------------------- the plain trainer
struct table {
    float *g;  // (n) the sum
    double b;
    int count;
};

struct plain {
    int64_t n;
    float *master, *state[2];
    int64_t updates;
    struct table now[SIM_WORKERS], next[SIM_WORKERS];
    char *model[SIM_WORKERS];  // (n) of dtype: of each worker
    int64_t model_of[SIM_WORKERS];
    int done[SIM_WORKERS], count;  // workers that have had their update, in the order of these
};

static bool is_done(const struct plain *p, int w) {
    for (int i = 0; i < p->count; i++)
        if (p->done[i] == w) return true;
    return false;
}

static void add(const struct run *r, const struct plain *k, struct table *x, const void *grad,
                int64_t batch) {
    int64_t tokens = tokens_of(&r->t, batch);
    float a = tokens ? (float)tokens : 1.0f;
    for (int64_t e = 0; e < k->n; e++) {
        float g = dtype_load(r->t.dtype, grad, e) * scale_of(&r->t, batch);
        x->g[e] = x->count ? fmaf(a, g, x->g[e]) : a * g;
    }
    x->b += (double)a;
    x->count++;
}

// x <- optimizer(x, 1/N sum G_i / b_i): the means of those that have had their update first, then the others' in worker order.
static void step(struct run *r, const struct partition *p, struct plain *k, int worker, float lr) {
    int n = r->t.workers, order[SIM_WORKERS], count = 0;
    void *grad = xcalloc((unsigned long)k->n, 4);
    k->done[k->count++] = worker;
    for (int i = 0; i < k->count; i++) order[count++] = k->done[i];
    for (int w = 0; w < n; w++)
        if (!is_done(k, w)) order[count++] = w;
    for (int64_t e = 0; e < k->n; e++) {
        float d = 0;
        for (int i = 0; i < n; i++) {
            const struct table *x = &k->now[order[i]];
            float share = (float)(1.0 / x->b);
            d = i ? fmaf(share, x->g[e], d) : share * x->g[e];
        }
        dtype_store(r->t.dtype, grad, e, d * (1.0f / (float)n));
    }
    for (int w = 0; w < n; w++) r->several += k->now[w].count > 1;
    struct update_range range = {.unit = &r->s->l->units[p->unit],
                                 .begin = p->begin,
                                 .end = p->end,
                                 .master = k->master,
                                 .state = {k->state[0], k->state[1]},
                                 .grad = grad,
                                 .dtype = r->t.dtype};
    const struct update_scalars scalars = {.grad_scale = 1};
    assert_int_equal(
        optimizer_apply(&r->s->c.optimizer, &range, &(struct update_step){lr, ++k->updates, &scalars}, 1), 0);
    for (int64_t e = 0; e < k->n; e++) dtype_store(r->t.dtype, k->model[worker], e, k->master[e]);
    k->model_of[worker] = k->updates;
    free(grad);
}

static void train_key(struct run *r, int key) {
    const struct toy_case *t = &r->t;
    const struct partition *p = &r->s->map->parts[key];
    int64_t n = p->end - p->begin, total = t->workers * t->steps, used = 0, waiting = 0;
    struct plain k = {.n = n};
    float *init = xcalloc((unsigned long)r->s->l->units[p->unit].n_pad, sizeof *init);
    void *grad = xcalloc((unsigned long)n, 4), *last = xcalloc((unsigned long)n, 4);
    uint64_t pending[SIM_WORKERS] = {0};  // pushes of the next table, until their age is known
    toy_init(r->s->l, p->unit, init);
    k.master = xcalloc((unsigned long)n, sizeof(float));
    for (int i = 0; i < 2; i++) k.state[i] = xcalloc((unsigned long)n, sizeof(float));
    memcpy(k.master, init + p->begin, (size_t)n * sizeof(float));
    for (int w = 0; w < t->workers; w++) {
        k.model[w] = xcalloc((unsigned long)n, 4);
        for (int64_t e = 0; e < n; e++) dtype_store(t->dtype, k.model[w], e, k.master[e]);
        k.now[w].g = xcalloc((unsigned long)n, 4);
        k.next[w].g = xcalloc((unsigned long)n, 4);
    }
    for (int64_t i = 0; i < total; i++) {
        const struct arrival *x = arrivals_at(r->record[p->shard], key, i);
        int w = x->worker;
        if (skips(t, x->batch)) continue;
        toy_key_grad(&r->t, r->s->l, p, k.model[w], x->batch, grad);
        if (is_done(&k, w)) {
            add(r, &k, &k.next[w], grad, x->batch);
            pending[w]++;
            r->later++;
            continue;
        }
        // In phase 1 there are no updates: a push of it is first used by the next update.
        assert_true(k.updates - k.model_of[w] <= 2 * t->workers - 2);
        r->ages[k.updates - k.model_of[w]]++;
        add(r, &k, &k.now[w], grad, x->batch);
        waiting++;
        bool full = true;
        for (int v = 0; v < t->workers; v++) full = full && k.now[v].count > 0;
        if (!full) continue;
        step(r, p, &k, w, lr_of(x->batch));
        used += waiting;
        waiting = 0;
        if (k.count < t->workers) continue;
        k.count = 0;
        for (int v = 0; v < t->workers; v++) {
            struct table empty = {.g = k.now[v].g};
            k.now[v] = k.next[v];
            k.next[v] = empty;
            assert_true(k.updates - k.model_of[v] < t->workers);
            r->ages[k.updates - k.model_of[v]] += pending[v];
            waiting += (int64_t)pending[v];
            pending[v] = 0;
        }
    }
    for (int v = 0; v < t->workers; v++) {  // as if the round had ended
        waiting += (int64_t)pending[v];
        r->ages[k.updates - k.count + t->workers - k.model_of[v]] += pending[v];
    }
    r->unused += (int)waiting;
    const struct server_buffers *b = &r->s->buffers[key];
    const struct server_core *core = r->s->shards[p->shard];
    assert_int_equal(server_core_version(core, key), used);
    assert_int_equal(server_core_updates(core, key), k.updates);
    assert_memory_equal(b->master, k.master, (size_t)n * sizeof(float));
    for (int i = 0; i < 2; i++) assert_memory_equal(b->state[i], k.state[i], (size_t)n * sizeof(float));
    for (int64_t e = 0; e < n; e++) dtype_store(t->dtype, last, e, k.master[e]);
    for (int w = 0; w < t->workers; w++)
        assert_memory_equal(
            (char *)r->s->workers[w].weights[p->unit] + (size_t)p->begin * dtype_size(t->dtype), last,
            (size_t)n * dtype_size(t->dtype));
    for (int w = 0; w < t->workers; w++) {
        free(k.now[w].g);
        free(k.next[w].g);
        free(k.model[w]);
    }
    for (int i = 0; i < 2; i++) free(k.state[i]);
    free(k.master);
    free(init);
    free(grad);
    free(last);
}

// ---------------------------------------------------------------- runs
static int64_t recorded(void *ctx, int worker, int64_t step) { return arrivals_batch(ctx, worker, step); }

static void go(struct run *r, struct arrivals **replay) {
    struct toy_case *t = &r->t;
    struct config c = toy_config(t);
    struct layout *l = toy_layout(t->workers, 80);
    r->map = shard_map_of(&c, l);
    assert_true(r->map->shards <= SHARDS_MAX);
    for (int g = 0; g < r->map->shards; g++) {
        struct arrivals_options o = options_of(r, g);
        r->record[g] = arrivals_create(&o);
    }
    struct sim_order order = {.record = r->record, .replay = replay};
    if (replay) order.recorded = recorded;
    for (int g = 0; g < r->map->shards && replay && !order.ctx; g++)
        if (r->map->shard_keys[g]) order.ctx = replay[g];
    r->s = sim_create_ordered(t, 0, &order);
    r->s->decides = decides;
    r->s->drop_percent = (int)(t->seed % 4) * 8;
    r->s->repeat_percent = (int)(t->seed % 5) * 6;
    r->s->in_order = t->seed % 6 == 0;
    r->s->asleep = t->seed % 3 ? (int)(t->seed % (uint64_t)t->workers) : -1;
    r->s->wake = 3;
    sim_run(r->s);
    sim_end(r->s);
    layout_destroy(&l);
}

static void end(struct run *r) {
    for (int g = 0; g < r->map->shards; g++) arrivals_destroy(&r->record[g]);
    shard_map_destroy(&r->map);
    sim_destroy(r->s);
}

static struct toy_case case_of(uint64_t seed) {
    return (struct toy_case){.dtype = seed % 2 ? DT_F32 : DT_BF16,
                             .consistency = "ringleader",
                             .workers = 1 + (int)(seed % 4),
                             .servers = 1 + (int)(seed / 2 % 2),
                             .threads = 1 + (int)(seed / 4 % 2),
                             .steps = 8,
                             .overflow_step = seed % 5 == 1 ? 0 : -1,
                             .clip = seed % 5 == 2 ? 1.0f : 0.0f,
                             .share = seed / 3 % 2 ? SHARE_WRITTEN : SHARE_NOTHING,
                             .seed = seed};
}

// All keys have taken the same pushes in the same order.
static void check_order(const struct run *r) {
    const struct shard_map *m = r->s->map;
    for (int64_t i = 0; i < r->t.workers * r->t.steps; i++) {
        const struct arrival *first = arrivals_at(r->record[m->parts[0].shard], 0, i);
        for (int key = 1; key < m->count; key++) {
            const struct arrival *x = arrivals_at(r->record[m->parts[key].shard], key, i);
            assert_true(x->worker == first->worker && x->batch == first->batch);
            assert_true(x->version == first->version && x->staleness == first->staleness);
        }
    }
    for (int w = 0; w < r->t.workers; w++)
        assert_int_equal(worker_core_status(r->s->workers[w].core)->staleness.spread_max, 0);
}

static void test_every_run(void **state) {
    (void)state;
    int several = 0, later = 0, unused = 0, oldest = 0;
    for (uint64_t seed = 1; seed <= 48; seed++) {
        struct run r = {.t = case_of(seed)};
        uint64_t counted[64] = {0};
        go(&r, NULL);
        check_order(&r);
        for (int key = 0; key < r.s->map->count; key++) train_key(&r, key);
        for (int g = 0; g < r.s->map->shards; g++) {
            struct server_totals totals;
            server_core_totals(r.s->shards[g], &totals);
            assert_int_equal(totals.pushes, (uint64_t)(r.map->shard_keys[g] * r.t.workers * r.t.steps));
            assert_int_equal(totals.held_bytes, 0);
            for (int i = 0; i < 64; i++) counted[i] += totals.staleness.count[i];
        }
        for (int i = 0; i < 64; i++) {
            uint64_t heard = 0;
            for (int w = 0; w < r.t.workers; w++)
                heard += worker_core_status(r.s->workers[w].core)->staleness.count[i];
            assert_int_equal(counted[i], r.ages[i]);
            assert_int_equal(heard, counted[i]);
            if (counted[i] && i == 2 * r.t.workers - 2 && i > oldest) oldest = i;
        }
        several += r.several;
        later += r.later;
        unused += r.unused;
        end(&r);
    }
    // Else nothing of it was tested: a fast worker, both tables, the largest age, a round that did not end.
    assert_true(several > 0 && later > 0 && unused > 0 && oldest >= 4);
}

// With one worker each push is an update on the newest weights: the plain trainer.
static void test_one_worker(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        struct toy_case t = case_of(4);
        t.dtype = type ? DT_BF16 : DT_F32;
        struct layout *l = toy_layout(1, 80);
        struct config c = toy_config(&t);
        struct toy_ref ref = toy_ref_start(&t, l);
        for (int64_t step = 0; step < t.steps; step++) toy_ref_step(&t, l, &c, &ref, step);
        struct sim *s = sim_create(&t);
        s->drop_percent = 10;
        sim_run(s);
        for (int key = 0; key < s->map->count; key++) {
            const struct partition *p = &s->map->parts[key];
            assert_memory_equal(s->buffers[key].master, ref.master[p->unit] + p->begin,
                                (size_t)(p->end - p->begin) * sizeof(float));
        }
        sim_destroy(s);
        toy_ref_free(&ref);
        layout_destroy(&l);
    }
}

// Over another network, in the recorded order: the same bits. Without the scheduler's order.
static void test_replays(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct run first = {.t = case_of(seed)}, again = first;
        char dir[] = "/tmp/arrivals-XXXXXX", path[64];
        struct arrivals *replay[SHARDS_MAX] = {NULL};
        assert_non_null(mkdtemp(dir));
        go(&first, NULL);
        for (int g = 0; g < first.map->shards; g++) {
            struct arrivals_options o = options_of(&first, g);
            assert_int_equal(arrivals_write(first.record[g], dir), 0);
            assert_non_null(replay[g] = arrivals_read(&o, dir));
            snprintf(path, sizeof path, "%s/arrivals.%d", dir, g);
            unlink(path);
        }
        rmdir(dir);
        again.t.seed = 1000 + 4 * seed + seed % 4;  // tokens are a function of seed % 4
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

// A shard ends with a sentence when the order names a push that has not arrived, or a position that cannot be next.
static void test_impossible_orders(void **state) {
    (void)state;
    static const struct wire_header wrong[] = {{.kind = WIRE_SET, .step = 0, .mask = 1},
                                               {.kind = WIRE_SET, .step = 0, .mask = 0},
                                               {.kind = WIRE_SET, .step = 0, .mask = UINT64_C(1) << 63},
                                               {.kind = WIRE_SET, .step = 99, .mask = 2}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct toy_case t = case_of(6);
        struct sim *s = sim_create(&t);
        int g = s->map->parts[0].shard;
        assert_int_equal(server_core_decision(s->shards[g], &wrong[i], 1), -1);
        assert_non_null(strstr(server_core_error(s->shards[g]), "of the order"));
        sim_destroy(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_run),
        cmocka_unit_test(test_one_worker),
        cmocka_unit_test(test_replays),
        cmocka_unit_test(test_impossible_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
