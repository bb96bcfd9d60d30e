// The tools of `starring bench collective`: shapes and bandwidth factors as nccl-tests', inputs that distinguish
// one order of adding from another, and a check that finds every wrong element and no other.
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decentral/bench/bench_rank.h"
#include "decentral/collective/collective_impl.h"
#include "decentral/collective/hub.h"
#include "shared/core/error.h"

static enum collective_primitive named(const char *name) {
    enum collective_primitive p = 0;
    while (p < COLLECTIVE_PRIMITIVES && !(bench_has(p) && !strcmp(bench_name(p), name))) p++;
    assert_int_not_equal(p, COLLECTIVE_PRIMITIVES);
    return p;
}

// ---------------------------------------------------------------- shapes

static void shapes_are_those_of_nccl_tests(void **state) {
    static const struct {
        const char *name;
        size_t count, size, root_send, send, root_recv, recv;  // elements, bytes; rank 0's and rank 1's
        double factor;
    } wants[] = {
        {"broadcast", 1000, 2000, 1000, 0, 1000, 1000, 1},
        {"scatter", 250, 2000, 1000, 0, 250, 250, 0.75},
        {"reduce", 1000, 2000, 1000, 1000, 1000, 0, 1},
        {"all_reduce", 1000, 2000, 1000, 1000, 1000, 1000, 1.5},
        {"gather", 250, 2000, 250, 250, 1000, 0, 0.75},
        {"all_gather", 250, 2000, 250, 250, 1000, 1000, 0.75},
        {"reduce_scatter", 250, 2000, 1000, 1000, 250, 250, 0.75},
        {"all_to_all", 250, 2000, 1000, 1000, 1000, 1000, 0.75},
        {"send_recv", 1000, 2000, 1000, 1000, 1000, 1000, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        struct bench_shape s = bench_shape_of(named(wants[i].name), 4, DT_BF16, 2001);  // rounded down
        assert_int_equal(s.count, wants[i].count);
        assert_int_equal(bench_shape_bytes(&s), wants[i].size);
        assert_int_equal(bench_send_count(&s, 0), wants[i].root_send);
        assert_int_equal(bench_send_count(&s, 1), wants[i].send);
        assert_int_equal(bench_recv_count(&s, 0), wants[i].root_recv);
        assert_int_equal(bench_recv_count(&s, 1), wants[i].recv);
        assert_true(bench_bus_factor(s.what, 4) == wants[i].factor);
    }
    struct bench_shape least = bench_shape_of(named("all_gather"), 4, DT_F64, 1);
    assert_int_equal(least.count, 1);
    assert_int_equal(bench_shape_bytes(&least), 32);

    struct bench_row row = {.shape = bench_shape_of(named("all_reduce"), 4, DT_F32, 4000)};
    row.figure[OUT_OF_PLACE] = (struct bench_figure){.measured = true, .seconds = 1e-6};
    assert_true(fabs(bench_algorithm_rate(&row, OUT_OF_PLACE) - 4e9) < 1);
    assert_true(fabs(bench_bus_rate(&row, OUT_OF_PLACE) - 6e9) < 1);
    assert_true(bench_bus_rate(&row, IN_PLACE) == 0);
}

// ---------------------------------------------------------------- data

#define N 4096

// Adds rank by rank in fp32, from the first to the last or back.
static void add_up(const struct bench_data *d, const struct bench_shape *s, bool backwards, float *out) {
    static float one[N];
    memset(out, 0, N * sizeof *out);
    for (int k = 0; k < s->ranks; k++) {
        bench_input(d, s, backwards ? s->ranks - 1 - k : k, 0, N, one);
        for (size_t i = 0; i < N; i++) out[i] += dtype_load(s->dt, one, i);
    }
}

// Elements in which `sum`, rounded, is not what is expected.
static int64_t differ(const struct bench_data *d, const struct bench_shape *s, const float *sum) {
    static float rounded[N], want[N];
    void *scratch = malloc((size_t)s->ranks * N * dtype_size(s->dt));
    for (size_t i = 0; i < N; i++) dtype_store(s->dt, rounded, i, sum[i]);
    bench_expected(d, s, 1, 0, N, want, scratch);
    free(scratch);
    return bench_wrong(rounded, want, N, s->dt);
}

static void the_order_of_adding_shows(void **state) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    static float forth[N], back[N];
    (void)state;
    for (int t = 0; t < 3; t++) {
        for (int ranks = 3; ranks < 9; ranks++) {
            struct bench_shape s = bench_shape_of(named("all_reduce"), ranks, types[t], 4 * N);
            struct bench_data d = {.seed = 7};
            add_up(&d, &s, false, forth);
            add_up(&d, &s, true, back);
            assert_int_equal(differ(&d, &s, forth), 0);
            assert_true(differ(&d, &s, back) > N / 64);
            d.exact = true;  // for a library's own order
            add_up(&d, &s, true, back);
            assert_int_equal(differ(&d, &s, back), 0);
        }
    }
}

