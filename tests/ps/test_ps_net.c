// The star over real sockets, roles as threads: the same bits as the plain trainer, predicted bytes
// equal counted ones, and logins that must be refused.
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

// One worker started from another configuration: refused, with both sides' words; the others are told
// who is missing.
static void test_manifest(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 1500;
    struct config odd = j->c;
    odd.optimizer.beta2 = 0.5f;
    job_run(j, &odd, t.workers);
    assert_int_equal(j->worker[2].rc, -1);
    assert_non_null(strstr(j->worker[2].error, "manifests differ"));
    assert_non_null(strstr(j->worker[2].error, "betas 0.9 0.5"));
    assert_non_null(strstr(j->worker[2].error, "betas 0.9 0.99"));
    assert_int_equal(j->scheduler_rc, -1);
    assert_non_null(strstr(j->scheduler_error, "worker 2 did not come"));
    assert_non_null(strstr(j->worker[0].error, "worker 2 did not come"));
    assert_non_null(strstr(j->server_error[1], "worker 2 did not come"));
    job_destroy(j);
}

static void test_missing(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 1000;
    job_run(j, NULL, 1);
    assert_non_null(strstr(j->scheduler_error, "worker 1, worker 2 did not come within 1000 ms"));
    assert_int_equal(j->worker[0].rc, -1);
    assert_int_equal(j->server_rc[0], -1);
    job_destroy(j);
}

static void test_no_scheduler(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    struct toy_worker_result r = {0};
    struct toy_worker_options o = {.t = &t};
    j->c.ps.deadline_ms = 400;
    o.role = (struct ps_role_options){.config = &j->c, .layout = j->l, .scheduler = "tcp://127.0.0.1:9"};
    error_quiet(1);
    toy_worker_run(&o, &r);
    assert_int_equal(r.rc, -1);
    assert_non_null(strstr(r.error, "no scheduler answered at tcp://127.0.0.1:9"));
    assert_int_equal(ps_server_run(&o.role, NULL), -1);
    o.role.scheduler = "nonsense";
    assert_int_equal(ps_server_run(&o.role, NULL), -1);
    assert_non_null(strstr(error_last(), "nonsense"));
    assert_int_equal(ps_scheduler_run(&o.role), -1);
    error_quiet(0);
    job_destroy(j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sync_bits), cmocka_unit_test(test_skip_at_the_end),
        cmocka_unit_test(test_async),     cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_missing),   cmocka_unit_test(test_no_scheduler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
