// The recorder of spans and its bounds; the time of threads, whose parts add up whatever is recorded; and what files say of both.
#include <math.h>
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

#include "shared/config/config.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/report/span_files.h"
#include "shared/time/stall_report.h"
#include "shared/time/thread_time.h"

// ---------------------------------------------------------------- bounded lists
static void add(struct spans *s, int64_t begin, int64_t length) {
    spans_add(s, &(struct span){.begin = begin, .end = begin + length});
}

// The spans that find no room: the newest, the oldest, or the shortest. It is counted, but where the last ones are all that
// is wanted.
static void lists_are_bounded(void **state) {
    (void)state;
    for (int kept = SPANS_FIRST; kept <= SPANS_LONGEST; kept++) {
        struct spans s = {0};
        assert_int_equal(spans_open(&s, 4, (enum spans_kept)kept), 0);
        for (int64_t i = 0; i < 11; i++) add(&s, 100 * (9 - i), i % 2 ? 50 + i : 20 - i);
        assert_int_equal(spans_count(&s), 4);
        assert_int_equal(s.lost, kept == SPANS_LAST ? 0 : 7);
        if (kept == SPANS_LONGEST) {
            spans_sort(&s);
            for (size_t i = 0; i < 4; i++)  // 3, 5, 7 and 9 of the eleven
                assert_true(span_length(spans_at(&s, i)) == (int64_t)(59 - 2 * i) &&
                            spans_at(&s, i)->begin == (int64_t)(200 * i));
        } else {
            for (size_t i = 0; i < 4; i++)
                assert_int_equal(spans_at(&s, i)->begin,
                                 100 * (9 - (int64_t)i - (kept == SPANS_LAST ? 7 : 0)));
        }
        spans_close(&s);
        assert_true(!s.ring && spans_count(&s) == 0);
    }
    struct spans none = {0};
    add(&none, 1, 1);
    assert_true(spans_count(&none) == 0 && none.lost == 1);
}

// Taken in pieces, in the order in which they came, while more of them come.
static void what_is_taken_makes_room(void **state) {
    (void)state;
    struct spans s = {0};
    struct span out[3];
    uint64_t lost;
    int64_t next = 0, seen = 0;
    assert_int_equal(spans_open(&s, 5, SPANS_FIRST), 0);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 3; i++) add(&s, next++, 1);
        size_t n = spans_take(&s, out, 3, &lost);
        assert_true(n == 3 && lost == 0);
        for (size_t i = 0; i < n; i++) assert_int_equal(out[i].begin, seen++);
    }
    for (int i = 0; i < 7; i++) add(&s, next++, 1);
    assert_int_equal(spans_take(&s, out, 3, &lost), 3);
    assert_int_equal(lost, 2);
    assert_int_equal(spans_take(&s, out, 3, &lost), 2);
    assert_int_equal(lost, 0);
    spans_close(&s);
}

// ---------------------------------------------------------------- the time of a thread
enum { ADD, APPLY, ANSWER, IDLE, PARTS };
static const char *const names[PARTS] = {"add", "apply", "answer", "idle"};

static struct thread_time *open_time(size_t kept, bool trace) {
    return thread_time_create(&(struct thread_time_options){.names = names,
                                                            .parts = PARTS,
                                                            .idle = 1u << IDLE,
                                                            .work = 1u << ADD | 1u << APPLY | 1u << ANSWER,
                                                            .kept = kept,
                                                            .trace = trace});
}

static void enter(struct thread_time *d, int part, int key, int worker) {
    thread_time_enter(d, part, span_for(4, key, worker, 1));
    usleep(500);
}

static int64_t sum_of(const struct thread_time *d, int64_t *total) {
    int64_t ns[THREAD_PARTS], sum = 0;
    *total = thread_time_totals(d, ns);
    for (int p = 0; p < THREAD_PARTS; p++) sum += ns[p];
    return sum;
}

// Spans follow each other without a gap.
static void check_seamless(const struct thread_time *d) {
    for (size_t i = 1; i < spans_count(thread_time_last(d)); i++) {
        const struct span *a = spans_at(thread_time_last(d), i - 1), *b = spans_at(thread_time_last(d), i);
        assert_true(a->begin <= a->end && a->end == b->begin);
    }
}

