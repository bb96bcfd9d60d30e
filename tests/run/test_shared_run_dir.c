// Who may take a run directory, and what its state.json says.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "tests/topologies.h"

#define STARTS_AT_ONCE 8

static int make_base(void **state) {
    char *base = xstrdup("/tmp/starring-run-XXXXXX");
    *state = base;
    return mkdtemp(base) ? 0 : -1;
}

static int remove_base(void **state) {
    char *command = xasprintf("rm -r %s", (char *)*state);
    int rc = system(command);
    free(command);
    free(*state);
    return rc;
}

static void put(const char *dir, const char *name, const char *text) {
    assert_int_equal(run_file_write(dir, name, text), 0);
}

static bool there(const char *dir, const char *name) {
    char *path = xasprintf("%s/%s", dir, name);
    bool is = !access(path, F_OK);
    free(path);
    return is;
}

static enum run_phase phase(const char *dir) {
    struct run_state s;
    run_state_read(dir, &s);
    return s.phase;
}

// Refused, with a message that holds `says`.
static void refused(const char *dir, bool force, const char *says) {
    error_quiet(1);
    assert_int_equal(run_dir_prepare(dir, force), -1);
    error_quiet(0);
    if (!strstr(error_last(), says)) fail_msg("\"%s\" is not in: %s", says, error_last());
}

// Another process takes dir and lives until it is killed.
static pid_t taken_by_another(const char *dir) {
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (run_dir_prepare(dir, false)) _exit(1);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void earlier_runs_are_kept(void **state) {
    char *dir = xasprintf("%s/a/b", (char *)*state);
    assert_int_equal(run_dir_prepare(dir, false), 0);
    assert_int_equal(phase(dir), RUN_RUNNING);
    put(dir, "config.json", "{}\n");
    put(dir, "metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.5}\n");
    put(dir, "ranks/worker-0.json", "{}\n");
    put(dir, "notes.txt", "mine");
    assert_int_equal(run_state_end(dir, RUN_COMPLETE, NULL), 0);
    assert_int_equal(phase(dir), RUN_COMPLETE);
    refused(dir, false, "2 steps of an earlier run (complete)");
    char *text = run_file_read(dir, "config.json", false);
    assert_string_equal(text, "{}\n");
    free(text);
    assert_int_equal(run_dir_prepare(dir, true), 0);
    assert_false(there(dir, "config.json") || there(dir, "metrics.jsonl") ||
                 there(dir, "ranks/worker-0.json"));
    assert_true(there(dir, "notes.txt"));
    free(dir);
}

static void no_step_no_obstacle(void **state) {
    const char *dir = *state;
    assert_int_equal(run_dir_prepare(dir, false), 0);
    put(dir, "config.json", "{}\n");
    put(dir, "metrics.jsonl", "{\"step\":1,\"lo");  // a torn line is no step
    put(dir, "ranks/worker-1.json", "{}\n");
    assert_int_equal(run_state_end(dir, RUN_FAILED, "no weights"), 0);
    struct run_state s;
    run_state_read(dir, &s);
    assert_string_equal(s.why, "no weights");
    assert_true(s.ended[0]);
    assert_int_equal(run_dir_prepare(dir, false), 0);
    assert_false(there(dir, "config.json") || there(dir, "metrics.jsonl") ||
                 there(dir, "ranks/worker-1.json"));
    assert_int_equal(phase(dir), RUN_RUNNING);
}

// A directory without a state.json may hold somebody's model.
static void strangers_are_kept(void **state) {
    put(*state, "config.json", "{\"model_type\":\"gpt2\"}\n");
    refused(*state, false, "config.json is there");
    assert_true(there(*state, "config.json"));
    assert_int_equal(run_dir_prepare(*state, true), 0);
}

static void the_living_keep_theirs(void **state) {
    const char *dir = *state;
    pid_t pid = taken_by_another(dir);
    char *number = xasprintf("process %d", (int)pid);
    assert_int_equal(phase(dir), RUN_RUNNING);
    refused(dir, false, number);
    refused(dir, true, number);
    assert_int_equal(run_state_end(dir, RUN_COMPLETE, NULL), 0);
    assert_int_equal(phase(dir), RUN_RUNNING);  // not ours to end
    end(pid);
    assert_int_equal(phase(dir), RUN_DEAD);
    assert_int_equal(run_dir_prepare(dir, false), 0);
    free(number);
}

// state.json of a living process, with one member changed.
static void forge(const char *dir, const char *key, cJSON *value) {
    char *text = run_file_read(dir, "state.json", false);
    cJSON *o = cJSON_Parse(text);
    free(text);
    cJSON_ReplaceItemInObject(o, key, value);
    text = cJSON_Print(o);
    put(dir, "state.json", text);
    free(text);
    cJSON_Delete(o);
}

static void a_number_used_again_is_another_process(void **state) {
    const char *dir = *state;
    struct run_state s;
    assert_int_equal(run_dir_prepare(dir, false), 0);
    forge(dir, "start_ticks", cJSON_CreateNumber(1));
    assert_int_equal(phase(dir), RUN_DEAD);
    assert_int_equal(run_dir_prepare(dir, false), 0);
    forge(dir, "boot_id", cJSON_CreateString("another boot"));
    assert_int_equal(phase(dir), RUN_DEAD);
    assert_int_equal(run_dir_prepare(dir, false), 0);
    forge(dir, "host", cJSON_CreateString("another-machine"));
    run_state_read(dir, &s);
    assert_true(s.phase == RUN_RUNNING && s.elsewhere && !s.own);
    put(dir, "config.json", "{}\n");
    refused(dir, false, "another-machine");
    assert_int_equal(run_dir_prepare(dir, true), 0);
    put(dir, "state.json", "{\"state\":\"run");
    assert_int_equal(phase(dir), RUN_UNKNOWN);
}

static void one_of_many_wins(void **state) {
    const char *dir = *state;
    int won = 0;
    pid_t pids[STARTS_AT_ONCE];
    int gate[2], done[2];
    assert_int_equal(pipe(gate) | pipe(done), 0);
    for (int i = 0; i < STARTS_AT_ONCE; i++) {
        if ((pids[i] = fork())) continue;
        char c;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        error_quiet(1);
        close(gate[1]);
        ssize_t n = read(gate[0], &c, 1);  // all begin when the gate closes
        bool mine = !run_dir_prepare(dir, false);
        if (n != 0 || write(done[1], mine ? "1" : "0", 1) != 1) _exit(1);
        for (;;) pause();  // a dead winner's directory is free
    }
    close(gate[1]);
    for (int i = 0; i < STARTS_AT_ONCE; i++) {
        char c;
        assert_int_equal(read(done[0], &c, 1), 1);
        won += c == '1';
    }
    for (int i = 0; i < STARTS_AT_ONCE; i++) end(pids[i]);
    close(gate[0]);
    close(done[0]);
    close(done[1]);
    assert_int_equal(won, 1);
}

static void names_do_not_collide(void **state) {
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(*state), 0);
    struct config *c = config_load(&topologies, NULL, NULL, 0);
    char *names[4];
    for (int i = 0; i < 4; i++) {
        assert_non_null(names[i] = run_dir_make(c));
        struct stat about;
        assert_int_equal(stat(names[i], &about), 0);
        for (int j = 0; j < i; j++) assert_string_not_equal(names[i], names[j]);
    }
    for (int i = 0; i < 4; i++) free(names[i]);
    config_destroy(&c);
    assert_int_equal(chdir(before), 0);
}