// Partial sums of exact data are whole numbers that bf16 holds, for as many ranks as there can be.
static void exact_data_fit_every_type(void **state) {
    static const int ranks[] = {2, 32, 33, 256};
    static float sum[N];
    static uint16_t one[N];
    (void)state;
    for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++) {
        struct bench_shape s = bench_shape_of(named("all_reduce"), ranks[k], DT_BF16, 2 * N);
        struct bench_data d = {.seed = 3, .exact = true};
        int different = 0;
        memset(sum, 0, sizeof sum);
        for (int r = 0; r < s.ranks; r++) {
            bench_input(&d, &s, r, 0, N, one);
            for (size_t i = 0; i < N; i++) {
                sum[i] += dtype_load(DT_BF16, one, i);
                assert_true(bf16_to_f32(f32_to_bf16(sum[i])) == sum[i] && rintf(sum[i]) == sum[i]);
                different += one[i] != one[0];
            }
        }
        assert_true(different > N);
    }
}

static void a_part_is_part_of_the_whole(void **state) {
    static double whole[N], part[N];
    (void)state;
    for (enum collective_primitive p = 0; p < COLLECTIVE_PRIMITIVES; p++) {
        if (!bench_has(p)) continue;
        struct bench_shape s = bench_shape_of(p, 3, DT_F64, 3000 * 8);
        struct bench_data d = {.seed = 9};
        for (int rank = 0; rank < 3; rank++) {
            size_t n = bench_recv_count(&s, rank);
            if (n < 900) continue;  // gather and reduce beside the root, barrier
            void *scratch = calloc((size_t)s.ranks * n + 1, dtype_size(s.dt));
            bench_expected(&d, &s, rank, 0, n, whole, scratch);
            bench_expected(&d, &s, rank, 777, n - 777, part, scratch);
            assert_int_equal(bench_wrong(part, whole + 777, n - 777, DT_F64), 0);
            free(scratch);
        }
    }
}

static void wrong_elements_are_counted(void **state) {
    static uint16_t a[N], b[N];
    static const float plus = 0.0f, minus = -0.0f;
    (void)state;
    struct bench_shape s = bench_shape_of(named("broadcast"), 2, DT_F16, 2 * N);
    bench_input(&(struct bench_data){.seed = 1}, &s, 0, 0, N, a);
    memcpy(b, a, sizeof b);
    assert_int_equal(bench_wrong(a, b, N, DT_F16), 0);
    b[0] ^= 1;
    b[17] ^= 0x8000;
    b[N - 1] ^= 1;
    assert_int_equal(bench_wrong(a, b, N, DT_F16), 3);
    assert_int_equal(bench_wrong(a, b, N / 2, DT_F32), 3);
    assert_int_equal(bench_wrong(&plus, &minus, 1, DT_F32), 1);  // to the bit
}

// ---------------------------------------------------------------- whole benches over threads

struct bench_thread {
    pthread_t thread;
    struct collective_source source;
    const struct bench_rank_options *o;
    int rc;
    int64_t wrong;
};

