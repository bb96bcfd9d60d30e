// Launched as told: inside a batch script of Slurm, whose shell has a rank's variables and is none. Then what the
// ranks talk through (--medium).
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
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
                                           {"zero:2", "--launch processes"},
                                           {"zero:2", "--set launch=mpi"},
                                           {"ps:sync", "--launch processes"}};
    for (int i = 0; i < 5; i++) {
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
    job_remove(*state, "run");
    struct job_output o =
        job_run(*state,
                "train --model gpt2.json --data data.txt --topology zero:2 --workers 2 --steps 2 --seq 16 "
                "--batch 1 --threads 1 --set eval_batches=1 --no-weights --out run");
    if (o.status || !strstr(o.err, "SLURM_NTASKS=2, but a batch script is none of these tasks"))
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

// Two ranks of a hand-written mpirun, the second with words of its own that end it before its first step. ends: the status; 0:
// all have met, and it is that of the rank which mpirun sees end first.
static void second_is_told(const struct job_place *p, const char *own, const char *says, int ends) {
    static const char words[] =
        "train --model gpt2.json --topology zero:2 --steps 2 --seq 16 --batch 1 --threads 1 --no-weights --quiet "
        "--launch mpi --out run";
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    char *line = xasprintf(
        "cd %s && timeout 120 mpirun --oversubscribe --bind-to none -n 1 '%s' %s --data data.txt : -n 1 '%s' %s %s 2> err",
        p->dir, p->program, words, p->program, words, own);
    int status = system(line);
    char *err = run_file_read(p->dir, "err", false);
    assert_non_null(err);
    if (!WIFEXITED(status) || (ends ? WEXITSTATUS(status) != ends : !WEXITSTATUS(status)) ||
        !strstr(err, "rank 1") || !strstr(err, says))
        fail_msg("%s: status %d\n%s", own, status, err);
    free(err);
    free(line);
}

// A file that one rank alone lacks is said by this rank.
static void told_by_the_one_that_fails(void **state) {
    const struct job_place *p = *state;
    char *path = xasprintf("%s/short.txt", p->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("too short\n", f);
    fclose(f);
    free(path);
    second_is_told(p, "--data nothing.txt", "nothing.txt", 2);
    second_is_told(p, "--data short.txt", "fewer than --seq 16 + 1", 2);
    second_is_told(p, "--data data.txt -c nothing.json", "nothing.json", 2);
    second_is_told(p, "--data data.txt --resume nowhere", "nowhere", 0);
}

// ---------------------------------------------------------------- what the ranks talk through
// Open MPI's own log says which transport connects two ranks.
static void only(const struct job_place *p, const char *medium, const char *takes, const char *never) {
    char how[64];
    snprintf(how, sizeof how, "--launch mpi --medium %s", medium);
    setenv("OMPI_MCA_btl_base_verbose", "100", 1);
    struct job_output o = run(p, "zero:2", how);
    unsetenv("OMPI_MCA_btl_base_verbose");
    if (o.status || !strstr(o.err, takes) || strstr(o.err, never))
        fail_msg("--medium %s: status %d\n%s", medium, o.status, o.err);
    job_output_free(&o);
}

static void one_medium_alone(void **state) {
    only(*state, "shm", "init of component vader returned success", "component tcp");
    only(*state, "tcp", "init of component tcp returned success", "component vader");
}

static void refused(const struct job_place *p, const char *how, const char *says) {
    struct job_output o = run(p, "zero:2", how);
    if (!o.status || !strstr(o.err, says)) fail_msg("%s: status %d\n%s", how, o.status, o.err);
    job_output_free(&o);
}

// A user's setting for Open MPI is kept if it says the same, and else refused by name.
static void the_users_own_choice(void **state) {
    setenv("OMPI_MCA_btl", "tcp,self", 1);
    refused(*state, "--launch mpi --medium shm", "OMPI_MCA_btl=self,");
    struct job_output o = run(*state, "zero:2", "--launch mpi --medium tcp");
    if (o.status) fail_msg("%s", o.err);
    job_output_free(&o);
    unsetenv("OMPI_MCA_btl");
    setenv("OMPI_MCA_pml", "cm", 1);
    refused(*state, "--launch mpi --medium tcp", "OMPI_MCA_pml=ob1");
    unsetenv("OMPI_MCA_pml");
}

static void no_mpirun(void **state) {
    char *path = xasprintf("%s", getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    struct job_output o = job_run(
        *state, "train --model gpt2.json --data data.txt --topology zero:2 --launch mpi --seq 16 --out none");
    setenv("PATH", path, 1);
    free(path);
    if (!o.status || !strstr(o.err, "install Open MPI") || !strstr(o.err, "--launch processes"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

// Two hosts are two names here: mpirun's remote shell starts its daemons in name spaces of their own.
static void two_hosts_share_no_memory(void **state) {
    const struct job_place *p = *state;
    if (system("unshare --uts true 2>/dev/null")) skip();  // not root
    char *shell = xasprintf("%s/shell", p->dir), *command;
    FILE *f = fopen(shell, "w");
    assert_non_null(f);
    fputs("#!/bin/sh\nhost=$1; shift\nexec unshare --uts sh -c \"hostname $host; $*\"\n", f);
    fclose(f);
    assert_int_equal(chmod(shell, 0755), 0);
    command = xasprintf(
        "cd %s && timeout 60 mpirun --allow-run-as-root --mca plm_rsh_agent ./shell --host left:1,right:1 -n 2 "
        "--bind-to none '%s' train --model gpt2.json --data data.txt --topology zero:2 --steps 2 --seq 16 "
        "--quiet --medium shm --out run 2>&1",
        p->dir, p->program);
    char said[4096] = "", line[512];
    FILE *out = popen(command, "r");
    assert_non_null(out);
    while (fgets(line, sizeof line, out))
        if (strlen(said) + strlen(line) < sizeof said) strcat(said, line);
    int status = pclose(out);
    const char *first = strstr(said, "rank 0 is on host left and rank 1 on host right");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !first || strstr(first + 1, "rank 0 is on host"))
        fail_msg("status %d\n%s", status, said);
    free(command);
    free(shell);
}

int main(void) {
    const struct CMUnitTest launch[] = {cmocka_unit_test(told_how), cmocka_unit_test(told_nothing),
                                        cmocka_unit_test(told_once)};
    const struct CMUnitTest medium[] = {cmocka_unit_test(told_by_the_one_that_fails),
                                        cmocka_unit_test(one_medium_alone),
                                        cmocka_unit_test(the_users_own_choice), cmocka_unit_test(no_mpirun),
                                        cmocka_unit_test(two_hosts_share_no_memory)};
    int failed = cmocka_run_group_tests_name("launch as told", launch, open_batch, close_batch);
    return failed + cmocka_run_group_tests_name("medium", medium, job_setup, job_teardown);
}
