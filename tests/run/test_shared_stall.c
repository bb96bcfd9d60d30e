// When a process stood still: the rule on made-up clocks, and a child that is really stopped.
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/time/stall.h"

#define MS INT64_C(1000000)

static bool looks(int64_t late, int64_t got, struct span *out) {
    struct stall_reading s = {0};
    *out = (struct span){0};
    assert_false(stall_read(&s, 1000 * MS, 50 * MS, out));
    return stall_read(&s, 1000 * MS + late, 50 * MS + got, out);
}

static void test_a_late_look_without_processor_time_is_a_stall(void **state) {
    (void)state;
    struct span one;
    assert_false(looks(2 * MS, 0, &one));
    assert_false(looks(5 * MS, 0, &one));
    assert_true(looks(200 * MS, 0, &one));
    assert_int_equal(one.begin, 1000 * MS);
    assert_int_equal(one.end, 1200 * MS);
    assert_true(looks(200 * MS, 1 * MS, &one));
    assert_int_equal(one.begin, 1001 * MS);
}

static void test_a_process_whose_other_threads_ran_did_not_stand_still(void **state) {
    (void)state;
    struct span one;
    assert_false(looks(200 * MS, 150 * MS, &one));
    assert_false(looks(200 * MS, 390 * MS, &one));
    assert_false(looks(8 * MS, 3 * MS, &one));
}

// The kernel tells a wait when it has ended, with how often the thread has got a core.
static void test_a_thread_that_had_no_core(void **state) {
    (void)state;
    struct stall_thread_reading s = {0};
    struct span one = {0};
    assert_false(stall_read_thread(&s, 1000 * MS, 500 * MS, 7, &one));  // what was before counts for nothing
    assert_false(stall_read_thread(&s, 1002 * MS, 505 * MS, 8, &one));  // a turn that was short to wait for
    assert_false(stall_read_thread(&s, 1040 * MS, 505 * MS, 8, &one));  // it waits, or sleeps
    assert_true(stall_read_thread(&s, 1042 * MS, 540 * MS, 9, &one));
    assert_int_equal(one.begin, 1007 * MS);
    assert_int_equal(one.end, 1042 * MS);
    assert_false(stall_read_thread(&s, 1050 * MS, 548 * MS, 12, &one));  // three short ones
    assert_true(stall_read_thread(&s, 1080 * MS, 568 * MS, 14, &one));   // two long ones
}

static void sleep_ms(int64_t ms) {
    struct timespec t = {ms / 1000, ms % 1000 * MS};
    while (nanosleep(&t, &t)) continue;
}

// The child tells its stalls once its parent has said so.
static void child(int ask, int tell) {
    struct span found[64], longest[2];
    char c = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct stall_watch *w = stall_watch_open();
    if (!w || write(tell, &c, 1) != 1 || read(ask, &c, 1) != 1) _exit(1);
    int64_t total = stall_total(w);
    size_t n = stall_list(w, STALL_PROCESS, NULL, 0, found, 64),
           two = stall_list(w, STALL_PROCESS, NULL, 0, longest, 2);
    if (write(tell, &total, sizeof total) < 0 || write(tell, &n, sizeof n) < 0 ||
        write(tell, found, n * sizeof *found) < 0 || write(tell, longest, two * sizeof *longest) < 0)
        _exit(1);
    stall_watch_close(&w);
    _exit(w != NULL);
}

