// Single messages to the scheduler, and words of the registry: who comes, steps, gathers, who is missing, who is lost.
#include "ps/job/timing.h"
#include "ps/scheduler/rounds.h"
#include "test_ps_log.h"

// ---------------------------------------------------------------- the scheduler
struct fixture {
    struct sim *sim;
    struct log log;
    struct met met;
    struct scheduler_core *core;
};

static struct scheduler_options options_of(struct fixture *f) {
    return (struct scheduler_options){.config = &f->sim->c,
                                      .map = f->sim->map,
                                      .manifest = {.hash = 5},
                                      .job = SIM_JOB,
                                      .port = {&f->log, log_send},
                                      .publish = met_port(&f->met)};
}

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
    struct scheduler_options o = options_of(f);
    f->core = scheduler_core_create(&o);
    return f;
}

static void fixture_destroy(struct fixture *f) {
    scheduler_core_destroy(&f->core);
    sim_destroy(f->sim);
    free(f);
}

#define W(w)        (60 + (uint64_t)(w))  // lives
#define SERVER_LIFE 70

static void tell(struct fixture *f, enum ps_role role, int rank, struct wire_header h, double now) {
    h.role = role;
    h.rank = rank;
    h.incarnation = role == PS_WORKER ? W(rank) : SERVER_LIFE;
    h.job = SIM_JOB;
    f->log.count = 0;
    scheduler_core_message(f->core, &h, now);
    if (!scheduler_core_error(f->core)[0]) scheduler_core_tick(f->core, now);
}

static void book_says(struct fixture *f, struct member_news n, double now) {
    f->log.count = 0;
    met_tell(f->core, n, now);
    if (!scheduler_core_error(f->core)[0]) scheduler_core_tick(f->core, now);
}

static void come_all(struct fixture *f) {
    for (int w = 0; w < 2; w++) met_joins_epoch(f->core, w, W(w), 0, 0, 0);
    scheduler_core_tick(f->core, 0);
    assert_int_equal(f->met.starts, 0);
    met_joins_epoch(f->core, 2, SERVER_LIFE, 0, 1, 0);
    scheduler_core_tick(f->core, 0);
    assert_int_equal(f->met.starts, 2);
}

// A role of another run, or one that says nothing of itself, is given up, and its place is free. A role that does not come is named,
// with the one that was given up.
static void test_start(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct notice_ready r = {.epoch = 1, .manifest = 6};
    book_says(f, met_came(0, 9, 0), 0);
    book_says(f, met_ready(0, 9, &r), 0);
    assert_int_equal(f->met.out[0], 9);
    assert_non_null(strstr(f->met.why, "worker 0 does not name its run"));
    met_joins_epoch(f->core, 0, W(0), 0, 0, 0);
    r.manifest = 5;
    book_says(f, met_came(2, 10, 0), 0);
    book_says(f, met_ready(2, 10, &r), 0);  // without endpoints
    assert_int_equal(f->met.out[2], 10);
    assert_string_equal(f->met.why, "server 0 joined without the addresses it listens on");
    book_says(f, met_came(1, 11, 0), 0);
    book_says(f, met_said(1, 11, NOTICE_READY, xstrdup("rubbish")), 0);
    book_says(f, met_said(1, 12, NOTICE_READY, xstrdup("1 5 0\n\n")), 0);  // of another life
    book_says(f, met_left(1, 11), 0);
    assert_int_equal(f->met.given_up, 2);
    assert_int_equal(scheduler_core_tick(f->core, 3.9), 0);
    assert_int_equal(scheduler_core_tick(f->core, 4.1), -1);
    assert_string_equal(
        scheduler_core_error(f->core),
        "the start: worker 1, server 0 did not join within 4000 ms (parameter_server.deadline_ms) of "
        "the last that joined; refused: server 0 joined without the addresses it listens on");
    assert_int_equal(f->met.ends, 1);
    assert_string_equal(f->met.why, scheduler_core_error(f->core));
    fixture_destroy(f);
}

