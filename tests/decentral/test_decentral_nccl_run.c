// The eleven primitives of collective_nccl on a faked CUDA and a faked NCCL: the cases that every
// implementation passes, deadlines, aborts. Sources are compiled in here.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include "tests/cuda/cuda_fake.h"
#include "tests/decentral/nccl_fake.h"

#include "kernels/cuda/host/clock.c"
#include "kernels/cuda/host/device.c"
#include "kernels/cuda/host/mark.c"
#include "kernels/cuda/host/stream.c"
#include "kernels/cuda/host/workspace.c"

#include "decentral/collective/hub.h"
#include "decentral/collective/ring_bootstrap.h"
#include "decentral/nccl/nccl_engine.h"
#include "decentral/nccl/nccl_impl.h"
#include "decentral/nccl/nccl_world.c"

// After the sources: cmocka has a macro called fail.
#include <cmocka.h>

#include "tests/decentral/collective_cases.h"

struct nccl_rank {
    struct hub *hub;
    int rank, size;
    enum reduce_mode mode;
    size_t staging_bytes;
    int group;
    double deadline_s;
    int (*body)(struct nccl_rank *r);
    struct device *dev;
    struct stream *s;
    struct collective *c;
    struct wire_count wire;
    pthread_t thread;
    int rc;
    char error[512];
};

static struct nccl_world *fake_world(const struct nccl_rank *r, struct ring_bootstrap *meeting) {
    struct nccl_world *w = xcalloc(1, sizeof *w);
    w->o = (struct nccl_world_options){
        .device = r->dev, .rank = r->rank, .size = r->size, .bootstrap = meeting, .deadline_s = 20};
    w->so = &starring_cuda_so;
    w->api = xcalloc(1, sizeof *w->api);
#define NCCL_FAKE(name) w->api->name = fake_##name;
    NCCL_FUNCTIONS(NCCL_FAKE)
    w->setup = stream_create(r->dev, "nccl");
    w->one = w->so->backend->alloc(r->dev, DEV_ALIGN);
    if (prepare_order(w) != 0) abort();
    return w;
}

static void *rank_main(void *arg) {
    struct nccl_rank *r = arg;
    struct collective_source under = {&collective_threads_kind, r->hub, r->rank, r->size, false};
    struct ring_bootstrap meeting = {0};
    error_quiet(1);
    r->rc = -1;
    dev_open(starring_cuda_so.backend, &(struct device_options){.label = "rank"}, &r->dev);
    r->s = stream_create(r->dev, "comm");
    ring_bootstrap_open(&meeting, &under, 10);
    struct nccl_world *w = fake_world(r, &meeting);
    void *staging = r->staging_bytes ? dev_alloc(r->dev, MEM_COMM, r->staging_bytes) : NULL;
    struct collective_options o = {.mode = r->mode,
                                   .wire = &r->wire,
                                   .group = r->group,
                                   .deadline_s = r->deadline_s,
                                   .staging = staging,
                                   .staging_bytes = r->staging_bytes};
    r->c = collective_nccl_kind.create(w, r->rank, 0, &o);
    if (r->c) r->rc = r->body(r);
    if (r->c) snprintf(r->error, sizeof r->error, "%s", collective_error(r->c));
    collective_destroy(&r->c);
    stream_destroy(&r->s);
    if (staging) dev_free(r->dev, MEM_COMM, staging, r->staging_bytes);
    nccl_world_close(&w);
    ring_bootstrap_close(&meeting);
    dev_close(&r->dev);
    return NULL;
}

static void run_ranks(struct nccl_rank *r, const struct nccl_rank *like) {
    struct hub *hub = hub_create(like->size);
    for (int i = 0; i < like->size; i++) {
        r[i] = *like;
        r[i].hub = hub;
        r[i].rank = i;
        assert_int_equal(pthread_create(&r[i].thread, NULL, rank_main, &r[i]), 0);
    }
    for (int i = 0; i < like->size; i++) pthread_join(r[i].thread, NULL);
    hub_destroy(&hub);
    assert_int_equal(atomic_load(&fake.live_events), 0);
    assert_int_equal(atomic_load(&fake.live_streams), 0);
    assert_int_equal(atomic_load(&fake.live_buffers), 0);
}

#define MOST 3000

static int body_cases(struct nccl_rank *r) { return cases_run(r->c, r->s, MOST, 11); }

