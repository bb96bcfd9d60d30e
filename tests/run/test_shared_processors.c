// How many processors a process may use: quotas from trees of files that stand for a machine, masks of this one.
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/core/system.h"
#include "tests/fixture.h"

static char root[64];

static void put(const char *path, const char *text) {
    char *command = xasprintf("mkdir -p \"$(dirname '%s%s')\"", root, path),
         *name = xasprintf("%s%s", root, path);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(command);
    free(name);
}

static int plant(void **state) {
    (void)state;
    return fixture_folder(root, "processors");
}
static int fell(void **state) {
    (void)state;
    return fixture_remove(root);
}

static void version_two(void **state) {
    (void)state;
    assert_true(processors_quota(root) == 0);
    put("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "0::/job/step\n");
    put("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    assert_true(processors_quota(root) == 0);
    put("/sys/fs/cgroup/job/cpu.max", "350000 100000\n");  // of the group around it
    assert_true(processors_quota(root) == 3.5);
    put("/sys/fs/cgroup/job/step/cpu.max", "800000 100000\n");
    assert_true(processors_quota(root) == 3.5);
    put("/sys/fs/cgroup/job/step/cpu.max", "50000 100000\n");
    assert_true(processors_quota(root) == 0.5);
}

static void version_one(void **state) {
    (void)state;
    put("/proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    put("/proc/self/cgroup", "4:memory:/other\n3:cpu,cpuacct:/job\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_true(processors_quota(root) == 0);
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
    assert_true(processors_quota(root) == 2);
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "nonsense\n");
    assert_true(processors_quota(root) == 0);
}

static void shares(void **state) {
    (void)state;
    assert_int_equal(processors_share_of(8, 0, 1, false), 8);
    assert_int_equal(processors_share_of(8, 0, 3, false), 2);
    assert_int_equal(processors_share_of(8, 0, 9, false), 1);
    assert_int_equal(processors_share_of(8, 5.5, 1, false), 5);  // a thread more would be throttled
    assert_int_equal(processors_share_of(8, 5.5, 2, false), 2);
    assert_int_equal(processors_share_of(8, 0.5, 2, false), 1);
    assert_int_equal(processors_share_of(4, 0, 2, true), 4);
    assert_int_equal(processors_share_of(4, 4, 2, true), 2);
}

// A child that was bound, as its exit status says.
static int bound_child(const char *slurm) {
    pid_t pid = fork();
    if (!pid) {
        cpu_set_t one;
        CPU_ZERO(&one);
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            if (!sched_setaffinity(0, sizeof one, &one)) break;
        }
        if (slurm) setenv("SLURM_STEP_ID", "0", 1), setenv("SLURM_CPU_BIND_TYPE", slurm, 1);
        _exit(processors_bound() + 2 * (processors_given() == 1) + 4 * (processors_share(2, false) == 1));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void masks(void **state) {
    (void)state;
    int given = processors_given(), node, nodes = processors_numa_nodes(&node);
    assert_true(given >= 1 && given <= sysconf(_SC_NPROCESSORS_ONLN));
    assert_true(node >= 0 && node <= nodes);
    if (nodes == 1) assert_int_equal(node, 1);
    if (given == 1) skip();
    assert_int_equal(bound_child(NULL), 7);
    assert_int_equal(bound_child("mask_cpu:"), 7);
    assert_int_equal(bound_child("none"), 6);
    assert_int_equal(bound_child(""), 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(version_two, plant, fell),
                                       cmocka_unit_test_setup_teardown(version_one, plant, fell),
                                       cmocka_unit_test(shares), cmocka_unit_test(masks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