// The files of writers that were killed are removed when a run takes the directory or resumes in it; other files
// stay.
static void test_unfinished_files(void **state) {
    static const char *const ours[] = {"summary.json.part77",
                                       "metrics.jsonl.part",
                                       "ranks/worker-0.json.part9",
                                       "ranks/trace-server-1.json.part",
                                       "weights/model.safetensors.part",
                                       "weights/tokenizer.json.part"};
    static const char *const others[] = {"notes.part", "weights/mine.part", "summary.json.partly",
                                         "ranks/x.part"};
    const char *base = *state;
    struct config *c = config_load(&topologies, NULL, NULL, 0);
    char *weights = xasprintf("%s/weights", base);
    assert_int_equal(run_dir_prepare(base, true), 0);
    mkdir(weights, 0777);
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) put(base, ours[i], "torn");
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) put(base, others[i], "mine");
        if (again)
            assert_int_equal(run_dir_resume(base, c), 0);
        else
            assert_int_equal(run_dir_prepare(base, false), 0);
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
            if (there(base, ours[i])) fail_msg("%s is still there", ours[i]);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_true(there(base, others[i]));
    }
    free(weights);
    config_destroy(&c);
}

// A later life of the same job has nowhere else to go: a disk that takes nothing costs it a warning. Another start is told.
static void test_going_on_without_room(void **state) {
    const char *base = *state;
    struct config *c = config_load(&topologies, NULL, NULL, 0);
    struct rlimit before, none;
    assert_int_equal(run_dir_prepare(base, true), 0);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    none = before;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &none);
    error_quiet(QUIET_ALL);
    assert_int_equal(run_dir_resume(base, c), -1);
    assert_non_null(strstr(error_last(), "state.json: cannot write"));
    char *file = xasprintf("%s/state.json", base);
    unlink(file);
    free(file);
    run_dir_adopt(base, c);
    error_quiet(QUIET_NOT);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_false(there(base, "config.json"));
    config_destroy(&c);
}

