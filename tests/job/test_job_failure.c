// Whoever dies, the whole job ends soon, says who and when, and leaves no process and no torn file behind.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define DEADLINE_S 60.0  // far above what ending takes, far below what a hang would
#define FOREVER    1000000

static pid_t start(const struct job_place *p, const char *topology) {
    job_remove(p, "run");
    pid_t pid = job_start(
        p,
        "train --model %s/gpt2.json --data data.txt --topology %s --workers 2 --set parameter_server.servers=2 --steps %d "
        "--seq 16 --batch 1 --threads 1 --out %s/run --set parameter_server.deadline_ms=20000 "
        "--set gradient_clipping=0",
        p->dir, topology, FOREVER, p->dir);
    double until = now_seconds() + 60;
    while (job_lines(p, "run") < 3) {
        if (now_seconds() > until) {
            struct job_output o = job_wait(p, pid, 0);
            fail_msg("no step within 60 s:\n%s%s", o.out, o.err);
        }
        usleep(10000);
    }
    return pid;
}

static void assert_nobody_left(const struct job_place *p) {
    pid_t left[8];
    double until = now_seconds() + 30;
    int count;
    while ((count = job_processes(p, "", left, 8)) && now_seconds() < until) usleep(10000);
    assert_int_equal(count, 0);
    assert_true(job_lines(p, "run") >= 3);  // only whole lines
}

// "starring worker -c DIR/run/config.json .. --rank 1" holds the role right behind the program's name.
static void killed_worker(void **state) {
    const struct job_place *p = *state;
    pid_t pids[4], job = start(p, "ps:sync");
    assert_int_equal(job_processes(p, "starring worker", pids, 4), 2);
    assert_int_equal(job_processes(p, "--rank 1 --threads", pids, 4), 1);
    kill(pids[0], SIGKILL);
    struct job_output o = job_wait(p, job, DEADLINE_S);
    if (o.status != 1 || !strstr(o.err, "worker 1 (pid") || !strstr(o.err, "signal 9"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
    assert_nobody_left(p);
}

static void killed_server(void **state) {
    const struct job_place *p = *state;
    pid_t pids[4], job = start(p, "ps:async");
    assert_int_equal(job_processes(p, "starring server", pids, 4), 2);
    kill(pids[0], SIGKILL);
    struct job_output o = job_wait(p, job, DEADLINE_S);
    if (o.status != 1 || !strstr(o.err, "server ") || !strstr(o.err, "signal 9"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
    assert_nobody_left(p);
}

// The launcher itself is killed: the kernel ends its children (PR_SET_PDEATHSIG).
static void killed_launcher(void **state) {
    const struct job_place *p = *state;
    pid_t job = start(p, "ps:sync");
    kill(job, SIGKILL);
    struct job_output o = job_wait(p, job, DEADLINE_S);
    assert_int_equal(o.status, 128 + SIGKILL);
    job_output_free(&o);
    assert_nobody_left(p);
}

static void interrupted(const struct job_place *p, const char *topology, int number) {
    pid_t job = start(p, topology);
    kill(job, number);
    struct job_output o = job_wait(p, job, DEADLINE_S);
    if (o.status != 128 + number) fail_msg("%s: status %d\n%s", topology, o.status, o.err);
    job_output_free(&o);
    assert_nobody_left(p);
}

static void interrupted_star(void **state) { interrupted(*state, "ps:sync", SIGINT); }
static void terminated_star(void **state) { interrupted(*state, "ps:async", SIGTERM); }
static void interrupted_ring(void **state) {
    interrupted(*state, "zero:3", SIGINT);
    interrupted(*state, "zero:0", SIGTERM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_worker),   cmocka_unit_test(killed_server),
        cmocka_unit_test(killed_launcher), cmocka_unit_test(interrupted_star),
        cmocka_unit_test(terminated_star), cmocka_unit_test(interrupted_ring),
    };
    return cmocka_run_group_tests_name("failure", tests, job_setup, job_teardown);
}
