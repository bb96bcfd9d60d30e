// A process that stands still, and a launcher that is left with one.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/launch/launch.h"
#include "shared/launch/still.h"

static void start(struct launcher *l, const char *role, int rank, const char *script) {
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    assert_int_equal(launcher_start(l, &(struct launch_child){role, rank, "/bin/sh", argv, 0, 0, 0}), 0);
}

// Once others have ended nobody asks the rest whether they live: one that stands still is killed and named. One that
// computes now and then is not, and as long as none has ended nobody is.
static void who_stands_still_is_killed(void **state) {
    (void)state;
    const char *const scripts[] = {"kill -STOP $$", "exec sleep 60",
                                   "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do :; done"};
    for (int i = 0; i < 3; i++) {
        struct launcher *l = launcher_create(&(struct launch_options){.grace_s = 0.5, .still_s = 1});
        double start_s = now_seconds();
        error_quiet(1);
        start(l, "worker", 0, "sleep 0.5");
        start(l, "server", 0, scripts[i]);
        assert_int_equal(launcher_wait(l), i < 2);
        if (i < 2) assert_non_null(strstr(error_last(), "server 0 (pid"));
        if (i < 2) assert_non_null(strstr(error_last(), "signal 9"));
        assert_true(now_seconds() - start_s > 1.5 && now_seconds() - start_s < 40);
        launcher_destroy(&l);
        error_quiet(0);
    }
}

static void what_is_seen(void **state) {
    (void)state;
    struct still s = {0};
    bool stopped;
    pid_t pid = fork();
    if (pid == 0)
        for (;;) pause();
    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    assert_true(still_look(&s, pid, 100, &stopped) == 0 && stopped);
    assert_true(still_look(&s, pid, 105, &stopped) == 5 && stopped);
    // One that computes has not stood still; this process does.
    struct still own = {0};
    assert_true(still_look(&own, getpid(), 100, &stopped) == 0 && !stopped);
    for (double until = now_seconds() + 0.1; now_seconds() < until;) continue;
    assert_true(still_look(&own, getpid(), 105, &stopped) == 0 && !stopped);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_true(still_look(&s, pid, 110, &stopped) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_stands_still_is_killed),
        cmocka_unit_test(what_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
