// starring bench ps, run as a user does: its document holds every key and its arithmetic agrees with itself, bytes
// counted by workers and servers are those of the steps, bad options are refused, and nothing stays behind. How fast
// anything is is not looked at.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

static double positive(const cJSON *o, const char *key) {
    double x = job_number(o, key);
    if (!(x > 0) || !isfinite(x)) fail_msg("%s is %g", key, x);
    return x;
}

static void expect_equal(const char *what, double got, double want) {
    if (fabs(got - want) > 1e-9 * fabs(want)) fail_msg("%s is %.17g instead of %.17g", what, got, want);
}

// ---------------------------------------------------------------- the document
// Returns bytes a second.
static double expect_timed(const cJSON *o, const char *key, double bytes, double samples) {
    const cJSON *t = job_item(o, key);
    expect_equal(key, positive(t, "bytes"), bytes);
    expect_equal(key, job_number(t, "samples"), samples);
    assert_true(job_number(t, "spread") >= 0);
    expect_equal(key, positive(t, "bytes_per_second"), bytes / positive(t, "seconds"));
    return job_number(t, "bytes_per_second");
}

static void expect_latency(const cJSON *star, const char *key, double least_samples) {
    const cJSON *l = job_item(star, key);
    assert_true(positive(l, "p95_us") >= positive(l, "median_us"));
    assert_true(job_number(l, "samples") >= least_samples);
}

// The counters of the wire on both sides.
static void expect_wire(const cJSON *star, double bytes, double rounds, const double ranks[3]) {
    const cJSON *w = job_item(star, "wire");
    // A whole one, one whose weights the pull reads, the pull's, over tcp the acknowledgements'; and the round for
    // warming up.
    double steps = (ranks[2] > 0 ? 4 : 3) * (rounds + 1);
    expect_equal("steps", job_number(w, "steps"), steps);
    expect_equal("expected_bytes", job_number(w, "expected_bytes"), steps * bytes);
    expect_equal("worker_sent_bytes", job_number(w, "worker_sent_bytes"), steps * bytes);
    expect_equal("worker_received_bytes", job_number(w, "worker_received_bytes"), steps * bytes);
    double server = bytes * ranks[1] / ranks[0];
    expect_equal("server_expected", job_number(w, "server_expected_bytes_per_step"), server);
    expect_equal("server_sent", job_number(w, "server_sent_bytes_per_step"), server);
    expect_equal("server_received", job_number(w, "server_received_bytes_per_step"), server);
}

static void expect_star(const cJSON *row, const char *medium, double rounds) {
    static const char *const directions[] = {"push", "pull"}, *const roles[] = {"worker", "server",
                                                                                "scheduler"};
    const cJSON *star = job_item(job_item(row, "star"), medium);
    bool tcp = !strcmp(medium, "tcp");
    double ranks[3] = {job_number(row, "servers"), job_number(row, "workers"), tcp};
    double bytes = job_number(row, "payload_bytes") * job_number(row, "keys");
    for (int d = 0; d < 2; d++) {
        const cJSON *moved = job_item(star, directions[d]);
        double rate = expect_timed(star, directions[d], bytes, rounds);
        expect_equal("server's", job_number(moved, "server_bytes_per_second"), rate * ranks[1] / ranks[0]);
    }
    for (int r = 0; r < 3; r++) positive(job_item(star, "cpu_seconds_per_gb"), roles[r]);
    double step = expect_timed(star, "whole_step", bytes, rounds);
    assert_true(step <= job_number(job_item(star, "push"), "bytes_per_second"));
    double acknowledged = tcp ? job_number(row, "keys") : ranks[0];
    expect_latency(star, "push_to_acknowledgement", rounds * acknowledged * ranks[1]);
    expect_latency(star, "push_to_weights", rounds * ranks[0] * ranks[1]);
    assert_true(tcp || job_number(job_item(star, "push_to_weights"), "median_us") >=
                           job_number(job_item(star, "push_to_acknowledgement"), "median_us"));
    expect_wire(star, bytes, rounds, ranks);
}

