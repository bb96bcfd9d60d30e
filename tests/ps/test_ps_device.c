// Workers whose device has memory of its own: the same bits through page-locked twins, whatever order the
// device's streams take, and nothing of the device touched by the host.
#include <dlfcn.h>
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

// Each weight and each gradient has its page-locked twin, in whole pages behind a head where they are shared, and
// nothing else changes.
static void test_memory(void **state) {
    (void)state;
    static const char *const modes[] = {"sync", "async"};
    for (int i = 0; i < 4; i++) {
        bool shm = i / 2;
        struct toy_case near = {
            .dtype = DT_BF16, .workers = 3, .servers = 2, .threads = 1, .consistency = modes[i % 2]};
        near.medium = MEDIUM_TCP;
        near.partition_bytes = 8192;  // whole pages, which a CPU's worker would read in place
        struct toy_case far = near;
        far.far = true;
        if (shm) far.medium = MEDIUM_SHM;
        struct layout *l = toy_layout(3, 2000);
        struct config cn = toy_config(&near), cf = toy_config(&far);
        struct topology_memory mn, mf;
        struct wire_prediction wn, wf;
        assert_int_equal(ps_worker_predict(&cn, l, 0, &mn, &wn), 0);
        assert_int_equal(ps_worker_predict(&cf, l, 0, &mf, &wf), 0);
        assert_int_equal(mn.predicted_bytes[MEM_HOST], 0);
        // And what the host reads of a step.
        size_t twins = 2 * (size_t)l->padded * dtype_size(DT_BF16),
               words = dev_round(sizeof(struct worker_words));
        size_t pages = (4096 + twins + 4095) / 4096 * 4096;
        assert_int_equal(mf.predicted_bytes[MEM_HOST], (shm ? pages : twins) + words);
        mf.predicted_bytes[MEM_HOST] = 0;
        assert_memory_equal(&mn, &mf, sizeof mn);
        assert_memory_equal(&wn, &wf, sizeof wn);
        assert_int_equal(ps_server_predict(&cn, l, 1, &mn, &wn), 0);
        assert_int_equal(ps_server_predict(&cf, l, 1, &mf, &wf), 0);
        assert_memory_equal(&mn, &mf, sizeof mn);
        layout_destroy(&l);
    }
}

// ---------------------------------------------------------------- which way payloads take

// Bytes of the frames behind headers that this process has given to ZeroMQ. The program's calls come here.
static _Atomic uint64_t framed_bytes;
int zmq_msg_send(void *message, void *socket, int flags);

static int (*real_send)(void *, void *, int);
static size_t (*real_size)(void *);

__attribute__((constructor)) static void find_zmq(void) {
    real_send = (int (*)(void *, void *, int))dlsym(RTLD_NEXT, "zmq_msg_send");
    real_size = (size_t(*)(void *))dlsym(RTLD_NEXT, "zmq_msg_size");
}

int zmq_msg_send(void *message, void *socket, int flags) {
    size_t bytes = real_size(message);
    int rc = real_send(message, socket, flags);
    if (rc >= 0) atomic_fetch_add(&framed_bytes, bytes);
    return rc;
}

// Failures of a job: the initial weights, some perhaps repeated, or the payloads of every step as well. The same bits
// each time.
static void check_frames(struct toy_case *t, enum medium medium) {
    struct layout *l = toy_layout(t->workers, 80);
    uint64_t initial = (uint64_t)l->padded * sizeof(float),
             steps =
                 2 * (uint64_t)l->padded * dtype_size(t->dtype) * (uint64_t)t->steps * (uint64_t)t->workers;
    layout_destroy(&l);
    t->medium = medium;
    int before = far_pages.ever;
    atomic_store(&framed_bytes, 0);
    if (strcmp(t->consistency, "async"))
        sync_case(t);
    else
        async_case(t);
    uint64_t bytes = atomic_load(&framed_bytes);
    bool tcp = medium == MEDIUM_TCP;
    assert_int_equal(far_pages.ever - before, tcp ? 0 : t->workers);
    if (bytes < initial || (bytes >= initial + steps) != tcp || (!tcp && bytes > initial + steps / 4))
        fail_msg("%s: %llu bytes of frames, %llu of initial weights", tcp ? "tcp" : "shm",
                 (unsigned long long)bytes, (unsigned long long)initial);
}

// Keys of whole pages and small ones; snapshots and evaluations go other ways and are left out.
static void test_media(void **state) {
    (void)state;
    static const enum medium media[] = {MEDIUM_AUTO, MEDIUM_SHM, MEDIUM_TCP};
    for (int i = 0; i < 9; i++) {
        struct toy_case t = i < 6 ? base_case() : async_of(i == 7 ? 0.5f : 0.0f, DT_BF16);
        t.far = true;
        if (i < 6) t.clip = i % 2 ? 0.5f : 0.0f;
        t.servers = 2;
        t.partition_bytes = i < 3 ? 8192 : 0;
        check_frames(&t, media[i % 3]);
    }
}

// One server shares nothing: its frames go from and to the same twins.
static void test_one_server_over_tcp(void **state) {
    (void)state;
    for (int servers = 1; servers <= 2; servers++) {
        struct toy_case t = base_case();
        t.far = true;
        t.servers = servers;
        struct job *j = job_create(&t);
        struct config tcp = j->c;
        tcp.medium = MEDIUM_TCP;
        j->odd_server = &tcp;
        sync_job(j, NULL);
    }
}

