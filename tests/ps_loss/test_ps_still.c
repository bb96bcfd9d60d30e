// A process that stood still - frozen, asleep, without a core - does not take that time for its peers' silence, says so
// when the job turns out to be over, and is still sure of whom it has lost.
#include "shared/fabric/client.h"
#include "shared/time/poll_clock.h"
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
    struct worker_core_options o = {.rule = consistency_of(&p->sim->c),
                                    .layout = p->sim->l,
                                    .map = p->sim->map,
                                    .dtype = DT_BF16,
                                    .buffers = &p->sim->workers[0].buffers,
                                    .credit_bytes = 1,
                                    .heartbeat_s = 0.1,
                                    .lost_s = LOST_S,
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

// ---------------------------------------------------------------- a member of the meeting, and the scheduler's registry
struct watcher {
    struct client seat;
    double now;
};

static void drop(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data) {
    (void)ctx, (void)rank, (void)life, (void)m, (void)data;
}

static void watcher_open(struct watcher *w) {
    *w = (struct watcher){.seat = {.rank = 1,
                                   .size = 1,
                                   .incarnation = 7,
                                   .member_0 = "the scheduler",
                                   .where = "h:1",
                                   .silent_s = LOST_S,
                                   .beat_s = 0.1,
                                   .send = drop},
                          .now = 100};
    client_open(&w->seat, &(struct meet_join){.machine = 1}, "");
}

static void hears(struct watcher *w) {
    struct meet_message m = meet_message(MEET_PONG, 1, 7);
    client_receive(&w->seat, &m, "", w->now);
}

// Whether all goes on.
static bool looks(struct watcher *w, double seconds) {
    w->now += seconds;
    client_tick(&w->seat, w->now);
    return !*w->seat.ended;
}

// Turns until the scheduler counts as lost; after how long it does.
static double turns_to_the_end(struct watcher *w, double seconds) {
    double begin = w->now;
    while (looks(w, seconds)) assert_true(w->now - begin < 300);
    assert_non_null(strstr(w->seat.ended, "the scheduler at h:1 has sent nothing for 2 s"));
    return w->now - begin;
}

// Frozen for somewhat less than what makes a member lost, the time before counted by the others: it says so, too.
static void frozen_for_any_time(void **state) {
    (void)state;
    static const double stood[] = {0.6, 1.5, 1.9, 1.999, 2.0, 2.001, 3, 60};
    for (size_t i = 0; i < sizeof stood / sizeof *stood; i++)
        for (int backlog = 0; backlog < 2; backlog++) {
            struct watcher w;
            char words[96];
            watcher_open(&w);
            for (int k = 0; k < 10; k++) {
                hears(&w);
                assert_true(looks(&w, TURN_S));
            }
            for (int k = 0; k < 4; k++) assert_true(looks(&w, TURN_S));  // between two beats
            w.now += stood[i];
            if (backlog) hears(&w);  // said before, heard now
            assert_true(looks(&w, TURN_S));
            double lasted = turns_to_the_end(&w, TURN_S);
            assert_true(lasted > 0.7 * LOST_S && lasted < LOST_S + 0.1);
            snprintf(words, sizeof words, "after this process had stood still for %.1f s", stood[i] + TURN_S);
            if (!strstr(w.seat.ended, words)) fail_msg("%s: %s", words, w.seat.ended);
            client_close(&w.seat);
        }
}

// A stop of long ago does not explain anything, and neither does a process that was never stopped.
static void an_old_one_is_no_reason(void **state) {
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        struct watcher w;
        watcher_open(&w);
        hears(&w);
        assert_true(looks(&w, TURN_S));
        if (frozen) assert_true(looks(&w, 30));
        for (int k = 0; k < 300; k++) {
            hears(&w);
            assert_true(looks(&w, TURN_S));
        }
        turns_to_the_end(&w, TURN_S);
        assert_null(strstr(w.seat.ended, "stood still"));
        client_close(&w.seat);
    }
}

// However slow the turns are, a scheduler that says nothing is lost.
static void slow_turns_end(void **state) {
    (void)state;
    static const double turns[] = {0.3, 0.51, 1, 1.99, 5};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct watcher w;
        watcher_open(&w);
        hears(&w);
        assert_true(looks(&w, TURN_S));
        assert_true(turns_to_the_end(&w, turns[i]) < 35 * turns[i] + 0.01);
        client_close(&w.seat);
    }
}