struct seen {
    int rows, timed;
    int64_t wrong;
    struct bench_row last;
};

static void see_row(void *ctx, const struct bench_row *row) {
    struct seen *s = ctx;
    s->rows++;
    for (int p = 0; p < BENCH_PLACES; p++) {
        s->wrong += row->figure[p].wrong;
        if (!row->figure[p].measured) continue;
        s->timed++;
        assert_true(isfinite(row->figure[p].seconds) && row->figure[p].seconds > 0);
    }
    s->last = *row;
}

static void *run_rank(void *arg) {
    struct bench_thread *t = arg;
    struct device *dev;
    const char *why;
    struct bench_rank_options o = *t->o;
    if (t->source.rank != 0) o.on_row = NULL;
    t->rc = dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 1}, &dev);
    if (t->rc) return NULL;
    error_quiet(1);
    t->rc = bench_rank_run(&o, &t->source, dev, &t->wrong);
    dev_close(&dev);
    return NULL;
}

typedef struct collective *(*create_fn)(void *hub, int rank, int channel, const struct collective_options *o);

// Runs the ranks; all must agree on how many elements are wrong, or all fail (-1).
static int64_t run_threads(int ranks, const struct bench_rank_options *o, create_fn create) {
    struct bench_thread t[8] = {0};
    struct collective_kind broken = {.name = "broken", .create = create};
    struct hub *hub = hub_create(ranks);
    for (int r = 0; r < ranks; r++) {
        t[r] = (struct bench_thread){
            .source = {create ? &broken : &collective_threads_kind, hub, r, ranks, false}, .o = o};
        assert_int_equal(pthread_create(&t[r].thread, NULL, run_rank, &t[r]), 0);
    }
    for (int r = 0; r < ranks; r++) pthread_join(t[r].thread, NULL);
    for (int r = 1; r < ranks; r++) {
        assert_int_equal(t[r].rc, t[0].rc);
        if (!t[0].rc) assert_int_equal(t[r].wrong, t[0].wrong);
    }
    hub_destroy(&hub);
    return t[0].rc ? -1 : t[0].wrong;
}

static struct bench_rank_options options(struct seen *seen) {
    return (struct bench_rank_options){.min_bytes = 48,
                                       .max_bytes = 64 << 10,
                                       .factor = 160,
                                       .iterations = 2,
                                       .warmup = 1,
                                       .deadline_s = 3600,
                                       .on_row = see_row,
                                       .ctx = seen};
}

static void all_primitives_of_all_types_are_right(void **state) {
    static const struct {
        int ranks;
        size_t max_bytes;  // two sizes, or three, the largest more than one chunk of the check
        int rows, timed;   // each size of nine primitives and one barrier; in and out of place
        enum reduce_mode mode;
    } cases[] = {{1, 64 << 10, 17, 29, REDUCE_ORDERED},
                 {2, 3 << 20, 28, 46, REDUCE_ORDERED},
                 {5, 64 << 10, 19, 31, REDUCE_NATIVE}};
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (enum dtype dt = 0; dt < DT_COUNT; dt++) {
            struct seen seen = {0};
            struct bench_rank_options o = options(&seen);
            o.mode = cases[k].mode;
            o.dt = dt;
            o.max_bytes = dt == DT_BF16 ? cases[k].max_bytes : 1 << 10;
            for (enum collective_primitive p = 0; p < COLLECTIVE_PRIMITIVES; p++)
                o.wanted[p] = bench_has(p) && (dt != DT_U8 || !collective_reduces(p));
            assert_int_equal(run_threads(cases[k].ranks, &o, NULL), 0);
            assert_int_equal(seen.wrong, 0);
            if (dt != DT_BF16) continue;
            assert_int_equal(seen.rows, cases[k].rows);
            assert_int_equal(seen.timed, cases[k].timed);
        }
    }
}

static void only(struct bench_rank_options *o, const char *name) { o->wanted[named(name)] = true; }

