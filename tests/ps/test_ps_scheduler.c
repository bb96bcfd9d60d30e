// Single messages to the scheduler: logins, steps, gathers, who is missing, who is lost.
#include "ps/scheduler/rounds.h"
#include "test_ps_log.h"

// ---------------------------------------------------------------- the scheduler
struct desk {
    struct sim *sim;
    struct log log;
    struct scheduler_core *core;
};

static struct desk *desk_create(void) {
    struct toy_case t = {.dtype = DT_F16,
                         .consistency = "sync",
                         .workers = 2,
                         .servers = 1,
                         .threads = 1,
                         .steps = 1,
                         .overflow_step = -1};
    struct desk *d = xcalloc(1, sizeof *d);
    d->sim = sim_create(&t);
    d->sim->c.ps.deadline_ms = 4000;
    struct scheduler_options o = {.config = &d->sim->c,
                                  .map = d->sim->map,
                                  .manifest = {.hash = 5, .text = "ours"},
                                  .job = SIM_JOB,
                                  .port = {&d->log, log_send}};
    d->core = scheduler_core_create(&o);
    return d;
}

static void desk_destroy(struct desk *d) {
    scheduler_core_destroy(&d->core);
    sim_destroy(d->sim);
    free(d);
}

static int tell_desk(struct desk *d, enum ps_role role, int rank, struct wire_header h, double now) {
    struct ps_frame *f =
        h.kind == WIRE_HELLO && role == PS_SERVER ? sim_frame(d->sim, xstrdup("tcp://y:1\n"), 10) : NULL;
    h.role = role;
    h.rank = rank;
    if (!h.incarnation) h.incarnation = 50 + (uint64_t)(role * 10 + rank);
    if (!h.manifest) h.manifest = 5;
    if (!h.job) h.job = SIM_JOB;
    d->log.count = 0;
    int member = scheduler_core_message(d->core, &h, f, now);
    if (!scheduler_core_error(d->core)[0]) scheduler_core_tick(d->core, now);
    return member;
}

static void desk_login(struct desk *d) {
    struct wire_header hello = {.kind = WIRE_HELLO};
    assert_int_equal(tell_desk(d, PS_WORKER, 0, hello, 0), 0);
    assert_int_equal(tell_desk(d, PS_WORKER, 1, hello, 0), 1);
    assert_int_equal(tell_desk(d, PS_SERVER, 0, hello, 0), 2);
    assert_int_equal(logged(&d->log, 0, WIRE_START), 0);
    assert_int_equal(tell_desk(d, PS_SHARD, 0, hello, 0), 3);
    assert_int_equal(logged(&d->log, 0, WIRE_START) + logged(&d->log, 1, WIRE_START), 2);
}

static void test_login(void **state) {
    (void)state;
    struct desk *d = desk_create();
    struct wire_header h = {.kind = WIRE_HELLO, .manifest = 6};
    snprintf(h.text, sizeof h.text, "theirs");
    assert_int_equal(tell_desk(d, PS_WORKER, 0, h, 0), -1);
    assert_int_equal(d->log.sent[0].h.kind, WIRE_REFUSED);
    assert_non_null(strstr(d->log.sent[0].h.text, "theirs"));
    assert_non_null(strstr(d->log.sent[0].h.text, "ours"));
    h.manifest = 5;
    assert_int_equal(tell_desk(d, PS_WORKER, -1, h, 0), 0);  // any free rank
    assert_int_equal(d->log.sent[0].h.step, 0);
    h.incarnation = 1234;
    assert_int_equal(tell_desk(d, PS_WORKER, 0, h, 0), -1);  // taken
    assert_non_null(strstr(d->log.sent[0].h.text, "already here"));
    assert_int_equal(tell_desk(d, PS_WORKER, -1, h, 0), 1);
    assert_int_equal(tell_desk(d, PS_WORKER, -1, h, 0), 1);  // repeats itself
    h.incarnation = 1235;
    assert_int_equal(tell_desk(d, PS_WORKER, -1, h, 0), -1);  // full
    assert_int_equal(tell_desk(d, PS_WORKER, 9, h, 0), -1);
    assert_int_equal(scheduler_core_tick(d->core, 4.1), -1);
    assert_non_null(
        strstr(scheduler_core_error(d->core), "server 0, server 0 shard 0 did not come within 4000 ms"));
    assert_true(logged(&d->log, 0, WIRE_ABORT) == 1);
    desk_destroy(d);
}