// A process that the registry itself has refused is named too.
static void test_refused_by_the_book(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct member_news n = {.kind = MEMBER_REFUSED, .member = -3, .why = "there is no place for worker 9"};
    book_says(f, n, 0);
    assert_int_equal(scheduler_core_tick(f->core, 4.1), -1);
    assert_non_null(strstr(scheduler_core_error(f->core), "refused: there is no place for worker 9"));
    fixture_destroy(f);
}

// The scheduler counts messages of members that are ready for the epoch, by their incarnation and its job.
static void test_members(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    static const struct wire_header who[] = {{.role = PS_WORKER, .rank = 0},
                                             {.role = PS_WORKER, .rank = 1},
                                             {.role = PS_SERVER, .rank = 0},
                                             {.role = PS_SHARD, .rank = 0}};
    struct notice_ready r = {.epoch = 1, .manifest = 5, .endpoints = "tcp://y:1\n"};
    for (int i = 0; i < 4; i++) {
        struct wire_header h = who[i];
        h.incarnation = 9;
        h.job = SIM_JOB;
        if (i < 3) {
            assert_int_equal(scheduler_core_sender_of(f->core, &h), -1);  // not before it is ready
            met_tell(f->core, met_came(i, 9, 0), 0);
            assert_int_equal(scheduler_core_sender_of(f->core, &h), -1);
            met_tell(f->core, met_ready(i, 9, &r), 0);
        }
        assert_int_equal(scheduler_core_sender_of(f->core, &h), i);
        h.job = 1;
        assert_int_equal(scheduler_core_sender_of(f->core, &h), -1);
        h.job = SIM_JOB;
        h.incarnation = 8;
        assert_int_equal(scheduler_core_sender_of(f->core, &h), -1);
    }
    for (int rank = -1; rank < 4; rank += 4)
        for (enum ps_role role = 0; role < PS_ROLES; role++) {
            struct wire_header h = {
                .role = role, .rank = rank, .thread = 7, .job = SIM_JOB, .incarnation = 9};
            assert_int_equal(scheduler_core_sender_of(f->core, &h), -1);
        }
    assert_int_equal(f->met.starts, 0);
    assert_int_equal(scheduler_core_tick(f->core, 1.0), 0);
    // One text for both workers, one for the server.
    assert_int_equal(f->met.starts, 2);
    assert_string_equal(f->met.roster[0], "shard 9 tcp://y:1 -\n");
    assert_string_equal(f->met.roster[1], "shard 9 tcp://y:1 -\nworker 9 1\nworker 9 1\n");
    fixture_destroy(f);
}

static struct wire_header report(int64_t step, double loss, float scale) {
    return (struct wire_header){
        .kind = WIRE_REPORT, .step = step, .loss = loss, .lr = 0.5f, .loss_scale = scale, .clip = 1.0f};
}

static struct membership members_of(struct member m[3]) {
    return (struct membership){.workers = 2, .servers = 1, .shards = 1, .threads = 1, .count = 4, .m = m};
}

// Members' common actions, on their own: none needs to have joined.
static void test_rounds_alone(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct scheduler_options o = options_of(f);
    struct member nobody[3] = {{0}};
    const struct membership m = members_of(nobody);
    struct rounds *r = rounds_create(&o, &m);
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
    fixture_destroy(f);
}

// Where members run ahead, what comes of a step early is kept for it; what nobody may be at ends the job.
static void test_rounds_ahead(void **state) {
    (void)state;
    for (int lead = 0; lead < 3; lead++) {
        struct fixture *f = fixture_create();
        struct scheduler_options o = options_of(f);
        o.lead = lead;
        struct member nobody[3] = {{0}};
        const struct membership members = members_of(nobody);
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
        fixture_destroy(f);
    }
}

static void test_step(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    come_all(f);
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
    assert_int_equal(f->met.ends, 1);
    fixture_destroy(f);
}

