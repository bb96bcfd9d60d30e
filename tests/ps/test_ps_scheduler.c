// Single messages to the scheduler: logins, steps, gathers, who is missing, who is lost.
#include "ps/job/timing.h"
#include "ps/scheduler/rounds.h"
#include "test_ps_log.h"

// ---------------------------------------------------------------- the scheduler
struct fixture {
    struct sim *sim;
    struct log log;
    struct scheduler_core *core;
};

static struct fixture *fixture_create(void) {
    struct toy_case t = {.dtype = DT_F16,
                         .consistency = "sync",
                         .workers = 2,
                         .servers = 1,
                         .threads = 1,
                         .steps = 1,
                         .overflow_step = -1};
    struct fixture *f = xcalloc(1, sizeof *f);
    f->sim = sim_create(&t);
    f->sim->c.ps.deadline_ms = 4000;
    struct scheduler_options o = {.config = &f->sim->c,
                                  .map = f->sim->map,
                                  .manifest = {.hash = 5},
                                  .job = SIM_JOB,
                                  .port = {&f->log, log_send}};
    f->core = scheduler_core_create(&o);
    return f;
}

static void fixture_destroy(struct fixture *f) {
    scheduler_core_destroy(&f->core);
    sim_destroy(f->sim);
    free(f);
}

static int tell(struct fixture *f, enum ps_role role, int rank, struct wire_header h, double now) {
    struct ps_frame *frame =
        h.kind == WIRE_HELLO && role == PS_SERVER ? sim_frame(f->sim, xstrdup("tcp://y:1\n"), 10) : NULL;
    h.role = role;
    h.rank = rank;
    if (!h.incarnation) h.incarnation = 50 + (uint64_t)(role * 10 + rank);
    if (!h.manifest) h.manifest = 5;
    if (!h.job) h.job = SIM_JOB;
    f->log.count = 0;
    int member = scheduler_core_message(f->core, &h, frame, now);
    if (!scheduler_core_error(f->core)[0]) scheduler_core_tick(f->core, now);
    return member;
}

static void login_all(struct fixture *f) {
    struct wire_header hello = {.kind = WIRE_HELLO};
    assert_int_equal(tell(f, PS_WORKER, 0, hello, 0), 0);
    assert_int_equal(tell(f, PS_WORKER, 1, hello, 0), 1);
    assert_int_equal(tell(f, PS_SERVER, 0, hello, 0), 2);
    assert_int_equal(logged(&f->log, 0, WIRE_START), 0);
    assert_int_equal(tell(f, PS_SHARD, 0, hello, 0), 3);
    assert_int_equal(logged(&f->log, 0, WIRE_START) + logged(&f->log, 1, WIRE_START), 2);
}

static void test_login(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct wire_header h = {.kind = WIRE_HELLO, .manifest = 6};
    assert_int_equal(tell(f, PS_WORKER, 0, h, 0), -1);
    assert_int_equal(f->log.sent[0].h.kind, WIRE_REFUSED);
    assert_non_null(strstr(f->log.sent[0].h.text, "does not say of which run it is"));
    h.manifest = 5;
    assert_int_equal(tell(f, PS_WORKER, -1, h, 0), 0);  // any free rank
    assert_int_equal(f->log.sent[0].h.step, 0);
    h.incarnation = 1234;
    assert_int_equal(tell(f, PS_WORKER, 0, h, 0), -1);  // taken
    assert_non_null(strstr(f->log.sent[0].h.text, "already here"));
    assert_int_equal(tell(f, PS_WORKER, -1, h, 0), 1);
    assert_int_equal(tell(f, PS_WORKER, -1, h, 0), 1);  // repeats itself
    h.incarnation = 1235;
    assert_int_equal(tell(f, PS_WORKER, -1, h, 0), -1);  // full
    assert_int_equal(tell(f, PS_WORKER, 9, h, 0), -1);
    assert_int_equal(scheduler_core_tick(f->core, 4.1), -1);
    assert_non_null(
        strstr(scheduler_core_error(f->core), "server 0, server 0 shard 0 did not come within 4000 ms"));
    assert_true(logged(&f->log, 0, WIRE_ABORT) == 1);
    fixture_destroy(f);
}

