// A process that stood still - frozen, asleep, without a core - does not take that time for its peers' silence, says so
// when the job turns out to be over, and is still sure of whom it has lost.
#include "shared/time/turn_clock.h"
#include "tests/ps/test_ps_log.h"

#define LOST_S 2.0
#define TURN_S 0.02

struct pair {
    struct toy_case t;
    struct sim *sim;
    struct log log;
    struct worker_core *core;
    double now;
};

static void pair_open(struct pair *p) {
    *p = (struct pair){.t = {.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 2,
                             .servers = 1,
                             .threads = 1,
                             .steps = 1,
                             .overflow_step = -1},
                       .now = 100};
    p->sim = sim_create(&p->t);
    struct worker_core_options o = {.layout = p->sim->l,
                                    .map = p->sim->map,
                                    .dtype = DT_BF16,
                                    .weights = p->sim->workers[0].weights,
                                    .grads = (const void *const *)p->sim->workers[0].grads,
                                    .credit_bytes = 1,
                                    .heartbeat_s = 0.1,
                                    .lost_s = LOST_S,
                                    .start_s = p->now,
                                    .port = {&p->log, log_send}};
    p->core = worker_core_create(&o);
}

static void pair_close(struct pair *p) {
    worker_core_destroy(&p->core);
    sim_destroy(p->sim);
}

static int turn(struct pair *p, double seconds) {
    p->now += seconds;
    p->log.count = 0;
    return worker_core_tick(p->core, p->now);
}

static void heard(struct pair *p) {
    struct wire_header h = {.kind = WIRE_HEARTBEAT_ACK};
    assert_int_equal(worker_core_message(p->core, PEER_SCHEDULER, &h, NULL, p->now), 0);
}

// Turns until the scheduler counts as lost; after how long it does.
static double turns_to_the_end(struct pair *p, double seconds) {
    double begin = p->now;
    while (turn(p, seconds) == 0) assert_true(p->now - begin < 300);
    assert_true(worker_core_status(p->core)->lost_scheduler);
    return p->now - begin;
}

// Frozen for somewhat less than what makes a member lost, the time before counted by the others: it says so, too.
static void frozen_for_any_time(void **state) {
    (void)state;
    static const double stood[] = {0.6, 1.5, 1.9, 1.999, 2.0, 2.001, 3, 60};
    for (size_t i = 0; i < sizeof stood / sizeof *stood; i++)
        for (int backlog = 0; backlog < 2; backlog++) {
            struct pair p;
            char words[96];
            pair_open(&p);
            for (int k = 0; k < 10; k++) {
                heard(&p);
                assert_int_equal(turn(&p, TURN_S), 0);
            }
            for (int k = 0; k < 4; k++) assert_int_equal(turn(&p, TURN_S), 0);  // between two beats
            p.now += stood[i];
            if (backlog) heard(&p);  // said before, heard now
            assert_int_equal(turn(&p, TURN_S), 0);
            double lasted = turns_to_the_end(&p, TURN_S);
            assert_true(lasted > 0.7 * LOST_S && lasted < LOST_S + 0.1);
            snprintf(words, sizeof words, "after this process had stood still for %.1f s", stood[i] + TURN_S);
            if (!strstr(worker_core_error(p.core), words))
                fail_msg("%s: %s", words, worker_core_error(p.core));
            pair_close(&p);
        }
}

// What was long ago does not explain anything, nor does a process that never stood still claim it.
static void an_old_one_is_no_reason(void **state) {
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        struct pair p;
        pair_open(&p);
        heard(&p);
        assert_int_equal(turn(&p, TURN_S), 0);
        if (frozen) assert_int_equal(turn(&p, 30), 0);
        for (int k = 0; k < 300; k++) {
            heard(&p);
            assert_int_equal(turn(&p, TURN_S), 0);
        }
        turns_to_the_end(&p, TURN_S);
        assert_null(strstr(worker_core_error(p.core), "stood still"));
        pair_close(&p);
    }
}

// However slow the turns are, a scheduler that says nothing is lost.
static void slow_turns_end(void **state) {
    (void)state;
    static const double turns[] = {0.3, 0.51, 1, 1.99, 5};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct pair p;
        pair_open(&p);
        heard(&p);
        assert_int_equal(turn(&p, TURN_S), 0);
        assert_true(turns_to_the_end(&p, turns[i]) < 35 * turns[i] + 0.01);
        pair_close(&p);
    }
}