// A loss is news of the registry; how far the member was, the job knows.
static void test_lost_and_overdue(void **state) {
    (void)state;
    struct wire_header beat = {.kind = WIRE_HEARTBEAT, .step = 7};
    struct fixture *f = fixture_create();
    come_all(f);
    tell(f, PS_WORKER, 1, beat, 0.5);
    assert_int_equal(logged(&f->log, 1, WIRE_HEARTBEAT_ACK), 1);
    book_says(f, met_lost(1, W(1), "silent", 2.1), 2.6);
    assert_string_equal(scheduler_core_error(f->core),
                        "worker 1 was lost at step 7: silent for 2.1 s" PS_LOST_KEY);
    fixture_destroy(f);
    f = fixture_create();  // servers say no step
    come_all(f);
    tell(f, PS_WORKER, 0, beat, 1.5);
    book_says(f, met_lost(2, SERVER_LIFE, "gone", 0), 2.6);
    assert_string_equal(scheduler_core_error(f->core),
                        "server 0 was lost at step 7: its connection has closed");
    fixture_destroy(f);
    f = fixture_create();
    come_all(f);
    tell(f, PS_WORKER, 0, report(0, 1.0, 1.0f), 0);
    // A worker that is here is waited for, and named once.
    char text[WIRE_TEXT_MAX];
    int named = 0;
    for (int i = 1; i < 60; i++) {
        tell(f, PS_WORKER, 1, beat, i);
        assert_int_equal(scheduler_core_tick(f->core, i + 0.5), 0);
        if (!scheduler_core_next_slow_line(f->core, i + 0.5, text)) continue;
        assert_string_equal(text, "waiting for worker 1: 4 s in step 1, it is alive");
        named++;
    }
    assert_int_equal(named, 1);
    fixture_destroy(f);
}

static void test_gathers(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    come_all(f);
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
    book_says(f, met_left(0, W(0)), 0);
    assert_int_equal(logged(&f->log, 2, WIRE_SHUTDOWN), 0);
    book_says(f, met_left(1, W(1)), 0);
    assert_int_equal(logged(&f->log, 2, WIRE_SHUTDOWN), 1);
    assert_false(scheduler_core_done(f->core));
    scheduler_core_tick(f->core, 100);
    assert_false(scheduler_core_done(f->core));
    book_says(f, met_left(2, SERVER_LIFE), 100);
    assert_true(scheduler_core_done(f->core));
    fixture_destroy(f);
}

// A server that is lost while the job closes is lost, as in a step.
static void test_lost_while_closing(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    come_all(f);
    book_says(f, met_left(0, W(0)), 0);
    book_says(f, met_left(1, W(1)), 0);
    book_says(f, met_lost(2, SERVER_LIFE, "silent", 2), 2);
    assert_false(scheduler_core_done(f->core));
    assert_non_null(
        strstr(scheduler_core_error(f->core), "server 0 was lost while the job closed, after its last step"));
    fixture_destroy(f);
}

// A worker that comes late to a barrier but still pushes is on its way; once it no longer does, it is named.
static void test_slow_at_a_barrier(void **state) {
    (void)state;
    struct fixture *f = fixture_create();
    struct wire_header g = {.kind = WIRE_GATHER}, beat = {.kind = WIRE_HEARTBEAT};
    char text[WIRE_TEXT_MAX];
    come_all(f);
    tell(f, PS_WORKER, 0, g, 0);
    for (int i = 1; i <= 20; i++) {
        beat.seq = (uint64_t)(i < 12 ? i : 12);
        tell(f, PS_WORKER, 1, beat, i);
        assert_int_equal(scheduler_core_next_slow_line(f->core, i, text), i == 16);
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
    come_all(f);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true, .sum = {.nonfinite = 3}};
    tell(f, PS_SHARD, 0, sum, 0);
    tell(f, PS_WORKER, 0, report(0, 0.2, 1.0f), 0);
    tell(f, PS_WORKER, 1, report(0, 0.2, 1.0f), 0);
    assert_non_null(strstr(scheduler_core_error(f->core), "3 gradient elements are not finite"));
    fixture_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_rounds_alone),
        cmocka_unit_test(test_rounds_ahead),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_refused_by_the_book),
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_lost_and_overdue),
        cmocka_unit_test(test_gathers),
        cmocka_unit_test(test_lost_while_closing),
        cmocka_unit_test(test_slow_at_a_barrier),
        cmocka_unit_test(test_not_finite_without_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
