// Stars whose workers push codes of their gradients equal the plain trainer that does the same in plain loops
// (plain_codes.h), to the last bit, over every medium, on a device with memory of its own, through lost and doubled
// messages; their bytes and memory are as predicted. The codes that a server refuses, and the roles that are not
// admitted.
#include "tests/ps/test_ps_log.h"
#include "tests/ps/test_ps_star.h"

static const struct code_format formats[] = {
    {CODE_ONEBIT, 0.01}, {CODE_INT8, 0.01}, {CODE_TOPK, 0.01}, {CODE_TOPK, 0.3}};
#define FORMATS ((int)(sizeof formats / sizeof *formats))

static struct toy_case coded_case(int i) {
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    struct toy_case t = base_case();
    t.code = formats[i % FORMATS];
    t.dtype = types[i % 3];
    t.steps = 7;
    t.workers = 1 + i % 4;
    t.servers = 1 + i % 3;
    t.threads = 1 + i % 2;
    t.partition_bytes = 1024 << i % 2;
    // With a decision and without: on a skipped step the errors stay.
    t.clip = i % 2 ? 0.5f : 0.0f;
    t.overflow_step = t.dtype == DT_F16 ? 3 : -1;
    return t;
}

static void test_sync_bits(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct toy_case t = coded_case(i);
        sync_case(&t);
    }
}

static void test_media(void **state) {
    (void)state;
    static const enum medium media[] = {MEDIUM_SHM, MEDIUM_TCP};
    for (int i = 0; i < 2 * FORMATS; i++) {
        struct toy_case t = coded_case(i / 2);
        t.medium = media[i % 2];
        t.workers = 3;
        t.partition_bytes = 8192;
        sync_case(&t);
    }
}

static void test_far_devices(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct toy_case t = coded_case(i + 1);
        t.far = true;
        sync_case(&t);
    }
}

// One worker alone is never stale. It clips by the norm of its gradient, and skips by what that has of infinities.
static void test_async_alone(void **state) {
    (void)state;
    for (int i = 0; i < 2 * FORMATS; i++) {
        struct toy_case t = coded_case(i);
        t.consistency = "async";
        t.workers = 1;
        sync_case(&t);
    }
}

static void test_async(void **state) {
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        struct toy_case t = async_of(i % 2 ? 0.5f : 0.0f, i % 3 == 1 ? DT_F16 : DT_BF16);
        t.code = formats[i];
        t.far = i % 2;
        async_case(&t);
    }
}

// A repeated push is the same code: the worker keeps it until the step is over.
static void test_faults(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct toy_case t = base_case();
        t.code = formats[i];
        t.workers = 2;
        t.medium = MEDIUM_TCP;
        struct job *j = job_create(&t);
        j->c.fault = (char *)"drop=0.05,dup=0.05,reorder=0.1,delay=2";
        job_run(j, NULL, t.workers);
        check_all_done(j);
        struct toy_ref ref = toy_ref_start(&t, j->l);
        for (int64_t step = 0; step < t.steps; step++) toy_ref_step(&t, j->l, &j->c, &ref, step);
        for (int w = 0; w < t.workers; w++)
            for (int u = 0; u < TOY_UNITS; u++)
                assert_memory_equal(j->worker[w].weights[u], ref.weight[u],
                                    (size_t)j->l->units[u].n_pad * dtype_size(t.dtype));
        toy_ref_free(&ref);
        job_destroy(j);
    }
}

static void test_another_code(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.code = formats[2];
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 6000;
    struct config odd = j->c;
    odd.ps.code.share = 0.02;
    job_run(j, &odd, t.workers);
    assert_int_equal(j->worker[2].rc, -1);
    assert_string_equal(j->worker[2].error,
                        "worker 2 has parameter_server.compression_share = 0.02, the scheduler has 0.01: use "
                        "one configuration");
    job_destroy(j);
}

