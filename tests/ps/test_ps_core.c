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

// A gradient in a segment is read at the time of the message: a push that is repeated after its buffer has the
// next gradient, or weights that change under a worker, give other bits.
static void test_segments(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 90; seed++) {
        struct toy_case t = base_case();
        t.seed = seed;
        t.share = seed % 3 == 0 ? SHARE_WRITTEN : seed % 3 == 1 ? SHARE_IN_PLACE : SHARE_MIXED;
        t.dtype = seed % 4 == 0 ? DT_F16 : seed % 4 == 1 ? DT_BF16 : DT_F32;
        t.clip = seed % 2 ? 0.5f : 0.0f;
        t.servers = 1 + (int)(seed / 2 % 3);
        t.threads = 1 + (int)(seed / 3 % 2);
        t.workers = 1 + (int)(seed / 2 % 4);
        t.overflow_step = t.dtype == DT_F16 ? 1 : -1;
        bool quiet = seed % 5 == 0;
        compare(&t, quiet ? 0 : (int)(seed / 5 % 4) * 8, quiet ? 0 : (int)(seed / 7 % 5) * 6, quiet);
    }
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

// The servers add a step's gradients in groups of workers, wherever these lie and in whatever order they come.
static void test_groups(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    static const int shapes[][2] = {{2, 2}, {3, 3}, {4, 2}, {4, 4}};
    for (uint64_t seed = 0; seed < 96; seed++) {
        struct toy_case t = base_case();
        t.seed = seed;
        t.dtype = types[seed % 3];
        t.workers = shapes[seed / 3 % 4][0];
        t.group = shapes[seed / 3 % 4][1];
        t.share = (enum toy_share)(seed / 12 % 4);
        t.clip = seed % 2 ? 0.5f : 0.0f;
        t.servers = 1 + (int)(seed % 3);
        t.threads = 1 + (int)(seed / 3 % 2);
        t.overflow_step = t.dtype == DT_F16 ? 1 : -1;
        bool quiet = seed / 48 == 0;
        compare(&t, quiet ? 0 : (int)(seed / 4 % 4) * 8, quiet ? 0 : (int)(seed % 5) * 6, quiet);
    }
}

