// What `starring bench ps` computes and what it measures with: figures of made-up times, the plan of a row, and the
// two raw streams, which must carry every byte.
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ps/bench/bench_roles.h"
#include "ps/job/shard_map.h"
#include "ps/net/raw_stream.h"
#include "ps/star.h"
#include "shared/core/error.h"
#include "shared/core/topology_row.h"
#include "shared/launch/local.h"

static const struct topology_table topologies = {.row = {&topology_local, &topology_star}};

static struct bench_series series(const double *v, int n) {
    struct bench_series s = {0};
    for (int i = 0; i < n; i++) bench_series_add(&s, v[i]);
    return s;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

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

static void add(struct bench_timed *t, double bytes, double seconds) {
    t->bytes = bytes;
    bench_series_add(&t->seconds, seconds);
}

static void rates_and_shares(void **state) {
    (void)state;
    struct bench_row r = {.bytes = 1024, .servers = 4, .workers = 2, .threads = 1, .keys = 4};
    struct bench_star *tcp = &r.star[BENCH_TCP], *shm = &r.star[BENCH_SHM];
    assert_true(bench_worker_rate(&r, BENCH_TCP, BENCH_PUSH) == 0);
    assert_true(bench_shm_over_tcp(&r, BENCH_PUSH) == 0);
    for (int i = 0; i < 3; i++) {
        add(&r.raw[BENCH_TCP].moved, 1e9, 1 + i);  // median 2 s
        add(&tcp->moved[BENCH_PUSH], 1e9, 4 + i);  // 5 s
        add(&tcp->moved[BENCH_PULL], 1e9, 8.0);
        add(&shm->moved[BENCH_PUSH], 1e9, 1.25);
    }
    assert_true(near(bench_worker_rate(&r, BENCH_TCP, BENCH_PUSH), 2e8));
    assert_true(near(bench_server_rate(&r, BENCH_TCP, BENCH_PUSH), 1e8));         // 2 workers, 4 servers
    assert_true(near(bench_share_of_raw(&r, BENCH_TCP, BENCH_PUSH), 4e8 / 5e8));  // both workers' bytes
    assert_true(near(bench_share_of_raw(&r, BENCH_TCP, BENCH_PULL), 2.5e8 / 5e8));
    assert_true(near(bench_shm_over_tcp(&r, BENCH_PUSH), 4));
    assert_true(bench_shm_over_tcp(&r, BENCH_PULL) == 0 &&
                bench_share_of_raw(&r, BENCH_SHM, BENCH_PUSH) == 0);
    struct bench_cpu cpu = {.seconds = 3, .bytes = 2e9}, none = {0};
    assert_true(near(bench_cpu_per_gb(&cpu), 1.5) && bench_cpu_per_gb(&none) == 0);
    bench_row_free(&r);
}

static void arithmetic_counts_what_it_must_move(void **state) {
    (void)state;
    assert_true(bench_apply_bytes(1000, 1, DT_BF16) == 28000);  // as `bench adam`
    assert_true(bench_apply_bytes(1000, 1, DT_F32) == 28000);   // the masters are the weights
    assert_true(bench_apply_bytes(1000, 3, DT_BF16) == 1000 * (3 * 2 + 2 * 8 + 24 + 2));
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
    // Of each element a server holds 16 bytes of fp32 and 2 of weights, in two stars a medium, and `solo` once more.
    double elements = 32.0 * (1 << 20);
    assert_true(one > elements * 18 * (2 + 1 + 2) && both > one + elements * 18 * 3);
    p.workers = 4;
    assert_true(bench_memory(&p, 1) > one + 3 * 64.0 * (1 << 20) * 3);
}

// ---------------------------------------------------------------- streams
#define MESSAGES 150  // more than a ring has slots
#define BYTES    4096

struct receiver {
    struct raw_stream *tcp;
    struct bench_ring *ring;
    uint64_t checksum;
    int rc, count;
};

static void *receive(void *arg) {
    struct receiver *r = arg;
    r->rc = r->tcp ? raw_stream_receive(r->tcp, BYTES, r->count, &r->checksum)
                   : bench_ring_receive(r->ring, r->count, &r->checksum);
    return NULL;
}

static char *payloads(void) {
    char *p = xcalloc(MESSAGES, BYTES);
    for (size_t i = 0; i < (size_t)MESSAGES * BYTES; i++) p[i] = (char)(i * 2654435761u >> 13);
    return p;
}

static void the_ring_carries_every_byte(void **state) {
    (void)state;
    char *base = payloads();
    int fd = bench_ring_memory(BYTES);
    assert_true(fd >= 0);
    struct bench_ring *writer = bench_ring_open(fd, BYTES);
    for (int round = 0; round < 20; round++) {
        struct receiver r = {.ring = bench_ring_open(fd, BYTES), .count = MESSAGES};
        pthread_t thread;
        assert_non_null(r.ring);
        pthread_create(&thread, NULL, receive, &r);
        assert_int_equal(bench_ring_send(writer, base, MESSAGES), 0);
        pthread_join(thread, NULL);
        assert_true(r.rc == 0 && r.checksum == raw_stream_checksum(base, (size_t)MESSAGES * BYTES));
        bench_ring_close(&r.ring);
        base[round * 1000]++;
    }
    bench_ring_close(&writer);
    close(fd);
    free(base);
}

static void the_raw_stream_carries_every_byte(void **state) {
    (void)state;
    char address[NET_ADDRESS_MAX], *base = payloads();
    struct receiver r = {.tcp = raw_stream_listen(address), .count = MESSAGES};
    assert_non_null(r.tcp);
    struct raw_stream *sender = raw_stream_connect(address);
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        pthread_create(&thread, NULL, receive, &r);
        assert_int_equal(raw_stream_send(sender, base, BYTES, MESSAGES), 0);
        pthread_join(thread, NULL);
        assert_true(r.rc == 0 && r.checksum == raw_stream_checksum(base, (size_t)MESSAGES * BYTES));
        base[round * 1000]++;
    }
    raw_stream_close(&sender);
    raw_stream_close(&r.tcp);
    free(base);
}

// Any bit of any word shows.
static void checksums_read_every_word(void **state) {
    (void)state;
    uint64_t words[37] = {0};
    for (int i = 0; i < 37; i++) {
        words[i] = 1ULL << i;
        assert_true(raw_stream_checksum(words, sizeof words) == words[i]);
        words[i] = 0;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_and_quantiles),
        cmocka_unit_test(rates_and_shares),
        cmocka_unit_test(arithmetic_counts_what_it_must_move),
        cmocka_unit_test(plans_have_payloads_for_every_shard),
        cmocka_unit_test(payloads_are_cut_into_partitions),
        cmocka_unit_test(plans_travel_as_text),
        cmocka_unit_test(memory_grows_with_what_runs),
        cmocka_unit_test(the_ring_carries_every_byte),
        cmocka_unit_test(the_raw_stream_carries_every_byte),
        cmocka_unit_test(checksums_read_every_word),
    };
    return cmocka_run_group_tests_name("bench ps: figures, plans and streams", tests, NULL, NULL);
}
