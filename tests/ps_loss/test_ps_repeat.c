// What whole stars send again (test_ps_link.c has the link alone): no payload in vain, and how few messages it takes to wait
// for somebody slow or to use a slow link.
#include "ps/net/link.h"
#include "tests/ps/test_ps_log.h"

// ---------------------------------------------------------------- RFC 6298
static void test_arithmetic(void **state) {
    (void)state;
    struct rto r = {0};
    assert_true(rto_s(&r) == RTO_FIRST_S);
    rto_sample(&r, -1);
    assert_int_equal(r.samples, 0);
    rto_sample(&r, 0.5);
    assert_true(r.srtt_s == 0.5 && r.rttvar_s == 0.25 && rto_s(&r) == 1.5);
    rto_sample(&r, 0.9);  // RTTVAR = 3/4 * 0.25 + 1/4 * |0.5 - 0.9|, then SRTT = 7/8 * 0.5 + 1/8 * 0.9
    assert_true(fabs(r.rttvar_s - 0.2875) < 1e-12 && fabs(r.srtt_s - 0.55) < 1e-12);
    assert_true(fabs(rto_s(&r) - (0.55 + 4 * 0.2875)) < 1e-12);
    for (int i = 0; i < 200; i++) rto_sample(&r, 1e-4);
    assert_true(rto_s(&r) == RTO_LEAST_S);
    for (int i = 0; i < 3; i++) rto_sample(&r, 100);
    assert_true(rto_s(&r) == RTO_MOST_S);
    assert_true(rto_backoff(0.05, 0, 2) == 0.05 && rto_backoff(0.05, 3, 2) == 0.4);
    assert_true(rto_backoff(0.05, 6, 2) == 2 && rto_backoff(0.05, 1 << 30, 2) == 2 &&
                rto_backoff(3, 0, 2) == 2);
}

// ---------------------------------------------------------------- whole stars
static struct toy_case star_case(void) {
    return (struct toy_case){.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 3,
                             .servers = 2,
                             .threads = 1,
                             .steps = 4,
                             .overflow_step = -1,
                             .seed = 1};
}

static void check_bits(const struct sim *s) {
    struct toy_ref r = toy_ref_start(&s->t, s->l);
    for (int64_t step = 0; step < s->t.steps; step++) toy_ref_step(&s->t, s->l, &s->c, &r, step);
    for (int u = 0; u < s->l->count; u++)
        for (int w = 0; w < s->t.workers; w++)
            assert_memory_equal(s->workers[w].weights[u], r.weight[u],
                                (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
    toy_ref_free(&r);
}

// Payloads that were sent and not lost: each once.
static void check_payloads(const struct sim *s) {
    uint64_t keys = (uint64_t)s->map->count, all = keys * (uint64_t)(s->t.workers * s->t.steps);
    const struct sim_payloads *x = s->payloads;
    assert_int_equal(x[WIRE_PUSH].sent - x[WIRE_PUSH].lost, all);
    assert_int_equal(x[WIRE_PULL_REPLY].sent - x[WIRE_PULL_REPLY].lost, all);
    assert_int_equal(x[WIRE_INIT].sent - x[WIRE_INIT].lost, keys);
    for (int g = 0; g < s->map->shards; g++) {
        struct server_totals totals;
        server_core_totals(s->shards[g], &totals);
        assert_int_equal(totals.duplicates, 0);
    }
}

// A network that loses, and keeps the order of what it does not: no payload travels in vain, however long the timeouts.
static void test_nothing_in_vain(void **state) {
    (void)state;
    uint64_t lost = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct toy_case t = star_case();
        t.seed = seed;
        t.clip = seed % 2 ? 0.5f : 0.0f;
        t.dtype = seed % 3 ? DT_BF16 : DT_F32;
        struct sim *s = sim_create(&t);
        s->in_order = true;
        s->drop_percent = (int)(seed % 4) * 10;
        sim_run(s);
        check_bits(s);
        check_payloads(s);
        lost += s->payloads[WIRE_PUSH].lost;
        sim_destroy(s);
    }
    assert_true(lost > 50);
}

static uint64_t questions(const struct sim *s) {
    uint64_t n = link_totals(s->scheduler_link).questions;
    for (int w = 0; w < s->t.workers; w++) n += link_totals(s->workers[w].link).questions;
    for (int g = 0; g < s->map->shards; g++) n += link_totals(s->shard_links[g]).questions;
    return n;
}

// A worker that is a minute late costs the others few messages: the pauses between their questions grow.
static void test_straggler_costs_little(void **state) {
    (void)state;
    for (int share = 0; share < 2; share++) {
        struct toy_case t = star_case();
        t.repeat_s = 2;
        t.share = share ? SHARE_IN_PLACE : SHARE_NOTHING;
        struct sim *s = sim_create(&t);
        s->in_order = true;
        s->asleep = 1;
        s->wake = 60;
        sim_run(s);
        check_bits(s);
        if (!share) check_payloads(s);
        assert_true(s->now > 60 && s->now < 64);
        // Per shard (of many keys) and waiting worker one at the timeout, then at 1/4 s, 1/2 s, 1 s, each 2 s; as many of
        // the steps' reports; and five times about each key.
        double most = s->map->shards * 2.0 * (12 + 60 / t.repeat_s) + 2 * (5 + 60 / t.repeat_s) +
                      2.0 * 5 * s->map->count,
               least = s->map->shards * 2.0 * 10;
        if ((double)questions(s) > most)
            fail_msg("%llu questions, not %g", (unsigned long long)questions(s), most);
        assert_true((double)questions(s) > least);
        sim_destroy(s);
    }
}

// A slow link, on which a key takes 0.7 s and the last of a step arrives after half a minute: questions, not copies.
static void test_slow_link(void **state) {
    (void)state;
    struct toy_case t = star_case();
    t.steps = 2;
    t.repeat_s = 2;
    struct sim *s = sim_create(&t);
    s->rate = 3000;
    sim_run(s);
    check_bits(s);
    check_payloads(s);
    // Without the measured round trips there would be one for each key, worker and `repeat_s` of these minutes.
    double messages = (double)s->map->count * t.workers * t.steps;
    assert_true(s->now > 10);
    if ((double)questions(s) > 6 * messages)
        fail_msg("%llu questions for %.0f keys", (unsigned long long)questions(s), messages);
    sim_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_nothing_in_vain),
        cmocka_unit_test(test_straggler_costs_little),
        cmocka_unit_test(test_slow_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
