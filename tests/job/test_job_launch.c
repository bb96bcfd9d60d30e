// Launched as told: inside a batch script of Slurm, whose shell has a rank's variables and is none. Then what the
// ranks talk through (--medium).
#include <glob.h>
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

#include "shared/core/error.h"
#include "shared/report/run_file.h"
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

// Two ranks of a hand-written mpirun, the second with words of its own that end it before its first step.
static void second_is_told(const struct job_place *p, const char *own, const char *says) {
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
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 2 || !strstr(err, "rank 1: ") || !strstr(err, says))
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
    second_is_told(p, "--data nothing.txt", "nothing.txt");
    second_is_told(p, "--data short.txt", "fewer than --seq 16 + 1");
    second_is_told(p, "--data data.txt -c nothing.json", "nothing.json");
    second_is_told(p, "--data data.txt --resume nowhere", "nowhere");
}

// ---------------------------------------------------------------- what the ranks talk through
// What Open MPI says of its transports: which it took between two ranks.
static void only(const struct job_place *p, const char *medium, const char *takes, const char *never) {
    char how[64];
    snprintf(how, sizeof how, "--medium %s", medium);
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

// What the user tells Open MPI is kept where it says the same, and else refused by name.
static void the_users_own_choice(void **state) {
    setenv("OMPI_MCA_btl", "tcp,self", 1);
    refused(*state, "--medium shm", "OMPI_MCA_btl=self,");
    struct job_output o = run(*state, "zero:2", "--medium tcp");
    if (o.status) fail_msg("%s", o.err);
    job_output_free(&o);
    unsetenv("OMPI_MCA_btl");
    setenv("OMPI_MCA_pml", "cm", 1);
    refused(*state, "--medium tcp", "OMPI_MCA_pml=ob1");
    unsetenv("OMPI_MCA_pml");
}

static void no_mpirun(void **state) {
    char *path = xasprintf("%s", getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    struct job_output o = job_run(
        *state, "train --model gpt2.json --data data.txt --topology zero:2 --medium shm --seq 16 --out none");
    setenv("PATH", path, 1);
    free(path);
    if (!o.status || !strstr(o.err, "make deps") || !strstr(o.err, "--launch threads"))
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

// The session directories of an mpirun.
static int sessions(pid_t mpirun) {
    const char *base = getenv("TMPDIR");
    char *name = xasprintf("%s/ompi.*/pid.%d", base ? base : "/tmp", (int)mpirun);
    glob_t g = {0};
    int found = glob(name, GLOB_NOSORT, NULL, &g) ? 0 : (int)g.gl_pathc;
    globfree(&g);
    free(name);
    return found;
}

// Whether Open MPI has made the process a rank: its environment says so.
static bool is_rank(pid_t pid) {
    char path[32], text[65536];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    return memmem(text, n, "OMPI_COMM_WORLD_RANK=", 21) != NULL;
}

// What a rank shares must have no name while it runs: nobody could remove it after a SIGKILL.
static void assert_nameless(pid_t rank) {
    char path[32], line[512];
    int shared = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)rank);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (!strstr(line, "_segment.")) continue;
        shared++;
        if (!strstr(line, "(deleted)")) fail_msg("%s", line);
    }
    fclose(f);
    assert_int_equal(shared, 2);
}

// Gives what a rank shares its name back, as it is before all ranks have met; the name (malloc'd).
static char *as_in_the_beginning(pid_t rank) {
    char path[32], line[512], *name = NULL;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)rank);
    FILE *f = fopen(path, "r");
    while (f && !name && fgets(line, sizeof line, f))
        if (strstr(line, "/dev/shm/") && strstr(line, "_segment."))
            name = xasprintf("%.*s", (int)strcspn(strchr(line, '/'), " \n"), strchr(line, '/'));
    if (f) fclose(f);
    assert_non_null(name);
    f = fopen(name, "wx");
    assert_non_null(f);
    fclose(f);
    return name;
}

// SIGKILL of a rank, of mpirun, of all of them and the command: whoever is left ends, and no file or process stays.
static void nothing_is_left(void **state) {
    const struct job_place *p = *state;
    for (int which = 0; which < 3; which++) {
        pid_t pids[8];
        job_remove(p, "run");
        pid_t mpirun = 0, command = job_start(
                              p,
                              "train --model gpt2.json --data data.txt --topology zero:2 --workers 2 --steps "
                              "1000000 --seq 16 --batch 1 --threads 1 --quiet --medium shm --out %s/run",
                              p->dir);
        double until = now_seconds() + 60;
        while (job_lines(p, "run") < 2 && now_seconds() < until) usleep(20000);
        if (job_processes(p, "mpirun -n", pids, 8) > 0) mpirun = pids[0];
        int count = job_processes(p, "train", pids, 8);
        int ranks = 0;
        pid_t rank[8];
        char *segment = NULL;
        for (int i = 0; i < count; i++) {
            if (getpgid(pids[i]) < 0 || pids[i] == command) continue;
            if (sessions(mpirun) != 1) fail_msg("%d session directories", sessions(mpirun));
            if (!is_rank(pids[i])) continue;
            assert_nameless(pids[i]);
            if (!segment) segment = as_in_the_beginning(pids[i]);
            rank[ranks++] = pids[i];
        }
        assert_int_equal(ranks, 2);
        assert_true(mpirun > 0);
        // Not before all are known: behind the first death mpirun ends the other.
        for (int i = 0; i < ranks && which != 1; i++)
            if (which == 2 || i == 0) kill(rank[i], SIGKILL);
        if (which > 0) kill(mpirun, SIGKILL);
        if (which > 1) kill(command, SIGKILL);
        struct job_output o = job_wait(p, command, 60);
        assert_true(o.status != 0 && o.status != -1);
        job_output_free(&o);
        until = now_seconds() + 60;
        while ((job_processes(p, "train", pids, 8) || sessions(mpirun) || !access(segment, F_OK)) &&
               now_seconds() < until)
            usleep(20000);
        assert_int_equal(job_processes(p, "train", pids, 8), 0);
        assert_int_equal(sessions(mpirun), 0);
        int named = access(segment, F_OK) == 0;
        unlink(segment);
        assert_false(named);
        free(segment);
    }
}

int main(void) {
    const struct CMUnitTest launch[] = {cmocka_unit_test(told_how), cmocka_unit_test(told_nothing),
                                        cmocka_unit_test(told_once)};
    const struct CMUnitTest medium[] = {
        cmocka_unit_test(told_by_the_one_that_fails), cmocka_unit_test(one_medium_alone),
        cmocka_unit_test(the_users_own_choice),       cmocka_unit_test(no_mpirun),
        cmocka_unit_test(two_hosts_share_no_memory),  cmocka_unit_test(nothing_is_left)};
    int failed = cmocka_run_group_tests_name("launch as told", launch, open_batch, close_batch);
    return failed + cmocka_run_group_tests_name("medium", medium, job_setup, job_teardown);
}