// The clock by itself: it never goes back, nor faster than the host's, and a moment within a turn lies between the turns.
static void the_clock(void **state) {
    (void)state;
    struct turn_clock c = {.lost_s = LOST_S};
    char text[TURN_CLOCK_WORDS];
    assert_true(turn_clock_at(&c, 40) == 40);
    assert_true(turn_clock_turn(&c, 50) == 50);
    assert_true(turn_clock_at(&c, 50.03125) == 50.03125);  // the thread's own work
    assert_true(turn_clock_at(&c, 51) == 50.0625);
    assert_true(turn_clock_turn(&c, 51) == 50.0625);
    assert_true(turn_clock_turn(&c, 51.0625) == 50.125);
    assert_true(turn_clock_at(&c, 51.09375) == 50.15625);
    assert_true(turn_clock_turn(&c, 52.5625) == 50.1875);  // with one turn between them they are one
    assert_string_equal(turn_clock_words(&c, 50, text),
                        ", after this process had stood still for 2.5 s: the job may do without it");
    assert_string_equal(turn_clock_words(&c, 55, text), "");
    for (int i = 1; i <= 200; i++) assert_true(turn_clock_turn(&c, 52.5625 + i / 64.0) == 50.1875 + i / 64.0);
    assert_true(turn_clock_turn(&c, 85.6875) == 53.375);
    assert_string_equal(turn_clock_words(&c, 53, text),
                        ", after this process had stood still for 30.0 s: the job may do without it");
    // What the thread pauses itself counts.
    struct turn_clock slow = {.lost_s = LOST_S, .pause_s = 0.5};
    assert_true(turn_clock_turn(&slow, 10) == 10 && turn_clock_turn(&slow, 10.5) == 10.5);
    assert_true(turn_clock_turn(&slow, 20) == 11);
}

// A host so busy that this thread takes two turns a second, and its peers no more: what is heard less often than LOST_S, by the
// clock, is not lost. In a quiet moment the same silence is.
static void nobody_gets_a_core(void **state) {
    (void)state;
    for (int busy = 0; busy < 2; busy++) {
        struct pair p;
        int rc = 0;
        pair_open(&p);
        heard(&p);
        assert_int_equal(turn(&p, TURN_S), 0);
        for (int k = 0; k < 20 && rc == 0; k++) {
            double begin = p.now;
            while (rc == 0 && p.now - begin < 2.5 * LOST_S) rc = turn(&p, busy ? 0.5 : TURN_S);
            if (rc == 0) heard(&p);
        }
        assert_int_equal(rc, busy ? 0 : -1);
        pair_close(&p);
    }
}

// The same for the scheduler: it names nobody lost for the time in which it did not listen itself.
static void a_scheduler_too(void **state) {
    (void)state;
    for (int excused = 0; excused < 2; excused++) {
        struct toy_case t = {.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 1,
                             .servers = 1,
                             .threads = 1,
                             .steps = 1,
                             .overflow_step = -1};
        struct sim *sim = sim_create(&t);
        struct log log = {0};
        sim->c.ps.deadline_ms = 4000;
        struct scheduler_options o = {
            .config = &sim->c, .map = sim->map, .job = SIM_JOB, .port = {&log, log_send}};
        struct scheduler_core *core = scheduler_core_create(&o);
        static const enum ps_role roles[] = {PS_WORKER, PS_SERVER, PS_SHARD};
        struct turn_clock clock = {.lost_s = LOST_S};
        for (int i = 0; i < 3; i++) {
            struct ps_frame *frame =
                roles[i] == PS_SERVER ? sim_frame(sim, xstrdup("tcp://y:1\n"), 10) : NULL;
            struct wire_header h = {
                .kind = WIRE_HELLO, .role = roles[i], .incarnation = 50 + (uint64_t)i, .job = SIM_JOB};
            scheduler_core_message(core, &h, frame, 1);
        }
        assert_int_equal(scheduler_core_tick(core, 1), 0);
        turn_clock_turn(&clock, 1);
        double now = 1 + 2.5;  // longer than LOST_S, which is half the deadline
        if (excused) now = turn_clock_turn(&clock, now);
        assert_int_equal(scheduler_core_tick(core, now), excused ? 0 : -1);
        if (excused) assert_int_equal(scheduler_core_tick(core, now + LOST_S), -1);
        assert_non_null(strstr(scheduler_core_error(core), "worker 0 was lost at step"));
        scheduler_core_destroy(&core);
        sim_destroy(sim);
    }
}