static void test_ordered(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    for (int size = 1; size <= 4; size++) {
        struct nccl_rank like = {.size = size, .mode = REDUCE_ORDERED, .body = body_cases, .deadline_s = 20};
        like.staging_bytes = collective_nccl_kind.staging_bytes(size, MOST, DT_F64);
        run_ranks(r, &like);
        for (int i = 0; i < size; i++) assert_int_equal(r[i].rc, 0);
    }
}

// Staging for a fraction of a piece: reductions go in chunks.
static void test_ordered_in_chunks(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    run_ranks(
        r, &(struct nccl_rank){.size = 3, .body = body_cases, .deadline_s = 20, .staging_bytes = 2 * 1024});
    for (int i = 0; i < 3; i++) assert_int_equal(r[i].rc, 0);
}

static int body_many(struct nccl_rank *r) {
    float *x = calloc(64, sizeof *x);
    x[0] = 1;
    for (int i = 0; i < 200; i++)  // more than can be in flight
        collective_all_reduce(r->c, r->s, x, x, 64, DT_F32);
    collective_barrier(r->c, r->s);
    int rc = stream_sync(r->s);
    if (rc == 0 && !(x[0] > 1e30f)) rc = -1;  // 2^200 overflows fp32: infinity
    free(x);
    return rc;
}

static void test_many_in_flight(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    run_ranks(r, &(struct nccl_rank){.size = 2, .mode = REDUCE_NATIVE, .body = body_many, .deadline_s = 20});
    for (int i = 0; i < 2; i++) assert_int_equal(r[i].rc, 0);
}

static int body_native(struct nccl_rank *r) {
    float x[12], y[12];
    for (int i = 0; i < 12; i++) x[i] = (float)(i + r->rank);
    collective_reduce_scatter(r->c, r->s, x, y, 4, DT_F32);
    int rc = stream_sync(r->s);
    for (int i = 0; i < 4 && rc == 0; i++) rc = y[i] == (float)(3 * (4 * r->rank + i) + 3) ? 0 : -1;
    collective_reduce(r->c, r->s, x, y, 12, DT_F32, 1);
    if (stream_sync(r->s) != 0) return -1;
    for (int i = 0; i < 12 && rc == 0 && r->rank == 1; i++) rc = y[i] == (float)(3 * i + 3) ? 0 : -1;
    return rc;
}

static void test_native(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    run_ranks(r,
              &(struct nccl_rank){.size = 3, .mode = REDUCE_NATIVE, .body = body_native, .deadline_s = 20});
    for (int i = 0; i < 3; i++) assert_int_equal(r[i].rc, 0);
    run_ranks(r, &(struct nccl_rank){.size = 3, .mode = REDUCE_NATIVE, .body = body_cases, .deadline_s = 20});
    for (int i = 0; i < 3; i++) assert_int_equal(r[i].rc, 0);
}

static int body_one_missing(struct nccl_rank *r) {
    float x[4] = {0};
    if (r->rank == 1) return -2;
    collective_broadcast(r->c, r->s, x, 4, DT_F32, 1);
    return stream_sync(r->s);
}

static void test_a_missing_rank_ends_at_the_deadline(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    run_ranks(r, &(struct nccl_rank){.size = 2, .body = body_one_missing, .deadline_s = 0.2});
    assert_int_equal(r[0].rc, -1);
    assert_non_null(strstr(r[0].error, "broadcast on channel 0"));
    assert_non_null(strstr(r[0].error, "did not come within 0.2 s"));
}

// The device hangs in the operation itself: the watching thread ends it.
static int body_hangs(struct nccl_rank *r) {
    float x[4] = {0};
    if (r->rank != 0) return 0;
    struct event *e = event_create(r->dev);
    collective_broadcast(r->c, r->s, x, 4, DT_F32, 0);
    event_record(e, r->s);
    int rc = event_sync(e) == -1 && stream_sync(r->s) == -1 ? -1 : -2;
    event_destroy(&e);
    return rc;
}

static void test_a_hanging_device_ends_at_the_deadline(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    atomic_store(&fake_broadcast_hangs, true);
    run_ranks(r, &(struct nccl_rank){.size = 2, .body = body_hangs, .deadline_s = 0.3});
    atomic_store(&fake_broadcast_hangs, false);
    assert_int_equal(r[0].rc, -1);
    assert_non_null(strstr(r[0].error, "broadcast on channel 0: some other rank did not come within 0.3 s"));
}

