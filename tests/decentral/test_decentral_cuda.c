// Collectives on the memory of (emulated) GPUs: every primitive between threads, directly and over NCCL, and
// how failures end. Streams run by themselves and are delayed at random, so that a missing event shows.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "decentral/collective/hub.h"
#include "decentral/ranks.h"
#include "shared/core/error.h"
#include "tests/decentral/collective_cases.h"
#include "tests/emulated.h"

#define RANKS   4
#define GPUS    "3"
#define MOST    1001
#define STAGING ((size_t)64 << 10)

struct gpu_rank {
    struct hub *hub;
    int rank, size, gpus;  // rank r computes on GPU r % gpus
    enum ring_collective kind;
    const char *backend;
    double deadline_s;
    int (*body)(struct gpu_rank *r);
    struct device *dev;
    struct stream *s[2];
    struct collective *c[2];  // of channels 0 and 1
    struct wire_count wire[2];
    void *staging[2];
    pthread_barrier_t *start;
    char error[600];  // of channel 0, after body
    int rc;
    pthread_t thread;
};

static int open_channels(struct gpu_rank *r, const struct collective_source *source) {
    for (int i = 0; i < 2; i++) {
        r->s[i] = stream_create(r->dev, i ? "reduce" : "gather");
        r->staging[i] = dev_alloc(r->dev, MEM_COMM, STAGING);
    }
    for (int i = 0; i < 2; i++) {
        struct collective_options o = {.wire = &r->wire[i],
                                       .deadline_s = r->deadline_s,
                                       .staging = r->staging[i],
                                       .staging_bytes = STAGING};
        r->c[i] = collective_create(source, i, &o);
        if (!r->c[i]) return -1;
    }
    return 0;
}

static void *rank_main(void *arg) {
    struct gpu_rank *r = arg;
    struct ring_source *source = NULL;
    const char *why = NULL;
    error_quiet(1);
    r->rc = -2;
    dev_open(backend_find(r->backend, &why),
             &(struct device_options){.threads = 1, .label = "rank", .index = r->rank % r->gpus}, &r->dev);
    struct ring_connection place = {.host = RING_THREADS,
                               .world = r->hub,
                               .rank = r->rank,
                               .size = r->size,
                               .dev = r->dev,
                               .deadline_s = 20};
    if (ring_source_open(&source, r->kind, &place) == 0 && open_channels(r, ring_source_get(source)) == 0) {
        pthread_barrier_wait(r->start);
        r->rc = r->body(r);
        if (r->rc == -1) collective_abort(r->c[0], "a rank of the test failed");
    }
    for (int i = 0; i < 2; i++) {
        stream_destroy(&r->s[i]);
        if (i == 0 && r->c[0]) snprintf(r->error, sizeof r->error, "%s", collective_error(r->c[0]));
        collective_destroy(&r->c[i]);
        dev_free(r->dev, MEM_COMM, r->staging[i], STAGING);
    }
    ring_source_close(&source);
    dev_close(&r->dev);
    return NULL;
}

static void run_ranks(struct gpu_rank *r, struct gpu_rank like) {
    struct hub *hub = hub_create(like.size);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)like.size);
    if (!like.deadline_s) like.deadline_s = 60;
    for (int i = 0; i < like.size; i++) {
        r[i] = like;
        r[i].hub = hub;
        r[i].rank = i;
        r[i].start = &start;
        if (!like.backend) r[i].backend = "cuda";
        assert_int_equal(pthread_create(&r[i].thread, NULL, rank_main, &r[i]), 0);
    }
    for (int i = 0; i < like.size; i++) pthread_join(r[i].thread, NULL);
    pthread_barrier_destroy(&start);
    hub_destroy(&hub);
}

static void assert_all(const struct gpu_rank *r, int size, int rc) {
    for (int i = 0; i < size; i++)
        if (r[i].rc != rc) fail_msg("rank %d of %d: %d, not %d: %s", i, size, r[i].rc, rc, r[i].error);
}

static void assert_mentions(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not mention \"%s\"", text, part);
}

// ---------------------------------------------------------------- results

static int body_cases(struct gpu_rank *r) { return cases_run(r->c[0], r->s[0], MOST, 5); }

