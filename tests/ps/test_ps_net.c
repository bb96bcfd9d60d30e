// The star over real sockets, roles as threads: the same bits as the plain trainer, predicted bytes
// equal counted ones, and members that must be refused.
#include "ps/net/medium.h"
#include "shared/core/system.h"
#include "test_ps_star.h"

static void test_sync_bits(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int d = 0; d < 3; d++)
        for (int servers = 1; servers <= 3; servers++) {
            struct toy_case t = base_case();
            t.dtype = types[d];
            t.servers = servers;
            t.threads = servers == 2 ? 2 : 1;
            t.clip = d + servers > 2 ? 0.5f : 0.0f;
            t.workers = servers == 1 && d == 0 ? 1 : servers == 3 ? 2 : 3;
            t.overflow_step = types[d] == DT_F16 ? 2 : -1;
            sync_case(&t);
        }
}

// The same bits on every medium: weights written and weights in place (keys of whole pages), all over tcp, and jobs in
// which one worker or one server shares nothing. Bytes and memory are what was predicted in each.
static void test_media(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    static const enum medium media[] = {MEDIUM_AUTO, MEDIUM_SHM, MEDIUM_TCP};
    for (int i = 0; i < 12; i++) {
        struct toy_case t = base_case();
        t.dtype = types[i % 3];
        t.medium = i < 9 ? media[i / 3] : MEDIUM_AUTO;
        t.partition_bytes = 8192;
        t.servers = 2 + i % 2;
        t.clip = i % 2 ? 0.5f : 0.0f;
        t.overflow_step = t.dtype == DT_F16 ? 2 : -1;
        struct job *j = job_create(&t);
        struct config tcp = j->c;
        tcp.medium = MEDIUM_TCP;
        if (i == 10) j->odd_server = &tcp;
        sync_job(j, i == 9 || i == 11 ? &tcp : NULL);
    }
    struct toy_case t = async_of(0.5f, DT_BF16);
    t.medium = MEDIUM_TCP;
    async_case(&t);
}

// The last step is the skipped one: finish must not wait for an update that never comes.
static void test_skip_at_the_end(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.dtype = DT_F16;
    t.overflow_step = t.steps - 1;
    sync_case(&t);
}

static void test_async(void **state) {
    (void)state;
    struct toy_case cases[] = {async_of(0.0f, DT_BF16), async_of(0.5f, DT_F32), async_of(0.0f, DT_F16)};
    for (int i = 0; i < 3; i++) async_case(&cases[i]);
}

#define STEPS 12
static _Atomic int fast_steps, slow_steps;

// Worker 1 does its third step when worker 0 has done half of the budget, and worker 0 the other half behind worker 1's fourth.
static int slow_worker_waits(void *ctx, int rank, int64_t step) {
    (void)ctx;
    atomic_store(rank == 0 ? &fast_steps : &slow_steps, (int)step);
    while (rank == 0 && step >= STEPS && atomic_load(&slow_steps) < 4) usleep(1000);
    while (rank == 1 && step == 2 && atomic_load(&fast_steps) < STEPS - 1) usleep(1000);
    return 0;
}

// The learning rate follows the samples of the job. A worker that counted its own steps would take its third step
// with the rate of the warm-up, though most of the job is over.
static void test_schedule_follows_the_job(void **state) {
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        struct toy_case t = async_of(clip ? 0.5f : 0.0f, DT_F32);
        t.workers = 2;
        t.steps = STEPS;
        t.schedule = (struct schedule_config){.type = SCHEDULE_WARMUP,
                                              .max_lr = TOY_LR,
                                              .warmup_steps = STEPS,
                                              .total_steps = STEPS,
                                              .warmup = WARMUP_LINEAR};
        atomic_store(&fast_steps, 0);
        atomic_store(&slow_steps, 0);
        struct job *j = job_create(&t);
        j->on_step = slow_worker_waits;
        job_run(j, NULL, t.workers);
        check_all_done(j);
        for (int w = 0; w < 2; w++) {
            const struct toy_worker_result *r = &j->worker[w];
            for (int s = 0; s < r->steps; s++) {
                assert_true(r->samples[s] >= s && (s == 0 || r->samples[s] > r->samples[s - 1]));
                assert_true(f32_to_bits(r->lr[s]) ==
                            f32_to_bits(schedule_lr(&t.schedule, TOY_LR, r->samples[s] / 2)));
            }
        }
        const struct toy_worker_result *fast = &j->worker[0], *slow = &j->worker[1];
        // The weights of its fourth step came after all of the other's: the last two of them may be under way.
        assert_true(slow->samples[3] >= STEPS - 2 + 3 && slow->samples[slow->steps - 1] <= 2 * STEPS);
        // One budget: the fast one has taken more of it.
        assert_int_equal(fast->steps + slow->steps, 2 * STEPS);
        assert_true(slow->steps >= 4 && fast->steps >= STEPS);
        assert_true(slow->lr[3] > fast->lr[3]);
        assert_true(fast->samples[STEPS - 1] <= STEPS - 1 + 2);
        for (int s = 0; s < t.servers; s++) {
            assert_int_equal(j->report[s].updates, 2 * STEPS);
            assert_int_equal(j->report[s].samples_per_update, 1);
            assert_true(j->report[s].span.end_ns > j->report[s].span.begin_ns &&
                        j->report[s].span.begin_ns > 0);
            assert_true(j->report[s].span.cpu_end_ns > j->report[s].span.cpu_begin_ns);
            assert_true(j->report[s].scheduler.known && j->report[s].scheduler.cpu_s > 0);
        }
        job_destroy(j);
    }
}

