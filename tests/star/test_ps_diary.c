// Diaries of threads: the parts add up to the time, whatever is written; files say what diaries say.
#include <setjmp.h>
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

#include "ps/diary/diary_file.h"
#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/report/run_file.h"

enum { ADD, APPLY, ANSWER, IDLE, PARTS };
static const char *const names[PARTS] = {"add", "apply", "answer", "idle"};

static struct diary *open_diary(size_t kept, bool trace) {
    return diary_create(&(struct diary_options){.names = names,
                                                .parts = PARTS,
                                                .idle = 1u << IDLE,
                                                .work = 1u << ADD | 1u << APPLY | 1u << ANSWER,
                                                .kept = kept,
                                                .trace = trace});
}

static struct diary_of of(int key, int worker, int64_t step) {
    return (struct diary_of){key, worker, 1, step};
}

static void enter(struct diary *d, int part, int key, int worker) {
    struct diary_of what = of(key, worker, 4);
    diary_enter(d, part, &what);
    usleep(500);
}

static int64_t sum_of(const struct diary *d, int64_t *total) {
    int64_t ns[DIARY_PARTS_MAX], sum = 0;
    *total = diary_totals(d, ns);
    for (int p = 0; p < DIARY_PARTS_MAX; p++) sum += ns[p];
    return sum;
}

// Spans follow each other without a gap.
static void check_seamless(const struct diary *d) {
    for (size_t i = 1; i < diary_last(d); i++) {
        const struct diary_span *a = diary_last_span(d, i - 1), *b = diary_last_span(d, i);
        assert_true(a->begin_ns <= a->end_ns && a->end_ns == b->begin_ns);
    }
}

static void parts_add_up(void **state) {
    (void)state;
    struct diary *d = open_diary(100, false);
    int64_t ns[DIARY_PARTS_MAX], total;
    enter(d, IDLE, -1, 0);  // before the start: not counted
    enter(d, ADD, 1, 0);
    assert_int_equal(diary_totals(d, ns), 0);
    diary_start(d);
    enter(d, IDLE, -1, 0);
    enter(d, IDLE, -1, 0);  // the same idleness
    enter(d, APPLY, 1, 0);
    diary_start(d);  // only the first one counts
    enter(d, ANSWER, 1, 0);
    enter(d, IDLE, -1, 0);  // after the last work: not counted
    diary_end(d);
    int64_t sum = sum_of(d, &total);
    assert_int_equal(sum, total);
    diary_totals(d, ns);
    assert_true(ns[ADD] > 400000 && ns[APPLY] > 400000 && ns[ANSWER] > 400000 && ns[IDLE] > 900000);
    assert_true(total >= 2500000);
    assert_int_equal(diary_last(d), 6);
    check_seamless(d);
    assert_int_equal(diary_last_span(d, 4)->end_ns - diary_last_span(d, 1)->begin_ns, total);
    assert_int_equal(diary_all(d), 0);  // no trace was asked for
    diary_destroy(&d);
    assert_null(d);
}

// Two parts in turns, chunk by chunk, count as one span of each, for as long as they took.
static void woven_parts(void **state) {
    (void)state;
    struct diary *d = open_diary(100, false);
    int64_t ns[DIARY_PARTS_MAX], total;
    enter(d, ADD, 7, 2);
    diary_start(d);
    for (int i = 0; i < 10; i++) {
        diary_weave(d, ADD);
        usleep(200);
        diary_weave(d, APPLY);
        usleep(800);
    }
    enter(d, ANSWER, 7, 2);
    diary_end(d);
    int64_t sum = sum_of(d, &total);
    assert_int_equal(sum, total);
    diary_totals(d, ns);
    assert_true(ns[ADD] >= 2500000 && ns[APPLY] >= 8000000);
    assert_int_equal(diary_last(d), 3);
    check_seamless(d);
    assert_int_equal(diary_last_span(d, 0)->part, ADD);
    assert_int_equal(diary_last_span(d, 0)->end_ns - diary_last_span(d, 0)->begin_ns, ns[ADD]);
    assert_int_equal(diary_last_span(d, 1)->part, APPLY);
    assert_int_equal(diary_last_span(d, 1)->of.key, 7);
    diary_destroy(&d);
}

