// Workers that come and go, as state machines: whoever dies when, and whatever the network does to the messages, the
// weights are those of a plain trainer that is told who belonged to each step and whose gradients counted.
#include "tests/ps_elastic/elastic_sim.h"

// ---------------------------------------------------------------- cases
static struct toy_case case_of(uint64_t seed) {
    struct toy_case t = {.consistency = "sync",
                         .workers = 3 + (int)(seed % 2),
                         .servers = 1 + (int)(seed % 3),
                         .threads = 1 + (int)(seed / 3 % 2),
                         .steps = SIM_STEPS,
                         .overflow_step = -1,
                         .seed = seed,
                         .elastic_min = 1 + (int)(seed / 5 % 2)};
    t.dtype = seed % 4 == 0 ? DT_F16 : seed % 4 == 1 ? DT_F32 : DT_BF16;
    if (t.dtype == DT_F16) t.overflow_step = 2;
    t.clip = seed / 2 % 2 ? 0.5f : 0.0f;
    t.share = seed % 5 == 0   ? SHARE_WRITTEN
              : seed % 5 == 1 ? SHARE_IN_PLACE
              : seed % 5 == 2 ? SHARE_MIXED
                              : SHARE_NOTHING;
    return t;
}

// No process dies: the bits of a run without --elastic.
static void test_all_there(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct toy_case t = case_of(seed);
        t.steps = 4;
        struct fate f = {.uneven = seed % 2};
        struct sim *s = sim_create(&t);
        run(s, &f);
        compare(s, &f);
        struct toy_ref r = toy_ref_start(&t, s->l);
        for (int64_t step = 0; step < t.steps; step++) toy_ref_step(&t, s->l, &s->c, &r, step);
        for (int u = 0; u < s->l->count; u++)
            assert_memory_equal(s->workers[0].weights[u], r.weight[u],
                                (size_t)s->l->units[u].n_pad * dtype_size(t.dtype));
        assert_true(s->workers[0].last.loss == r.last.loss &&
                    s->workers[0].last.grad_norm == r.last.grad_norm);
        toy_ref_free(&r);
        end(s, &f);
    }
}

// Workers die at any moment and others take their ranks, over a network that does what it likes.
static void test_deaths(void **state) {
    (void)state;
    int partial = 0, joins = 0, away = 0;
    for (uint64_t seed = 1; seed <= 160; seed++) {
        struct toy_case t = case_of(seed);
        struct fate f = {.uneven = seed / 2 % 2, .kills = 1 + (int)(seed % 4), .told = seed % 3 > 0};
        struct sim *s = sim_create(&t);
        s->drop_percent = (int)(seed / 2 % 3) * 5;
        s->repeat_percent = (int)(seed / 3 % 3) * 5;
        s->in_order = seed % 7 == 0;
        run(s, &f);
        compare(s, &f);
        for (int i = 0; i < t.steps; i++) {
            partial += f.set[i] != f.members[i];
            away += f.members[i] != elastic_all(t.workers);
        }
        joins += f.joins;
        end(s, &f);
    }
    // All that is to be tested has happened, and often.
    assert_true(partial > 20 && joins > 60 && away > 60);
}

// Below MIN, or without worker 0, it is as without --elastic, and the text says why.
static void test_not_borne(void **state) {
    (void)state;
    static const struct {
        int first, second;
        const char *words;
    } cases[] = {{1, 2, "it was killed; fewer than 2 workers are left"}, {1, 0, "worker 0 has the metrics"}};
    for (int i = 0; i < 2; i++) {
        struct toy_case t = case_of(5);
        t.workers = 3;
        t.elastic_min = 2;
        char news[WIRE_TEXT_MAX];
        struct sim *s = sim_create(&t);
        worker_dies(s, cases[i].first, 0);
        assert_string_equal(scheduler_core_error(s->scheduler), "");
        assert_true(scheduler_core_next_news_line(s->scheduler, news));
        assert_string_equal(news, "it was killed: the job continues without it");
        assert_false(scheduler_core_next_news_line(s->scheduler, news));
        worker_dies(s, cases[i].second, 0);
        assert_non_null(strstr(scheduler_core_error(s->scheduler), cases[i].words));
        sim_destroy(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_there),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_not_borne),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
