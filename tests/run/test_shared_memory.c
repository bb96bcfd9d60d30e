// How much memory is left, read from trees of files that stand for a machine, and the decision from figures.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/predict/memory_check.h"
#include "tests/fixture.h"
#include "tests/topologies.h"

#define MIB 1048576.0

struct tree {
    char root[64];
};

static void put(const struct tree *t, const char *path, const char *text) {
    char *command = xasprintf("mkdir -p \"$(dirname '%s%s')\"", t->root, path);
    char *name = xasprintf("%s%s", t->root, path);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(command);
    free(name);
}

static int plant(void **state) {
    struct tree *t = xcalloc(1, sizeof *t);
    *state = t;
    return fixture_folder(t->root, "memory");
}

static int fell(void **state) {
    struct tree *t = *state;
    int rc = fixture_remove(t->root);
    free(t);
    return rc;
}

static const char meminfo[] =
    "MemTotal:        4194304 kB\nMemFree:          102400 kB\nMemAvailable:    2097152 kB\n";
static const char mounts_v2[] =
    "23 1 0:20 / /proc rw,nosuid - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
static const char mounts_v1[] =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

static void assert_limit(const struct tree *t, double mib, const char *name) {
    struct memory_limit l;
    assert_int_equal(memory_limit_read(t->root, &l), 0);
    if (l.free_bytes != mib * MIB || strcmp(l.name, name) != 0)
        fail_msg("%.3f MiB left by %s, expected %.3f by %s", l.free_bytes / MIB, l.name, mib, name);
}

static void the_machine_alone(void **state) {
    put(*state, "/proc/meminfo", meminfo);
    assert_limit(*state, 2048, "MemAvailable");
}

static void nothing_is_told(void **state) {
    struct memory_limit l;
    assert_int_equal(memory_limit_read(((struct tree *)*state)->root, &l), -1);
    put(*state, "/proc/meminfo", "MemTotal: 5 kB\nMemAvailable: many kB\nMemAvailable: 7 pages\n");
    put(*state, "/proc/self/cgroup", "0::\nnonsense\n:\n0:\n");
    put(*state, "/proc/self/mountinfo", "\n - \n1 2 3\n1 2 3 / /x rw - cgroup2\n");
    assert_int_equal(memory_limit_read(((struct tree *)*state)->root, &l), -1);
}