// Each half on its own. Who is there:
static void test_membership_alone(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct scheduler_options o = {.config = &f->sim->c,
                                  .map = f->sim->map,
                                  .manifest = {.hash = 5},
                                  .job = SIM_JOB,
                                  .port = {&f->log, log_send}};
    struct membership members = {0}, *m = &members;
    membership_init(m, &o);
    static const struct wire_header who[] = {{.role = PS_WORKER, .rank = 0},
                                             {.role = PS_WORKER, .rank = 1},
                                             {.role = PS_SERVER, .rank = 0},
                                             {.role = PS_SHARD, .rank = 0}};
    for (int i = 0; i < 4; i++) {
        struct wire_header h = who[i];
        struct ps_frame *frame = h.role == PS_SERVER ? sim_frame(f->sim, xstrdup("tcp://y:1\n"), 10) : NULL;
        h.manifest = 5;
        h.incarnation = 9;
        assert_int_equal(membership_heard(m, &h, 0), -1);  // not before its login
        assert_int_equal(membership_hello(m, &h, frame, 0), i);
        ps_frame_release(frame);
        h.job = SIM_JOB;
        assert_int_equal(membership_heard(m, &h, 0), i);
        h.job = 1;
        assert_int_equal(membership_heard(m, &h, 0), -1);
        assert_false(m->started);
    }
    assert_int_equal(membership_tick(m, 0, 1.0), 0);
    assert_true(m->started);
    struct wire_header again = {
        .kind = WIRE_HELLO, .role = PS_WORKER, .rank = 1, .incarnation = 9, .manifest = 5};
    // One text for both workers, one for the server, none for its shard.
    assert_int_equal(logged(&f->log, 0, WIRE_START) + logged(&f->log, 1, WIRE_START), 2);
    assert_int_equal(logged(&f->log, 2, WIRE_START), 1);
    assert_int_equal(logged(&f->log, 3, WIRE_START), 0);
    const char *text = m->texts[0]->text;
    assert_null(strstr(text, "worker "));
    assert_non_null(strstr(m->texts[1]->text, "worker 9 1\nworker 9 1\n"));
    // START is said again by the timer, which doubles, however often a member asks; and not while it still leaves.
    static const double at[] = {1.0, 1.09, 1.11, 1.2, 1.3, 1.32, 1.4};
    static const int starts[] = {0, 0, 1, 0, 0, 1, 0};
    for (int i = 0; i < 7; i++) {
        f->log.count = 0;
        assert_int_equal(membership_hello(m, &again, NULL, at[i]), 1);
        assert_int_equal(logged(&f->log, PEER_SENDER, WIRE_WELCOME), 1);
        assert_int_equal(logged(&f->log, PEER_SENDER, WIRE_START), starts[i]);
    }
    assert_ptr_equal(m->texts[0]->text, text);
    f->log.count = 0;
    atomic_store(&m->texts[0]->leaving[1], 1);
    membership_hello(m, &again, NULL, 3.0);
    assert_int_equal(logged(&f->log, PEER_SENDER, WIRE_START), 0);
    // Another epoch has texts of its own, and the old one is there until it has left.
    membership_init(m, &o);
    assert_null(m->texts[0]);
    assert_ptr_equal(m->former->text, text);
    atomic_store(&m->former->leaving[1], 0);
    membership_init(m, &o);
    assert_null(m->former);
    membership_free(m);
    fixture_destroy(f);
}

// It names who falls silent.
static void test_membership_silence(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct membership members = {0}, *m = &members;
    membership_init(m, &(struct scheduler_options){.config = &f->sim->c,
                                                   .map = f->sim->map,
                                                   .manifest = {.hash = 5},
                                                   .job = SIM_JOB,
                                                   .port = {&f->log, log_send}});
    for (int i = 0; i < m->count; i++) {
        m->m[i].present = true;
        m->m[i].incarnation = 9;
    }
    assert_int_equal(membership_tick(m, 0, 1.0), 0);
    assert_true(m->started);
    assert_int_equal(membership_tick(m, 3, 3.5), -1);
    assert_string_equal(m->error, "worker 0 was lost at step 3: silent for 2.5 s" PS_LOST_KEY);
    membership_free(m);
    fixture_destroy(f);
}

static struct wire_header report(int64_t step, double loss, float scale) {
    return (struct wire_header){
        .kind = WIRE_REPORT, .step = step, .loss = loss, .lr = 0.5f, .loss_scale = scale, .clip = 1.0f};
}