static void test_local_on_one_gpu(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    for (int size = 1; size <= RANKS; size++) {
        run_ranks(r, (struct gpu_rank){.size = size, .gpus = 1, .kind = RING_THREADS, .body = body_cases});
        assert_all(r, size, 0);
    }
}

static void test_local_on_several_gpus(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){.size = 2, .gpus = 2, .kind = RING_THREADS, .body = body_cases});
    assert_all(r, 2, 0);
    run_ranks(r, (struct gpu_rank){.size = 4, .gpus = 3, .kind = RING_THREADS, .body = body_cases});
    assert_all(r, 4, 0);
}

static void test_nccl(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    for (int size = 2; size <= 3; size++) {
        run_ranks(r, (struct gpu_rank){.size = size, .gpus = size, .kind = RING_NCCL, .body = body_cases});
        assert_all(r, size, 0);
    }
}

// Freeing memory waits for the device, and so for what peers no longer come to.
static void give_up(struct gpu_rank *r) {
    for (int c = 0; c < 2; c++) collective_abort(r->c[c], "a rank of the test failed");
}

// Operations follow one another on the same buffers without a word from the host: x becomes the sum of all,
// again and again, on two channels at once; then each rank overwrites its own as soon as it may.
#define CHAIN 12
#define WIDE  (64 * RANKS)
static int body_chain(struct gpu_rank *r) {
    static const size_t bytes = WIDE * sizeof(int64_t);
    int64_t host[2][WIDE], own[WIDE], got[2][WIDE], all[RANKS][WIDE];
    int64_t *x[2], *parts = dev_alloc(r->dev, MEM_ACTIVATION, RANKS * bytes);
    int64_t want = (int64_t)r->size * (r->size + 1) / 2;
    int bad = 0;
    for (int i = 0; i < CHAIN; i++) want *= r->size;
    for (int k = 0; k < WIDE; k++) {
        host[0][k] = host[1][k] = r->rank + 1;
        own[k] = 1000 * r->rank + k;
    }
    for (int c = 0; c < 2; c++) {
        x[c] = dev_alloc(r->dev, MEM_ACTIVATION, bytes);
        dev_copy(r->s[c], x[c], host[c], bytes);
        for (int i = 0; i <= CHAIN; i++) collective_all_reduce(r->c[c], r->s[c], x[c], x[c], WIDE, DT_I64);
        dev_copy(r->s[c], got[c], x[c], bytes);
    }
    collective_all_gather(r->c[0], r->s[0], x[0], parts, WIDE, DT_I64);
    dev_copy(r->s[0], x[0], own, bytes);
    collective_all_gather(r->c[0], r->s[0], x[0], parts, WIDE, DT_I64);
    op_fill_zero(r->s[0], &(struct fill_zero_args){.out = x[0], .bytes = (int64_t)bytes});
    dev_copy(r->s[0], all, parts, (size_t)r->size * bytes);
    bad |= stream_sync(r->s[0]) | stream_sync(r->s[1]);
    if (bad) give_up(r);
    for (int k = 0; k < WIDE; k++) {
        bad |= got[0][k] != want || got[1][k] != want;
        for (int i = 0; i < r->size; i++) bad |= all[i][k] != 1000 * i + k;
    }
    for (int c = 0; c < 2; c++) dev_free(r->dev, MEM_ACTIVATION, x[c], bytes);
    dev_free(r->dev, MEM_ACTIVATION, parts, RANKS * bytes);
    return bad ? -1 : 0;
}

static void test_operations_follow_one_another(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){.size = 4, .gpus = 1, .kind = RING_THREADS, .body = body_chain});
    assert_all(r, 4, 0);
    run_ranks(r, (struct gpu_rank){.size = 3, .gpus = 3, .kind = RING_THREADS, .body = body_chain});
    assert_all(r, 3, 0);
    run_ranks(r, (struct gpu_rank){.size = 3, .gpus = 3, .kind = RING_NCCL, .body = body_chain});
    assert_all(r, 3, 0);
}

