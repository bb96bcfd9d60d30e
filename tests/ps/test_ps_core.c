// The star's state machines together, without sockets: the same bits as the plain trainer, whatever
// the network does to the messages.
#include "test_ps_sim.h"

static void check_weights(const struct sim *s, const struct toy_ref *r) {
    for (int u = 0; u < s->l->count; u++) {
        size_t bytes = (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype);
        for (int w = 0; w < s->t.workers; w++)
            assert_memory_equal(s->workers[w].weights[u], r->weight[u], bytes);
        for (int k = s->map->first[u]; k < s->map->first[u + 1]; k++) {
            const struct partition *p = &s->map->parts[k];
            size_t n = (size_t)(p->end - p->begin) * sizeof(float);
            assert_memory_equal(s->buffers[k].master, r->master[u] + p->begin, n);
            assert_memory_equal(s->buffers[k].state[0], r->m[u] + p->begin, n);
            assert_memory_equal(s->buffers[k].state[1], r->v[u] + p->begin, n);
            assert_int_equal(server_core_version(s->shards[p->shard], k), r->updates);
        }
    }
}

// Runs the case over the given network and compares everything with the plain trainer.
static void compare(const struct toy_case *t, int drop, int repeat, bool in_order) {
    struct sim *s = sim_create(t);
    s->drop_percent = drop;
    s->repeat_percent = repeat;
    s->in_order = in_order;
    sim_run(s);
    struct toy_ref r = toy_ref_start(t, s->l);
    for (int64_t step = 0; step < t->steps; step++) toy_ref_step(t, s->l, &s->c, &r, step);
    check_weights(s, &r);
    for (int w = 0; w < t->workers; w++) {
        assert_true(s->workers[w].last.loss == r.last.loss);
        assert_true(s->workers[w].last.grad_norm == r.last.grad_norm);
        assert_int_equal(s->workers[w].updates, r.updates);
    }
    toy_ref_free(&r);
    sim_destroy(s);
}

static struct toy_case base_case(void) {
    return (struct toy_case){.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 3,
                             .servers = 2,
                             .threads = 1,
                             .steps = 4,
                             .overflow_step = -1,
                             .seed = 1};
}

static void test_sync_equals_reduce(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int d = 0; d < 3; d++)
        for (int workers = 1; workers <= 4; workers++)
            for (int servers = 1; servers <= 3; servers++)
                for (int clip = 0; clip < 2; clip++) {
                    struct toy_case t = base_case();
                    t.dtype = types[d];
                    t.workers = workers;
                    t.servers = servers;
                    t.threads = 1 + (servers + workers) % 2;
                    t.clip = clip ? 0.5f : 0.0f;
                    t.overflow_step = types[d] == DT_F16 ? 2 : -1;
                    compare(&t, 0, 0, true);
                }
}

static void test_chaos(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct toy_case t = base_case();
        t.seed = seed;
        t.dtype = seed % 3 == 0 ? DT_F16 : seed % 3 == 1 ? DT_BF16 : DT_F32;
        t.clip = seed % 2 ? 0.5f : 0.0f;
        t.servers = 1 + (int)(seed % 3);
        t.threads = 1 + (int)(seed / 3 % 2);
        t.workers = 2 + (int)(seed % 2);
        t.overflow_step = t.dtype == DT_F16 ? 1 : -1;
        compare(&t, (int)(seed % 4) * 8, (int)(seed % 5) * 6, false);
    }
}

// Every push is one update, however often it was repeated or lost.
static void test_async_exactly_once(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct toy_case t = base_case();
        t.consistency = "async";
        t.seed = seed;
        t.steps = 6;
        struct sim *s = sim_create(&t);
        s->drop_percent = (int)(seed % 3) * 10;
        s->repeat_percent = (int)(seed % 4) * 10;
        sim_run(s);
        struct staleness all = {{0}, 0, 0};
        for (int k = 0; k < s->map->count; k++)
            assert_int_equal(server_core_version(s->shards[s->map->parts[k].shard], k), t.workers * t.steps);
        for (int g = 0; g < s->map->shards; g++) {
            struct server_totals totals;
            server_core_totals(s->shards[g], &totals);
            staleness_merge(&all, &totals.staleness);
            assert_int_equal(totals.pushes, (uint64_t)s->map->shard_keys[g] * 3 * 6);
            assert_int_equal(totals.steps, s->map->shard_keys[g] ? 6 : 0);
        }
        uint64_t count = 0;
        for (int i = 0; i < 64; i++) count += all.count[i];
        assert_int_equal(count, (uint64_t)s->map->count * 3 * 6);
        assert_true(all.max >= 1 && all.mean > 0.0);  // others got in between
        sim_destroy(s);
    }
}

// One worker never computes on a stale version, and N=1 async is the plain trainer.
static void test_async_alone(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.workers = 1;
    struct layout *l = toy_layout(1, 80);
    struct config c = toy_config(&t);
    struct toy_ref r = toy_ref_start(&t, l);
    for (int64_t step = 0; step < t.steps; step++) toy_ref_step(&t, l, &c, &r, step);
    t.consistency = "async";
    struct sim *s = sim_create(&t);
    s->repeat_percent = 20;
    s->drop_percent = 10;
    sim_run(s);
    check_weights(s, &r);
    struct server_totals totals;
    server_core_totals(s->shards[0], &totals);
    assert_int_equal(totals.staleness.max, 0);
    assert_int_equal(worker_core_status(s->workers[0].core)->staleness.max, 0);
    sim_destroy(s);
    toy_ref_free(&r);
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_equals_reduce),
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_async_exactly_once),
        cmocka_unit_test(test_async_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
