// Workers whose device has memory of its own: the same bits through page-locked twins, whatever order the
// device's streams take, and nothing of the device touched by the host.
#include <math.h>

#include "ps/worker/worker_core.h"
#include "ps/worker/worker_memory.h"
#include "test_ps_star.h"

static void test_sync_bits(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int d = 0; d < 3; d++)
        for (int servers = 1; servers <= 3; servers++) {
            struct toy_case t = base_case();
            t.far = true;
            t.dtype = types[d];
            t.servers = servers;
            t.workers = servers == 1 ? 1 : servers == 3 ? 2 : 3;
            t.steps = 8;
            t.clip = servers == 2 ? 0.5f : 0.0f;
            t.overflow_step = types[d] == DT_F16 ? 2 : -1;
            sync_case(&t);
        }
}

static void test_async(void **state) {
    (void)state;
    struct toy_case cases[] = {async_of(0.0f, DT_BF16), async_of(0.5f, DT_F32), async_of(0.0f, DT_F16)};
    for (int i = 0; i < 6; i++) {
        struct toy_case t = cases[i / 2];
        t.far = true;
        t.look = i % 2;
        async_case(&t);
    }
}

// One worker alone is never stale: asynchronously, too, it is the plain trainer.
static void test_async_alone(void **state) {
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        struct toy_case t = base_case();
        t.far = true;
        t.consistency = "async";
        t.workers = 1;
        t.steps = 8;
        t.clip = clip ? 0.5f : 0.0f;
        sync_case(&t);
    }
}

// Each weight and each gradient has its page-locked twin, and nothing else changes.
static void test_memory(void **state) {
    (void)state;
    static const char *const modes[] = {"sync", "async"};
    for (int i = 0; i < 2; i++) {
        struct toy_case near = {
            .dtype = DT_BF16, .workers = 3, .servers = 2, .threads = 1, .consistency = modes[i]};
        near.medium = MEDIUM_TCP;  // a GPU's worker shares nothing
        struct toy_case far = near;
        far.far = true;
        struct layout *l = toy_layout(3, 2000);
        struct config cn = toy_config(&near), cf = toy_config(&far);
        struct topology_memory mn, mf;
        struct wire_prediction wn, wf;
        assert_int_equal(ps_worker_predict(&cn, l, &mn, &wn), 0);
        assert_int_equal(ps_worker_predict(&cf, l, &mf, &wf), 0);
        assert_int_equal(mn.predicted_bytes[MEM_HOST], 0);
        // And what the host reads of a step.
        size_t words = dev_round(sizeof(struct worker_words));
        assert_int_equal(mf.predicted_bytes[MEM_HOST], 2 * (size_t)l->padded * dtype_size(DT_BF16) + words);
        mf.predicted_bytes[MEM_HOST] = 0;
        assert_memory_equal(&mn, &mf, sizeof mn);
        assert_memory_equal(&wn, &wf, sizeof wn);
        assert_int_equal(ps_server_predict(&cn, l, 1, &mn, &wn), 0);
        assert_int_equal(ps_server_predict(&cf, l, 1, &mf, &wf), 0);
        assert_memory_equal(&mn, &mf, sizeof mn);
        layout_destroy(&l);
    }
}

// Nobody waits for the copies of gradients: the worker notices that one failed, and everyone is told.
static int break_device(void *ctx, int rank, int64_t step) {
    (void)ctx;
    if (rank == 1 && step == 3) atomic_store(&far_memory.fail_fetches, 1);
    return 0;
}

static void test_device_fails(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.far = true;
    t.steps = 1000;
    struct job *j = job_create(&t);
    j->on_step = break_device;
    double start = now_seconds();
    job_run(j, NULL, t.workers);
    assert_true(now_seconds() - start < 1e-3 * (double)j->c.ps.deadline_ms / 2);
    int victims = 0;
    for (int w = 0; w < t.workers; w++) {
        const char *error = j->worker[w].error;
        assert_int_equal(j->worker[w].rc, -1);
        assert_non_null(strstr(error, "the device has failed: [toy] stream push: copy failed"));
        victims += strstr(error, "worker ") == NULL;
        for (int c = 0; c < MEM_CLASSES; c++) assert_int_equal(j->worker[w].usage.current_bytes[c], 0);
    }
    assert_int_equal(victims, 1);
    assert_int_equal(j->scheduler_rc, -1);
    job_destroy(j);
}

// A gradient stays where it is as long as a message of it, repeated ones included, lies in the transport.
static void keep_inflight(void *ctx, int peer, const struct ps_message *m) {
    _Atomic int **inflight = ctx;
    (void)peer;
    if (m->inflight) atomic_fetch_add(*inflight = m->inflight, 1);
}

static void test_repeated_push(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct config c = toy_config(&t);
    struct layout *l = toy_layout(t.workers, 8);
    struct shard_map *map = shard_map_of(&c, l);
    struct worker_buffers b;
    struct arena a;
    _Atomic int *inflight = NULL;
    worker_buffers_init(&b, l);
    arena_init(&a, NULL);
    worker_carve(&a, &c, l, map, NULL, &b);
    struct worker_core_options o = {.layout = l,
                                    .map = map,
                                    .dtype = t.dtype,
                                    .weights = b.wire_weights,
                                    .grads = (const void *const *)b.wire_grads,
                                    .credit_bytes = c.ps.credit_bytes,
                                    .resend_s = 1,
                                    .heartbeat_s = 100,
                                    .lost_s = 100,
                                    .port = {&inflight, keep_inflight}};
    struct worker_core *core = worker_core_create(&o);
    int key = map->first[1];
    assert_int_equal(map->first[2], key + 1);
    worker_core_push_unit(core, 1, &(struct push_info){.step = 0});
    worker_core_tick(core, 0.5);
    worker_core_tick(core, 2.0);
    assert_int_equal(atomic_load(inflight), 2);
    struct wire_header ack = {.kind = WIRE_PUSH_ACK, .key = key, .step = 0};
    assert_int_equal(worker_core_message(core, map->parts[key].shard, &ack, NULL, 2.5), 0);
    for (int messages = 2; messages > 0; messages--) {
        assert_int_equal(worker_core_busy(core, 1), 1);
        atomic_fetch_sub(inflight, 1);
    }
    assert_int_equal(worker_core_busy(core, 1), 0);
    worker_core_destroy(&core);
    arena_release(&a);
    worker_buffers_free(&b);
    shard_map_destroy(&map);
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_bits),    cmocka_unit_test(test_async),
        cmocka_unit_test(test_async_alone),  cmocka_unit_test(test_memory),
        cmocka_unit_test(test_device_fails), cmocka_unit_test(test_repeated_push),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