static void a_row_holds_what_it_promises(void **state) {
    cJSON *j = job_json(
        *state,
        "bench ps --min-bytes 4K --max-bytes 16K --partition 8K --servers 2 --workers 1-2 --rounds 2 --json");
    const cJSON *rows = job_item(j, "rows"), *row;
    static const double wants[4][2] = {{4096, 1}, {16384, 1}, {4096, 2}, {16384, 2}};  // payload, workers
    int i = 0;
    assert_string_equal(job_text(j, "bench"), "ps");
    assert_string_equal(job_text(j, "dtype"), "bf16");
    assert_true(job_number(j, "rounds") == 2 && job_number(j, "cores") > 0);
    assert_int_equal(cJSON_GetArraySize(rows), 4);
    cJSON_ArrayForEach(row, rows) {
        assert_true(job_number(row, "payload_bytes") == wants[i][0] &&
                    job_number(row, "workers") == wants[i][1]);
        assert_true(job_number(row, "servers") == 2 && job_number(row, "keys") == 256);
        for (int m = 0; m < 2; m++) expect_star(row, m ? "shm" : "tcp", 2);
        const cJSON *over = job_item(row, "shm_over_tcp"), *star = job_item(row, "star");
        expect_equal("shm_over_tcp", job_number(over, "push"),
                     job_number(job_item(job_item(star, "shm"), "push"), "bytes_per_second") /
                         job_number(job_item(job_item(star, "tcp"), "push"), "bytes_per_second"));
        i++;
    }
    cJSON_Delete(j);
}

static void the_table_has_its_columns(void **state) {
    struct job_output o =
        job_run(*state, "bench ps --min-bytes 4K --max-bytes 4K --dtype fp32 --medium tcp --rounds 1");
    static const char *const columns[] = {"payload", "servers", "workers", "keys",   "medium", "push",
                                          "pull",    "median",  "p95",     "median", "p95",    "worker",
                                          "server",  "GB/s",    "us",      "s/GB",   "4096",   "tcp"};
    assert_int_equal(o.status, 0);
    const char *at = strstr(o.out, "#  payload");
    assert_non_null(at);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        at = strstr(at, columns[i]);  // in this order
        if (!at) fail_msg("no column %s in\n%s", columns[i], o.out);
    }
    assert_non_null(strstr(o.out, "fp32, medians of 1 round;"));
    job_output_free(&o);
}

// ---------------------------------------------------------------- refusals
static void what_cannot_be_benched_is_said(void **state) {
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"--servers 0", "--servers 0: expected a number from 1 to 4"},
        {"--workers 5", "--workers 5: expected a number from 1 to 4"},
        {"--workers 3-2", "--workers 3-2: expected"},
        {"--servers 1-", "--servers 1-: expected"},
        {"--min-bytes 1", "--min-bytes 1: a server's partitions are whole blocks of 1024 bytes"},
        {"--min-bytes 1500", "give a multiple of that"},
        {"--min-bytes 4X", "--min-bytes 4X"},
        {"--min-bytes 8K --max-bytes 4K", "below --min-bytes; give at least 8192"},
        {"--max-bytes 1G", "at most 256M"},
        {"--medium ib", "--medium ib: expected"},
        {"--dtype fp16", "use bf16"},
        {"--dtype int8", "expected one of fp32, bf16"},
        {"--rounds 0", "--rounds 0"},
        {"--threads 9", "--threads 9"},
        {"--factor 1", "--factor 1"},
        {"--partition 1000", "--partition 1000: a server's partitions are whole blocks of 1024 bytes"},
        {"--sizes 4K", "sizes"},
        {"--peer /nowhere", "/nowhere/src/meta.proto: No such file or directory; give the source folder"},
        {"--peer . --medium shm", "give --medium tcp or both"},
        {"--as server", "processes that the bench starts itself"},
        {"--as nobody --plan 0,0,1,1024,1,1,1,1024", "processes that the bench starts itself"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_output o = job_run(*state, "bench ps %s", cases[i].words);
        if (o.status != 2 || !strstr(o.err, cases[i].says) || *o.out)
            fail_msg("bench ps %s: status %d\n%s%s", cases[i].words, o.status, o.err, o.out);
        job_output_free(&o);
    }
    struct job_output o = job_run(*state, "bench ps --help");
    assert_true(!o.status && strstr(o.out, "--min-bytes") && strstr(o.out, "--medium") &&
                !strstr(o.out, "--plan"));
    job_output_free(&o);
}

