// Where the time went, of whole runs: the parts add up in every topology, and a rank that computes longer by a known
// time is waited for by the others.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/time/split.h"
#include "tests/job/job.h"

#define STEPS 4

static double parts(const cJSON *time) {
    static const char *const names[] = {"data",         "forward", "backward", "optimizer",
                                        "comm_exposed", "wait",    "host"};
    double sum = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) sum += job_number(time, names[i]);
    return sum;
}

static bool is(const cJSON *event, const char *key, const char *what) {
    const cJSON *x = cJSON_GetObjectItem(event, key);
    return cJSON_IsString(x) && !strcmp(x->valuestring, what);
}

// Every worker's last three steps (batches: of each, where they share a budget), one behind the other, with their phases and, where there
// is anybody to talk to, transfers; nothing of the steps before.
static void check_trace(const struct job_place *p, int workers, const cJSON *batches) {
    char *text = run_file_read(p->dir, "run/trace.json", false);
    cJSON *all = cJSON_Parse(text);
    free(text);
    for (int w = 0; w < workers; w++) {
        const cJSON *own = cJSON_GetArrayItem(batches, w), *e;
        double first = 0, at = 0;
        int steps = 0, phases = 0, begun = 0, ended = 0;
        cJSON_ArrayForEach(e, cJSON_GetObjectItem(all, "traceEvents")) {
            if (job_number(e, "pid") != w || is(e, "ph", "M")) continue;
            double ts = job_number(e, "ts");
            begun += is(e, "cat", "transfer") && is(e, "ph", "b");
            ended += is(e, "cat", "transfer") && is(e, "ph", "e");
            if (is(e, "cat", "step")) {
                assert_true(ts > at - 0.01 && job_number(e, "dur") > 0);
                at = ts + job_number(e, "dur");
                first = first > 0 ? first : ts;
                steps++;
            } else if (is(e, "cat", "phase")) {
                assert_true(first > 0 && ts > first - 0.01);
                phases++;
            }
        }
        assert_int_equal(steps, own && own->valueint < 3 ? own->valueint : 3);
        assert_true(phases >= 3 * steps && begun == ended && (begun > 0) == (workers > 1));
    }
    cJSON_Delete(all);
}

static void check(const struct job_place *p, const char *options, int workers) {
    struct job_output out =
        job_run(p,
                "train --model gpt2.json --data data.txt --steps %d --seq 16 --batch 1 "
                "--threads 1 --delay 0:constant:60 --no-weights --quiet --out run --force %s",
                STEPS, options);
    if (out.status) fail_msg("%s: %s", options, out.err);
    job_output_free(&out);
    cJSON *s = job_summary(p, "run");
    const cJSON *time;
    cJSON_ArrayForEach(time, cJSON_GetObjectItem(s, "time_per_rank")) {
        double total = job_number(time, "total"), ratio = job_number(time, "check");
        if (fabs(parts(time) / total - 1) > 0.01 || fabs(ratio - 1) > TIME_TOLERANCE)
            fail_msg("%s: parts %.6f s, total %.6f s, check %.4f", options, parts(time), total, ratio);
        assert_true(job_number(time, "forward") > 0 && job_number(time, "backward") > 0);
    }
    assert_true(job_number(cJSON_GetObjectItem(s, "time"), "check") > 0);
    check_trace(p, workers, cJSON_GetObjectItem(s, "batches"));
    cJSON_Delete(s);
}

static void the_parts_add_up(void **state) {
    check(*state, "--topology local", 1);
    check(*state, "--topology zero:0 --workers 2 --set gradient_accumulation_steps=2", 2);
    check(*state, "--topology zero:3 --workers 3", 3);
    check(*state, "--topology zero:2 --workers 2 --launch mpi", 2);
    check(*state, "--topology ps:sync --workers 2 --servers 2", 2);
    check(*state, "--topology ps:async --workers 2 --servers 1 --delay 1:constant:60", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_parts_add_up)};
    return cmocka_run_group_tests_name("time", tests, job_setup, job_teardown);
}
