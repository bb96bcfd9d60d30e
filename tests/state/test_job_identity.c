// Programs that were started with different configurations say so before the first step: the roles of a star by hand, the
// ranks of MPI.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define COMMON \
    "--model gpt2.json --workers 2 --steps 2 --seq 16 --batch 2 --threads 1 --set eval_batches=none"
#define STAR COMMON " --topology ps:sync --servers 1"

// The line of what the scheduler says that holds the text (malloc'd).
static char *await(const struct job_place *p, pid_t scheduler, const char *text) {
    double until = now_seconds() + 60;
    for (;;) {
        char *err = job_printed(p, scheduler, "stderr"), *at = strstr(err, text);
        char *line = at && strchr(at, '\n') ? xasprintf("%.*s", (int)strcspn(at, "\n"), at) : NULL;
        free(err);
        if (line) return line;
        if (now_seconds() > until) fail_msg("the scheduler does not say \"%s\"", text);
        usleep(5000);
    }
}

static void expect(const struct job_place *p, pid_t pid, int status, const char *text) {
    struct job_output o = job_wait(p, pid, 60);
    if (o.status != status || (text && !strstr(o.err, text)))
        fail_msg("status %d, expected %d and \"%s\":\n%s", o.status, status, text ? text : "", o.err);
    job_output_free(&o);
}

static void put_text(const struct job_place *p, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", p->dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 400; i++) fputs(text, f);
    fclose(f);
    free(path);
}

// A refused member ends at once; the others continue to wait.
static void roles_by_hand(void **state) {
    const struct job_place *p = *state;
    put_text(p, "here.txt", "the star and the ring ");
    put_text(p, "there.txt", "the ring and the star ");
    pid_t scheduler = job_start(p, "scheduler " STAR);
    char *address = await(p, scheduler, "tcp://");
    pid_t lr = job_start(
        p,
        "worker " STAR " --data here.txt --no-weights --rank 1 --set optimizer.params.lr=0.5 --scheduler %s",
        address);
    expect(p, lr, 1,
           "worker 1 has optimizer.params.lr = 0.5, the scheduler has 0.001: use one configuration");
    pid_t server = job_start(p, "server " STAR " --rank 0 --servers 2 --scheduler %s", address);
    expect(p, server, 1, "was told that there are 2 workers, 2 servers, the scheduler at ");
    pid_t first =
        job_start(p, "worker " STAR " --data here.txt --no-weights --rank 0 --scheduler %s", address);
    free(await(p, scheduler, "waiting for 1 of 2 workers"));
    pid_t other =
        job_start(p, "worker " STAR " --data there.txt --no-weights --rank 1 --scheduler %s", address);
    expect(p, other, 1, "worker 1 has data = ");
    kill(scheduler, SIGTERM);
    expect(p, first, 1, "the scheduler was interrupted");
    expect(p, scheduler, 128 + SIGTERM, NULL);
    free(address);
}

static void mpi(const struct job_place *p, const char *first, const char *second, int status,
                const char *text) {
    char *line = xasprintf("%s/mpi.sh", p->dir);
    FILE *f = fopen(line, "w");
    assert_non_null(f);
    fprintf(f,
            "cd %s; exec mpirun --oversubscribe --bind-to none -n 1 %s train " COMMON
            " --topology zero:2 --no-weights --force --quiet --out %s/run %s : -n 1 %s train " COMMON
            " --topology zero:2 --no-weights --force --quiet --out %s/run %s 2>&1",
            p->dir, p->program, p->dir, first, p->program, p->dir, second);
    fclose(f);
    char *command =
             xasprintf("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 sh %s", line),
         said[16384];
    FILE *from = popen(command, "r");
    assert_non_null(from);
    said[fread(said, 1, sizeof said - 1, from)] = 0;
    int left = pclose(from);
    if ((left != 0) != status || (text && !strstr(said, text)))
        fail_msg("%d, expected \"%s\":\n%s", left, text ? text : "", said);
    free(command);
    free(line);
}

// Other configurations, another working directory in which the same path is another file, and the same file elsewhere.
static void ranks_of_mpi(void **state) {
    const struct job_place *p = *state;
    if (system("command -v mpirun > /dev/null")) skip();
    char *copy = xasprintf("%s/copy", p->dir);
    assert_int_equal(mkdir(copy, 0700), 0);
    put_text(p, "same.txt", "the star and the ring ");
    put_text(p, "copy/same.txt", "the star and the ring ");
    put_text(p, "copy/other.txt", "the ring and the star ");
    put_text(p, "other.txt", "the star and the ring ");
    mpi(p, "--data same.txt", "--data same.txt --set gradient_clipping=0.5 --seed 4", 1,
        " has seed = 4, rank 0 has 1; rank 1 on ");
    mpi(p, "--data other.txt", "--data copy/other.txt", 1, " has data = ");
    mpi(p, "--data same.txt", "--data copy/same.txt", 0, NULL);
    free(copy);
}

// Ranks that are told of two checkpoints of one step, written by two runs of the same configuration, and rank 0 that is told of
// none. A rank that is told of none takes rank 0's.
static void other_checkpoints(void **state) {
    const struct job_place *p = *state;
    if (system("command -v mpirun > /dev/null")) skip();
    for (int i = 1; i <= 2; i++) {
        struct job_output o =
            job_run(p,
                    "train --model gpt2.json --data data.txt --topology %s --steps 1 --seq 16 --batch %d "
                    "--threads 1 --set eval_batches=none --no-weights --quiet --out from%d "
                    "--checkpoint-every 1",
                    i == 1 ? "local" : "zero:1 --workers 2", 4 / i, i);
        if (o.status) fail_msg("%s", o.err);
        job_output_free(&o);
    }
    mpi(p, "--data data.txt --resume from1", "--data data.txt --resume from2", 1,
        "rank 1 has --resume from2, rank 0 has --resume from1: give all ranks the same option");
    mpi(p, "--data data.txt", "--data data.txt --resume from1", 1,
        "rank 1 has --resume from1, rank 0 has none: give all ranks the same option");
    mpi(p, "--data data.txt --resume from1", "--data data.txt", 0, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(roles_by_hand, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(ranks_of_mpi, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(other_checkpoints, job_setup, job_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
