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

#include "shared/core/run_file.h"
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

static bool in_order(const cJSON *transfer) {
    double asked = job_number(transfer, "asked"), own = job_number(transfer, "own_ready"),
           peers = job_number(transfer, "peers_ready"), done = job_number(transfer, "done");
    return asked > 0 && own >= asked && peers >= own && done > 0;
}

// A star leaves out what it has not been told; what is there is in order all the same.
static bool asked_first(const cJSON *transfer) {
    double own = job_number(transfer, "own_ready");
    return own == 0 || own >= job_number(transfer, "asked");
}

// Every worker's last three steps (batches: of each, where they share a budget), and in a ring every transfer's moments.
static void check_timeline(const struct job_place *p, const char *what, int workers, bool ring,
                           const cJSON *batches) {
    char *text = run_file_read(p->dir, "run/timeline.json", false);
    cJSON *all = cJSON_Parse(text);
    free(text);
    const cJSON *rank, *step, *transfer;
    int seen = 0;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(all, "ranks")) {
        int64_t last = 0;
        if (strcmp(cJSON_GetObjectItem(rank, "role")->valuestring, "worker") != 0) continue;
        const cJSON *own = cJSON_GetArrayItem(batches, seen);
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(rank, "steps")),
                         own && own->valueint < 3 ? own->valueint : 3);
        cJSON_ArrayForEach(step, cJSON_GetObjectItem(rank, "steps")) {
            assert_true(job_number(step, "end") > job_number(step, "begin") &&
                        job_number(step, "begin") >= (double)last);
            last = (int64_t)job_number(step, "end");
            assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(step, "compute")) > 0);
            int count = 0;
            cJSON_ArrayForEach(transfer, cJSON_GetObjectItem(step, "transfers")) {
                count++;
                if (!(ring ? in_order : asked_first)(transfer))
                    fail_msg("%s: %s", what, cJSON_PrintUnformatted(transfer));
            }
            assert_true((count > 0) == (workers > 1));
        }
        seen++;
    }
    assert_int_equal(seen, workers);
    cJSON_Delete(all);
}

static void check(const struct job_place *p, const char *options, int workers, bool ring) {
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
    check_timeline(p, options, workers, ring, cJSON_GetObjectItem(s, "batches"));
    cJSON_Delete(s);
}

static void the_parts_add_up(void **state) {
    check(*state, "--topology local", 1, false);
    check(*state, "--topology zero:0 --workers 2 --set gradient_accumulation_steps=2", 2, true);
    check(*state, "--topology zero:3 --workers 3", 3, true);
    check(*state, "--topology zero:2 --workers 2 --launch mpi", 2, true);
    check(*state, "--topology ps:sync --workers 2 --servers 2", 2, false);
    check(*state, "--topology ps:async --workers 2 --servers 1 --delay 1:constant:60", 2, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_parts_add_up)};
    return cmocka_run_group_tests_name("time", tests, job_setup, job_teardown);
}
