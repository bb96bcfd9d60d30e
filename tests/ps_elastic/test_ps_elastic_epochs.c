// A new epoch of a job whose workers may come and go: who it waits for, and how the missing join it.
#include "tests/recovery/epochs_fixture.h"

// All but worker 1 come to the next epoch after the server's death and are ready at `now`.
static void come_without_w1(struct fixture *f, double now) {
    begin_anew(f, W0);
    f->p[SERVER] = another(f, SERVER);
    hello(f, W0, now);
    hello(f, SERVER, now);
}

// A new epoch needs MIN workers: after half a deadline it begins without who is missing, and that one joins it later.
static void test_an_elastic_epoch_begins_with_min(void **state) {
    (void)state;
    struct fixture *f = fixture_of(RESTARTS, 1);
    int workers, servers;
    come_all(f, 0);
    tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 was killed", 1);
    assert_int_equal(epoch_of(f), 2);
    come_without_w1(f, 1.5);
    scheduler_core_tick(f->core, 2.9);
    assert_int_equal(f->starts, 1);
    assert_true(scheduler_core_waits(f->core, &workers, &servers));
    assert_int_equal(workers, 1);
    scheduler_core_tick(f->core, 3.1);
    assert_int_equal(f->starts, 2);
    assert_int_equal(epoch_of(f), 2);
    char news[WIRE_TEXT_MAX];
    assert_true(scheduler_core_next_news_line(f->core, news));
    assert_non_null(strstr(news, "epoch 2 begins without worker 1"));
    // Its part is owed to no step and no barrier.
    say(f, &f->p[W0], (struct wire_header){.kind = WIRE_GATHER}, 3.2);
    assert_int_equal(logged(&f->log, W0, WIRE_GATHER_DONE), 1);
    say(f, &f->p[W0], report(0), 3.2);
    say(f, &f->p[SHARD], (struct wire_header){.kind = WIRE_ARRIVED, .mask = 1}, 3.2);
    assert_int_equal(logged(&f->log, SHARD, WIRE_SET), 1);
    say(f, &f->p[SHARD], (struct wire_header){.kind = WIRE_SHARD_SUM, .has_sum = true}, 3.2);
    assert_int_equal(logged(&f->log, W0, WIRE_STEP_DONE), 1);
    // Another process of the rank comes to the running job: it hears where to join, and the servers of its second life.
    assert_int_equal(f->met.joins, 0);
    f->p[W1] = another(f, W1);
    hello(f, W1, 3.3);
    assert_int_equal(epoch_of(f), 2);
    assert_int_equal(logged(&f->log, SHARD, WIRE_MEMBER), 1);
    assert_int_equal(f->log.sent[0].h.process_no, 2);
    assert_int_equal(f->met.joined[W1], f->p[W1].incarnation);
    assert_int_equal(f->met.lives[W1], 2);
    // Once.
    scheduler_core_tick(f->core, 3.31);
    assert_int_equal(f->met.joins, 1);
    // A third one.
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 3.31);
    assert_int_equal(f->met.out[W1], f->p[W1].incarnation);
    is_lost(f, W1, "gone", 3.32);
    f->p[W1] = another(f, W1);
    hello(f, W1, 3.33);
    assert_int_equal(f->met.joins, 2);
    assert_int_equal(f->met.lives[W1], 3);
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

// A worker that was lost by silence is told why, should it wake; one that says itself that it has failed has left.
static void test_how_a_worker_is_lost(void **state) {
    (void)state;
    for (int fails = 0; fails < 2; fails++) {
        struct fixture *f = fixture_of(RESTARTS, 1);
        struct notice_failed x = {.epoch = 1, .lost = false, .why = "it diverged"};
        come_all(f, 0);
        assert_non_null(strstr(f->met.roster[0], "worker "));  // each sees whether it is one of them
        if (fails) {
            tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 1);
            f->p[W1] = another(f, W1);
            hello(f, W1, 1);
            book_says(f, met_failed(W1, f->p[W1].incarnation, &x), 1);
        } else {
            is_lost(f, W1, "silent", 1);
        }
        assert_string_equal(scheduler_core_error(f->core), "");
        assert_int_equal(epoch_of(f), 1);
        assert_int_equal(f->met.out[W1], f->p[W1].incarnation);
        assert_non_null(strstr(f->met.why, "start it again, and it joins"));
        fixture_destroy(f);
    }
}

// The first epoch waits for all as long as a deadline, and then begins with MIN.
static void test_the_first_epoch_begins_with_min_behind_its_deadline(void **state) {
    (void)state;
    struct fixture *f = fixture_of(RESTARTS, 1);
    char news[WIRE_TEXT_MAX];
    hello(f, W0, 0);
    hello(f, SERVER, 0);
    for (double now = 0; now < 3.9; now += 0.4) scheduler_core_tick(f->core, now);
    assert_int_equal(f->starts, 0);
    scheduler_core_tick(f->core, 4.1);
    assert_int_equal(f->starts, 1);
    assert_true(scheduler_core_next_news_line(f->core, news));
    assert_non_null(
        strstr(news, "epoch 1 begins without worker 1, which did not join within 4 s, deadline_ms"));
    hello(f, W1, 4.3);
    assert_string_equal(scheduler_core_error(f->core), "");
    fixture_destroy(f);
}

// Processes of two machines may have one number: the name tells whose death it is.
static void test_one_number_on_two_machines(void **state) {
    (void)state;
    for (int server = 0; server < 2; server++) {
        struct fixture *f = fixture_of(RESTARTS, 1);
        f->p[W1].pid = f->p[SERVER].pid;
        come_all(f, 0);
        struct verdict v =
            tell_dead(f->core, server ? "server 0" : "worker 1", f->p[W1].pid, "it was killed", 1);
        assert_int_equal(v.kind, server ? VERDICT_ANEW : VERDICT_WITHOUT);
        fixture_destroy(f);
    }
}

// With fewer than MIN, and without worker 0 or a server, it waits for all.
static void test_what_an_elastic_epoch_needs(void **state) {
    (void)state;
    for (int lacks = 0; lacks < 5; lacks++) {
        struct fixture *f = fixture_of(RESTARTS, lacks == 0 || lacks == 4 ? 2 : 1);
        int missing = lacks == 1 || lacks == 3 ? W0 : lacks == 2 ? SERVER : W1;
        if (lacks < 3) {
            come_all(f, 0);
            tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 was killed", 0);
            for (int i = 0; i < SERVER; i++) begin_anew(f, i);
            f->p[SERVER] = another(f, SERVER);
        }
        int before = f->starts;
        for (int i = 0; i < SHARD; i++)
            if (i != missing) hello(f, i, 0);
        for (double now = 0; now < 4.5; now += 0.4) scheduler_core_tick(f->core, now);
        assert_int_equal(f->starts, before);
        assert_non_null(strstr(scheduler_core_error(f->core), "did not join within"));
        fixture_destroy(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_elastic_epoch_begins_with_min),
        cmocka_unit_test(test_how_a_worker_is_lost),
        cmocka_unit_test(test_one_number_on_two_machines),
        cmocka_unit_test(test_the_first_epoch_begins_with_min_behind_its_deadline),
        cmocka_unit_test(test_what_an_elastic_epoch_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