static void parts_add_up(void **state) {
    (void)state;
    struct thread_time *d = open_time(100, false);
    int64_t ns[THREAD_PARTS], total;
    enter(d, IDLE, -1, 0);  // before the start: not counted
    enter(d, ADD, 1, 0);
    assert_int_equal(thread_time_totals(d, ns), 0);
    thread_time_start(d);
    enter(d, IDLE, -1, 0);
    enter(d, IDLE, -1, 0);  // the same idleness
    enter(d, APPLY, 1, 0);
    thread_time_start(d);  // only the first one counts
    enter(d, ANSWER, 1, 0);
    enter(d, IDLE, -1, 0);  // after the last work: not counted
    thread_time_end(d);
    int64_t sum = sum_of(d, &total);
    assert_int_equal(sum, total);
    thread_time_totals(d, ns);
    assert_true(ns[ADD] > 400000 && ns[APPLY] > 400000 && ns[ANSWER] > 400000 && ns[IDLE] > 900000);
    assert_true(total >= 2500000);
    assert_int_equal(spans_count(thread_time_last(d)), 6);
    check_seamless(d);
    assert_int_equal(spans_at(thread_time_last(d), 4)->end - spans_at(thread_time_last(d), 1)->begin, total);
    assert_int_equal(spans_count(thread_time_traced(d)), 0);  // no trace was asked for
    thread_time_destroy(&d);
    assert_null(d);
}

// Two parts in turns, chunk by chunk, count as one span of each, for as long as they took.
static void woven_parts(void **state) {
    (void)state;
    struct thread_time *d = open_time(100, false);
    int64_t ns[THREAD_PARTS], total;
    enter(d, ADD, 7, 2);
    thread_time_start(d);
    for (int i = 0; i < 10; i++) {
        thread_time_interleave(d, ADD);
        usleep(200);
        thread_time_interleave(d, APPLY);
        usleep(800);
    }
    enter(d, ANSWER, 7, 2);
    thread_time_end(d);
    int64_t sum = sum_of(d, &total);
    assert_int_equal(sum, total);
    thread_time_totals(d, ns);
    assert_true(ns[ADD] >= 2500000 && ns[APPLY] >= 8000000);
    assert_int_equal(spans_count(thread_time_last(d)), 3);
    check_seamless(d);
    assert_int_equal(spans_at(thread_time_last(d), 0)->part, ADD);
    assert_int_equal(spans_at(thread_time_last(d), 0)->end - spans_at(thread_time_last(d), 0)->begin,
                     ns[ADD]);
    assert_int_equal(spans_at(thread_time_last(d), 1)->part, APPLY);
    assert_int_equal(spans_at(thread_time_last(d), 1)->key, 7);
    thread_time_destroy(&d);
}

static void memory_is_bounded(void **state) {
    (void)state;
    struct thread_time *d = open_time(10, true);
    size_t spans = SPANS_TRACED + 5;
    for (size_t i = 0; i < spans; i++) thread_time_enter(d, ADD, span_for(0, (int)i, 0, 1));
    thread_time_enter(d, IDLE, SPAN_OF_NOTHING);
    thread_time_end(d);
    assert_int_equal(spans_count(thread_time_traced(d)), SPANS_TRACED);
    assert_int_equal(thread_time_traced(d)->lost, 5);  // idleness is not among them
    assert_int_equal(spans_count(thread_time_last(d)), 10);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(spans_at(thread_time_last(d), i)->key, (int)(spans - 9 + i));
    thread_time_destroy(&d);
}

static void nobody_asks(void **state) {
    (void)state;
    int64_t ns[THREAD_PARTS];
    thread_time_enter(NULL, ADD, SPAN_OF_NOTHING);
    thread_time_interleave(NULL, APPLY);
    thread_time_label(NULL, SPAN_OF_NOTHING);
    thread_time_start(NULL);
    thread_time_end(NULL);
    assert_int_equal(thread_time_totals(NULL, ns), 0);
    assert_int_equal(spans_count(thread_time_last(NULL)) + spans_count(thread_time_traced(NULL)), 0);
}

// ---------------------------------------------------------------- files
static char arrow(const struct span *s) { return s->part == ADD ? 's' : s->part == ANSWER ? 'f' : 0; }

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

static int open_dir(void **state) {
    char *dir = xstrdup("/tmp/starring-spans-XXXXXX"), *ranks;
    *state = dir;
    assert_non_null(mkdtemp(dir));
    ranks = xasprintf("%s/ranks", dir);
    assert_int_equal(mkdir(ranks, 0777), 0);
    free(ranks);
    return 0;
}

static int close_dir(void **state) {
    char *command = xasprintf("rm -r %s", (char *)*state);
    assert_int_equal(system(command), 0);
    free(command);
    free(*state);
    return 0;
}

