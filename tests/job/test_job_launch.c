// Launched as told: inside a batch script of Slurm, whose shell has a rank's variables and is none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "tests/job/job.h"

static int open_batch(void **state) {
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "2", 1);
    setenv("SLURM_LOCALID", "0", 1);
    return job_setup(state);
}

static int close_batch(void **state) {
    unsetenv("SLURM_PROCID");
    unsetenv("SLURM_NTASKS");
    unsetenv("SLURM_LOCALID");
    return job_teardown(state);
}

static struct job_output run(const struct job_place *p, const char *topology, const char *how) {
    job_remove(p, "run");
    return job_run(p,
                   "train --model gpt2.json --data data.txt --topology %s --workers 2 --steps 2 --seq 16 "
                   "--batch 1 --threads 1 --set eval_batches=1 --no-weights --quiet --out run %s",
                   topology, how);
}

// The ranks that mpirun starts inherit SLURM_* and --launch mpi, and are ranks.
static void told_how(void **state) {
    static const char *const cases[][2] = {{"zero:2", "--launch mpi"},
                                           {"zero:2", "--launch threads"},
                                           {"zero:2", "--set launch=mpi"},
                                           {"ps:sync", "--launch processes"}};
    for (int i = 0; i < 4; i++) {
        struct job_output o = run(*state, cases[i][0], cases[i][1]);
        if (o.status) fail_msg("%s: status %d\n%s", cases[i][1], o.status, o.err);
        cJSON *s = job_summary(*state, "run");
        assert_int_equal(cJSON_GetObjectItem(s, "workers")->valueint, 2);
        assert_int_equal(cJSON_GetObjectItem(s, "steps")->valueint, 2);
        assert_null(cJSON_GetObjectItem(s, "missing_reports"));
        cJSON_Delete(s);
        job_output_free(&o);
    }
}

static void told_nothing(void **state) {
    struct job_output o = run(*state, "zero:2", "");
    if (o.status != 2 || !strstr(o.err, "started by Slurm's srun as rank 0 of 2") ||
        !strstr(o.err, "--launch threads"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

// The ranks of one machine see the same files: what is wrong with them is said once.
static void told_once(void **state) {
    struct job_output o = run(*state, "zero:2", "--launch mpi --data nothing.txt");
    const char *first = strstr(o.err, "nothing.txt");
    if (o.status != 2 || !first || strstr(first + 1, "starring: error"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(told_how), cmocka_unit_test(told_nothing),
                                       cmocka_unit_test(told_once)};
    return cmocka_run_group_tests_name("launch as told", tests, open_batch, close_batch);
}
