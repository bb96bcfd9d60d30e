// Steps that go on without those that are late (ps:backup:B, ps:quorum:Q), as state machines: whatever the network does to the
// messages and however slow a worker is, worker 0 among them, the weights are those of a plain trainer that is told whose gradients
// counted.
#include "tests/ps_elastic/elastic_sim.h"

static struct toy_case case_of(const char *consistency, uint64_t seed) {
    struct toy_case t = {.consistency = consistency,
                         .workers = 3 + (int)(seed % 2),
                         .servers = 1 + (int)(seed % 3),
                         .threads = 1 + (int)(seed / 3 % 2),
                         .steps = SIM_STEPS,
                         .clip = seed / 2 % 2 ? 0.5f : 0.0f,
                         .overflow_step = -1,
                         .seed = seed};
    t.dtype = seed % 4 == 0 ? DT_F16 : seed % 4 == 1 ? DT_F32 : DT_BF16;
    if (t.dtype == DT_F16) t.overflow_step = 2;
    t.share = seed % 5 == 0 ? SHARE_WRITTEN : seed % 5 == 1 ? SHARE_MIXED : SHARE_NOTHING;
    return t;
}

struct seen {
    int partial, late, missed, stale, zero;  // zero: steps without worker 0
    int joins, further;
};

// Frames that a shard holds: at most those of a step of all workers.
static void check_held(const struct sim *s) {
    for (int g = 0; g < s->map->shards; g++) {
        struct server_totals totals;
        size_t bytes = 0;
        for (int k = 0; k < s->map->count; k++) {
            const struct partition *p = &s->map->parts[k];
            if (p->shard == g) bytes += (size_t)(p->end - p->begin) * dtype_size(s->t.dtype);
        }
        server_core_totals(s->shards[g], &totals);
        assert_true(totals.held_peak_bytes <= bytes * (size_t)s->t.workers);
        if (s->t.share == SHARE_NOTHING && bytes) assert_true(totals.held_peak_bytes > 0);
    }
}

// Ages are of what updates have, at the servers and at the workers; the rest is dropped, and counted as that.
static void check_ages(const struct sim *s, const struct fate *f) {
    uint64_t applied = 0, known = 0, heard = 0, pushes = 0, dropped = 0;
    for (int i = 0; i < s->t.steps; i++) applied += (uint64_t)(s->map->count * elastic_count(f->set[i]));
    for (int g = 0; g < s->map->shards; g++) {
        struct server_totals totals;
        server_core_totals(s->shards[g], &totals);
        known += totals.staleness.count[0];
        pushes += totals.pushes;
        dropped += (uint64_t)totals.dropped;
        assert_int_equal(totals.staleness.max, 0);
    }
    for (int w = 0; w < s->t.workers; w++) {
        heard += worker_core_status(s->workers[w].core)->staleness.count[0];
        assert_int_equal(worker_core_status(s->workers[w].core)->staleness.max, 0);
    }
    assert_int_equal(known, applied);
    assert_int_equal(heard, applied);
    assert_int_equal(dropped, pushes - applied);
}

// Workers are slow at random, and the network does what it likes.
static void run_case(struct toy_case *t, struct fate *f, struct seen *n) {
    struct sim *s = sim_create(t);
    const struct consistency_rule rule = consistency_of(&s->c);
    s->drop_percent = (int)(t->seed / 2 % 3) * 5;
    s->repeat_percent = (int)(t->seed / 3 % 3) * 5;
    s->in_order = t->seed % 7 == 0;
    for (int w = 0; w < t->workers; w++)
        f->slow[w] =
            (t->seed + (uint64_t)w) % 3 == 0 ? 80 + (int)(toy_hash(t->seed * 8 + (uint64_t)w) % 20) : 0;
    run(s, f);
    compare(s, f);
    check_held(s);
    for (int i = 0; i < t->steps; i++) {
        int count = elastic_count(f->set[i]);
        if (!t->elastic_min) assert_true(rule.row->exact ? count == rule.needs : count >= rule.needs);
        n->partial += count < t->workers;
        n->zero += !(f->set[i] & 1);
    }
    for (int w = 0; w < t->workers; w++) {
        int lacks = 0;
        for (int i = 0; i < t->steps; i++) lacks += !(f->set[i] & elastic_bit(w));
        if (!t->elastic_min) assert_int_equal(lacks, f->late[w] + f->missed[w]);
        n->late += f->late[w];
        n->missed += f->missed[w];
    }
    n->stale += f->stale;
    if (!t->elastic_min) check_ages(s, f);
    n->joins += f->joins;
    n->further += f->further;
    end(s, f);
}

static void test_late(void **state) {
    (void)state;
    static const char *const rows[] = {"backup:1", "quorum:2", "backup:2", "quorum:1"};
    for (int i = 0; i < 4; i++) {
        struct seen n = {0};
        for (uint64_t seed = 1; seed <= 60; seed++) {
            struct toy_case t = case_of(rows[i], seed);
            struct fate f = {.uneven = seed % 2};
            run_case(&t, &f, &n);
        }
        // All that is to be tested has happened, and often.
        assert_true(n.partial > 100 && n.late > 40 && n.missed > 20 && n.stale > 20 && n.zero > 20 &&
                    n.further > 20);
    }
}

