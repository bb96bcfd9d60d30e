// Checkpoints of the star's state machines, without sockets, threads or files: a network that shuffles, loses and
// repeats messages, a keeper that copies keys, and jobs that go on from what it has.
#include "ps/agree/budget.h"
#include "tests/ps/test_ps_log.h"

#define KEEPS (SIM_STEPS * SIM_WORKERS)
#define KEYS  512

struct kept {
    float *data;  // (1 + states, n)
    int64_t version, updates, clock, pushed[SIM_WORKERS], batches[64];
};

struct keeper {
    struct sim *sim;
    int64_t steps[KEEPS];
    struct kept keys[KEEPS][KEYS];
};

static int64_t elements(const struct sim *s, int key) {
    return s->map->parts[key].end - s->map->parts[key].begin;
}

static const float *part_of(const struct sim *s, int key, int i) {
    return i ? s->buffers[key].state[i - 1] : s->buffers[key].master;
}

static int number_of(struct keeper *k, int64_t step) {
    int i = 0;
    while (k->steps[i] && k->steps[i] != step) i++;
    assert_true(i < KEEPS);
    k->steps[i] = step;
    return i;
}

static void keep(void *ctx, const struct kept_key *x) {
    struct keeper *k = ctx;
    int key = x->counts.key, at = number_of(k, x->step);
    struct kept *out = &k->keys[at][key];
    size_t n = (size_t)elements(k->sim, key);
    assert_null(out->data);  // once
    out->data = xcalloc(3 * n, sizeof(float));
    for (int i = 0; i < 3; i++) memcpy(out->data + (size_t)i * n, part_of(k->sim, key, i), n * sizeof(float));
    out->version = x->counts.version;
    out->updates = x->counts.updates;
    out->clock = x->counts.clock;
    memcpy(out->pushed, x->counts.pushed, (size_t)k->sim->t.workers * sizeof(int64_t));
    if (x->counts.batches)
        memcpy(out->batches, x->counts.batches, (size_t)batches_words(&k->sim->c) * sizeof(int64_t));
}

static void keeper_free(struct keeper *k) {
    for (int i = 0; i < KEEPS; i++)
        for (int key = 0; key < KEYS; key++) free(k->keys[i][key].data);
    free(k);
}

// A job that runs to its end and leaves what it was to keep.
static struct sim *run_kept(const struct toy_case *t, struct keeper *k, int every, int drop, int repeat) {
    struct sim_order order = {.keep = {k, keep}};
    struct sim *s = sim_create_ordered(t, 0, &order);
    k->sim = s;
    s->drop_percent = drop;
    s->repeat_percent = repeat;
    s->keep_every = every;
    assert_true(s->map->count <= KEYS);
    sim_run(s);
    return s;
}

// The state that was kept after step `at`, at the position of another job's key: its first element that an old key
// has, and the counts.
static const struct kept *find(const struct keeper *k, int at, const struct partition *p, float *out[3],
                               int64_t n) {
    const struct kept *first = NULL;
    for (int key = 0; key < k->sim->map->count; key++) {
        const struct partition *o = &k->sim->map->parts[key];
        int64_t begin = o->begin > p->begin ? o->begin : p->begin, end = o->end < p->end ? o->end : p->end;
        if (o->unit != p->unit || begin >= end) continue;
        const struct kept *x = &k->keys[at][key];
        assert_non_null(x->data);
        for (int i = 0; i < 3; i++)
            memcpy(out[i] + (begin - p->begin), x->data + i * (o->end - o->begin) + (begin - o->begin),
                   (size_t)(end - begin) * sizeof(float));
        if (!first) first = x;
    }
    (void)n;
    assert_non_null(first);
    return first;
}

static int64_t first_step(const struct keeper *k, int at, int worker) {
    int64_t least = INT64_MAX;
    for (int key = 0; key < k->sim->map->count; key++)
        if (k->keys[at][key].pushed[worker] < least) least = k->keys[at][key].pushed[worker];
    return least;
}

struct resumption {
    const struct keeper *from;
    int at;
    bool *loaded;  // (shards)
    int missing;
};

