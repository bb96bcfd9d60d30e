// A launcher that is left with a process that stands still.
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

static void start(struct launcher *l, const char *role, int rank, const char *script) {
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    assert_int_equal(
        launcher_start(
            l, &(struct launch_child){.role = role, .rank = rank, .program = "/bin/sh", .argv = argv}),
        0);
}

// Once others have ended nobody asks the rest whether they live: one that a signal has stopped is killed and named. One that
// waits for something, a file perhaps, is not, nor one that computes.
static void who_is_stopped_is_killed(void **state) {
    (void)state;
    const char *const scripts[] = {"kill -STOP $$", "exec sleep 4",
                                   "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do :; done"};
    for (int i = 0; i < 3; i++) {
        struct launcher *l = launcher_create(&(struct launch_options){.grace_s = 0.5, .stopped_s = 1});
        error_quiet(1);
        start(l, "worker", 0, "sleep 0.5");
        start(l, "server", 0, scripts[i]);
        assert_int_equal(launcher_wait(l), i == 0);
        if (i == 0) assert_non_null(strstr(error_last(), "server 0 (pid"));
        if (i == 0) assert_non_null(strstr(error_last(), "gave no sign of life"));
        launcher_destroy(&l);
        error_quiet(0);
    }
}

// A terminal stops them all, or a computer sleeps: who goes on a little later than its launcher was not stopped for that time.
static void a_launcher_that_was_stopped_too_kills_nobody(void **state) {
    (void)state;
    const char *script =
        "sleep 1; (sleep 3; kill -CONT $PPID; sleep 0.3; kill -CONT $$) & "
        "kill -STOP $PPID; kill -STOP $$; exit 0";
    pid_t pid = fork();
    int status = -1;
    if (pid == 0) {
        struct launcher *l = launcher_create(&(struct launch_options){.grace_s = 0.5, .stopped_s = 1.5});
        start(l, "worker", 0, "sleep 0.2");
        start(l, "server", 0, script);
        status = launcher_wait(l);
        launcher_destroy(&l);
        _exit(status);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_is_stopped_is_killed),
                                       cmocka_unit_test(a_launcher_that_was_stopped_too_kills_nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