static int flip_two(void *recv) {
    ((uint32_t *)recv)[1] ^= 1;
    ((uint32_t *)recv)[9] ^= 1u << 31;
    return 0;
}

static void all_reduce_that_flips(struct collective *c, const struct collective_call *call) {
    collective_impl_enqueue(c, call);
    if (call->primitive == COLLECTIVE_ALL_REDUCE && c->rank == 1)
        stream_host(call->stream, "flip", flip_two, call->recv);
}

// Adds nothing: whoever asks gets its own.
static void all_reduce_that_copies(struct collective *c, const struct collective_call *call) {
    struct collective_call barrier = {.primitive = COLLECTIVE_BARRIER, .stream = call->stream};
    bool copies = call->primitive == COLLECTIVE_ALL_REDUCE;
    collective_impl_enqueue(c, copies ? &barrier : call);
    if (copies && call->send != call->recv)
        dev_copy(call->stream, call->recv, call->send, call->count * dtype_size(call->dt));
}

static struct collective *create_with(void *hub, int rank, int channel, const struct collective_options *o,
                                      void (*enqueue)(struct collective *c,
                                                      const struct collective_call *call)) {
    static struct collective_ops broken[8][COLLECTIVE_CHANNELS];  // each rank its own
    struct collective *c = collective_threads_kind.create(hub, rank, channel, o);
    struct collective_ops *mine = &broken[rank][channel];
    *mine = *c->ops;
    mine->enqueue = enqueue;
    c->ops = mine;
    return c;
}

static struct collective *create_flipping(void *hub, int rank, int channel,
                                          const struct collective_options *o) {
    return create_with(hub, rank, channel, o, all_reduce_that_flips);
}

static struct collective *create_copying(void *hub, int rank, int channel,
                                         const struct collective_options *o) {
    return create_with(hub, rank, channel, o, all_reduce_that_copies);
}

static void a_broken_reduction_is_caught(void **state) {
    struct seen seen = {0};
    struct bench_rank_options o = options(&seen);
    (void)state;
    only(&o, "all_reduce");
    only(&o, "all_gather");
    // Two elements of one rank, for two sizes, in and out of place.
    assert_int_equal(run_threads(3, &o, create_flipping), 2 * 2 * 2);
    assert_int_equal(seen.wrong, 8);
    assert_string_equal(bench_name(seen.last.shape.what), "all_gather");
    assert_int_equal(seen.last.figure[OUT_OF_PLACE].wrong + seen.last.figure[IN_PLACE].wrong, 0);
    o.on_row = NULL;
    assert_int_equal(run_threads(1, &o, create_copying), 0);  // alone it is right to copy
    o.mode = REDUCE_NATIVE;
    assert_true(run_threads(3, &o, create_copying) > 3 * 2 * (48 + 48 * 160) / 4 / 2);
}

static int refuse(void *arg) {
    (void)arg;
    return -1;
}

static void all_reduce_that_fails(struct collective *c, const struct collective_call *call) {
    if (call->primitive == COLLECTIVE_ALL_REDUCE && c->rank == 1)
        stream_host(call->stream, "refuse", refuse, NULL);
    else
        collective_impl_enqueue(c, call);
}

static struct collective *create_failing(void *hub, int rank, int channel,
                                         const struct collective_options *o) {
    return create_with(hub, rank, channel, o, all_reduce_that_fails);
}

static void a_failure_ends_all_ranks(void **state) {
    struct seen seen = {0};
    struct bench_rank_options o = options(&seen);
    (void)state;
    only(&o, "all_reduce");
    assert_int_equal(run_threads(3, &o, create_failing), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_those_of_nccl_tests),
        cmocka_unit_test(the_order_of_adding_shows),
        cmocka_unit_test(exact_data_fit_every_type),
        cmocka_unit_test(a_part_is_part_of_the_whole),
        cmocka_unit_test(wrong_elements_are_counted),
        cmocka_unit_test(all_primitives_of_all_types_are_right),
        cmocka_unit_test(a_broken_reduction_is_caught),
        cmocka_unit_test(a_failure_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
