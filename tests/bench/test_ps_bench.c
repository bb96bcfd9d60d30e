// The computations and measurements of `starring bench ps`: figures of made-up times, and the plan of a row.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ps/bench/bench_plan.h"
#include "ps/job/shard_map.h"
#include "ps/star.h"
#include "shared/bench/bench.h"
#include "shared/core/error.h"
#include "shared/core/topology_row.h"
#include "shared/launch/local.h"

static const struct topology_table topologies = {.row = {&topology_local, &topology_star}};

static struct bench_series series(const double *v, int n) {
    struct bench_series s = {0};
    for (int i = 0; i < n; i++) bench_series_add(&s, v[i]);
    return s;
}

// ---------------------------------------------------------------- figures
static void medians_and_quantiles(void **state) {
    (void)state;
    static const double odd[] = {5, 1, 4, 2, 100}, even[] = {8, 2, 4, 6};
    struct bench_series s = series(odd, 5), t = series(even, 4), none = {0}, many = {0};
    assert_true(bench_series_median(&s) == 4 && bench_series_median(&t) == 5);
    assert_true(bench_series_quantile(&s, 0) == 1 && bench_series_quantile(&s, 1) == 100);
    assert_true(bench_series_spread(&s) == 99.0 / 4 && bench_series_spread(&t) == 6.0 / 5);
    assert_true(bench_series_median(&none) == 0 && bench_series_quantile(&none, 0.95) == 0);
    for (int i = 20; i > 0; i--) bench_series_add(&many, i);
    assert_true(bench_series_quantile(&many, 0.95) == 19 && bench_series_quantile(&many, 0.951) == 20);
    assert_true(s.values[0] == 5);  // sorted is a copy
    bench_series_free(&s);
    bench_series_free(&t);
    bench_series_free(&many);
}

// ---------------------------------------------------------------- plans
static void plans_have_payloads_for_every_shard(void **state) {
    (void)state;
    static const struct {
        size_t bytes;
        int servers, threads, keys;
    } wants[] = {{4096, 1, 1, 256},
                 {1 << 20, 1, 1, 32},
                 {1 << 20, 3, 1, 33},
                 {64 << 20, 1, 1, 2},
                 {64 << 20, 4, 2, 8}};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        struct bench_plan p = {.kind = BENCH_STREAM,
                               .dtype = DT_BF16,
                               .bytes = wants[i].bytes,
                               .servers = wants[i].servers,
                               .workers = 2,
                               .threads = wants[i].threads,
                               .partition = 1 << 20};
        assert_int_equal(bench_keys(&p), wants[i].keys);
        p.kind = BENCH_LATENCY;
        assert_int_equal(bench_keys(&p), wants[i].servers * wants[i].threads);
    }
}

// Payloads are cut by the most that one message has, and by nothing else; as many partitions lie on each shard.
static void payloads_are_cut_into_partitions(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (int d = 0; d < 4; d++) {
        struct bench_plan p = {.kind = BENCH_STREAM,
                               .dtype = types[d % 2],
                               .bytes = 65536,
                               .servers = 3,
                               .workers = 3,
                               .threads = 2,
                               .partition = d < 2 ? 1 << 20 : 16384};
        int pieces = d < 2 ? 1 : 4;
        struct layout *l = bench_layout(&p);
        struct config *c = bench_config(&topologies, &p);
        assert_non_null(c);
        assert_true(c->clip == 1 && c->workers == 3 && c->dtype == types[d % 2] && c->medium == MEDIUM_TCP);
        struct shard_map *m = shard_map_of(c, l);
        assert_non_null(m);
        assert_int_equal(m->count, bench_keys(&p) * pieces);
        assert_int_equal(l->params, bench_keys(&p) * bench_elements(&p));
        for (int k = 0; k < m->count; k++)
            assert_int_equal((size_t)(m->parts[k].end - m->parts[k].begin) * dtype_size(types[d % 2]),
                             p.bytes / (size_t)pieces);
        for (int g = 0; g < m->shards; g++) assert_int_equal(m->shard_keys[g], m->count / m->shards);
        shard_map_destroy(&m);
        config_destroy(&c);
        p.kind = BENCH_LATENCY;
        p.medium = BENCH_SHM;
        assert_non_null(c = bench_config(&topologies, &p));
        assert_true(c->clip == 0 && c->medium == MEDIUM_SHM);
        config_destroy(&c);
        layout_destroy(&l);
    }
}

static void plans_travel_as_text(void **state) {
    (void)state;
    struct bench_plan p = {BENCH_LATENCY, BENCH_SHM, DT_BF16, 3072, 2, 3, 1, 2048}, q;
    char text[BENCH_PLAN_TEXT];
    bench_plan_text(&p, text);
    assert_int_equal(bench_plan_read(&q, text), 0);
    assert_true(q.kind == p.kind && q.medium == p.medium && q.dtype == p.dtype && q.bytes == p.bytes);
    assert_true(q.servers == 2 && q.workers == 3 && q.threads == 1 && q.partition == 2048);
    static const char *const wrong[] = {NULL,
                                        "",
                                        "x",
                                        "0,0,1,1024,1,1,1",
                                        "0,0,1,1024,1,1,1,1024,1",
                                        "0,0,2,1024,1,1,1,1024",
                                        "0,0,1,1000,1,1,1,1024",
                                        "0,0,1,1024,1,1,1,1000",
                                        "0,0,1,1024,0,1,1,1024"};
    error_quiet(1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(bench_plan_read(&q, wrong[i]), -1);
    error_quiet(0);
}

static void memory_grows_with_what_runs(void **state) {
    (void)state;
    struct bench_plan p = {
        .dtype = DT_BF16, .bytes = 64 << 20, .servers = 1, .workers = 1, .threads = 1, .partition = 1 << 20};
    double one = bench_memory(&p, 1), both = bench_memory(&p, 2);
    // Per element a server holds 16 bytes of fp32 and 2 of weights, in two stars per medium.
    double elements = 32.0 * (1 << 20);
    assert_true(one > elements * 18 * 3 && both > one + elements * 18 * 3);
    p.workers = 4;
    assert_true(bench_memory(&p, 1) > one + 3 * 64.0 * (1 << 20) * 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_and_quantiles),
        cmocka_unit_test(plans_have_payloads_for_every_shard),
        cmocka_unit_test(payloads_are_cut_into_partitions),
        cmocka_unit_test(plans_travel_as_text),
        cmocka_unit_test(memory_grows_with_what_runs),
    };
    return cmocka_run_group_tests_name("bench ps: figures and plans", tests, NULL, NULL);
}