// At least what the test knows of: on a busy machine a child stands still at other times too.
static void test_a_stopped_process_knows_when(void **state) {
    (void)state;
    int ask[2], tell[2], status;
    assert_int_equal(pipe(ask) | pipe(tell), 0);
    pid_t pid = fork();
    if (pid == 0) child(ask[0], tell[1]);
    char c = 0;
    assert_int_equal(read(tell[0], &c, 1), 1);
    const int64_t ms[3] = {60, 20, 90};
    int64_t stopped[3], went[3], known = 0, total = 0;
    for (int i = 0; i < 3; i++) {
        sleep_ms(20);
        kill(pid, SIGSTOP);
        waitpid(pid, &status, WUNTRACED);
        stopped[i] = now_ns();
        sleep_ms(ms[i]);
        went[i] = now_ns();
        kill(pid, SIGCONT);
        known += went[i] - stopped[i];
    }
    size_t n = 0;
    struct span found[64] = {{0}};
    assert_int_equal(write(ask[1], &c, 1), 1);
    assert_int_equal(read(tell[0], &total, sizeof total), sizeof total);
    assert_int_equal(read(tell[0], &n, sizeof n), sizeof n);
    assert_in_range(n, 3, 64);
    assert_int_equal(read(tell[0], found, n * sizeof *found), n * sizeof *found);
    struct span longest[2] = {{0}};
    assert_int_equal(read(tell[0], longest, sizeof longest), sizeof longest);
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_true(total >= known);
    assert_true(longest[0].end <= longest[1].begin);
    for (int i = 0; i < 2; i++) assert_true(longest[i].end - longest[i].begin >= 60 * MS);
    for (int i = 0; i < 3; i++) {
        bool named = false;
        for (size_t j = 0; j < n; j++)
            named = named || (found[j].begin <= stopped[i] + MS && found[j].end >= went[i]);
        assert_true(named);
    }
}

struct starved {
    atomic_bool quit;
    int core;
    _Atomic pid_t tid;
    atomic_int turns;
};

static void to_core(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

// Gets a core only where nobody else wants it.
static void *starve(void *arg) {
    struct starved *s = arg;
    to_core(s->core);
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){0});
    atomic_store(&s->tid, gettid());
    while (!atomic_load(&s->quit)) atomic_fetch_add(&s->turns, 1);
    return NULL;
}

static void *want(void *arg) {
    struct starved *s = arg;
    to_core(s->core);
    while (!atomic_load(&s->quit)) continue;
    return NULL;
}

// The process runs all the while: the thread alone is told.
static void test_a_starved_thread_knows_when(void **state) {
    (void)state;
    struct starved s = {.core = sched_getcpu()};
    struct span found[64];
    pthread_t poor, rich;
    char path[64];
    struct stall_watch *w = stall_watch_open();
    assert_non_null(w);
    pthread_create(&poor, NULL, starve, &s);
    while (!atomic_load(&s.tid)) continue;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)s.tid);
    bool can_tell = access(path, R_OK) == 0;
    stall_watch_thread(w, &s, s.tid);
    int64_t begin = now_ns();
    pthread_create(&rich, NULL, want, &s);
    // Waits until it has had to wait, and has run again after it: an idle thread gets a share of some
    // thousandths.
    size_t n = 0;
    while (can_tell && !(n = stall_list(w, STALL_THREAD, &s, begin, found, 64))) sleep_ms(5);
    for (size_t i = 0; i < n; i++) assert_true(found[i].end - found[i].begin >= STALL_LEAST_NS);
    struct stall_watch *same = stall_watch_open();
    assert_ptr_equal(same, w);  // a process has one
    assert_int_equal(stall_list(same, STALL_THREAD, &w, begin, found, 64),
                     0);  // another rank's threads had their cores
    stall_watch_close(&same);
    atomic_store(&s.quit, true);
    pthread_join(poor, NULL);
    pthread_join(rich, NULL);
    stall_watch_close(&w);
    if (!can_tell) skip();
}

static void test_without_a_watch_nothing_stood_still(void **state) {
    (void)state;
    struct span one;
    struct stall_watch *none = NULL;
    assert_int_equal(stall_total(NULL), 0);
    assert_int_equal(stall_list(NULL, STALL_PROCESS, NULL, 0, &one, 1), 0);
    stall_watch_thread(NULL, NULL, 1);
    stall_watch_close(&none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_late_look_without_processor_time_is_a_stall),
        cmocka_unit_test(test_a_process_whose_other_threads_ran_did_not_stand_still),
        cmocka_unit_test(test_a_thread_that_had_no_core),
        cmocka_unit_test(test_a_stopped_process_knows_when),
        cmocka_unit_test(test_a_starved_thread_knows_when),
        cmocka_unit_test(test_without_a_watch_nothing_stood_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