// Where pushes are applied on arrival an answer over tcp is a copy: counted while the transport has it, within what the check
// of memory allows. Where steps commit there are none.
static void answers_that_are_copies(void **state) {
    (void)state;
    for (int sync = 0; sync < 2; sync++) {
        struct toy_case t = sync ? base_case() : async_of(0.5f, DT_BF16);
        t.medium = MEDIUM_TCP;
        struct job *j = job_create(&t);
        job_run(j, NULL, t.workers);
        check_all_done(j);
        for (int s = 0; s < t.servers; s++) {
            struct prediction p = {0};
            assert_int_equal(topology_star.predict(&j->c, j->l, "server", s, &p), 0);
            double allowed = topology_star.allowance(&j->c, "server", &p).frame_bytes;
            double weights = (double)p.wire.sent_per_step / t.workers;
            size_t most = j->report[s].transport_peak_bytes;
            assert_true((double)most <= allowed);
            if (!sync) assert_true(most > 0 && (double)most <= t.workers * weights);
            p.wire.received_per_step = 0;
            assert_true(topology_star.allowance(&j->c, "server", &p).frame_bytes ==
                        (sync ? 0 : t.workers * weights));
        }
        job_destroy(j);
    }
}

// Payloads for other hosts are not encrypted by one thread; on one host no thread moves them.
static void threads_for_other_hosts(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct config c = toy_config(&t);
    int given = processors_given(), most = given < 3 ? given : 3, two = given < 2 ? given : 2;
    assert_int_equal(ps_io_threads(&c, 3, 2), 1);
    c.ps.bind = (char *)"tcp://10.77.0.1:*";
    assert_int_equal(ps_io_threads(&c, 3, 2), most);
    assert_int_equal(ps_io_threads(&c, 1, 3), most);  // one shard, and workers on other hosts
    assert_int_equal(ps_io_threads(&c, 1, 2), two);
    assert_int_equal(ps_io_threads(&c, 1, 1), 1);
    c.ps.bind = (char *)"tcp://127.0.0.1:*";
    c.medium = MEDIUM_TCP;
    assert_int_equal(ps_io_threads(&c, 3, 2), most);
    assert_int_equal(ps_io_threads(&c, 1, 3), 1);  // nobody is on another host
}

// One worker started from another configuration: refused, with both sides' words; the others are told
// who is missing.
static void test_manifest(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 6000;
    struct config odd = j->c;
    odd.optimizer.beta2 = 0.5f;
    job_run(j, &odd, t.workers);
    assert_int_equal(j->worker[2].rc, -1);
    assert_string_equal(
        j->worker[2].error,
        "worker 2 has optimizer.params.betas = [0.9,0.5], the scheduler has [0.9,0.99]: use one "
        "configuration");
    assert_int_equal(j->scheduler_rc, -1);
    assert_non_null(strstr(j->scheduler_error, "worker 2 did not join"));
    assert_non_null(strstr(j->worker[0].error, "worker 2 did not join"));
    assert_non_null(strstr(j->server_error[1], "worker 2 did not join"));
    job_destroy(j);
}

static void test_missing(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 5000;
    job_run(j, NULL, 1);
    assert_non_null(strstr(j->scheduler_error, "worker 1, worker 2 did not join within 5000 ms"));
    assert_int_equal(j->worker[0].rc, -1);
    assert_int_equal(j->server_rc[0], -1);
    job_destroy(j);
}

static void test_no_scheduler(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 400;
    struct ps_role_options o = {
        .config = &j->c, .layout = j->l, .scheduler = "tcp://127.0.0.1:9", .key = key_of_test()};
    error_quiet(1);
    struct ps_identity id = {.role = PS_WORKER};
    char at[FABRIC_ADDRESS_MAX];
    o.meet = member_enter(&o, PS_WORKER, 1, true);
    assert_non_null(o.meet);
    assert_int_equal(member_find(&o, &id, at), -1);
    assert_non_null(strstr(error_last(), "127.0.0.1:9"));
    rendezvous_close(&o.meet);
    o.scheduler = "nonsense";
    assert_null(member_enter(&o, PS_SERVER, 1, true));
    assert_non_null(strstr(error_last(), "nonsense"));
    error_quiet(0);
    job_destroy(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_bits),
        cmocka_unit_test(test_media),
        cmocka_unit_test(test_skip_at_the_end),
        cmocka_unit_test(test_async),
        cmocka_unit_test(answers_that_are_copies),
        cmocka_unit_test(threads_for_other_hosts),
        cmocka_unit_test(test_schedule_follows_the_job),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_no_scheduler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