// Two channels in turn, as a ring's gathers and reductions, while the ranks' threads and streams take their
// time: the operations of both reach NCCL and start in the same order on all ranks, or the emulated one
// refuses.
static int body_in_turn(struct gpu_rank *r) {
    size_t bytes = WIDE * sizeof(int64_t);
    int64_t *x[2] = {dev_alloc(r->dev, MEM_ACTIVATION, bytes), dev_alloc(r->dev, MEM_ACTIVATION, bytes)};
    unsigned seed = (unsigned)r->rank + 1;
    for (int i = 0; i < 4 * CHAIN; i++) {
        int c = i % 2;
        usleep((unsigned)rand_r(&seed) % 300);
        if (rand_r(&seed) % 4 == 0)
            op_fill_zero(r->s[c], &(struct fill_zero_args){.out = x[c], .bytes = (int64_t)bytes});
        collective_all_reduce(r->c[c], r->s[c], x[c], x[c], WIDE, DT_I64);
    }
    int rc = stream_sync(r->s[0]) | stream_sync(r->s[1]);
    if (rc) give_up(r);
    for (int c = 0; c < 2; c++) dev_free(r->dev, MEM_ACTIVATION, x[c], bytes);
    return rc;
}

static void test_channels_in_one_order(void **state) {
    (void)state;
    static const char *const versions[] = {"22500", "22600"};
    struct gpu_rank r[RANKS];
    for (int i = 0; i < 2; i++) {
        setenv("EMULATED_NCCL_VERSION", versions[i], 1);
        run_ranks(r, (struct gpu_rank){.size = 3, .gpus = 3, .kind = RING_NCCL, .body = body_in_turn});
        assert_all(r, 3, 0);
    }
    unsetenv("EMULATED_NCCL_VERSION");
}

// Around the ring, even ranks first: what is sent was written just before and is overwritten right behind it.
static int body_mail(struct gpu_rank *r) {
    int64_t host[WIDE], got[CHAIN][WIDE];
    int to = (r->rank + 1) % r->size, from = (r->rank + r->size - 1) % r->size, bad = 0;
    int64_t *out = dev_alloc(r->dev, MEM_ACTIVATION, sizeof host);
    int64_t *in = dev_alloc(r->dev, MEM_ACTIVATION, sizeof host);
    for (int k = 0; k < WIDE; k++) host[k] = 1000 * r->rank + k + 1;
    for (int i = 0; i < CHAIN; i++) {
        for (int half = 0; half < 2; half++) {
            if (r->rank % 2 != half) {
                collective_recv(r->c[0], r->s[0], in, WIDE, DT_I64, from);
                dev_copy(r->s[0], got[i], in, sizeof host);
                op_fill_zero(r->s[0], &(struct fill_zero_args){.out = in, .bytes = sizeof host});
                continue;
            }
            dev_copy(r->s[0], out, host, sizeof host);
            collective_send(r->c[0], r->s[0], out, WIDE, DT_I64, to);
            op_fill_zero(r->s[0], &(struct fill_zero_args){.out = out, .bytes = sizeof host});
        }
    }
    bad |= stream_sync(r->s[0]);
    for (int i = 0; i < CHAIN; i++)
        for (int k = 0; k < WIDE; k++) bad |= got[i][k] != 1000 * from + k + 1;
    dev_free(r->dev, MEM_ACTIVATION, out, sizeof host);
    dev_free(r->dev, MEM_ACTIVATION, in, sizeof host);
    return bad ? -1 : 0;
}

static void test_mail_is_ordered(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){.size = 4, .gpus = 3, .kind = RING_THREADS, .body = body_mail});
    assert_all(r, 4, 0);
}

// A rank's buffers are free as soon as its streams have been synchronised, whatever its peers still do: what
// it frees is poisoned and unmapped.
static int body_leaves_early(struct gpu_rank *r) {
    size_t bytes = 4096;
    int rc = 0;
    for (int i = 0; i < 8 && rc == 0; i++) {
        char *from = dev_alloc(r->dev, MEM_ACTIVATION, bytes);
        char *to = dev_alloc(r->dev, MEM_ACTIVATION, RANKS * bytes);
        collective_all_gather(r->c[0], r->s[0], from, to, bytes, DT_U8);
        collective_barrier(r->c[0], r->s[0]);
        if (r->rank == i % r->size)
            for (int k = 0; k < r->size; k++)
                if (k != r->rank) collective_send(r->c[0], r->s[0], from, bytes, DT_U8, k);
        if (r->rank != i % r->size) collective_recv(r->c[0], r->s[0], to, bytes, DT_U8, i % r->size);
        rc = stream_sync(r->s[0]);
        dev_free(r->dev, MEM_ACTIVATION, from, bytes);
        dev_free(r->dev, MEM_ACTIVATION, to, RANKS * bytes);
    }
    return rc;
}

