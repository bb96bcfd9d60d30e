// How often a step makes the host wait for its GPU, counted by the emulated driver: once. Runs of two lengths
// are compared, so that what comes before and behind the steps cancels.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define WORKERS 2
#define SHORT   2
#define LONG    5
#define UNITS   5  // of gpt2.json: embedding, three blocks, head

struct counts {
    unsigned long long waits, pageable;
};

static int open_place(void **state) {
    struct job_place *p = xcalloc(1, sizeof *p);
    *state = p;
    if (job_open_place(p)) return -1;
    if (job_emulate(p, WORKERS)) return 0;
    fprintf(stderr, "no emulated CUDA beside the program\n");
    return -1;
}

static int close_place(void **state) {
    job_close_place(*state);
    free(*state);
    return 0;
}

// Counted over all processes of the run.
static struct counts run(const struct job_place *p, const char *topology, int steps) {
    struct counts all = {0}, one;
    char *name = xasprintf("%s/counts", p->dir), *text = xasprintf("%d", steps);
    unlink(name);
    setenv("EMULATED_CUDA_COUNTS", name, 1);
    struct job_output out = job_run(
        p,
        "train --device cuda --model gpt2.json --data data.txt --dtype bf16 %s --steps %s --seq 16 --batch 1 "
        "--threads 1 --set gradient_clipping=0.5 --set gradient_accumulation_steps=2 --set eval_batches=0 "
        "--set memory.check=off --no-weights --quiet --out run --force",
        topology, text);
    unsetenv("EMULATED_CUDA_COUNTS");
    if (out.status) fail_msg("%s: status %d\n%s", topology, out.status, out.err);
    job_output_free(&out);
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    while (fscanf(f, "waits %llu pageable %llu\n", &one.waits, &one.pageable) == 2) {
        all.waits += one.waits;
        all.pageable += one.pageable;
    }
    fclose(f);
    free(name);
    free(text);
    assert_true(all.waits > 0);
    return all;
}

// waits: of one worker's step, on whatever thread.
static void check(const struct job_place *p, const char *topology, int workers, unsigned waits) {
    struct counts few = run(p, topology, SHORT), many = run(p, topology, LONG);
    unsigned long long steps = (unsigned long long)(LONG - SHORT) * (unsigned long long)workers;
    if (many.waits - few.waits != steps * waits)
        fail_msg("%s: %llu waits in %llu steps, not %u in each", topology, many.waits - few.waits, steps,
                 waits);
    if (many.pageable != few.pageable)
        fail_msg("%s: %llu copies from pageable memory in %llu steps", topology, many.pageable - few.pageable,
                 steps);
}

static void local(void **state) { check(*state, "--topology local", 1, 1); }

static void rings(void **state) {
    check(*state, "--topology zero:1 --workers 2 --collective nccl", WORKERS, 1);
    check(*state, "--topology zero:3 --workers 2 --collective local", WORKERS, 1);
}

// After the copy of each unit's gradient the push stream's own thread waits, which hands it to the wire.
static void stars(void **state) {
    check(*state, "--topology ps:sync --workers 2 --servers 1", WORKERS, 1 + UNITS);
    check(*state, "--topology ps:async --workers 2 --servers 1", WORKERS, 1 + UNITS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local),
        cmocka_unit_test(rings),
        cmocka_unit_test(stars),
    };
    return cmocka_run_group_tests(tests, open_place, close_place);
}
