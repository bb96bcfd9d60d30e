// The star's roles started by hand say what they wait for.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ps/waiting.h"
#include "shared/core/error.h"
#include "tests/job.h"

#define SHARED                                                                                         \
    "--model gpt2.json --data data.txt --topology ps:sync --workers 1 --servers 1 --steps 2 --seq 16 " \
    "--batch 1 --threads 1 --set eval_batches=1"

static void await(const struct job_place *p, pid_t pid, const char *text, char line[160]) {
    double until = now_seconds() + 20;
    for (;;) {
        char *err = job_printed(p, pid, "stderr"), *at = strstr(err, text);
        if (at && strchr(at, '\n')) {
            snprintf(line, 160, "%.*s", (int)strcspn(at, "\n"), at);
            free(err);
            return;
        }
        if (now_seconds() > until) fail_msg("not \"%s\" within 20 s:\n%s", text, err);
        free(err);
        usleep(5000);
    }
}

static void assert_done(const struct job_place *p, pid_t pid, const char *who) {
    struct job_output o = job_wait(p, pid, 60);
    if (o.status) fail_msg("%s: status %d\n%s", who, o.status, o.err);
    job_output_free(&o);
}

static void who_is_waited_for(void **state) {
    const struct job_place *p = *state;
    char line[160], expected[320];
    pid_t scheduler = job_start(p, "scheduler " SHARED);
    await(p, scheduler, "waiting for 1 of 1 workers and 1 of 1 servers at tcp://", line);
    char *address = xstrdup(strstr(line, "tcp://"));
    pid_t worker = job_start(p, "worker " SHARED " --no-weights --scheduler %s", address);
    snprintf(expected, sizeof expected, "waiting for the scheduler at %s", address);
    await(p, worker, expected, line);
    await(p, worker, "waiting for the other workers and the servers of the job at ", line);
    snprintf(expected, sizeof expected, "waiting for 0 of 1 workers and 1 of 1 servers at %s", address);
    await(p, scheduler, expected, line);
    pid_t server = job_start(p, "server " SHARED " --scheduler %s", address);
    snprintf(expected, sizeof expected, "waiting for the scheduler at %s", address);
    await(p, server, expected, line);
    assert_done(p, worker, "worker");
    assert_done(p, server, "server");
    assert_done(p, scheduler, "scheduler");
    free(address);
}

// Roles that train started leave speaking to it.
static void train_does_not_wait_aloud(void **state) {
    struct job_output o = job_run(*state, "train " SHARED " --no-weights --out run");
    if (o.status || strstr(o.err, "waiting for")) fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

static void lines_keep_their_distance(void **state) {
    (void)state;
    struct waiting w = {.said_s = 0};
    assert_true(waiting_due(&w, "a", 100));
    assert_false(waiting_due(&w, "a", 109.9));
    assert_true(waiting_due(&w, "a", 110));
    assert_false(waiting_due(&w, "b", 110.9));
    assert_true(waiting_due(&w, "b", 111));
    assert_false(waiting_due(&w, "b", 120));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_is_waited_for, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(train_does_not_wait_aloud, job_setup, job_teardown),
        cmocka_unit_test(lines_keep_their_distance),
    };
    return cmocka_run_group_tests_name("roles by hand", tests, NULL, NULL);
}