static void test_buffers_are_free_after_a_sync(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){.size = 3, .gpus = 3, .kind = RING_THREADS, .body = body_leaves_early});
    assert_all(r, 3, 0);
}

// A stream that has passed a barrier comes after everything its peers had enqueued before theirs.
static int body_barrier(struct gpu_rank *r) {
    int64_t mine = r->rank + 7, got[RANKS] = {0};
    int64_t *x = dev_alloc(r->dev, MEM_ACTIVATION, sizeof mine), *shared[RANKS];
    void *addresses = dev_alloc(r->dev, MEM_ACTIVATION, RANKS * sizeof x);
    dev_copy(r->s[1], addresses, &x, sizeof x);
    int64_t *all = dev_alloc(r->dev, MEM_ACTIVATION, RANKS * sizeof x);
    collective_all_gather(r->c[1], r->s[1], addresses, all, 1, DT_I64);
    dev_copy(r->s[1], shared, all, (size_t)r->size * sizeof x);
    int rc = stream_sync(r->s[1]);
    dev_copy(r->s[0], x, &mine, sizeof mine);
    collective_barrier(r->c[0], r->s[0]);
    for (int i = 0; i < r->size; i++) dev_copy(r->s[0], &got[i], shared[i], sizeof mine);
    collective_barrier(r->c[0], r->s[0]);
    rc |= stream_sync(r->s[0]);
    for (int i = 0; i < r->size; i++) rc |= got[i] != i + 7;
    dev_free(r->dev, MEM_ACTIVATION, x, sizeof mine);
    dev_free(r->dev, MEM_ACTIVATION, addresses, RANKS * sizeof x);
    dev_free(r->dev, MEM_ACTIVATION, all, RANKS * sizeof x);
    return rc ? -1 : 0;
}

static void test_a_barrier_orders_devices(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){.size = 3, .gpus = 1, .kind = RING_THREADS, .body = body_barrier});
    assert_all(r, 3, 0);
}

// ---------------------------------------------------------------- failures

// Rank 1 gives the sum a place where its kernel may not write; on the way there all ranks have read each
// other.
static int body_one_device_fails(struct gpu_rank *r) {
    static float nowhere[WIDE];
    float *x = dev_alloc(r->dev, MEM_ACTIVATION, sizeof nowhere);
    collective_all_reduce(r->c[0], r->s[0], x, r->rank == 1 ? nowhere : x, WIDE, DT_F32);
    collective_all_reduce(r->c[0], r->s[0], x, x, WIDE, DT_F32);
    int rc = stream_sync(r->s[0]);
    stream_destroy(&r->s[0]);
    dev_free(r->dev, MEM_ACTIVATION, x, sizeof nowhere);
    return rc;
}

// The same where the others do not notice before they have done their part: they still read what rank 1 is
// about to free.
static int body_one_device_fails_last(struct gpu_rank *r) {
    static float nowhere[WIDE];
    size_t bytes = (size_t)r->size * sizeof nowhere;
    float *x = dev_alloc(r->dev, MEM_ACTIVATION, bytes), *y = dev_alloc(r->dev, MEM_ACTIVATION, bytes);
    collective_reduce_scatter(r->c[0], r->s[0], x, r->rank == 1 ? nowhere : y, WIDE, DT_F32);
    int rc = stream_sync(r->s[0]);
    dev_free(r->dev, MEM_ACTIVATION, x, bytes);
    dev_free(r->dev, MEM_ACTIVATION, y, bytes);
    return rc;
}

static void test_a_failed_device_fails_all(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r,
              (struct gpu_rank){.size = 3, .gpus = 3, .kind = RING_THREADS, .body = body_one_device_fails});
    assert_all(r, 3, -1);
    for (int i = 0; i < 3; i++) assert_mentions(r[i].error, "all_reduce on channel 0");
    assert_mentions(r[0].error, "aborted: ");
    run_ranks(
        r, (struct gpu_rank){.size = 3, .gpus = 3, .kind = RING_THREADS, .body = body_one_device_fails_last});
    assert_all(r, 3, -1);
}