static void load_shard(struct sim *s, struct resumption *r, int g) {
    // The pushes that some keys have beyond the others are known by the batch.
    int64_t pushed[SIM_WORKERS];
    for (int w = 0; w < s->t.workers; w++) pushed[w] = first_step(r->from, r->at, w);
    struct key_rows rows = {.count = s->map->count, .workers = s->t.workers};
    rows.keys = xcalloc((unsigned long)rows.count, sizeof *rows.keys);
    for (int key = 0; key < rows.count; key++) {
        const struct partition *p = &s->map->parts[key];
        float *out[3] = {s->buffers[key].master, s->buffers[key].state[0], s->buffers[key].state[1]};
        if (p->shard != g) continue;
        const struct kept *x = find(r->from, r->at, p, out, elements(s, key));
        rows.keys[key] = (struct key_counts){key, x->version, x->updates, x->clock, pushed, x->batches};
    }
    assert_int_equal(server_core_resume(s->shards[g], &rows, r->from->steps[r->at]), 0);
    free(rows.keys);
    r->loaded[g] = true;
    r->missing--;
}

// Shards read their keys while the workers already ask for them.
static void load_some(struct sim *s) {
    struct resumption *r = s->ctx;
    int g = (int)sim_draw(s, 8 * (uint64_t)s->map->count);
    if (g < s->map->shards && !r->loaded[g]) load_shard(s, r, g);
}

// The workers' reports of the budget, as they read it.
static struct wire_header done_in(const struct keeper *k, int at, const struct toy_case *t) {
    struct wire_header h = {.kind = WIRE_NONE};
    int words = batches_words(&k->sim->c);
    budget_write_done(&h, 0);
    for (int64_t batch = 0; batch < t->workers * t->steps; batch++) {
        bool all = true;
        for (int key = 0; key < k->sim->map->count; key++)
            all = all && batches_has(k->keys[at][key].batches, words, batch);
        if (all) budget_set_done(&h, batch);
    }
    return h;
}

static struct sim *resume(const struct toy_case *t, const struct keeper *k, int at, int drop) {
    struct sim_order order = {.start = k->steps[at]};
    struct sim *s = sim_create_ordered(t, 0, &order);
    struct resumption r = {.from = k, .at = at, .missing = s->map->shards};
    r.loaded = xcalloc((unsigned long)s->map->shards, sizeof(bool));
    s->drop_percent = s->repeat_percent = drop;
    s->on_turn = load_some;
    s->ctx = &r;
    struct wire_header done = done_in(k, at, t);
    for (int w = 0; w < t->workers; w++) {
        s->workers[w].done = &done;
        sim_resume(s, w, first_step(k, at, w));
    }
    sim_go_on(s, INT64_MAX);
    assert_int_equal(r.missing, 0);
    s->on_turn = NULL;
    free(r.loaded);
    return s;
}

