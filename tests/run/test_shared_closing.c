// Ranks that leave in any order, and at once: one of them is the last.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/launch/closing.h"
#include "shared/report/run_dir.h"
#include "shared/report/summary.h"
#include "tests/topologies.h"

#define RANKS 4  // worker 0, worker 1, server 0, server 1

struct place {
    char dir[64];
    struct config *config;
};

static int open_place(void **state) {
    const struct config_override set[] = {{"topology", "ps:sync", "test"},
                                          {"workers", "2", "test"},
                                          {"parameter_server.servers", "2", "test"},
                                          {"quiet", "true", "test"}};
    struct place *p = xcalloc(1, sizeof *p);
    *state = p;
    snprintf(p->dir, sizeof p->dir, "/tmp/starring-closing-XXXXXX");
    p->config = config_load(&topologies, NULL, set, 4);
    return p->config && mkdtemp(p->dir) ? 0 : -1;
}

static int close_place(void **state) {
    struct place *p = *state;
    char *command = xasprintf("rm -r %s", p->dir);
    int rc = system(command);
    free(command);
    config_destroy(&p->config);
    free(p);
    return rc;
}

// A directory that worker 0 has taken and trained in.
static void begin(const struct place *p) {
    assert_int_equal(run_dir_take(p->dir, p->config, true), 0);
    assert_int_equal(run_file_write(p->dir, "metrics.jsonl", "{\"step\":1,\"loss\":2.5,\"seconds\":0.1}\n"),
                     0);
}

static const char *role_of(int i) { return i < 2 ? "worker" : "server"; }

static int report(const struct place *p, int i, uint64_t job) {
    struct rank_report r = {.rank = i % 2, .job = job};
    struct run_facts facts = {.params = 1, .data = "text"};
    snprintf(r.role, sizeof r.role, "%s", role_of(i));
    return summary_write_rank(p->dir, &r, i == 0 ? &facts : NULL);
}

static enum closing leave(const struct place *p, int i, uint64_t job) {
    return closing_leave(&(struct closing_rank){p->config, p->dir, role_of(i), i % 2, job, NULL});
}

static bool has_summary(const struct place *p) {
    char *text = run_file_read(p->dir, "summary.json", true);
    free(text);
    return text != NULL;
}

// All 24 orders; the ranks of an earlier job have left all their reports, and had a last one themselves.
static void every_order(void **state) {
    const struct place *p = *state;
    for (int order = 0; order < RANKS * RANKS * RANKS * RANKS; order++) {
        int at[RANKS] = {order % 4, order / 4 % 4, order / 16 % 4, order / 64};
        unsigned seen = 0;
        for (int i = 0; i < RANKS; i++) seen |= 1u << at[i];
        if (seen != (1u << RANKS) - 1) continue;
        begin(p);
        for (int i = 0; i < RANKS; i++) assert_int_equal(report(p, i, 7), 0);
        assert_int_equal(leave(p, 1, 7), CLOSING_LAST);
        char *path = xasprintf("%s/summary.json", p->dir);
        assert_int_equal(unlink(path), 0);
        free(path);
        for (int i = 0; i < RANKS; i++) {
            assert_int_equal(report(p, at[i], 8), 0);
            assert_int_equal(leave(p, at[i], 8), i == RANKS - 1 ? CLOSING_LAST : CLOSING_LEFT);
            assert_int_equal(has_summary(p), i == RANKS - 1);
        }
        assert_int_equal(leave(p, at[0], 8), CLOSING_LEFT);  // it has its table
    }
}

static int one_process(const struct place *p, int i, int start, uint64_t job) {
    char c;
    if (read(start, &c, 1) != 0) return 9;  // until it is closed
    if (report(p, i, job)) return 9;
    return leave(p, i, job) == CLOSING_LAST ? 1 : 0;
}

static void all_at_once(void **state) {
    const struct place *p = *state;
    for (uint64_t job = 1; job <= 50; job++) {
        int start[2], last = 0;
        pid_t pid[RANKS];
        begin(p);
        assert_int_equal(pipe(start), 0);
        for (int i = 0; i < RANKS; i++) {
            if ((pid[i] = fork())) continue;
            close(start[1]);
            _exit(one_process(p, i, start[0], job));
        }
        close(start[0]);
        close(start[1]);
        for (int i = 0; i < RANKS; i++) {
            int status;
            assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
            last += WEXITSTATUS(status);
        }
        assert_int_equal(last, 1);
        assert_true(has_summary(p));
    }
}

// Reports that were collected from several machines: the first one's job counts.
static void of_another_job(void **state) {
    const struct place *p = *state;
    begin(p);
    for (int i = 0; i < RANKS; i++) assert_int_equal(report(p, i, i == 3 ? 7 : 8), 0);
    error_quiet(1);
    cJSON *summary = summary_build(&topologies, p->dir);
    error_quiet(0);
    const cJSON *missing = cJSON_GetObjectItem(summary, "missing_reports");
    assert_int_equal(cJSON_GetArraySize(missing), 1);
    assert_string_equal(cJSON_GetArrayItem(missing, 0)->valuestring, "ranks/server-1.json");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(summary, "memory")), RANKS - 1);
    cJSON_Delete(summary);
}

// A directory without its configuration: a failure, and no table.
static void a_merge_that_fails(void **state) {
    const struct place *p = *state;
    begin(p);
    for (int i = 0; i < RANKS; i++) assert_int_equal(report(p, i, 7), 0);
    char *command = xasprintf("mv %s/config.json %s/moved", p->dir, p->dir);
    assert_int_equal(system(command), 0);
    free(command);
    error_quiet(1);
    assert_int_equal(leave(p, 0, 7), CLOSING_FAILED);
    error_quiet(0);
    assert_false(has_summary(p));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_order, open_place, close_place),
        cmocka_unit_test_setup_teardown(all_at_once, open_place, close_place),
        cmocka_unit_test_setup_teardown(of_another_job, open_place, close_place),
        cmocka_unit_test_setup_teardown(a_merge_that_fails, open_place, close_place),
    };
    return cmocka_run_group_tests_name("closing", tests, NULL, NULL);
}