// Every push is one update, however often it was repeated or lost.
static void test_async_exactly_once(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 36; seed++) {
        struct toy_case t = base_case();
        t.consistency = "async";
        t.seed = seed;
        t.steps = 6;
        t.share = seed % 3 == 0 ? SHARE_WRITTEN : seed % 3 == 1 ? SHARE_NOTHING : SHARE_MIXED;
        struct sim *s = sim_create(&t);
        s->drop_percent = (int)(seed % 3) * 10;
        s->repeat_percent = (int)(seed % 4) * 10;
        sim_run(s);
        struct staleness all = {.max = 0};
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

// ---------------------------------------------------------------- moments
static int64_t latest(const int64_t *ns, int count) {
    int64_t most = 0;
    for (int i = 0; i < count; i++)
        if (ns[i] > most) most = ns[i];
    return most;
}

// In the worker's clock: equal to a moment of the scheduler's clock, up to what both clocks may be off by.
static void check_moment(struct sim *s, const struct sim_worker *x, int64_t ns, int64_t expected_ns) {
    int64_t ahead_ns = ps_clock_ns(s->skew * (x->end.index + 1)), off_ns = 0;
    for (int w = 0; w < s->t.workers && s->skew != 0; w++) {
        const struct ps_clock *c = &worker_core_status(s->workers[w].core)->clock;
        assert_in_range(c->samples, 1, 1 << 30);
        if (c->worst_ns > off_ns) off_ns = c->worst_ns;
    }
    int64_t off = ns - ahead_ns - expected_ns;
    if (llabs(off) > 2 * off_ns + PS_TIME_RANKS + (s->skew != 0 ? 2 : 0))
        fail_msg("worker %d, step %lld: a moment is off by %lld ns", x->end.index, (long long)x->step,
                 (long long)off);
}

// The moment names the worker that came last, where one did.
static void check_who(int64_t ns, const int64_t *handed, int workers) {
    int last = 0;
    for (int w = 1; w < workers; w++)
        if (handed[w] > handed[last]) last = w;
    for (int w = 0; w < workers; w++)
        if (w != last && handed[last] - handed[w] <= PS_TIME_RANKS) return;
    assert_int_equal(ps_time_rank(ns), last);
}

// The needs of x's last step from others, whatever was repeated, lost or overtaken on the way.
static void check_moments(struct sim *s, struct sim_worker *x) {
    bool alone = consistency_of(&s->c).row->on_arrival, round = commit_round(&s->c);
    int64_t step = x->step - 1, all_ns = latest(s->reported[step], s->t.workers);
    for (int u = 0; u < s->l->count; u++)
        if (latest(s->handed[step][u], s->t.workers) > all_ns)
            all_ns = latest(s->handed[step][u], s->t.workers);
    for (int u = 0; u < s->l->count; u++) {
        const struct unit_times *t = worker_core_times(x->core, u, step);
        const int64_t *handed = s->handed[step][u];
        int64_t own_ns = handed[x->end.index], unit_ns = latest(handed, s->t.workers);
        int64_t earlier_ns = latest(handed, x->end.index + 1);
        assert_int_equal(t->step, step);
        check_moment(s, x, t->ready_ns, own_ns);
        check_moment(s, x, t->landed_peers_ns, alone ? own_ns : round ? all_ns : unit_ns);
        if (s->skew == 0 && !alone && !round) check_who(t->landed_peers_ns, handed, s->t.workers);
        // Weights that came before it, and prove that the push had come, stand for an acknowledgement.
        if (s->drop_percent == 0 && s->in_order)
            check_moment(s, x, t->acknowledged_peers_ns, alone ? own_ns : earlier_ns);
        assert_true(t->ready_ns <= t->sent_ns && t->ready_ns <= t->landed_first_ns);
        assert_true(t->sent_ns <= t->acknowledged_ns && t->landed_first_ns <= t->landed_ns);
        assert_true(t->acknowledged_ns <= ps_clock_ns(sim_clock(s, x)) &&
                    t->landed_ns <= ps_clock_ns(sim_clock(s, x)));
    }
    if (!alone) check_moment(s, x, worker_core_outcome(x->core, x->step - 1)->done_peers_ns, all_ns);
    s->looks++;
}

// Moments of what a step needed, with and without a commit round, with workers that share the scheduler's
// clock and workers on other hosts. A repeated or overtaken message changes none.
static void test_moments(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 32; seed++) {
        struct toy_case t = base_case();
        t.seed = seed;
        t.consistency = seed % 4 == 0 ? "async" : "sync";
        t.clip = seed % 4 == 1 ? 0.5f : 0.0f;
        t.dtype = seed % 4 == 2 ? DT_F16 : DT_BF16;
        t.overflow_step = t.dtype == DT_F16 ? 1 : -1;
        t.servers = 1 + (int)(seed % 3);
        struct sim *s = sim_create_skewed(&t, seed % 8 < 4 ? 0.0 : 1000.0 * (double)seed);
        s->on_landed = check_moments;
        s->in_order = seed % 3 == 0;
        s->report_first = seed / 4 % 2 == 0;
        s->repeat_percent = (int)(seed % 5) * 6;
        s->drop_percent = (int)(seed / 2 % 3) * 6;
        sim_run(s);
        assert_int_equal(s->looks, t.workers * t.steps);
        for (int w = 0; w < t.workers; w++)
            assert_true((worker_core_status(s->workers[w].core)->clock.samples > 0) == (s->skew != 0));
        sim_destroy(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_equals_reduce),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_async_exactly_once),
        cmocka_unit_test(test_async_alone),
        cmocka_unit_test(test_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