// ---------------------------------------------------------------- one shard
struct shard {
    struct sim *sim;  // lends layout, map and buffers
    struct log log;
    struct server_core *core;
    struct code_format code;
    int64_t n;  // elements of key 0
};

static void shard_open(struct shard *b, const struct toy_case *t) {
    *b = (struct shard){.sim = sim_create(t), .code = t->code};
    struct server_core_options o = {.config = &b->sim->c,
                                    .layout = b->sim->l,
                                    .map = b->sim->map,
                                    .buffers = b->sim->buffers,
                                    .job = SIM_JOB,
                                    .port = {&b->log, log_send}};
    b->core = server_core_create(&o);
    b->n = b->sim->map->parts[0].end - b->sim->map->parts[0].begin;
    server_core_member(b->core, 0, 100, 0);
}

// From worker 0 about key 0; the payload is the caller's.
static int give(struct shard *b, enum wire_kind kind, const void *payload, size_t bytes) {
    const struct wire_header h = {.kind = kind,
                                  .role = PS_WORKER,
                                  .job = SIM_JOB,
                                  .incarnation = 100,
                                  .lr = 0.1f,
                                  .grad_scale = 1.0f,
                                  .seq = 1};
    void *copy = xcalloc(bytes + 1, 1);
    memcpy(copy, payload, bytes);
    b->log.count = 0;
    return server_core_message(b->core, &h, sim_frame(b->sim, copy, bytes), 0);
}

static void refused(struct shard *b, const void *payload, size_t bytes, const char *why) {
    assert_int_equal(give(b, WIRE_PUSH, payload, bytes), 0);
    assert_int_equal(logged(&b->log, 0, WIRE_REFUSED), 1);
    assert_non_null(strstr(b->log.sent[0].h.text, why));
    assert_int_equal(server_core_version(b->core, 0), 0);
}

// Codes cut short or too long, elements twice, out of order or outside of the partition: none is taken, and the right one
// is, after all of them.
static void test_hostile_codes(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct toy_case t = {.dtype = DT_BF16,
                             .consistency = i % 2 ? "async" : "sync",
                             .code = formats[i],
                             .workers = 1,
                             .servers = 1,
                             .threads = 1,
                             .steps = 1,
                             .overflow_step = -1};
        struct shard b;
        shard_open(&b, &t);
        size_t bytes = code_bytes(&t.code, b.n);
        float *values = xcalloc((unsigned long)b.n, 4);
        char *code = xcalloc(bytes + 8, 1);
        uint32_t *index = (void *)code;
        int64_t kept = code_kept(t.code.share, b.n);
        assert_int_equal(give(&b, WIRE_INIT, values, (size_t)b.n * 4), 0);
        for (int64_t k = 0; k < kept && t.code.kind == CODE_TOPK; k++) index[k] = (uint32_t)(3 * k);
        const char *size = "the payload's size is not that of the partition's code";
        refused(&b, code, bytes - 1, size);
        refused(&b, code, 1, size);
        refused(&b, code, bytes + 8, size);
        if (t.code.kind == CODE_TOPK) {
            uint32_t last = index[kept - 1];
            const uint32_t wrong[] = {(uint32_t)b.n, UINT32_MAX, index[kept - 2], 0};
            assert_true(kept > 2);
            for (int k = 0; k < 4; k++) {
                index[kept - 1] = wrong[k];
                refused(&b, code, bytes, "out of order, or outside of the partition");
            }
            index[kept - 1] = last;
        }
        assert_int_equal(give(&b, WIRE_PUSH, code, bytes), 0);
        assert_int_equal(logged(&b.log, 0, WIRE_REFUSED), 0);
        assert_int_equal(server_core_version(b.core, 0), 1);
        free(values);
        free(code);
        server_core_destroy(&b.core);
        sim_destroy(b.sim);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_bits),    cmocka_unit_test(test_media),
        cmocka_unit_test(test_far_devices),  cmocka_unit_test(test_async_alone),
        cmocka_unit_test(test_async),        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_another_code), cmocka_unit_test(test_hostile_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