static void files_of_threads(void **state) {
    char *dir = *state;
    struct thread_time *d = open_time(100, true);
    for (int64_t step = 0; step < 5; step++) {
        thread_time_enter(d, ADD, span_for(step, 1, 1, 1));
        thread_time_enter(d, ADD, span_for(step, 1, 1, 1));  // a repetition: no second arrow
        thread_time_enter(d, ANSWER, span_for(step, 1, 0, 2));
        thread_time_enter(d, IDLE, SPAN_OF_NOTHING);
    }
    thread_time_end(d);
    const struct spans *last = thread_time_last(d);
    struct span_thread thread = {"quo\"te \\", last};
    struct span_role r = {.dir = dir,
                          .role = "server",
                          .rank = 3,
                          .shift_ns = 5000,
                          .error_ns = 17,
                          .threads = &thread,
                          .count = 1,
                          .steps = 3,
                          .first_tid = 1,
                          .workers = 2,
                          .keys = 2};
    assert_int_equal(trace_write_threads(&r), 0);
    cJSON *o = read_back(dir, "ranks/trace-server-3.json", true), *s;
    double at = -1, least = 99, error = 0;
    cJSON_ArrayForEach(s, o) {
        const cJSON *args = json_item(s, "args");
        if (!strcmp(json_text(s, "name", ""), "clock_error")) error = json_number(args, "ns");
        if (strcmp(json_text(s, "ph", ""), "X") != 0) continue;
        double step = json_number(args, "step"), ts = json_number(s, "ts");
        if (step > 0 && step < least) least = step;
        assert_true(ts > at - 0.01);
        at = ts + json_number(s, "dur");
    }
    assert_true(least == 3);  // steps count from 1: the last three of five
    assert_true(error == 17);
    assert_true(fabs(at - (double)(spans_at(last, spans_count(last) - 1)->end + 5000) * 1e-3) < 0.01);
    cJSON_Delete(o);
    thread.spans = thread_time_traced(d);
    r.steps = 0;
    r.arrow = arrow;
    assert_int_equal(trace_write_threads(&r), 0);
    o = read_back(dir, "ranks/trace-server-3.json", true);
    int begins = 0, ends = 0, slices = 0, named = 0;
    cJSON_ArrayForEach(s, o) {
        const char *ph = json_text(s, "ph", "");
        assert_true(json_number(s, "pid") == 5);  // behind the two workers
        begins += !strcmp(ph, "s");
        ends += !strcmp(ph, "f");
        slices += !strcmp(ph, "X");
        named += !strcmp(json_text(json_item(s, "args"), "name", ""), thread.name);
        if (!strcmp(ph, "X")) assert_string_not_equal(json_text(s, "name", ""), "idle");
    }
    assert_int_equal(begins, 5);
    assert_int_equal(ends, 10);
    assert_int_equal(slices, 15);
    assert_int_equal(named, 1);
    cJSON_Delete(o);
    thread_time_destroy(&d);
}

static int nothing(void *arg) {
    (void)arg;
    usleep(2000);
    return 0;
}

static const int64_t ms = 1000000;

// The spans that a worker leaves: its last step, and, of a whole trace, its streams; gaps as it saw them. at: where the
// gap begins.
static void expect_part(const char *dir, int64_t at, int whole) {
    cJSON *o = read_back(dir, "ranks/trace-0.json", true), *s;
    int forwards = 0, waits = 0, exposed = 0, steps = 0, phases = 0, transfers = 0;
    cJSON_ArrayForEach(s, o) {
        const cJSON *args = json_item(s, "args");
        const char *name = json_text(s, "name", ""), *cat = json_text(s, "cat", ""),
                   *ph = json_text(s, "ph", "");
        forwards += !strcmp(name, "nothing") && !strcmp(cat, "forward");
        waits += !strcmp(name, "wait for worker 1") && json_number(args, "worker") == 1;
        exposed +=
            !strcmp(cat, "comm_exposed") && !strcmp(json_text(args, "transfer", ""), "gradients of block.7");
        steps += !strcmp(cat, "step") && json_number(args, "step") == 1;
        phases += !strcmp(cat, "phase") && !strcmp(name, "forward");
        // From when all were ready.
        transfers += !strcmp(cat, "transfer") && !strcmp(name, "gradients of block.7") &&
                     fabs(1e3 * json_number(s, "ts") - (double)(at + (*ph == 'b' ? 10 : 40) * ms)) < 4 &&
                     (*ph == 'e' || json_number(args, "bytes") == 8);
    }
    assert_true(waits == 1 && exposed == 1 && steps == 1 && phases == 1 && transfers == 2);
    assert_int_equal(forwards, whole);
    cJSON_Delete(o);
}