// ---------------------------------------------------------------- beside a peer
static void leave(const struct job_place *p, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", p->dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0755), 0);
    free(path);
}

// A compiler that leaves a peer whose payloads take one millisecond, and are acknowledged within one microsecond.
static const char compiler[] =
    "#!/bin/sh\n"
    "while [ \"$1\" != -o ]; do shift; done\n"
    "grep -q KVServer \"$2.cc\" && cp slow_peer \"$2\"\n";
static const char slow_peer[] =
    "#!/usr/bin/env python3\n"
    "import os, sys, time\n"
    "a = dict(zip(sys.argv[3::2], sys.argv[4::2]))\n"
    "control = os.fdopen(int(a['--control']), 'r+b', buffering=0)\n"
    "say = lambda *words: control.write((' '.join(map(str, words)) + '\\n').encode())\n"
    "say(os.getpid(), 'address')\n"
    "while a['--as'] != 'worker' and not os.path.exists('ended'): time.sleep(0.01)\n"
    "for line in control if a['--as'] == 'worker' else ():\n"
    "    what, *n = line.decode().split()\n"
    "    if what == 'step': say(0, 1000000, 2000000)\n"
    "    if what == 'pull': say(0, 2000000)\n"
    "    if what == 'latency': say(*[1000, 2000] * int(n[1]))\n"
    "    if what == 'end': break\n"
    "open('ended', 'w').close()\n";

static void a_peer_takes_its_turns(void **state) {
    const struct job_place *p = *state;
    char *path = xasprintf("%s:%s", p->dir, getenv("PATH")), *before = xasprintf("%s", getenv("PATH"));
    char *made =
        xasprintf("mkdir -p %s/tmp %s/peer/src && touch %s/peer/src/meta.proto", p->dir, p->dir, p->dir);
    char *left = xasprintf("rmdir %s/tmp", p->dir), *tmp = xasprintf("%s/tmp", p->dir);
    assert_int_equal(system(made), 0);
    leave(p, "protoc", "#!/bin/sh\n");
    leave(p, "c++", compiler);
    leave(p, "slow_peer", slow_peer);
    setenv("PATH", path, 1);
    setenv("TMPDIR", tmp, 1);
    cJSON *j =
        job_json(p, "bench ps --min-bytes 4K --max-bytes 4K --medium tcp --rounds 1 --peer peer --json");
    const cJSON *row = cJSON_GetArrayItem(job_item(j, "rows"), 0), *peer = job_item(row, "peer");
    const cJSON *star = job_item(job_item(row, "star"), "tcp"), *over = job_item(peer, "star_over_peer");
    double bytes = 256 * 4096.0;
    assert_string_equal(job_text(peer, "name"), "ps-lite");
    expect_equal("push", expect_timed(peer, "push", bytes, 1), bytes / 1e-3);
    expect_equal("pull", expect_timed(peer, "pull", bytes, 1), bytes / 2e-3);
    expect_equal("acknowledgement", job_number(job_item(peer, "push_to_acknowledgement"), "median_us"), 1);
    expect_equal("push / peer", job_number(over, "push"),
                 job_number(job_item(star, "push"), "bytes_per_second") / (bytes / 1e-3));
    expect_equal("pull / peer", job_number(over, "pull"),
                 job_number(job_item(star, "pull"), "bytes_per_second") / (bytes / 2e-3));
    expect_equal("acknowledgement / peer", job_number(over, "push_to_acknowledgement"),
                 job_number(job_item(star, "push_to_acknowledgement"), "median_us"));
    cJSON_Delete(j);
    leave(p, "c++", "#!/bin/sh\nexit 1\n");
    struct job_output o = job_run(p, "bench ps --medium tcp --peer peer");
    if (o.status != 1 || !strstr(o.err, "--peer peer: ps-lite could not be built") || *o.out)
        fail_msg("status %d\n%s%s", o.status, o.err, o.out);
    job_output_free(&o);
    setenv("PATH", before, 1);
    unsetenv("TMPDIR");
    assert_int_equal(system(left), 0);  // empty again
    free(path), free(before), free(made), free(left), free(tmp);
}