// Each half on its own. Who is there:
static void test_membership_alone(void **state) {
    (void)state;
    struct desk *d = desk_create();
    struct scheduler_options o = {.config = &d->sim->c,
                                  .map = d->sim->map,
                                  .manifest = {.hash = 5},
                                  .job = SIM_JOB,
                                  .port = {&d->log, log_send}};
    struct membership *m = membership_create(&o);
    static const struct wire_header who[] = {{.role = PS_WORKER, .rank = 0},
                                             {.role = PS_WORKER, .rank = 1},
                                             {.role = PS_SERVER, .rank = 0},
                                             {.role = PS_SHARD, .rank = 0}};
    for (int i = 0; i < 4; i++) {
        struct wire_header h = who[i];
        struct ps_frame *f = h.role == PS_SERVER ? sim_frame(d->sim, xstrdup("tcp://y:1\n"), 10) : NULL;
        h.manifest = 5;
        h.incarnation = 9;
        assert_int_equal(membership_heard(m, &h, 0), -1);  // not before its login
        assert_int_equal(membership_hello(m, &h, f, 0), i);
        ps_frame_release(f);
        h.job = SIM_JOB;
        assert_int_equal(membership_heard(m, &h, 0), i);
        h.job = 1;
        assert_int_equal(membership_heard(m, &h, 0), -1);
        assert_false(m->started);
    }
    assert_int_equal(membership_tick(m, 0, 1.0), 0);
    assert_true(m->started);
    assert_int_equal(membership_tick(m, 3, 3.5), -1);
    assert_string_equal(m->error, "worker 0 was lost at step 3: silent for 2.5 s");
    membership_destroy(&m);
    assert_null(m);
    desk_destroy(d);
}

static struct wire_header report(int64_t step, double loss, float scale) {
    return (struct wire_header){
        .kind = WIRE_REPORT, .step = step, .loss = loss, .lr = 0.5f, .loss_scale = scale, .clip = 1.0f};
}

// And what they do together: nobody needs to have logged in.
static void test_rounds_alone(void **state) {
    (void)state;
    struct desk *d = desk_create();
    struct scheduler_options o = {
        .config = &d->sim->c, .map = d->sim->map, .job = SIM_JOB, .port = {&d->log, log_send}};
    struct membership *m = membership_create(&o);
    struct rounds *r = rounds_create(&o, m);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true}, first = report(0, 0.25, 1.0f);
    for (int64_t step = 0; step < 3; step++) {
        assert_int_equal(rounds_step(r), step);
        sum.step = first.step = step;
        d->log.count = 0;
        assert_int_equal(rounds_report(r, 1, &first, 0), 0);
        assert_int_equal(rounds_report(r, 0, &first, 0), 0);
        assert_int_equal(d->log.count, 0);
        assert_int_equal(rounds_sum(r, 0, &sum, 0), 0);
        assert_int_equal(logged(&d->log, 3, WIRE_DECISION), 1);
        assert_int_equal(logged(&d->log, 0, WIRE_STEP_DONE) + logged(&d->log, 1, WIRE_STEP_DONE), 2);
        assert_true(d->log.sent[1].h.loss == 0.5);
        assert_int_equal(rounds_tick(r, 100.0), 0);  // nobody is awaited between two rounds
    }
    first.step = 3;
    assert_int_equal(rounds_report(r, 1, &first, 100.0), 0);
    assert_int_equal(rounds_tick(r, 102.9), 0);
    assert_int_equal(rounds_tick(r, 103.1), -1);
    assert_string_equal(rounds_error(r), "step 3: nothing from worker 0 for 3.1 s");
    rounds_destroy(&r);
    membership_destroy(&m);
    desk_destroy(d);
}