// The directory is the job's: it stands for another process of it from then on, whether that has ended or lives.
static void test_going_on_in_the_place_of_another(void **state) {
    const char *base = *state;
    struct config *c = config_load(&topologies, NULL, NULL, 0);
    struct run_state s;
    assert_int_equal(run_dir_prepare(base, true), 0);
    pid_t other = fork();
    if (!other) _exit(run_state_begin(base) ? 1 : 0);
    int status;
    waitpid(other, &status, 0);
    assert_int_equal(status, 0);
    put(base, "summary.json", "kept");
    run_dir_adopt(base, c);
    run_state_read(base, &s);
    assert_int_equal(s.phase, RUN_RUNNING);
    assert_true(s.own && there(base, "config.json") && there(base, "summary.json"));
    config_destroy(&c);
}

// The first line that cannot be written is told when it is due, once; the end tells it again.
static void test_metrics_without_room(void **state) {
    const char *base = *state;
    double elapsed;
    struct rlimit before, small;
    struct metrics *m = metrics_create(base, 0, &elapsed);
    assert_non_null(m);
    struct step_record r = {.step = 1};
    signal(SIGXFSZ, SIG_IGN);
    metrics_step(m, &r);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1;  // of any file's bytes: the next line fails
    setrlimit(RLIMIT_FSIZE, &small);
    error_quiet(1);
    error_clear();
    r.step = 2;
    metrics_step(m, &r);
    assert_non_null(strstr(error_last(), "metrics.jsonl: cannot write"));
    assert_non_null(strstr(error_last(), "from step 2 on"));
    error_clear();
    setrlimit(RLIMIT_FSIZE, &before);
    r.step = 3;
    metrics_step(m, &r);
    assert_string_equal(error_last(), "");
    assert_int_equal(metrics_destroy(&m), -1);
    assert_non_null(strstr(error_last(), "from step 2 on are missing"));
    error_quiet(0);
    assert_int_equal(metrics_last_step(base), 1);
}

// Each line is whole: one that finds no room leaves nothing behind it, one that a death tore goes with the next.
static void lines_are_whole(void **state) {
    const char *base = *state;
    struct rlimit before, small;
    struct history_row first = {.start = 1, .epoch = 1, .job = 7},
                       second = {.start = 1, .epoch = 2, .job = 8};
    history_remove(base);
    history_add(base, &first);
    char *one = run_file_read(base, HISTORY_FILE, false);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = strlen(one) + 20;  // the kernel takes 20 bytes of the next line
    setrlimit(RLIMIT_FSIZE, &small);
    error_quiet(1);
    history_add(base, &second);
    error_quiet(0);
    setrlimit(RLIMIT_FSIZE, &before);
    char *text = run_file_read(base, HISTORY_FILE, false);
    assert_string_equal(text, one);
    free(text);
    put(base, HISTORY_FILE,
        "{\"kind\":\"life\",\"start\":1,\"epoch\":1,\"job\":\"7\",\"restarts\":0}\n"
        "{\"kind\":\"life\",\"start\":1,\"epoch\":9,\"restarts\":0}");
    assert_int_equal(history_last_start(base).epoch, 1);  // what has no end may be half of a line
    history_add(base, &second);
    assert_int_equal(history_last_start(base).epoch, 2);
    text = run_file_read(base, HISTORY_FILE, false);
    assert_null(strstr(text, "\"epoch\":9"));
    free(text);
    free(one);
}

struct told {
    struct history_row rows[8];
    char why[8][16];
    int count;
};

static void take_row(void *ctx, const struct history_row *r) {
    struct told *t = ctx;
    snprintf(t->why[t->count], sizeof t->why[0], "%s", r->why ? r->why : "-");
    t->rows[t->count++] = *r;
}