// Nor does who watches a thread of its own process: a thread stands still for as long as the watcher has turned without it.
static void a_thread_beside(void **state) {
    (void)state;
    struct turning t = {0};
    struct turn_clock clock = {.lost_s = LOST_S};
    double now = 100, stood = 0;
    for (int i = 0; i < 50; i++) stood = turning_stood(&t, 0, turn_clock_turn(&clock, now += TURN_S));
    assert_true(stood == 0);  // it has not begun
    turning_stood(&t, 7, turn_clock_turn(&clock, now));
    now += 10 * LOST_S;
    stood = turning_stood(&t, 7, turn_clock_turn(&clock, now));
    assert_true(stood > 0 && stood < 0.1 * LOST_S);
    for (int i = 0; i < 150; i++) {
        now += TURN_S;
        stood = turning_stood(&t, 7, turn_clock_turn(&clock, now));
    }
    assert_true(stood > 1.5 * LOST_S);
    assert_true(turning_stood(&t, 8, turn_clock_turn(&clock, now += TURN_S)) == 0);
}

// A login's deadline as well: of those who are still to come nobody has heard, for nobody listened.
static void a_login_too(void **state) {
    (void)state;
    for (int excused = 0; excused < 2; excused++) {
        struct toy_case t = {.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 2,
                             .servers = 1,
                             .threads = 1,
                             .steps = 1,
                             .overflow_step = -1};
        struct sim *sim = sim_create(&t);
        struct log log = {0};
        sim->c.ps.deadline_ms = 4000;
        struct scheduler_options o = {
            .config = &sim->c, .map = sim->map, .job = SIM_JOB, .start_s = 1, .port = {&log, log_send}};
        struct scheduler_core *core = scheduler_core_create(&o);
        struct wire_header h = {.kind = WIRE_HELLO, .role = PS_WORKER, .incarnation = 50, .job = SIM_JOB};
        struct turn_clock clock = {.lost_s = LOST_S};
        scheduler_core_message(core, &h, NULL, 1);
        assert_int_equal(scheduler_core_tick(core, 1), 0);
        turn_clock_turn(&clock, 1);
        double now = 1 + 7.5;
        if (excused) now = turn_clock_turn(&clock, now);
        scheduler_core_message(core, &h, NULL, now);  // said before, heard now
        assert_int_equal(scheduler_core_tick(core, now), excused ? 0 : -1);
        for (int i = 0; excused && i < 40; i++) {  // what is left of it
            now += 0.1;
            scheduler_core_message(core, &h, NULL, now);
        }
        assert_int_equal(scheduler_core_tick(core, now), -1);
        assert_non_null(strstr(scheduler_core_error(core), "login: worker 1, server 0"));
        scheduler_core_destroy(&core);
        sim_destroy(sim);
    }
}

// A shard that was asked before and has said nothing yet is not silent for that time either.
static void nor_is_a_shard_silent(void **state) {
    (void)state;
    struct pair p;
    pair_open(&p);
    float *values = xcalloc(1 << 16, sizeof *values);
    heard(&p);
    worker_core_init_unit(p.core, 0, values, 1);
    assert_int_equal(turn(&p, TURN_S), 0);
    assert_true(logged(&p.log, 0, WIRE_INIT) > 0);
    p.now += 5 * LOST_S;
    heard(&p);
    assert_int_equal(turn(&p, TURN_S), 0);
    assert_true(worker_core_status(p.core)->silent_s < 0.2 * LOST_S);
    double begin = p.now;
    while (worker_core_status(p.core)->silent_s <= LOST_S) {
        heard(&p);
        assert_int_equal(turn(&p, TURN_S), 0);
        assert_true(p.now - begin < 2 * LOST_S);
    }
    pair_close(&p);
    free(values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_for_any_time),  cmocka_unit_test(an_old_one_is_no_reason),
        cmocka_unit_test(slow_turns_end),       cmocka_unit_test(the_clock),
        cmocka_unit_test(nobody_gets_a_core),   cmocka_unit_test(a_scheduler_too),
        cmocka_unit_test(a_thread_beside),      cmocka_unit_test(a_login_too),
        cmocka_unit_test(nor_is_a_shard_silent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