static void check_state(const struct sim *s, const struct toy_ref *r) {
    for (int key = 0; key < s->map->count; key++) {
        const struct partition *p = &s->map->parts[key];
        size_t n = (size_t)(p->end - p->begin) * sizeof(float);
        assert_memory_equal(s->buffers[key].master, r->master[p->unit] + p->begin, n);
        assert_memory_equal(s->buffers[key].state[0], r->m[p->unit] + p->begin, n);
        assert_memory_equal(s->buffers[key].state[1], r->v[p->unit] + p->begin, n);
        assert_int_equal(server_core_version(s->shards[p->shard], key), r->updates);
    }
    for (int w = 0; w < s->t.workers; w++)
        for (int u = 0; u < s->l->count; u++)
            assert_memory_equal(s->workers[w].weights[u], r->weight[u],
                                (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
}

static void check_kept(const struct keeper *k, int at, const struct toy_ref *r) {
    const struct sim *s = k->sim;
    for (int key = 0; key < s->map->count; key++) {
        const struct partition *p = &s->map->parts[key];
        const struct kept *x = &k->keys[at][key];
        size_t n = (size_t)(p->end - p->begin);
        assert_non_null(x->data);
        assert_memory_equal(x->data, r->master[p->unit] + p->begin, n * sizeof(float));
        assert_memory_equal(x->data + n, r->m[p->unit] + p->begin, n * sizeof(float));
        assert_memory_equal(x->data + 2 * n, r->v[p->unit] + p->begin, n * sizeof(float));
        assert_int_equal(x->version, r->updates);
        assert_int_equal(x->clock, k->steps[at]);
        for (int w = 0; w < s->t.workers; w++) assert_int_equal(x->pushed[w], k->steps[at]);
    }
}

static struct toy_case base_case(const char *consistency) {
    return (struct toy_case){.dtype = DT_BF16,
                             .consistency = consistency,
                             .workers = 3,
                             .servers = 2,
                             .threads = 1,
                             .steps = 8,
                             .overflow_step = -1,
                             .seed = 1};
}

// In step: what is kept is the plain trainer's state behind that step, skipped ones included; a job that goes on from it, with another number of servers, ends where the plain trainer does.
static void test_sync(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct toy_case t = base_case("sync");
        t.seed = seed;
        t.share = seed % 3 == 0 ? SHARE_WRITTEN : seed % 3 == 1 ? SHARE_IN_PLACE : SHARE_MIXED;
        t.dtype = seed % 4 == 0 ? DT_F16 : seed % 4 == 1 ? DT_BF16 : DT_F32;
        t.clip = seed / 2 % 2 ? 0.5f : 0.0f;
        t.servers = 1 + (int)(seed / 2 % 3);
        t.threads = 1 + (int)(seed / 3 % 2);
        t.workers = 1 + (int)(seed / 2 % 4);
        t.overflow_step = t.dtype == DT_F16 ? 2 : -1;  // the first step that is kept
        struct keeper *k = xcalloc(1, sizeof *k);
        struct sim *s = run_kept(&t, k, 3, (int)(seed % 4) * 6, (int)(seed % 5) * 6);
        struct toy_ref r = toy_ref_start(&t, s->l);
        int at = 0;
        for (int64_t step = 0; step < t.steps; step++) {
            toy_ref_step(&t, s->l, &s->c, &r, step);
            if ((step + 1) % 3 == 0) check_kept(k, at++, &r);
        }
        assert_int_equal(at, 2);
        check_state(s, &r);
        t.servers = 1 + (int)((seed + 1) % 3);
        t.threads = 1 + (int)(seed / 2 % 2);
        for (int i = 0; i < 2; i++) {
            struct sim *again = resume(&t, k, i, (int)(seed % 3) * 8);
            check_state(again, &r);
            sim_destroy(again);
        }
        toy_ref_free(&r);
        sim_destroy(s);
        keeper_free(k);
    }
}

// On arrival: the counts of each key say which pushes it holds, and a job that goes on from them gives each key every
// push once. A push in a sum is none of them.
static void test_async(void **state) {
    (void)state;
    int apart = 0, summed = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct toy_case t = base_case("async");
        t.seed = seed;
        t.share = seed % 3 == 0 ? SHARE_NOTHING : seed % 3 == 1 ? SHARE_WRITTEN : SHARE_MIXED;
        t.servers = 1 + (int)(seed / 2 % 3);
        t.workers = 2 + (int)(seed / 2 % 3);
        t.per_update = (int)(seed % 5);
        struct keeper *k = xcalloc(1, sizeof *k);
        int every = seed % 4 == 3 ? 1 : 3;
        struct sim *s = run_kept(&t, k, every, (int)(seed % 4) * 6, (int)(seed % 5) * 6);
        sim_end(s);
        for (int key = 0; key < s->map->count; key++)
            assert_int_equal(server_core_version(s->shards[s->map->parts[key].shard], key),
                             t.workers * t.steps);
        for (int i = 0; i < KEEPS && k->steps[i]; i++) {
            bool goes_on = every > 1 || i == (int)(seed / 4 % 8);
            for (int key = 0; key < s->map->count; key++) {
                const struct kept *x = &k->keys[i][key];
                int64_t pushed = 0;
                for (int w = 0; w < t.workers; w++) {
                    pushed += x->pushed[w];
                    apart += x->pushed[w] > first_step(k, i, w);
                }
                assert_non_null(x->data);
                assert_int_equal(x->version, batches_count(x->batches, batches_words(&s->c)));
                summed += pushed > x->version;
                if (t.per_update < 2) assert_int_equal(x->version, pushed);
                assert_int_equal(x->pushed[0], k->steps[i]);
            }
            if (!goes_on) continue;
            struct sim *again = resume(&t, k, i, (int)(seed % 3) * 8);
            sim_end(again);
            for (int key = 0; key < s->map->count; key++)
                assert_int_equal(server_core_version(again->shards[s->map->parts[key].shard], key),
                                 t.workers * t.steps);
            sim_destroy(again);
        }
        sim_destroy(s);
        keeper_free(k);
    }
    assert_true(apart > 0);  // some key held a push that another one lacked
    assert_true(summed > 0);
}