// ---------------------------------------------------------------- nothing stays behind
// The bench's processes: their command lines hold no scratch directory, but their working directory is it.
static int members(const struct job_place *p, const char *role, pid_t *pids, int max) {
    char *line = xasprintf(
        "for d in /proc/[0-9]*; do [ \"$(readlink $d/cwd)\" = %s ] && tr '\\0' ' ' < $d/cmdline | "
        "grep -q -- 'bench ps.*%s' && echo ${d#/proc/}; done 2>/dev/null",
        p->dir, role);
    FILE *f = popen(line, "r");
    int n = 0, pid;
    assert_non_null(f);
    while (fscanf(f, "%d", &pid) == 1)
        if (n < max) pids[n++] = pid;
    pclose(f);
    free(line);
    return n;
}

static void await_members(const struct job_place *p, const char *role, int wanted, double seconds) {
    pid_t pids[64];
    double end = now_seconds() + seconds;
    int n;
    while ((n = members(p, role, pids, 64)) != wanted && now_seconds() < end) usleep(50000);
    if (n != wanted) fail_msg("%d processes \"%s\" instead of %d", n, role, wanted);
}

#define LONG "bench ps --min-bytes 4K --max-bytes 4K --medium tcp --rounds 99"

static void a_killed_role_ends_the_others(void **state) {
    static const char *const victims[] = {"--as server", "--as worker", "--as scheduler"};
    for (size_t i = 0; i < sizeof victims / sizeof *victims; i++) {
        pid_t pids[8], bench = job_start(*state, LONG);
        await_members(*state, "--as worker", 2, 120);  // the last to be started
        assert_true(members(*state, victims[i], pids, 8) > 0);
        kill(pids[0], SIGKILL);
        struct job_output o = job_wait(*state, bench, 60);
        if (o.status != 1 || !strstr(o.err, "was killed by signal 9") || !strstr(o.err, victims[i] + 5))
            fail_msg("%s killed: status %d\n%s", victims[i], o.status, o.err);
        job_output_free(&o);
        await_members(*state, "", 0, 120);
    }
}

static void interrupting_leaves_nothing(void **state) {
    static const int signals[] = {SIGINT, SIGKILL};
    for (int i = 0; i < 2; i++) {
        pid_t bench = job_start(*state, LONG);
        await_members(*state, "--as worker", 2, 120);
        kill(bench, signals[i]);
        struct job_output o = job_wait(*state, bench, 60);
        assert_int_equal(o.status, 128 + signals[i]);
        job_output_free(&o);
        await_members(*state, "", 0, 120);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_row_holds_what_it_promises, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(the_table_has_its_columns, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_benched_is_said, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_peer_takes_its_turns, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_killed_role_ends_the_others, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(interrupting_leaves_nothing, job_setup, job_teardown),
    };
    return cmocka_run_group_tests_name("bench ps", tests, NULL, NULL);
}