// The limit that the check of memory allows a server for frames: N P b / S, whatever the credits, and answers that
// are copies.
static void test_allowance(void **state) {
    (void)state;
    for (int drops = 0; drops < 2; drops++) {
        struct toy_case t = case_of(drops ? "backup:1" : "backup:0", 3);
        struct prediction p = {.wire = {.sent_per_step = 4096 * 1000, .received_per_step = 4096 * 1000}};
        t.medium = MEDIUM_TCP;
        struct config c = toy_config(&t);
        double allowed = topology_star.allowance(&c, "server", &p).frame_bytes, all = 4096 * 1000;
        assert_true(allowed == (drops ? 1.125 * all + all : 1.125 * (double)c.ps.credit_bytes * t.workers));
    }
}

// With as many as there are workers it is ps:sync, whoever is slow.
static void test_all(void **state) {
    (void)state;
    static const char *const rows[] = {"backup:0", "quorum:3", "sync"};
    for (uint64_t seed = 2; seed <= 14; seed += 2)
        for (int i = 0; i < 3; i++) {
            struct toy_case t = case_of(rows[i], seed);
            struct sim *s = sim_create(&t);
            struct toy_ref r = toy_ref_start(&t, s->l);
            sim_run(s);
            for (int64_t step = 0; step < t.steps; step++) toy_ref_step(&t, s->l, &s->c, &r, step);
            for (int u = 0; u < s->l->count; u++)
                assert_memory_equal(s->workers[0].weights[u], r.weight[u],
                                    (size_t)s->l->units[u].n_pad * dtype_size(t.dtype));
            toy_ref_free(&r);
            sim_destroy(s);
        }
}

// A long grace waits for those who are on their way: steps have more than the quorum, and where nobody is lost for long, all.
static void test_grace(void **state) {
    (void)state;
    int count[2] = {0};
    for (int i = 0; i < 2; i++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct toy_case t = case_of("quorum:2", seed);
            struct fate f = {.uneven = seed % 2};
            struct seen n = {0};
            t.grace_ms = i ? 100000 : 0;
            run_case(&t, &f, &n);
            for (int step = 0; step < t.steps; step++) count[i] += t.workers - elastic_count(f.set[step]);
        }
    assert_true(count[0] > 40);
    assert_int_equal(count[1], 0);
}

// Workers die and others take their ranks while some are late: neither holds the others up.
static void test_deaths(void **state) {
    (void)state;
    struct seen n = {0};
    for (uint64_t seed = 1; seed <= 120; seed++) {
        struct toy_case t = case_of(seed % 2 ? "backup:1" : "quorum:2", seed);
        struct fate f = {.uneven = seed / 2 % 2, .kills = 1 + (int)(seed % 4), .told = seed % 3 > 0};
        t.elastic_min = 1 + (int)(seed / 5 % 2);
        run_case(&t, &f, &n);
    }
    assert_true(n.partial > 100 && n.late > 20 && n.missed > 20 && n.joins > 40);
}

// A worker that jumps over a step sends the pushes that credits allow, and drops the others.
static void test_jump(void **state) {
    (void)state;
    struct toy_case t = case_of("backup:1", 2);
    t.share = SHARE_NOTHING;
    struct sim *s = sim_create(&t);
    struct worker_core *c = s->workers[1].core;
    int before = 0, behind = 0;
    for (int u = s->l->count - 1; u >= 0; u--)
        worker_core_push_unit(c, u, &(struct push_info){.step = 0, .lr = TOY_LR, .grad_scale = 1});
    for (int u = 0; u < s->l->count; u++) before += worker_core_busy(c, u, 0);
    worker_core_jump(c, 3, s->now);
    for (int u = 0; u < s->l->count; u++) behind += worker_core_busy(c, u, 0);
    assert_true(before > 4 && behind > 0 && behind <= 2);  // credits are those of two keys
    sim_destroy(s);
}

// A worker that hears of steps which it will never reach says so.
static void test_too_far_behind(void **state) {
    (void)state;
    struct toy_case t = case_of("backup:1", 2);
    struct sim *s = sim_create(&t);
    struct wire_header h = {.kind = WIRE_STEP_DONE, .step = INT64_C(1) << 40};
    assert_int_equal(worker_core_message(s->workers[1].core, PEER_SCHEDULER, &h, NULL, s->now), -1);
    assert_non_null(strstr(worker_core_error(s->workers[1].core), "it is too far behind"));
    sim_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),           cmocka_unit_test(test_all),       cmocka_unit_test(test_grace),
        cmocka_unit_test(test_deaths),         cmocka_unit_test(test_allowance), cmocka_unit_test(test_jump),
        cmocka_unit_test(test_too_far_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