// And what they do together: nobody needs to have logged in.
static void test_rounds_alone(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct scheduler_options o = {
        .config = &f->sim->c, .map = f->sim->map, .job = SIM_JOB, .port = {&f->log, log_send}};
    struct membership members = {0}, *m = &members;
    membership_init(m, &o);
    struct rounds *r = rounds_create(&o, m);
    char text[WIRE_TEXT_MAX];
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true}, first = report(0, 0.25, 1.0f);
    for (int64_t step = 0; step < 3; step++) {
        assert_int_equal(rounds_step(r), step);
        sum.step = first.step = step;
        f->log.count = 0;
        assert_int_equal(rounds_report(r, 1, &first, 0), 0);
        assert_int_equal(rounds_report(r, 0, &first, 0), 0);
        assert_int_equal(f->log.count, 0);
        assert_int_equal(rounds_sum(r, 0, &sum, 0), 0);
        assert_int_equal(logged(&f->log, 3, WIRE_DECISION), 1);
        assert_int_equal(logged(&f->log, 0, WIRE_STEP_DONE) + logged(&f->log, 1, WIRE_STEP_DONE), 2);
        assert_true(f->log.sent[1].h.loss == 0.5);
        assert_false(rounds_slow(r, 100.0, text));  // nobody is awaited between two rounds
    }
    first.step = 3;
    assert_int_equal(rounds_report(r, 1, &first, 100.0), 0);
    assert_false(rounds_slow(r, 102.9, text));
    assert_true(rounds_slow(r, 103.1, text));
    assert_string_equal(text, "waiting for worker 0: 3 s in step 4, it is alive");
    assert_false(rounds_slow(r, 1000.0, text));  // once
    assert_int_equal(rounds_report(r, 0, &first, 1000.0), 0);
    assert_false(rounds_slow(r, 1002.9, text));
    assert_true(rounds_slow(r, 1003.1, text));
    assert_string_equal(text, "waiting for server 0 shard 0: 3 s in step 4, it is alive");
    assert_false(rounds_slow(r, 2000.0, text));
    sum.step = 3;
    assert_int_equal(rounds_sum(r, 0, &sum, 2000.0), 0);
    assert_int_equal(rounds_step(r), 4);
    assert_string_equal(rounds_error(r), "");
    rounds_destroy(&r);
    membership_free(m);
    fixture_destroy(f);
}

// Where members run ahead, what comes of a step early is kept for it; what nobody may be at ends the job.
static void test_rounds_ahead(void **state) {
    (void)state;
    for (int lead = 0; lead < 3; lead++) {
        struct fixture *f = fixture_create();
        struct scheduler_options o = {.config = &f->sim->c,
                                      .map = f->sim->map,
                                      .lead = lead,
                                      .job = SIM_JOB,
                                      .port = {&f->log, log_send}};
        struct membership members = {0};
        membership_init(&members, &o);
        struct rounds *r = rounds_create(&o, &members);
        struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true};
        for (int64_t base = 0; base < 9; base += 1 + lead) {
            for (int64_t step = base + lead; step > base; step--) {
                struct wire_header own = report(step, 0.25 * (double)(step + 1), 1.0f);
                sum.step = step;
                assert_int_equal(rounds_sum(r, 0, &sum, 0), 0);
                assert_int_equal(rounds_report(r, 1, &own, 0), 0);
                assert_int_equal(rounds_report(r, 0, &own, 0), 0);
                assert_int_equal(rounds_step(r), base);
            }
            struct wire_header last = report(base, 0.25 * (double)(base + 1), 1.0f);
            sum.step = base;
            rounds_report(r, 0, &last, 0);
            rounds_report(r, 1, &last, 0);
            f->log.count = 0;
            assert_int_equal(rounds_sum(r, 0, &sum, 0), 0);
            assert_int_equal(rounds_step(r), base + lead + 1);
            // In their order: the decision, then two workers hear.
            assert_int_equal(f->log.count, 3 * (1 + lead));
            for (int i = 0; i < f->log.count; i++) {
                const struct wire_header *h = &f->log.sent[i].h;
                assert_int_equal(h->step, base + i / 3);
                assert_int_equal(h->kind, i % 3 ? WIRE_STEP_DONE : WIRE_DECISION);
                if (i % 3) assert_true(h->loss == 0.5 * (double)(h->step + 1));
            }
        }
        sum.step = rounds_step(r) + lead + 1;
        assert_int_equal(rounds_sum(r, 0, &sum, 0), -1);
        char text[160];
        snprintf(text, sizeof text, "server 0 shard 0 reported step %lld while the job is at step %lld",
                 (long long)sum.step, (long long)rounds_step(r));
        assert_string_equal(rounds_error(r), text);
        rounds_destroy(&r);
        membership_free(&members);
        fixture_destroy(f);
    }
}