static void test_step(void **state) {
    (void)state;
    struct desk *d = desk_create();
    desk_login(d);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true};
    exact_sum_add(&sum.sum, 64.0 * 64.0);
    tell_desk(d, PS_WORKER, 1, report(0, 0.1, 16.0f), 0);
    tell_desk(d, PS_SHARD, 0, sum, 0);
    assert_int_equal(d->log.count, 0);
    tell_desk(d, PS_WORKER, 0, report(0, 0.2, 16.0f), 0);
    assert_int_equal(d->log.sent[0].h.kind, WIRE_DECISION);
    assert_true(d->log.sent[0].h.norm == 4.0);
    assert_true(d->log.sent[0].h.grad_scale == (float)(1.0 / (4.0 + 1e-6) / 16.0));
    assert_true(d->log.sent[1].h.loss == 0.2 + 0.1);
    assert_int_equal(logged(&d->log, 0, WIRE_STEP_DONE) + logged(&d->log, 1, WIRE_STEP_DONE), 2);
    tell_desk(d, PS_WORKER, 0, report(0, 0.2, 16.0f), 0);  // repeated: the same answer, to it alone
    assert_int_equal(d->log.count, 1);
    assert_int_equal(logged(&d->log, 0, WIRE_STEP_DONE), 1);
    tell_desk(d, PS_SHARD, 0, sum, 0);
    assert_int_equal(logged(&d->log, 3, WIRE_DECISION), 1);
    // Workers that disagree on the loss scale end the job, both named.
    tell_desk(d, PS_WORKER, 0, report(1, 0.2, 16.0f), 0);
    tell_desk(d, PS_WORKER, 1, report(1, 0.2, 8.0f), 0);
    assert_non_null(strstr(scheduler_core_error(d->core), "worker 1"));
    assert_non_null(strstr(scheduler_core_error(d->core), "worker 0"));
    assert_int_equal(logged(&d->log, 2, WIRE_ABORT), 1);
    desk_destroy(d);
}

static void test_lost_and_overdue(void **state) {
    (void)state;
    struct wire_header beat = {.kind = WIRE_HEARTBEAT, .step = 7};
    struct desk *d = desk_create();
    desk_login(d);
    tell_desk(d, PS_WORKER, 1, beat, 0.5);
    assert_int_equal(logged(&d->log, 1, WIRE_HEARTBEAT_ACK), 1);
    tell_desk(d, PS_WORKER, 0, beat, 1.5);
    tell_desk(d, PS_SERVER, 0, beat, 1.5);
    assert_int_equal(scheduler_core_tick(d->core, 2.6), -1);
    assert_non_null(strstr(scheduler_core_error(d->core), "worker 1 was lost at step 7"));
    assert_int_equal(logged(&d->log, 1, WIRE_ABORT), 0);  // nobody is there
    desk_destroy(d);
    d = desk_create();  // servers say no step
    desk_login(d);
    tell_desk(d, PS_WORKER, 0, beat, 1.5);
    tell_desk(d, PS_WORKER, 1, beat, 1.5);
    assert_int_equal(scheduler_core_tick(d->core, 2.6), -1);
    assert_non_null(strstr(scheduler_core_error(d->core), "server 0 was lost at step 7"));
    desk_destroy(d);
    d = desk_create();
    desk_login(d);
    tell_desk(d, PS_WORKER, 0, report(0, 1.0, 1.0f), 0);
    for (int i = 1; i < 4; i++) {
        tell_desk(d, PS_WORKER, 0, beat, i);
        tell_desk(d, PS_WORKER, 1, beat, i);
        tell_desk(d, PS_SERVER, 0, beat, i);
    }
    assert_int_equal(scheduler_core_tick(d->core, 3.5), -1);
    assert_non_null(strstr(scheduler_core_error(d->core), "step 0: nothing from worker 1"));
    desk_destroy(d);
}