// One worker ends in the bits of the run undisturbed, also where the checkpoint came while a sum was open.
static void test_async_sums(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct toy_case t = base_case("async");
        t.seed = seed;
        t.workers = 1;
        t.per_update = 2 + (int)(seed % 3);
        t.share = seed % 2 ? SHARE_NOTHING : SHARE_WRITTEN;
        struct keeper *k = xcalloc(1, sizeof *k);
        struct sim *s = run_kept(&t, k, 3, 5, 5);
        sim_end(s);
        for (int i = 0; i < KEEPS && k->steps[i]; i++) {
            struct sim *again = resume(&t, k, i, 5);
            sim_end(again);
            for (int key = 0; key < s->map->count; key++) {
                const struct partition *p = &s->map->parts[key];
                assert_memory_equal(again->buffers[key].master, s->buffers[key].master,
                                    (size_t)(p->end - p->begin) * sizeof(float));
            }
            sim_destroy(again);
        }
        sim_destroy(s);
        keeper_free(k);
    }
}

// ---------------------------------------------------------------- single messages
struct fixture {
    struct sim *sim;  // lends layout, map and buffers
    struct log log;
    struct server_core *core;
};

static struct fixture fixture_open(const char *consistency) {
    const struct toy_case t = {
        .dtype = DT_BF16, .consistency = consistency, .workers = 2, .servers = 1, .threads = 1, .steps = 1};
    struct fixture f = {.sim = sim_create(&t)};
    return f;
}

static struct wire_header pull_of(int worker, int64_t step, uint32_t flags) {
    return (struct wire_header){.kind = WIRE_PULL,
                                .role = PS_WORKER,
                                .rank = worker,
                                .job = SIM_JOB,
                                .incarnation = 100 + (uint64_t)worker,
                                .step = step,
                                .seq = 1,
                                .flags = flags};
}

// A pull that comes before the checkpoint has been read waits. One
// that follows no loading at all is refused, and so is one behind another step than the checkpoint's.
static void test_early_pulls(void **state) {
    (void)state;
    const int64_t pushed[2] = {5, 5};
    struct fixture f = fixture_open("sync");
    struct key_rows rows = {.count = f.sim->map->count, .workers = 2};
    rows.keys = xcalloc((unsigned long)rows.count, sizeof *rows.keys);
    for (int key = 0; key < rows.count; key++)
        rows.keys[key] = (struct key_counts){key, 5, 5, 5, pushed, NULL};
    struct server_core_options o = {.config = &f.sim->c,
                                    .layout = f.sim->l,
                                    .map = f.sim->map,
                                    .buffers = f.sim->buffers,
                                    .job = SIM_JOB,
                                    .port = {&f.log, log_send}};
    f.core = server_core_create(&o);
    for (int w = 0; w < 2; w++) server_core_member(f.core, w, 100 + (uint64_t)w, 0);
    struct wire_header h = pull_of(0, 5, 0);
    assert_int_equal(server_core_message(f.core, &h, NULL, 1), 0);
    assert_int_equal(logged(&f.log, 0, WIRE_REFUSED), 1);
    f.log.count = 0;
    h = pull_of(0, 5, WIRE_FINAL);
    assert_int_equal(server_core_message(f.core, &h, NULL, 1), 0);
    assert_int_equal(f.log.count, 0);
    h = pull_of(1, 6, WIRE_FINAL);
    assert_int_equal(server_core_message(f.core, &h, NULL, 2), 0);
    f.log.count = 0;
    assert_int_equal(server_core_resume(f.core, &rows, 5), 0);
    assert_int_equal(logged(&f.log, 0, WIRE_PULL_REPLY), 1);
    assert_int_equal(logged(&f.log, 1, WIRE_REFUSED), 1);
    assert_int_equal(logged(&f.log, 1, WIRE_PULL_REPLY), 0);
    f.log.count = 0;
    h.seq = 2;
    assert_int_equal(server_core_message(f.core, &h, NULL, 3), 0);
    assert_int_equal(logged(&f.log, 1, WIRE_REFUSED), 1);
    server_core_destroy(&f.core);
    free(rows.keys);
    sim_destroy(f.sim);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sync), cmocka_unit_test(test_async),
                                       cmocka_unit_test(test_async_sums), cmocka_unit_test(test_early_pulls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
