// Files of the scheduler: they are looked at on a thread of their own, and an epoch that waits for them costs nobody anything.
#include <unistd.h>

#include "shared/core/background.h"
#include "shared/core/error.h"
#include "tests/recovery/epochs_fixture.h"

// ---------------------------------------------------------------- the thread
struct note {
    int from;  // a descriptor: the job reads a byte of it
    int *next, *order;
    int number;
};

static int read_and_note(void *arg) {
    const struct note *n = arg;
    char c = 0;
    while (n->from >= 0 && read(n->from, &c, 1) != 1) continue;
    n->order[(*n->next)++] = n->number;
    return 0;
}

// One stands still: asking goes on, nothing is done before it, and all is done in order behind it.
static void test_asking_does_not_wait(void **state) {
    (void)state;
    int ends[2], next = 0, order[3] = {0};
    assert_int_equal(pipe(ends), 0);
    // The thread has descriptors of its own, with standard streams alone.
    int in = dup(STDIN_FILENO);
    assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    struct background *e = background_create("reads files", "test");
    struct note notes[3] = {{STDIN_FILENO, &next, order, 1}, {-1, &next, order, 2}, {-1, &next, order, 3}};
    uint64_t number = 0;
    assert_true(background_done(e, background_submitted(e)));
    for (int i = 0; i < 3; i++) number = background_submit(e, read_and_note, &notes[i], NULL);
    assert_int_equal(number, 3);
    double begin = now_seconds();
    uint64_t in_hand = 0;
    while (background_age(e, now_seconds(), &in_hand) < 0.02) assert_true(now_seconds() - begin < 60);
    assert_int_equal(in_hand, 1);
    assert_false(background_wait(e, 1, 0.01));
    assert_int_equal(next, 0);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_true(background_wait(e, number, 60));
    for (int i = 0; i < 3; i++) assert_int_equal(order[i], i + 1);
    assert_true(background_age(e, now_seconds(), &in_hand) == 0);
    background_destroy(&e);
    assert_int_equal(dup2(in, STDIN_FILENO), STDIN_FILENO);
    close(in);
    close(ends[0]);
    close(ends[1]);
}

// A requested action is done, also at the end.
static void test_the_end_waits(void **state) {
    (void)state;
    int next = 0, order[100] = {0};
    struct note notes[100];
    struct background *e = background_create("reads files", "test");
    for (int i = 0; i < 100; i++) {
        notes[i] = (struct note){-1, &next, order, i};
        background_submit(e, read_and_note, &notes[i], NULL);
    }
    background_destroy(&e);
    assert_int_equal(next, 100);
}

static int fail_as_told(void *arg) {
    const int *what = arg;
    error_quiet(QUIET_ALL);
    return *what ? (fail)("job %d failed", *what) : 0;
}

// The first job that fails is what is told; later ones are done all the same, and see that they are to be short.
static void test_the_first_failure_stays(void **state) {
    (void)state;
    int what[] = {0, 2, 3};
    struct background *e = background_create("reads files", "test");
    for (int i = 0; i < 3; i++) background_submit(e, fail_as_told, &what[i], NULL);
    assert_int_equal(*background_flag(e), 0);
    background_quit(e);
    assert_int_equal(*background_flag(e), 1);
    assert_true(background_wait(e, 3, 60));
    assert_string_equal(background_why(e), "job 2 failed");
    background_destroy(&e);
    assert_null(e);
}

// ---------------------------------------------------------------- the state machine
// All are there, and the files stand still for ten deadlines: they are told to wait, nobody is late, and one death is one.
static void test_an_epoch_waits_for_files(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    double now = 0;
    f->pending = true;
    for (int i = 0; i < SHARD; i++) hello(f, i, now);
    for (; now < 40; now += 0.5) assert_int_equal(scheduler_core_tick(f->core, now), 0);
    assert_int_equal(f->met.starts, 0);
    assert_int_equal(epoch_of(f), 1);
    // A death meanwhile begins another epoch, which asks anew.
    uint64_t asked_by = f->asked_by;
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", now);
    assert_int_equal(epoch_of(f), 2);
    begin_anew(f, W0);
    begin_anew(f, SERVER);
    f->p[W1] = another(f, W1);
    for (int i = 0; i < SHARD; i++) hello(f, i, now);
    assert_true(f->asked_by != asked_by);
    assert_int_equal(f->starts, 0);
    f->pending = false;
    f->log.count = 0;
    assert_int_equal(scheduler_core_tick(f->core, now), 0);
    assert_int_equal(f->starts, 1);
    assert_int_equal(f->met.starts, 2);
    assert_int_equal(scheduler_core_epochs(f->core)->restarts.used, 1);
    fixture_destroy(f);
}

// A member that falls silent while all wait is lost all the same.
static void test_the_silent_are_lost_meanwhile(void **state) {
    (void)state;
    struct fixture *f = fixture_create(0);
    f->pending = true;
    for (int i = 0; i < SHARD; i++) hello(f, i, 0);
    is_lost(f, W1, "silent", 3);
    assert_int_equal(scheduler_core_tick(f->core, 3), -1);
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 1 was lost before the start"));
    fixture_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asking_does_not_wait),          cmocka_unit_test(test_the_end_waits),
        cmocka_unit_test(test_the_first_failure_stays),       cmocka_unit_test(test_an_epoch_waits_for_files),
        cmocka_unit_test(test_the_silent_are_lost_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