static void test_step(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    login_all(f);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true};
    exact_sum_add(&sum.sum, 64.0 * 64.0);
    tell(f, PS_WORKER, 1, report(0, 0.1, 16.0f), 0);
    tell(f, PS_SHARD, 0, sum, 0);
    assert_int_equal(f->log.count, 0);
    tell(f, PS_WORKER, 0, report(0, 0.2, 16.0f), 0);
    assert_int_equal(f->log.sent[0].h.kind, WIRE_DECISION);
    assert_true(f->log.sent[0].h.norm == 4.0);
    assert_true(f->log.sent[0].h.grad_scale == (float)(1.0 / (4.0 + 1e-6) / 16.0));
    assert_true(f->log.sent[1].h.loss == 0.2 + 0.1);
    assert_int_equal(logged(&f->log, 0, WIRE_STEP_DONE) + logged(&f->log, 1, WIRE_STEP_DONE), 2);
    tell(f, PS_WORKER, 0, report(0, 0.2, 16.0f), 0);  // of a step that is over
    tell(f, PS_SHARD, 0, sum, 0);
    assert_int_equal(f->log.count, 0);
    // Workers that disagree on the loss scale end the job, both named.
    tell(f, PS_WORKER, 0, report(1, 0.2, 16.0f), 0);
    tell(f, PS_WORKER, 1, report(1, 0.2, 8.0f), 0);
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 1"));
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 0"));
    assert_int_equal(logged(&f->log, 2, WIRE_ABORT), 1);
    fixture_destroy(f);
}

static void test_lost_and_overdue(void **state) {
    (void)state;
    struct wire_header beat = {.kind = WIRE_HEARTBEAT, .step = 7};
    struct fixture *f = fixture_create();
    login_all(f);
    tell(f, PS_WORKER, 1, beat, 0.5);
    assert_int_equal(logged(&f->log, 1, WIRE_HEARTBEAT_ACK), 1);
    tell(f, PS_WORKER, 0, beat, 1.5);
    tell(f, PS_SERVER, 0, beat, 1.5);
    assert_int_equal(scheduler_core_tick(f->core, 2.6), -1);
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 1 was lost at step 7"));
    assert_int_equal(logged(&f->log, 1, WIRE_ABORT), 0);  // nobody is there
    fixture_destroy(f);
    f = fixture_create();  // pulses alone: alive, and not answered
    login_all(f);
    for (int i = 1; i < 40; i++) {
        struct wire_header pulse = {.kind = WIRE_PULSE};
        for (int w = 0; w < 2; w++) tell(f, PS_WORKER, w, pulse, 0.5 * i);
        assert_int_equal(f->log.count, 0);
        tell(f, PS_SERVER, 0, pulse, 0.5 * i);
    }
    assert_string_equal(scheduler_core_error(f->core), "");
    fixture_destroy(f);
    f = fixture_create();  // servers say no step
    login_all(f);
    tell(f, PS_WORKER, 0, beat, 1.5);
    tell(f, PS_WORKER, 1, beat, 1.5);
    assert_int_equal(scheduler_core_tick(f->core, 2.6), -1);
    assert_non_null(strstr(scheduler_core_error(f->core), "server 0 was lost at step 7"));
    fixture_destroy(f);
    f = fixture_create();
    login_all(f);
    tell(f, PS_WORKER, 0, report(0, 1.0, 1.0f), 0);
    // A worker whose heartbeats arrive is waited for, and named once; when they stop it is lost.
    char text[WIRE_TEXT_MAX];
    int named = 0;
    for (int i = 1; i < 60; i++) {
        tell(f, PS_WORKER, 0, beat, i);
        tell(f, PS_WORKER, 1, beat, i);
        tell(f, PS_SERVER, 0, beat, i);
        assert_int_equal(scheduler_core_tick(f->core, i + 0.5), 0);
        if (!scheduler_core_slow(f->core, i + 0.5, text)) continue;
        assert_string_equal(text, "waiting for worker 1: 4 s in step 1, it is alive");
        named++;
    }
    assert_int_equal(named, 1);
    tell(f, PS_WORKER, 0, beat, 61);
    tell(f, PS_SERVER, 0, beat, 61);
    assert_int_equal(scheduler_core_tick(f->core, 61.5), -1);
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 1 was lost at step 7: silent for 2.5 s"));
    fixture_destroy(f);
}