static int body_sum_of_bytes(struct gpu_rank *r) {
    uint8_t *x = dev_alloc(r->dev, MEM_ACTIVATION, 64);
    collective_reduce(r->c[0], r->s[0], x, x, 64, DT_U8, 1);
    int rc = stream_sync(r->s[0]);
    dev_free(r->dev, MEM_ACTIVATION, x, 64);
    return rc;
}

// The root alone finds out; the others hear of it behind the operation.
static void test_one_rank_refuses(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){.size = 3, .gpus = 1, .kind = RING_THREADS, .body = body_sum_of_bytes});
    assert_all(r, 3, -1);
    for (int i = 0; i < 3; i++) assert_mentions(r[i].error, "no sum of uint8");
}

static int body_missing(struct gpu_rank *r) {
    float *x = dev_alloc(r->dev, MEM_ACTIVATION, 256);
    if (r->rank != 1) collective_all_reduce(r->c[0], r->s[0], x, x, 64, DT_F32);
    int rc = r->rank == 1 ? -3 : stream_sync(r->s[0]);
    dev_free(r->dev, MEM_ACTIVATION, x, 256);
    return rc;
}

static void test_a_missing_rank_is_named(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){
                     .size = 3, .gpus = 1, .kind = RING_THREADS, .body = body_missing, .deadline_s = 0.5});
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(r[i].rc, -1);
        assert_mentions(r[i].error, "rank 1 did not come within 0.5 s");
    }
}

// The others wait without a deadline of their own that could end the test: NCCL's ranks hear of an abort.
static int body_gives_up(struct gpu_rank *r) {
    float *x = dev_alloc(r->dev, MEM_ACTIVATION, 256);
    if (r->rank == 1) {
        usleep(50000);
        collective_abort(r->c[0], "rank 1 gives up");
    } else {
        collective_all_reduce(r->c[0], r->s[0], x, x, 64, DT_F32);
    }
    int rc = stream_sync(r->s[0]);
    dev_free(r->dev, MEM_ACTIVATION, x, 256);
    return r->rank == 1 ? -3 : rc;
}

static void test_an_abort_reaches_everyone(void **state) {
    (void)state;
    static const enum ring_collective kinds[] = {RING_THREADS, RING_NCCL};
    struct gpu_rank r[RANKS];
    for (int k = 0; k < 2; k++) {
        run_ranks(r, (struct gpu_rank){.size = 3, .gpus = 3, .kind = kinds[k], .body = body_gives_up});
        for (int i = 0; i < 3; i += 2) {
            assert_int_equal(r[i].rc, -1);
            assert_mentions(r[i].error, "rank 1 gives up");
        }
    }
}

static void test_ranks_on_one_gpu_need_another_collective(void **state) {
    (void)state;
    struct gpu_rank r[RANKS];
    run_ranks(r, (struct gpu_rank){.size = 2, .gpus = 1, .kind = RING_NCCL, .body = body_cases});
    assert_all(r, 2, -2);
}

int main(int argc, char **argv) {
    (void)argc;
    if (emulated_begin(argv, GPUS, "150") != 0) {
        fprintf(stderr, "no emulated CUDA beside this program\n");
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local_on_one_gpu),
        cmocka_unit_test(test_local_on_several_gpus),
        cmocka_unit_test(test_nccl),
        cmocka_unit_test(test_operations_follow_one_another),
        cmocka_unit_test(test_channels_in_one_order),
        cmocka_unit_test(test_mail_is_ordered),
        cmocka_unit_test(test_buffers_are_free_after_a_sync),
        cmocka_unit_test(test_a_barrier_orders_devices),
        cmocka_unit_test(test_a_failed_device_fails_all),
        cmocka_unit_test(test_one_rank_refuses),
        cmocka_unit_test(test_a_missing_rank_is_named),
        cmocka_unit_test(test_an_abort_reaches_everyone),
        cmocka_unit_test(test_ranks_on_one_gpu_need_another_collective),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