static void test_gathers(void **state) {
    (void)state;
    struct desk *d = desk_create();
    desk_login(d);
    struct wire_header g = {.kind = WIRE_GATHER, .count = 2, .values = {0.1, 1e300}};
    tell_desk(d, PS_WORKER, 1, g, 0);
    assert_int_equal(d->log.count, 0);
    g.values[0] = 0.2;
    tell_desk(d, PS_WORKER, 0, g, 0);
    assert_int_equal(logged(&d->log, 0, WIRE_GATHER_DONE) + logged(&d->log, 1, WIRE_GATHER_DONE), 2);
    assert_true(d->log.sent[0].h.values[0] == 0.2 + 0.1 && d->log.sent[0].h.values[1] == 2e300);
    tell_desk(d, PS_WORKER, 1, g, 0);
    assert_int_equal(d->log.count, 1);  // its answer was lost: again, to it alone
    // The end: workers part, then the server is told to.
    struct wire_header bye = {.kind = WIRE_GOODBYE};
    tell_desk(d, PS_WORKER, 0, bye, 0);
    assert_int_equal(logged(&d->log, 2, WIRE_SHUTDOWN), 0);
    tell_desk(d, PS_WORKER, 1, bye, 0);
    assert_int_equal(logged(&d->log, 2, WIRE_SHUTDOWN), 1);
    assert_false(scheduler_core_done(d->core));
    tell_desk(d, PS_SERVER, 0, bye, 0);
    assert_true(scheduler_core_done(d->core));
    desk_destroy(d);
}

// A worker that comes late to a barrier but still pushes is waited for; once it stops, it is named.
static void test_slow_is_not_missing(void **state) {
    (void)state;
    struct desk *d = desk_create();
    struct wire_header g = {.kind = WIRE_GATHER}, beat = {.kind = WIRE_HEARTBEAT};
    desk_login(d);
    tell_desk(d, PS_WORKER, 0, g, 0);
    for (int i = 1; i <= 20; i++) {
        beat.seq = (uint64_t)(i < 12 ? i : 12);
        tell_desk(d, PS_SERVER, 0, beat, i);
        tell_desk(d, PS_WORKER, 0, beat, i);
        tell_desk(d, PS_WORKER, 1, beat, i);
        if (i <= 14) assert_string_equal(scheduler_core_error(d->core), "");
    }
    assert_non_null(strstr(scheduler_core_error(d->core), "worker 1 did not come"));
    desk_destroy(d);
}

// Without a commit round a gradient that is not finite has been applied by then: the job says so and ends.
static void test_not_finite_without_round(void **state) {
    (void)state;
    struct desk *d = desk_create();
    d->sim->c.dtype = DT_BF16;
    desk_login(d);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true, .sum = {.nonfinite = 3}};
    tell_desk(d, PS_SHARD, 0, sum, 0);
    tell_desk(d, PS_WORKER, 0, report(0, 0.2, 1.0f), 0);
    tell_desk(d, PS_WORKER, 1, report(0, 0.2, 1.0f), 0);
    assert_non_null(strstr(scheduler_core_error(d->core), "3 gradient elements are not finite"));
    desk_destroy(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_membership_alone),
        cmocka_unit_test(test_rounds_alone),
        cmocka_unit_test(test_login),
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_lost_and_overdue),
        cmocka_unit_test(test_gathers),
        cmocka_unit_test(test_slow_is_not_missing),
        cmocka_unit_test(test_not_finite_without_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