// Groups of two of four ranks: sums within them, rounded, and then across, rounded; each rank sends one of its three blocks
// out of its group.
static int body_groups(struct nccl_rank *r) {
    enum { N = 700 };
    static const float parts[] = {1.0f, 0.00390625f, 0.00390625f,
                                  0.00390625f};  // the last three: half a bit of the first
    uint16_t in[4 * N], sum[N], all[4 * N];
    for (unsigned long i = 0; i < 4 * N; i++)
        dtype_store(DT_BF16, in, i, parts[r->rank] * (float)(1 + i / N));
    collective_reduce_scatter(r->c, r->s, in, sum, N, DT_BF16);
    collective_all_gather(r->c, r->s, sum, all, N, DT_BF16);
    if (stream_sync(r->s) != 0) return -1;
    for (unsigned long i = 0; i < 4 * N; i++) {
        uint16_t x[3];
        float block = (float)(1 + i / N);
        for (unsigned long g = 0; g < 2; g++)
            dtype_store(DT_BF16, x, g, parts[2 * g] * block + parts[2 * g + 1] * block);
        dtype_store(DT_BF16, x, 2, dtype_load(DT_BF16, x, 0) + dtype_load(DT_BF16, x, 1));
        if (all[i] != x[2]) return -1;
    }
    uint64_t block = N * 2;
    bool counted = r->wire.payload_sent == 6 * block && r->wire.across_sent == 2 * block &&
                   r->wire.payload_received == 6 * block && r->wire.across_received == 2 * block;
    return counted ? 0 : -2;
}

static void test_groups(void **state) {
    (void)state;
    for (int small = 0; small < 2; small++) {
        struct nccl_rank r[CASES_MAX_RANKS],
            like = {.size = 4, .group = 2, .body = body_groups, .deadline_s = 20};
        like.staging_bytes = small ? 3 * 256 : collective_nccl_kind.staging_bytes(4, MOST, DT_BF16);
        run_ranks(r, &like);
        for (int i = 0; i < 4; i++) assert_int_equal(r[i].rc, 0);
    }
}

static int body_abort(struct nccl_rank *r) {
    float x[4] = {0};
    collective_abort(r->c, "enough");
    collective_broadcast(r->c, r->s, x, 4, DT_F32, 0);
    return stream_sync(r->s);
}

static void test_abort(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    run_ranks(r, &(struct nccl_rank){.size = 2, .body = body_abort, .deadline_s = 20});
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].rc, -1);
        assert_non_null(strstr(r[i].error, "aborted: enough"));
    }
}

static int body_reduce(struct nccl_rank *r) {
    uint8_t x[4] = {0};
    collective_all_reduce(r->c, r->s, x, x, 4, r->staging_bytes ? DT_U8 : DT_BF16);
    return stream_sync(r->s);
}

static void test_refusals(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    run_ranks(r, &(struct nccl_rank){.size = 2, .body = body_reduce, .deadline_s = 20});
    assert_int_equal(r[0].rc, -1);
    assert_non_null(strstr(r[0].error, "without staging"));
    run_ranks(r,
              &(struct nccl_rank){.size = 2, .body = body_reduce, .deadline_s = 20, .staging_bytes = 4096});
    assert_int_equal(r[0].rc, -1);
    assert_non_null(strstr(r[0].error, "uint8"));
}

// All fake ranks sit on the same fake GPU.
static int body_sharing(struct nccl_rank *r) {
    return nccl_check_devices(((struct collective_nccl *)r->c)->world, 22809);
}
static int body_sharing_allowed(struct nccl_rank *r) {
    return nccl_check_devices(((struct collective_nccl *)r->c)->world, 23000);
}

static void test_two_ranks_on_one_gpu(void **state) {
    (void)state;
    struct nccl_rank r[CASES_MAX_RANKS];
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    run_ranks(r, &(struct nccl_rank){.size = 2, .body = body_sharing, .deadline_s = 20});
    for (int i = 0; i < 2; i++) assert_int_equal(r[i].rc, -1);
    run_ranks(r, &(struct nccl_rank){.size = 2, .body = body_sharing_allowed, .deadline_s = 20});
    for (int i = 0; i < 2; i++) assert_int_equal(r[i].rc, -1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    run_ranks(r, &(struct nccl_rank){.size = 2, .body = body_sharing_allowed, .deadline_s = 20});
    for (int i = 0; i < 2; i++) assert_int_equal(r[i].rc, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_ordered_in_chunks),
        cmocka_unit_test(test_native),
        cmocka_unit_test(test_many_in_flight),
        cmocka_unit_test(test_a_missing_rank_ends_at_the_deadline),
        cmocka_unit_test(test_a_hanging_device_ends_at_the_deadline),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_two_ranks_on_one_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