// Memory that cannot be page-locked: that worker's payloads go over tcp, as predicted and with the same bits, or the
// run ends where shared memory is demanded.
static void test_refused(void **state) {
    (void)state;
    static const char *const modes[] = {"sync", "async"};
    for (int i = 0; i < 2; i++) {
        struct toy_case t = base_case();
        t.far = t.refused = true;
        t.consistency = modes[i];
        t.workers = 1;  // asynchronously, too, it is the plain trainer
        far_pages.refuse = 1;
        sync_case(&t);
        assert_int_equal(far_pages.refuse, 0);
    }
    struct toy_case t = base_case();
    t.far = true;
    t.medium = MEDIUM_SHM;
    t.steps = 2;
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 1000;
    far_pages.refuse = t.workers;
    job_run(j, NULL, t.workers);
    for (int w = 0; w < t.workers; w++) {
        const char *error = j->worker[w].error;
        assert_int_equal(j->worker[w].rc, -1);
        assert_non_null(strstr(error, "cannot be page-locked: so the test says. Give --medium auto"));
        for (int c = 0; c < MEM_CLASSES; c++) assert_int_equal(j->worker[w].usage.current_bytes[c], 0);
    }
    assert_true(far_pages.live == 0 && far_pages.misused == 0);
    job_destroy(j);
}

// The servers add in groups, whatever the twins of gradients lie in.
static void test_groups(void **state) {
    (void)state;
    static const int shapes[][2] = {{3, 3}, {4, 2}, {4, 4}};
    for (int i = 0; i < 12; i++) {
        struct toy_case t = base_case();
        t.far = i / 3 % 2;
        t.workers = shapes[i % 3][0];
        t.group = shapes[i % 3][1];
        t.partition_bytes = i / 6 ? 8192 : 0;
        t.clip = i % 2 ? 0.5f : 0.0f;
        sync_case(&t);
    }
}

// A worker on a CPU beside servers that were told of GPUs: they publish in no memory that it could read.
static void test_servers_told_of_gpus(void **state) {
    (void)state;
    for (int demanded = 0; demanded < 2; demanded++) {
        struct toy_case t = base_case();
        t.partition_bytes = 8192;
        t.servers = 1;
        if (demanded) t.medium = MEDIUM_SHM;
        struct job *j = job_create(&t);
        struct config gpus = j->c;
        gpus.device = DEVICE_CUDA;
        j->odd_server = &gpus;
        job_run(j, NULL, t.workers);
        for (int w = 0; w < t.workers; w++) {
            if (!demanded) assert_int_equal(j->worker[w].rc, 0);
            if (!demanded) assert_string_equal(j->worker[w].medium, "tcp");
        }
        int said = 0;
        for (int w = 0; w < t.workers; w++)
            said += strstr(j->worker[w].error,
                           "the server shares no weights: it was started for workers on GPUs") != NULL;
        assert_true(said > 0 || !demanded);
        job_destroy(j);
    }
}

// No caller waits for the copies of gradients: the worker notices that one failed, and all are informed.
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
    job_run(j, NULL, t.workers);
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
    assert_true(far_pages.live == 0 && far_pages.misused == 0);
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
    assert_int_equal(worker_buffers_init(&b, &c, l), 0);
    arena_init(&a, NULL);
    worker_carve(&a, &c, l, false, NULL, &b);
    struct worker_core_options o = {.rule = consistency_of(&c),
                                    .layout = l,
                                    .map = map,
                                    .dtype = t.dtype,
                                    .buffers = &b,
                                    .credit_bytes = c.ps.credit_bytes,
                                    .heartbeat_s = 100,
                                    .lost_s = 100,
                                    .port = {&inflight, keep_inflight}};
    struct worker_core *core = worker_core_create(&o);
    int key = map->first[1];
    assert_int_equal(map->first[2], key + 1);
    worker_core_push_unit(core, 1, &(struct push_info){.step = 0});
    worker_core_tick(core, 0.5);
    // It is lost, and the link says it again: a second copy is on its way when the first is acknowledged.
    struct wire_header pushed = {.kind = WIRE_PUSH, .key = key, .step = 0},
                       ack = {.kind = WIRE_PUSH_ACK, .key = key, .step = 0};
    assert_true(worker_core_renew(core, &pushed));
    pushed.step = 1;
    assert_false(worker_core_renew(core, &pushed));
    pushed = (struct wire_header){.kind = WIRE_INIT, .key = key};
    assert_false(worker_core_renew(core, &pushed));
    worker_core_tick(core, 2.0);
    // A part of it was handed over behind the look at the clock: it is not acknowledged before.
    ack.peers_ready_ns = ps_clock_ns(2.75);
    assert_int_equal(worker_core_message(core, map->parts[key].shard, &ack, NULL, 2.5), 0);
    const struct unit_times *times = worker_core_times(core, 1, 0);
    assert_true(times->acknowledged_ns >= times->acknowledged_peers_ns);
    assert_true(times->acknowledged_ns > ps_clock_ns(2.7));
    assert_int_equal(worker_core_busy(core, 1, 0), 1);
    pushed = (struct wire_header){.kind = WIRE_PUSH, .key = key, .step = 0};
    assert_false(worker_core_renew(core, &pushed));
    atomic_fetch_sub(inflight, 1);
    assert_int_equal(worker_core_tick(core, 2.5), 0);
    assert_int_equal(worker_core_busy(core, 1, 0), 0);
    worker_core_destroy(&core);
    arena_release(&a);
    worker_buffers_free(&b);
    shard_map_destroy(&map);
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_bits),
        cmocka_unit_test(test_async),
        cmocka_unit_test(test_async_alone),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_media),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_servers_told_of_gpus),
        cmocka_unit_test(test_one_server_over_tcp),
        cmocka_unit_test(test_device_fails),
        cmocka_unit_test(test_repeated_push),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