static void test_gathers(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    login_all(f);
    struct wire_header g = {.kind = WIRE_GATHER, .count = 2, .values = {0.1, 1e300}};
    tell(f, PS_WORKER, 1, g, 0);
    assert_int_equal(f->log.count, 0);
    g.values[0] = 0.2;
    tell(f, PS_WORKER, 0, g, 0);
    assert_int_equal(logged(&f->log, 0, WIRE_GATHER_DONE) + logged(&f->log, 1, WIRE_GATHER_DONE), 2);
    assert_true(f->log.sent[0].h.values[0] == 0.2 + 0.1 && f->log.sent[0].h.values[1] == 2e300);
    tell(f, PS_WORKER, 1, g, 0);  // of a gather that is over
    assert_int_equal(f->log.count, 0);
    // The end: workers part, then the server is told to.
    struct wire_header bye = {.kind = WIRE_GOODBYE};
    tell(f, PS_WORKER, 0, bye, 0);
    assert_int_equal(logged(&f->log, 2, WIRE_SHUTDOWN), 0);
    tell(f, PS_WORKER, 1, bye, 0);
    assert_int_equal(logged(&f->log, 2, WIRE_SHUTDOWN), 1);
    assert_false(scheduler_core_done(f->core));
    tell(f, PS_SERVER, 0, bye, 0);
    assert_true(scheduler_core_done(f->core));
    fixture_destroy(f);
}

// A server that falls silent while the job closes is lost, as in a step; one that beats is waited for.
static void test_silent_while_closing(void **state) {
    (void)state;
    for (int beats = 0; beats < 2; beats++) {
        struct fixture *f = fixture_create();
        struct wire_header bye = {.kind = WIRE_GOODBYE}, beat = {.kind = WIRE_HEARTBEAT};
        login_all(f);
        tell(f, PS_WORKER, 0, bye, 0);
        tell(f, PS_WORKER, 1, bye, 0);
        int rc = 0;
        for (int i = 1; i <= 100 && rc == 0; i++) {
            if (beats || i < 10) tell(f, PS_SERVER, 0, beat, i);
            rc = scheduler_core_tick(f->core, i);
            assert_false(scheduler_core_done(f->core));
        }
        assert_int_equal(rc, beats ? 0 : -1);
        if (!beats)
            assert_non_null(strstr(scheduler_core_error(f->core), "server 0 was lost while the job closed"));
        fixture_destroy(f);
    }
}

// A worker that comes late to a barrier but still pushes is on its way; once it no longer does, it is named.
static void test_slow_at_a_barrier(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct wire_header g = {.kind = WIRE_GATHER}, beat = {.kind = WIRE_HEARTBEAT};
    char text[WIRE_TEXT_MAX];
    login_all(f);
    tell(f, PS_WORKER, 0, g, 0);
    for (int i = 1; i <= 20; i++) {
        beat.seq = (uint64_t)(i < 12 ? i : 12);
        tell(f, PS_SERVER, 0, beat, i);
        tell(f, PS_WORKER, 0, beat, i);
        tell(f, PS_WORKER, 1, beat, i);
        assert_int_equal(scheduler_core_slow(f->core, i, text), i == 16);
    }
    assert_string_equal(text, "waiting for worker 1: 4 s at a barrier, it is alive");
    assert_string_equal(scheduler_core_error(f->core), "");
    tell(f, PS_WORKER, 1, g, 21);
    assert_int_equal(logged(&f->log, 0, WIRE_GATHER_DONE), 1);
    fixture_destroy(f);
}

// Without a commit round a gradient that is not finite has been applied by then: the job says so and ends.
static void test_not_finite_without_round(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    f->sim->c.dtype = DT_BF16;
    login_all(f);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true, .sum = {.nonfinite = 3}};
    tell(f, PS_SHARD, 0, sum, 0);
    tell(f, PS_WORKER, 0, report(0, 0.2, 1.0f), 0);
    tell(f, PS_WORKER, 1, report(0, 0.2, 1.0f), 0);
    assert_non_null(strstr(scheduler_core_error(f->core), "3 gradient elements are not finite"));
    fixture_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_membership_alone),
        cmocka_unit_test(test_membership_silence),
        cmocka_unit_test(test_rounds_alone),
        cmocka_unit_test(test_rounds_ahead),
        cmocka_unit_test(test_login),
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_lost_and_overdue),
        cmocka_unit_test(test_gathers),
        cmocka_unit_test(test_silent_while_closing),
        cmocka_unit_test(test_slow_at_a_barrier),
        cmocka_unit_test(test_not_finite_without_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