// Rows of all kinds come back as they were; those that make no sense are left out, and a row of another kind is no life.
static void history_comes_back(void **state) {
    const char *base = *state;
    struct told t = {0};
    history_remove(base);
    assert_int_equal(history_last_start(base).start, 0);
    history_add(base, &(struct history_row){.step = 1, .start = 2, .epoch = 1, .job = 7});
    history_add(base,
                &(struct history_row){
                    .kind = HISTORY_ABSENT, .step = 13, .worker = 0, .cause = "died", .why = "signal 9"});
    history_add(base, &(struct history_row){.kind = HISTORY_RETURNED, .step = 20});
    history_add(base, &(struct history_row){.step = 11,
                                            .start = 2,
                                            .epoch = 2,
                                            .restarts = 1,
                                            .checkpoint = "/a/checkpoints/step-10",
                                            .counted = true,
                                            .lost = 12});
    history_add(base, &(struct history_row){.kind = HISTORY_ABSENT, .worker = 1});  // no step
    run_file_add(base, HISTORY_FILE, "{\"kind\":\"lives\",\"start\":3,\"epoch\":1,\"restarts\":0}\n");
    run_file_add(base, HISTORY_FILE, "{\"kind\":\"life\",\"start\":1e99,\"epoch\":1,\"restarts\":0}\n");
    run_file_add(base, HISTORY_FILE, "{\"kind\":\"back\",\"step\":3,\"worker\":-1}\n");
    run_file_add(base, HISTORY_FILE, "[]\n");
    history_each(base, take_row, &t);
    assert_int_equal(t.count, 4);
    assert_true(t.rows[0].start == 2 && t.rows[0].job == 7 && !t.rows[0].counted && t.rows[0].step == 1);
    assert_true(t.rows[1].kind == HISTORY_ABSENT && t.rows[1].step == 13 && t.rows[1].worker == 0);
    assert_string_equal(t.why[1], "signal 9");
    assert_true(t.rows[2].kind == HISTORY_RETURNED && t.rows[2].step == 20);
    assert_true(t.rows[3].counted && t.rows[3].lost == 12 && t.rows[3].restarts == 1 && t.rows[3].step == 11);
    struct history_row last = history_last_start(base);
    assert_true(last.epoch == 2 && last.start == 2 && !last.checkpoint);
}

// As many seconds are kept as there is room for, evenly spread, however many steps there are; the totals are of all.
static void test_seconds_are_bounded(void **state) {
    const char *base = *state;
    const int64_t steps = 2 * METRICS_SECONDS_MAX + 3;
    char *path = xasprintf("%s/metrics.jsonl", base);
    FILE *f = fopen(path, "w");
    for (int64_t i = 0; i < steps; i++)
        fprintf(f, "{\"step\":%lld,\"tokens\":2,\"seconds\":%lld.0}\n", (long long)i + 1, (long long)i);
    fclose(f);
    struct metrics_totals t;
    assert_int_equal(metrics_read(base, &t), 0);
    assert_int_equal(t.steps, steps);
    assert_int_equal(t.tokens, 2 * steps);
    assert_true(t.later_seconds == (double)steps * (double)(steps - 1) / 2);
    assert_int_equal(t.kept_every, 4);
    assert_in_range(t.kept, METRICS_SECONDS_MAX / 2, METRICS_SECONDS_MAX);
    for (int64_t i = 0; i < t.kept; i++) assert_true(t.step_seconds[i] == (double)(4 * i));
    metrics_totals_free(&t);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_unfinished_files, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_seconds_are_bounded, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_going_on_in_the_place_of_another, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_going_on_without_room, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_metrics_without_room, make_base, remove_base),
        cmocka_unit_test_setup_teardown(lines_are_whole, make_base, remove_base),
        cmocka_unit_test_setup_teardown(history_comes_back, make_base, remove_base),
        cmocka_unit_test_setup_teardown(earlier_runs_are_kept, make_base, remove_base),
        cmocka_unit_test_setup_teardown(no_step_no_obstacle, make_base, remove_base),
        cmocka_unit_test_setup_teardown(strangers_are_kept, make_base, remove_base),
        cmocka_unit_test_setup_teardown(the_living_keep_theirs, make_base, remove_base),
        cmocka_unit_test_setup_teardown(a_number_used_again_is_another_process, make_base, remove_base),
        cmocka_unit_test_setup_teardown(one_of_many_wins, make_base, remove_base),
        cmocka_unit_test_setup_teardown(names_do_not_collide, make_base, remove_base),
    };
    return cmocka_run_group_tests_name("run_dir", tests, NULL, NULL);
}
