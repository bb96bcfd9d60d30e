// A rank that computes longer is waited for, on GPUs as on CPUs: over threads' collectives and NCCL's, in the
// emulation. There
// the other rank's GPU takes longer for everything, so that the wait is compared with what it was busy for.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define TRIES 3

static int open_place(void **state) {
    struct job_place *p = xcalloc(1, sizeof *p);
    *state = p;
    if (job_open_place(p)) return -1;
    if (job_emulate(p, 2)) return 0;
    fprintf(stderr, "no emulated CUDA beside the program\n");
    return -1;
}

static int close_place(void **state) {
    job_close_place(*state);
    free(*state);
    return 0;
}

static double busy(const cJSON *time) {
    return job_number(time, "forward") + job_number(time, "backward") + job_number(time, "optimizer");
}

static bool is_waited_for(const struct job_place *p, const char *options, char *text, size_t room) {
    struct job_output out =
        job_run(p,
                "train --device cuda --model gpt2.json --data data.txt --steps 4 --seq 16 "
                "--batch 1 --workers 2 --delay 1:constant:300 --set memory.check=off "
                "--set eval_batches=0 --no-weights --quiet --out run --force %s",
                options);
    if (out.status) fail_msg("%s: %s", options, out.err);
    job_output_free(&out);
    cJSON *s = job_summary(p, "run");
    const cJSON *times = cJSON_GetObjectItem(s, "time_per_rank"), *first = cJSON_GetArrayItem(times, 0),
                *late = cJSON_GetArrayItem(times, 1);
    double want = busy(late) - busy(first), wait = job_number(first, "wait");
    bool good = want > 0.5 && fabs(wait - want) < 0.1 * want && job_number(late, "wait") < 0.1 * want &&
                fabs(job_number(first, "check") - 1) < 0.01;
    snprintf(text, room, "%s: rank 1 was busy for %.3f s longer, rank 0 waited %.3f s, rank 1 %.3f s",
             options, want, wait, job_number(late, "wait"));
    cJSON_Delete(s);
    return good;
}

static void check(const struct job_place *p, const char *options) {
    char text[256];
    for (int i = 0; i < TRIES; i++)
        if (is_waited_for(p, options, text, sizeof text)) return;
    fail_msg("%s", text);
}

static void rings(void **state) {
    check(*state, "--topology zero:1 --collective local");
    check(*state, "--topology zero:3 --collective nccl");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rings)};
    return cmocka_run_group_tests_name("time on GPUs", tests, open_place, close_place);
}