static void memory_is_bounded(void **state) {
    (void)state;
    struct diary *d = open_diary(10, true);
    struct diary_of what = of(0, 0, 0);
    size_t spans = DIARY_TRACE_MAX + 5;
    for (size_t i = 0; i < spans; i++) {
        what.key = (int)i;
        diary_enter(d, ADD, &what);
    }
    diary_end(d);
    assert_int_equal(diary_all(d), DIARY_TRACE_MAX);
    assert_int_equal(diary_dropped(d), 5);
    assert_int_equal(diary_last(d), 10);
    for (size_t i = 0; i < 10; i++) assert_int_equal(diary_last_span(d, i)->of.key, (int)(spans - 10 + i));
    diary_destroy(&d);
}

static void nobody_writes(void **state) {
    (void)state;
    int64_t ns[DIARY_PARTS_MAX];
    diary_enter(NULL, ADD, &DIARY_NOTHING);
    diary_weave(NULL, APPLY);
    diary_label(NULL, &DIARY_NOTHING);
    diary_start(NULL);
    diary_end(NULL);
    assert_int_equal(diary_totals(NULL, ns), 0);
    assert_int_equal(diary_last(NULL) + diary_all(NULL) + diary_dropped(NULL), 0);
}

// ---------------------------------------------------------------- files
static char arrow(const struct diary_span *s) { return s->part == ADD ? 's' : s->part == ANSWER ? 'f' : 0; }

static cJSON *read_back(const char *dir, const char *name, bool list) {
    char *text = run_file_read(dir, name, false);
    assert_non_null(text);
    char *whole = list ? xasprintf("[%s]", text) : xstrdup(text);
    cJSON *o = cJSON_Parse(whole);
    assert_non_null(o);
    free(whole);
    free(text);
    return o;
}

static void files(void **state) {
    (void)state;
    char dir[] = "/tmp/starring-diary-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *ranks = xasprintf("%s/ranks", dir);
    assert_int_equal(mkdir(ranks, 0777), 0);
    struct diary *d = open_diary(100, true);
    for (int64_t step = 0; step < 5; step++) {
        struct diary_of one = of(1, 1, step), both = {1, 0, 2, step};
        diary_enter(d, ADD, &one);
        diary_enter(d, ADD, &one);  // a repetition: no second arrow
        diary_enter(d, ANSWER, &both);
        diary_enter(d, IDLE, &DIARY_NOTHING);
    }
    diary_end(d);
    struct diary_thread thread = {"thread", d};
    struct diary_role r = {.dir = dir,
                           .role = "server",
                           .rank = 3,
                           .shift_ns = 5000,
                           .error_ns = 17,
                           .threads = &thread,
                           .count = 1,
                           .pid = 9,
                           .first_tid = 1,
                           .workers = 2,
                           .keys = 2,
                           .arrow = arrow};
    assert_int_equal(diary_write_timeline(&r, 3), 0);
    assert_int_equal(diary_write_trace(&r), 0);
    cJSON *o = read_back(dir, "ranks/timeline-server-3.json", false), *s;
    assert_true(json_number(o, "rank") == 3 && json_number(o, "clock_error_ns") == 17);
    const cJSON *spans = json_item(o, "shards")->child;
    double at = -1, least = 99;
    cJSON_ArrayForEach(s, spans) {
        double step = json_number(s, "step");
        if (step > 0 && step < least) least = step;
        if (at >= 0) assert_true(json_number(s, "begin") >= at);
        at = json_number(s, "end");
    }
    assert_true(least == 3);  // steps count from 1: the last three of five
    assert_true(at == (double)(diary_last_span(d, diary_last(d) - 1)->end_ns + 5000));
    cJSON_Delete(o);
    o = read_back(dir, "ranks/trace-server-3.json", true);
    int begins = 0, ends = 0, slices = 0;
    cJSON_ArrayForEach(s, o) {
        const char *ph = json_text(s, "ph", "");
        assert_true(json_number(s, "pid") == 9);
        begins += !strcmp(ph, "s");
        ends += !strcmp(ph, "f");
        slices += !strcmp(ph, "X");
        if (!strcmp(ph, "X")) assert_string_not_equal(json_text(s, "name", ""), "idle");
    }
    assert_int_equal(begins, 5);
    assert_int_equal(ends, 10);
    assert_int_equal(slices, 15);
    cJSON_Delete(o);
    diary_destroy(&d);
    char *command = xasprintf("rm -r %s", dir);
    assert_int_equal(system(command), 0);
    free(command);
    free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_add_up),  cmocka_unit_test(woven_parts), cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(nobody_writes), cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