// The clock by itself: it never goes back, nor faster than the host's, and a moment within a turn lies between the turns.
static void the_clock(void **state) {
    (void)state;
    struct poll_clock c = {.lost_s = LOST_S};
    char text[POLL_CLOCK_TEXT];
    assert_true(poll_clock_at(&c, 40) == 40);
    assert_true(poll_clock_poll(&c, 50) == 50);
    assert_true(poll_clock_at(&c, 50.03125) == 50.03125);  // the thread's own work
    assert_true(poll_clock_at(&c, 51) == 50.0625);
    assert_true(poll_clock_poll(&c, 51) == 50.0625);
    assert_true(poll_clock_poll(&c, 51.0625) == 50.125);
    assert_true(poll_clock_at(&c, 51.09375) == 50.15625);
    assert_true(poll_clock_poll(&c, 52.5625) == 50.1875);  // with one turn between them they are one
    assert_string_equal(poll_clock_text(&c, 50, text),
                        ", after this process had stood still for 2.5 s: the job may continue without it");
    assert_string_equal(poll_clock_text(&c, 55, text), "");
    for (int i = 1; i <= 200; i++) assert_true(poll_clock_poll(&c, 52.5625 + i / 64.0) == 50.1875 + i / 64.0);
    assert_true(poll_clock_poll(&c, 85.6875) == 53.375);
    assert_string_equal(poll_clock_text(&c, 53, text),
                        ", after this process had stood still for 30.0 s: the job may continue without it");
    // The thread's own pauses count.
    struct poll_clock slow = {.lost_s = LOST_S, .pause_s = 0.5};
    assert_true(poll_clock_poll(&slow, 10) == 10 && poll_clock_poll(&slow, 10.5) == 10.5);
    assert_true(poll_clock_poll(&slow, 20) == 11);
    // Turns that end a little behind their pause are no standstill, however many they are.
    struct poll_clock late = {.lost_s = LOST_S, .pause_s = 0.125};
    for (int i = 0; i < 200; i++) poll_clock_poll(&late, 10 + i * 0.15625);
    assert_string_equal(poll_clock_text(&late, poll_clock_at(&late, 10), text), "");
}

// A host so busy that this thread takes two turns a second, and its peers no more: what is heard less often than LOST_S, by the
// clock, is not lost. In a quiet moment the same silence is.
static void nobody_gets_a_core(void **state) {
    (void)state;
    for (int busy = 0; busy < 2; busy++) {
        struct watcher w;
        bool goes_on = true;
        watcher_open(&w);
        hears(&w);
        assert_true(looks(&w, TURN_S));
        for (int k = 0; k < 20 && goes_on; k++) {
            double begin = w.now;
            while (goes_on && w.now - begin < 2.5 * LOST_S) goes_on = looks(&w, busy ? 0.5 : TURN_S);
            if (goes_on) hears(&w);
        }
        assert_int_equal(goes_on, busy);
        client_close(&w.seat);
    }
}

// Nor does who watches a thread of its own process: a thread stands still for as long as the watcher has turned without it.
static void a_thread_beside(void **state) {
    (void)state;
    struct poll_watch t = {0};
    struct poll_clock clock = {.lost_s = LOST_S};
    double now = 100, stood = 0;
    for (int i = 0; i < 50; i++) stood = poll_watch_idle_s(&t, 0, poll_clock_poll(&clock, now += TURN_S));
    assert_true(stood == 0);  // it has not begun
    poll_watch_idle_s(&t, 7, poll_clock_poll(&clock, now));
    now += 10 * LOST_S;
    stood = poll_watch_idle_s(&t, 7, poll_clock_poll(&clock, now));
    assert_true(stood > 0 && stood < 0.1 * LOST_S);
    for (int i = 0; i < 150; i++) {
        now += TURN_S;
        stood = poll_watch_idle_s(&t, 7, poll_clock_poll(&clock, now));
    }
    assert_true(stood > 1.5 * LOST_S);
    assert_true(poll_watch_idle_s(&t, 8, poll_clock_poll(&clock, now += TURN_S)) == 0);
}

// A start's deadline as well: of those who are still to come nobody has heard, for nobody listened.
static void a_start_too(void **state) {
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
        struct met met = {0};
        sim->c.ps.deadline_ms = 4000;
        struct scheduler_options o = {.config = &sim->c,
                                      .map = sim->map,
                                      .job = SIM_JOB,
                                      .manifest = {.hash = 5},
                                      .start_s = 1,
                                      .port = {&log, log_send},
                                      .publish = met_port(&met)};
        struct scheduler_core *core = scheduler_core_create(&o);
        struct poll_clock clock = {.lost_s = LOST_S};
        met_joins_epoch(core, 0, 50, 1, 0, 1);
        assert_int_equal(scheduler_core_tick(core, 1), 0);
        poll_clock_poll(&clock, 1);
        double now = 1 + 7.5;
        if (excused) now = poll_clock_poll(&clock, now);
        assert_int_equal(scheduler_core_tick(core, now), excused ? 0 : -1);
        if (excused) now += 4;  // what is left of it
        assert_int_equal(scheduler_core_tick(core, now), -1);
        assert_non_null(strstr(scheduler_core_error(core), "the start: worker 1, server 0"));
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
        cmocka_unit_test(frozen_for_any_time), cmocka_unit_test(an_old_one_is_no_reason),
        cmocka_unit_test(slow_turns_end),      cmocka_unit_test(the_clock),
        cmocka_unit_test(nobody_gets_a_core),  cmocka_unit_test(a_thread_beside),
        cmocka_unit_test(a_start_too),         cmocka_unit_test(nor_is_a_shard_silent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
