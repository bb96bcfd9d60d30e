// The frame of the benches: a made-up bench's calls in order, its figures in the table and in the document, and what
// its exit statuses mean.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/bench/bench.h"
#include "shared/core/error.h"

static char calls[256];
static int fails_at;     // number of the call that fails; 0: none
static int finish_with;  // its exit status

static int call(const char *name) {
    strcat(calls, name);
    return fails_at && (int)strlen(calls) == fails_at ? EXIT_RUN_FAILED : 0;
}

static int set_up(struct bench_run *r) {
    if (cli_get(r->args, "child")) return BENCH_END;
    json_put(r->document, "count", 1);
    json_put(r->document, "many", 2);
    json_put(r->document, "#hidden", 7);
    json_put(r->document, "unknown", 0.0 / 0.0);
    return call("S");
}
static int begin(struct bench_run *r) { return r->at < 2 ? call("b") : BENCH_END; }
static int one_round(struct bench_run *r) { return call(r->round < 0 ? "w" : "r"); }
static int rows(struct bench_run *r) {
    cJSON *row = bench_row(r, NULL), *inner = cJSON_AddObjectToObject(row, "a");
    cJSON_AddStringToObject(row, "name", r->at ? "second" : "first");
    json_put(inner, "seconds", 0.25 + r->at);
    json_put(inner, "#bytes", 4194304);
    cJSON_AddBoolToObject(row, "good", r->at == 0);
    if (r->at) json_put(row, "other", 1.5e9);
    return call("R");
}
static int finish(struct bench_run *r) {
    json_put(r->document, "total", 3);
    call("f");
    return finish_with;
}
static void tear_down(struct bench_run *r) {
    (void)r;
    strcat(calls, "t");
}

static const struct bench_option options[] = {{"child", NULL, "does nothing", BENCH_ASKS}};
static const struct bench made_up = {
    .about = "made up",
    .command = {.name = "bench made", .usage = "", .summary = "", .examples = ""},
    BENCH_OPTIONS(options),
    .state_bytes = 1,
    .rounds = 2,
    .warm_up = 1,
    .set_up = set_up,
    .begin = begin,
    .round = one_round,
    .rows = rows,
    .finish = finish,
    .tear_down = tear_down,
    .list = "rows",
    .head = BENCH_LINES({NULL, "{count} thing{count:s}, {many} thing{many:s}, {nothing|#hidden}"},
                        {"label", "{rounds:.1}"}, {NULL, "never: {unknown}"}),
    .columns = BENCH_COLUMNS({"name", NULL, "<{name}"}, {"group|time", "ms", "{a.seconds:.1m}"},
                             {"size", NULL, "{a.#bytes:B}"}, {"rate", "G", "{other:.2G}"},
                             {"good", NULL, "{good?yes:no}"}),
    .below = BENCH_LINES({NULL, "below {other:.0m}"}),
    .foot = BENCH_LINES({"foot", "{total}"}),
};
static const struct bench *const all[] = {&made_up};

// Runs the bench. Returns its exit status; out receives what it printed.
static int run(const char *option, char out[4096]) {
    char *argv[] = {"made", (char *)option, NULL};
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    dup2(fileno(f), STDOUT_FILENO);
    *calls = 0;
    int status = bench_command(all, 1, NULL, option ? 2 : 1, argv);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    rewind(f);
    out[fread(out, 1, 4095, f)] = 0;
    fclose(f);
    return status;
}

static void the_table_and_the_calls(void **state) {
    (void)state;
    char out[4096];
    assert_int_equal(run(NULL, out), 0);
    assert_string_equal(calls, "SbwrrRbwrrRft");
    assert_string_equal(out,
                        "# 1 thing, 2 things, 7\n"
                        "label          2.0\n"
                        "#                group\n"
                        "# name               time     size     rate     good\n"
                        "#                      ms                 G         \n"
                        "  first             250.0 4.00 MiB        -      yes\n"
                        "  second           1250.0 4.00 MiB     1.50       no\n"
                        "# below 1500000000000\n"
                        "foot           3\n");
}

static void the_document(void **state) {
    (void)state;
    char out[4096];
    assert_int_equal(run("--json", out), 0);
    cJSON *j = cJSON_Parse(out);
    assert_non_null(j);
    assert_string_equal(json_text(j, "bench", ""), "made");
    assert_true(json_number(j, "rounds") == 2 && json_number(j, "total") == 3);
    const cJSON *second = cJSON_GetArrayItem(json_item(j, "rows"), 1);
    assert_true(json_number(json_item(second, "a"), "seconds") == 1.25);
    assert_true(cJSON_IsNull(json_item(j, "unknown")));
    assert_null(strchr(out, '#'));
    cJSON_Delete(j);
}

static void statuses(void **state) {
    (void)state;
    char out[4096];
    // Nothing is printed of a bench that fails in set_up; rows before a later failure stay in the table only.
    for (fails_at = 1; fails_at <= 11; fails_at++) {
        assert_int_equal(run("--json", out), EXIT_RUN_FAILED);
        assert_string_equal(out, "");
        assert_int_equal(strlen(calls), fails_at + 1);
        assert_int_equal(calls[fails_at], 't');
    }
    fails_at = 0;
    finish_with = EXIT_RUN_FAILED;
    assert_int_equal(run("--json", out), EXIT_RUN_FAILED);
    assert_non_null(strstr(out, "\"total\""));
    finish_with = 0;
    assert_int_equal(run("--child", out), 0);
    assert_string_equal(out, "");
    assert_string_equal(calls, "t");
    error_quiet(1);
    assert_int_equal(run("--rounds=0", out), EXIT_USAGE);
    error_quiet(0);
    assert_string_equal(calls, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_table_and_the_calls),
                                       cmocka_unit_test(the_document), cmocka_unit_test(statuses)};
    return cmocka_run_group_tests_name("bench: the frame", tests, NULL, NULL);
}