// The tightest is a parent; the cache counts as free, and a group that says "max" limits nothing.
static void version_two_nested(void **state) {
    put(*state, "/proc/meminfo", meminfo);
    put(*state, "/proc/self/mountinfo", mounts_v2);
    put(*state, "/proc/self/cgroup", "0::/user.slice/job/step\n");
    put(*state, "/sys/fs/cgroup/user.slice/job/step/memory.max", "max\n");
    put(*state, "/sys/fs/cgroup/user.slice/job/step/memory.current", "1048576\n");
    put(*state, "/sys/fs/cgroup/user.slice/job/memory.max", "536870912\n");
    put(*state, "/sys/fs/cgroup/user.slice/job/memory.current", "268435456\n");
    put(*state, "/sys/fs/cgroup/user.slice/job/memory.stat",
        "anon 100\nfile 999999999\ninactive_file 67108864\nactive_file 33554432\nslab_reclaimable 1048576\n"
        "slab_unreclaimable 777\n");
    put(*state, "/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
    put(*state, "/sys/fs/cgroup/user.slice/memory.current", "268435456\n");
    assert_limit(*state, 256 + 64 + 32 + 1, "memory.max of the control group /user.slice/job");
    put(*state, "/sys/fs/cgroup/user.slice/memory.max", "272629760\n");  // 260 MiB
    assert_limit(*state, 4, "memory.max of the control group /user.slice");
    put(*state, "/sys/fs/cgroup/user.slice/memory.max", "soon\n");
    put(*state, "/sys/fs/cgroup/user.slice/job/memory.current", "-3\n");
    assert_limit(*state, 2048, "MemAvailable");
}

// A group that is over its limit already has nothing left; no more cache is counted than is in use.
static void version_two_full(void **state) {
    put(*state, "/proc/self/mountinfo", mounts_v2);
    put(*state, "/proc/self/cgroup", "0::/\n");
    put(*state, "/sys/fs/cgroup/memory.max", "1048576\n");
    put(*state, "/sys/fs/cgroup/memory.current", "4194304\n");
    assert_limit(*state, 0, "memory.max of the control group /");
    put(*state, "/sys/fs/cgroup/memory.current", "524288\n");
    put(*state, "/sys/fs/cgroup/memory.stat", "inactive_file 99999999999\n");
    assert_limit(*state, 1, "memory.max of the control group /");
}

static void version_one_nested(void **state) {
    put(*state, "/proc/meminfo", meminfo);
    put(*state, "/proc/self/mountinfo", mounts_v1);
    put(*state, "/proc/self/cgroup", "8:cpu:/elsewhere\n4:hugetlb,memory:/docker/abc\n0::/\n");
    put(*state, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put(*state, "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1048576\n");
    assert_limit(*state, 2048, "MemAvailable");
    put(*state, "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "104857600\n");
    put(*state, "/sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "52428800\n");
    put(*state, "/sys/fs/cgroup/memory/docker/memory.stat",
        "inactive_file 4096\ntotal_inactive_file 1048576\ntotal_active_file 2097152\n");
    assert_limit(*state, 53, "memory.limit_in_bytes of the control group /docker");
}

// A container sees its own group as the root of the mount, under the name that the machine has for it.
static void a_container(void **state) {
    put(*state, "/proc/meminfo", meminfo);
    put(*state, "/proc/self/mountinfo",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put(*state, "/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
    put(*state, "/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "8388608\n");
    put(*state, "/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "1048576\n");
    assert_limit(*state, 7, "memory.limit_in_bytes of the control group /docker/abc/inner");
    put(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "4194304\n");
    put(*state, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
    assert_limit(*state, 3, "memory.limit_in_bytes of the control group /docker/abc");
    put(*state, "/proc/self/cgroup", "4:memory:/somewhere/else\n");
    assert_limit(*state, 3, "memory.limit_in_bytes of the control group /docker/abc");
}

// ---------------------------------------------------------------- the decision
static void figures_decide(void **state) {
    (void)state;
    struct memory_need n = {
        .host = {60 * MIB, 40 * MIB}, .gpus = 2, .gpu = {{10 * MIB, 0}, {20 * MIB, 5 * MIB}}};
    struct memory_left r = {.host_known = true,
                            .host = {100 * MIB, "host"},
                            .gpus = 2,
                            .gpu = {{10 * MIB, "first"}, {25 * MIB, "second"}}};
    assert_null(memory_compare(&n, &r).limit);
    n.gpu[1].allowed_bytes += 1;
    struct memory_excess s = memory_compare(&n, &r);
    assert_ptr_equal(s.limit, &r.gpu[1]);
    assert_true(s.wanted.predicted_bytes == 20 * MIB);
    n.host.allowed_bytes += 1;
    assert_ptr_equal(memory_compare(&n, &r).limit, &r.host);
    r.host_known = false;
    r.gpu[1].free_bytes = -1;
    assert_null(memory_compare(&n, &r).limit);  // what is not known limits nothing
}

// ---------------------------------------------------------------- what a run needs
static int predict_hundred(const struct config *c, const struct layout *l, const char *role, int rank,
                           struct prediction *out) {
    (void)l;
    (void)rank;
    bool server = !strcmp(role, "server");
    out->memory.predicted_bytes[MEM_PARAMETER] = (server ? 200 : 100) << 20;
    out->memory.predicted_bytes[MEM_HOST] = server ? 0 : 7 << 20;
    out->wire.received_per_step = (uint64_t)c->workers << 20;
    return 0;
}

static struct memory_need need_of(const char *topology, const char *more, const struct memory_ranks *part,
                                  enum device_kind device) {
    struct config_override set[] = {{"topology", topology, NULL}, {"workers", "3", NULL},
                                    {"model.name", "tiny", NULL}, {"threads", "1", NULL},
                                    {"dtype", "bf16", NULL},      {"parameter_server.servers", more, NULL}};
    struct memory_need need;
    struct job j;
    struct config *c = config_load(&topologies, NULL, set, 6);
    assert_non_null(c);
    c->device = device;
    c->collective = RING_THREADS;
    j = (struct job){.ranks_here = 3};
    assert_int_equal(job_open(&j, c, true), 0);
    struct topology_row row = *c->row;
    row.predict = predict_hundred;
    c->row = &row;
    assert_int_equal(memory_need_of(&j, part, &need), 0);
    job_close(&j);
    config_destroy(&c);
    return need;
}

static double whole_mib(double bytes) { return (double)(int64_t)(bytes / MIB); }

static void ranks_of_this_machine_add_up(void **state) {
    (void)state;
    struct memory_need all = need_of("zero:0", "2", &(struct memory_ranks){0}, DEVICE_CPU);
    struct memory_need one =
        need_of("zero:0", "2", &(struct memory_ranks){"worker", 1, 1, true, 0}, DEVICE_CPU);
    struct memory_need two =
        need_of("zero:0", "2", &(struct memory_ranks){"worker", 1, 2, true, 0}, DEVICE_CPU);
    struct memory_need star = need_of("ps:sync", "2", &(struct memory_ranks){.processes = true}, DEVICE_CPU);
    struct memory_need server =
        need_of("ps:sync", "2", &(struct memory_ranks){"server", -1, 1, true, 0}, DEVICE_CPU);
    // 100 MiB and, as host memory, 7 of tiny's activations aside: those are added to each worker alike.
    double worker = one.host.predicted_bytes;
    assert_true(worker > 107 * MIB);
    assert_true(all.host.predicted_bytes == 3 * worker);
    assert_true(two.host.predicted_bytes == 2 * worker);
    assert_true(two.host.allowed_bytes == 2 * one.host.allowed_bytes);
    // Ranks that are threads share one process.
    assert_true(all.host.allowed_bytes < 3 * one.host.allowed_bytes);
    assert_true(star.host.predicted_bytes == 3 * worker + 2 * server.host.predicted_bytes);
    assert_true(whole_mib(server.host.predicted_bytes) == 200);
    // A server's frames: 9/8 of 3 workers' 1 MiB; 16 MiB of program; 200 MiB / 512 of page tables.
    double allowed = (16 + 9.0 / 8 * 3 + 200.0 / 512) * MIB;
    assert_true(server.host.allowed_bytes == allowed);
}

static void ranks_that_share_a_gpu_add_up(void **state) {
    (void)state;
    struct memory_need n = need_of("zero:0", "1", &(struct memory_ranks){.gpus = 2}, DEVICE_CUDA);
    assert_int_equal(n.gpus, 2);
    assert_true(n.gpu[1].predicted_bytes > 100 * MIB);
    assert_true(n.gpu[0].predicted_bytes == 2 * n.gpu[1].predicted_bytes);
    assert_true(n.gpu[0].allowed_bytes == 2 * n.gpu[1].allowed_bytes);
    // Page-locked memory alone: what the topology takes and two batches of 4 sequences of 256 tokens.
    assert_true(n.host.predicted_bytes == 3 * 7 * MIB + 3 * 2 * 8.0 * 4 * 256);
    n = need_of("zero:0", "1", &(struct memory_ranks){.gpus = 8}, DEVICE_CUDA);
    assert_int_equal(n.gpus, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_machine_alone, plant, fell),
        cmocka_unit_test_setup_teardown(nothing_is_told, plant, fell),
        cmocka_unit_test_setup_teardown(version_two_nested, plant, fell),
        cmocka_unit_test_setup_teardown(version_two_full, plant, fell),
        cmocka_unit_test_setup_teardown(version_one_nested, plant, fell),
        cmocka_unit_test_setup_teardown(a_container, plant, fell),
        cmocka_unit_test(figures_decide),
        cmocka_unit_test(ranks_of_this_machine_add_up),
        cmocka_unit_test(ranks_that_share_a_gpu_add_up),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