// The gap's new split if server 0 was stopped from 20 to 30 ms of it: stalls that ended before the last step are only in a whole
// trace.
static void expect_trace(const char *dir, int64_t at, int whole) {
    static const struct {
        const char *name;
        int begin, end;
    } want[] = {{"wait for worker 1", 0, 10},
                {"exposed communication", 10, 20},
                {"wait for server 0", 20, 30},
                {"exposed communication", 30, 40}};
    cJSON *o = read_back(dir, "trace.json", false), *s;
    size_t found = 0, stood = 0;
    cJSON_ArrayForEach(s, json_item(o, "traceEvents")) {
        double ns = 1e3 * json_number(s, "ts") - (double)at, length = 1e3 * json_number(s, "dur");
        stood += !strcmp(json_text(s, "name", ""), "the process did not run") && json_number(s, "pid") == 1;
        if (json_number(s, "tid") != 900 || strcmp(json_text(s, "ph", ""), "X") != 0) continue;
        assert_true(found < 4);
        assert_string_equal(json_text(s, "name", ""), want[found].name);
        assert_true(ns > (double)(want[found].begin * ms) - 2 && ns < (double)(want[found].begin * ms) + 2);
        assert_true(ns + length > (double)(want[found].end * ms) - 4 &&
                    ns + length < (double)(want[found].end * ms) + 4);
        found++;
    }
    assert_true(found == 4);
    assert_int_equal(stood, 1 + whole);
    cJSON_Delete(o);
}

// A worker leaves its steps, and its gaps as it saw them; where the reports meet, a rank that stood still is waited for.
static void gaps_are_settled_where_reports_meet(void **state) {
    char *dir = *state;
    struct device *dev;
    assert_int_equal(
        dev_open(backend_find("cpu", &(const char *){NULL}),
                 &(struct device_options){.threads = 1, .label = "worker 0", .trace = true}, &dev),
        0);
    struct stream *compute = stream_create(dev, "compute");
    struct unit unit = {.name = "block.7"};
    struct layout layout = {.count = 1, .units = &unit};
    struct timeline *tl = timeline_create(&(struct timeline_options){compute, &layout, 1, 2, true, NULL});
    const int64_t begin = now_ns();
    timeline_step_at(tl, 0, begin);
    stream_phase(compute, PHASE_FORWARD);
    stream_host(compute, "nothing", nothing, NULL);
    assert_int_equal(stream_sync(compute), 0);
    int64_t at = now_ns() + ms;
    uint64_t id = timeline_ask(tl, &(struct transfer){TRANSFER_GRADIENTS, 0, 8});
    timeline_own_ready(tl, id, begin);
    timeline_peers_ready(tl, id, at + 10 * ms, 1);
    timeline_blocked(tl, id, at, at + 40 * ms);
    timeline_done(tl, id, at + 40 * ms);
    timeline_pause_at(tl, at + 50 * ms);
    timeline_end(tl);
    timeline_set_clock(tl, (struct timeline_clock){.offset_ns = 3});
    at += 3;  // on the job's clock
    struct stall_report *own = stall_report_take(&(struct stall_report_options){.timeline = tl, .offset = 3}),
                        server = {0};
    struct spans *stalls = &server.stalls[STALL_PROCESS];
    assert_int_equal(spans_open(stalls, 2, SPANS_FIRST), 0);
    spans_add(stalls, &(struct span){.begin = begin - 20 * ms, .end = begin - 10 * ms});
    spans_add(stalls, &(struct span){.begin = at + 20 * ms, .end = at + 30 * ms});
    struct stall_report *moments[2] = {own, &server};
    const char *roles[2] = {"worker", "server"};
    int ranks[2] = {0, 0};
    const struct stall_reports m = {moments, roles, ranks, 2};
    struct config c = {.workers = 1};
    for (int whole = 0; whole < 2; whole++) {
        c.trace = whole;
        assert_int_equal(trace_write_worker(dir, 0, dev, tl, whole), 0);
        expect_part(dir, at, whole);
        assert_int_equal(trace_merge(&c, dir, &m), 0);
        expect_trace(dir, at, whole);
        assert_null(run_file_read(dir, "ranks/trace-0.json", true));
    }
    // Without its part there is no whole trace; of the last steps what is there stays.
    c.trace = false;
    assert_int_equal(trace_merge(&c, dir, &m), 0);
    expect_trace(dir, at, 1);
    c.trace = true;
    assert_int_equal(trace_merge(&c, dir, &m), -1);
    spans_close(stalls);
    stall_report_free(&own);
    timeline_destroy(&tl);
    stream_destroy(&compute);
    dev_close(&dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_bounded),
        cmocka_unit_test(what_is_taken_makes_room),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(woven_parts),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(nobody_asks),
        cmocka_unit_test_setup_teardown(files_of_threads, open_dir, close_dir),
        cmocka_unit_test_setup_teardown(gaps_are_settled_where_reports_meet, open_dir, close_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
