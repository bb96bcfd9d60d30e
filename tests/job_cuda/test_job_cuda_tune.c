// starring bench tune on the emulated device, whose cuBLASLt (tests/emulation/driver/blas.c) names five algorithms
// for each product: the first, one that does not repeat, the fast one, which adds in another order, one that
// is wrong and one that does not run. Which one a run takes shows in its weights.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define SHAPE "--model gpt2.json --batch 1 --seq 8 --dtype fp32 --set gradient_accumulation_steps=2"
#define TUNE  "bench tune --rounds 3 " SHAPE
#define TRAIN                                                                                                \
    "train --data data.txt --device cuda --steps 3 --lr 0.01 --threads 1 --set eval_batches=0 --no-weights " \
    "--quiet "
#define RUN "--out run --force "

#define TABLE "--set cuda.products=table.json "
#define ONCE  "--set gradient_accumulation_steps=1 "

#define FAST_RANK 3
#define NAMED     5

static void expect(struct job_output *o, int status, const char *says) {
    if (o->status != status || !strstr(o->err, says))
        fail_msg("status %d, not %d with \"%s\":\n%s", o->status, status, says, o->err);
    job_output_free(o);
}

static struct job_output run_tune(const struct job_place *p, const char *options) {
    setenv("EMULATED_CUBLASLT_TIMES", "1", 1);
    struct job_output o = job_run(p, TUNE " %s", options);
    unsetenv("EMULATED_CUBLASLT_TIMES");
    return o;
}

// What a measurement printed; the caller deletes it.
static cJSON *tune(const struct job_place *p, const char *options) {
    char *all = xasprintf("--json %s", options);
    struct job_output o = run_tune(p, all);
    free(all);
    cJSON *j = cJSON_Parse(o.out);
    if (o.status || !j) fail_msg("bench tune %s: status %d\n%s%s", options, o.status, o.out, o.err);
    job_output_free(&o);
    return j;
}

struct outcome {
    char hash[20];
    int shapes, chosen, unknown, refused, ignored;
    bool table;  // the summary names one
};

static struct outcome train(const struct job_place *p, const char *options, const char *says) {
    struct outcome r = {0};
    struct job_output o = job_run(p, TRAIN RUN SHAPE " %s", options);
    expect(&o, 0, says);
    cJSON *s = job_summary(p, "run");
    const cJSON *products = job_item(s, "products");
    snprintf(r.hash, sizeof r.hash, "%s", job_item(s, "weights_hash")->valuestring);
    r.shapes = (int)job_number(products, "shapes");
    r.chosen = (int)job_number(products, "chosen");
    r.unknown = (int)job_number(products, "unknown");
    r.refused = (int)job_number(products, "refused");
    r.ignored = (int)job_number(products, "ignored");
    r.table = cJSON_IsString(job_item(products, "file"));
    assert_true(r.table || cJSON_IsNull(job_item(products, "hash")));
    cJSON_Delete(s);
    return r;
}

static bool differ(const struct outcome *a, const struct outcome *b) { return strcmp(a->hash, b->hash) != 0; }

// ---------------------------------------------------------------- measuring

// Of each product the fast one is chosen, and where the product accumulates (it is no faster there) the
// first.
static void check_choices(const struct job_place *p, const char *options, int added, int fused) {
    cJSON *j = tune(p, options);
    const cJSON *row;
    double saved = 0;
    int adding = 0, gelu = 0;
    cJSON_ArrayForEach(row, job_item(j, "products")) {
        bool adds = cJSON_IsTrue(job_item(row, "accumulate"));
        adding += adds;
        gelu += strcmp(job_item(row, "epilogue")->valuestring, "none") != 0;
        assert_int_equal(job_number(row, "candidates"), NAMED);
        assert_int_equal(job_number(row, "rank"), adds ? 1 : FAST_RANK);
        assert_int_equal(job_number(row, "not_repeating"), 1);
        assert_int_equal(job_number(row, "wrong"), 1);
        assert_int_equal(job_number(row, "not_usable"), 1);
        assert_true(job_number(row, "operand_sets") >= 1);
        assert_true((job_number(row, "best_seconds") < job_number(row, "first_seconds")) == !adds);
        assert_string_not_equal(job_item(row, "purpose")->valuestring, "-");
        saved += job_number(row, "uses_per_step") *
                 (job_number(row, "first_seconds") - job_number(row, "best_seconds"));
    }
    // Three layers and two micro-batches; weight gradients of the second are added to those of the first, in fp32 by these
    // products themselves.
    row = cJSON_GetArrayItem(job_item(j, "products"), 0);
    assert_string_equal(job_item(row, "purpose")->valuestring, "qkv, forward");
    assert_int_equal(job_number(row, "uses_per_step"), 6);
    if (adding != added || gelu != fused) fail_msg("%s: %d that add, %d with GELU", options, adding, gelu);
    assert_true(job_number(j, "saved_seconds_per_step") > 1);
    assert_float_equal(job_number(j, "saved_seconds_per_step"), saved, 1e-6);
    assert_int_equal(job_number(j, "kept"), 0);
    cJSON_Delete(j);
}

static void what_is_fast_and_repeats_is_chosen(void **state) {
    const struct job_place *p = *state;
    check_choices(p, "--out table.json", 5, 0);
    check_choices(p, "--out bf16.json --dtype bf16", 0, 2);  // added in fp32; with GELU in their epilogues
    // For people; into the same file, whose entries are measured again.
    struct job_output o = run_tune(p, "--out table.json");
    if (o.status || !strstr(o.out, "mlp up, forward ") || !strstr(o.out, "written to table.json\n") ||
        !strstr(o.out, "matrix products of a step: "))
        fail_msg("status %d\n%s%s", o.status, o.out, o.err);
    job_output_free(&o);
}

// A first heuristic that does not repeat is not taken, however fast.
static void a_first_that_does_not_repeat_is_replaced(void **state) {
    setenv("EMULATED_CUBLASLT_FIRST", "1", 1);
    cJSON *j = tune(*state, "--out circle.json");
    unsetenv("EMULATED_CUBLASLT_FIRST");
    const cJSON *row;
    cJSON_ArrayForEach(row, job_item(j, "products")) {
        assert_int_equal(job_number(row, "not_repeating"), 1);
        assert_true(job_number(row, "best_seconds") > job_number(row, "first_seconds"));
        assert_int_equal(job_number(row, "rank"), 2);
    }
    cJSON_Delete(j);
}

static void wrong_questions_are_errors(void **state) {
    const struct job_place *p = *state;
    struct job_output o = job_run(p, TUNE " --device cpu");
    expect(&o, EXIT_USAGE, "bench tune: --device cpu: the algorithms are cuBLASLt's");
    o = job_run(p, TUNE " --set cuda.products=table.json");
    expect(&o, EXIT_USAGE, "--out FILE is where they go");
    o = job_run(p, TUNE " --topology zero:2 --workers 2");
    expect(&o, EXIT_USAGE, "topology");
    o = job_run(p, TUNE " --out gpt2.json");
    expect(&o, EXIT_USAGE, "gpt2.json: no table of products");
    o = job_run(p, TUNE " --out gpt2.json");
    expect(&o, EXIT_USAGE, "gpt2.json is there, and no table to add to: remove it, or name another file");
    o = job_run(p, TUNE " --out nowhere/table.json");
    expect(&o, EXIT_USAGE, "nowhere/table.json: cannot write");
    setenv("EMULATED_CUDA_DEVICES", "0", 1);
    o = job_run(p, TUNE " --out none.json");
    setenv("EMULATED_CUDA_DEVICES", "1", 1);
    expect(&o, EXIT_USAGE, "--device cuda: the NVIDIA driver sees no GPU");
    o = job_run(p, "bench tune --help");
    if (o.status || !strstr(o.out, "--out FILE") || !strstr(o.out, "cuda.products"))
        fail_msg("status %d\n%s", o.status, o.out);
    job_output_free(&o);
}

// ---------------------------------------------------------------- runs

static void runs_take_the_table(void **state) {
    const struct job_place *p = *state;
    struct outcome first = train(p, "", ""), table, again, other, ring, star;
    assert_true(!first.table && first.shapes > 15 && first.unknown == first.shapes);
    table = train(p, TABLE, "algorithms chosen by measurement");
    assert_true(table.table && table.chosen == table.shapes && table.unknown + table.refused == 0);
    assert_true(differ(&first, &table));
    again = train(p, TABLE, "products: table.json");
    assert_false(differ(&table, &again));
    again = train(p, "--set cuda.products=none", "");
    assert_true(!again.table && !differ(&first, &again));
    // Other shapes than those measured are counted as such.
    other = train(p, TABLE " --seq 7", "");
    assert_true(other.table && other.shapes > 15 && other.unknown == other.shapes);
    // Equal bits in all topologies.
    ring = train(p, TABLE ONCE "--topology zero:2 --workers 2", "");
    star = train(p, TABLE ONCE "--topology ps:sync --workers 2", "");
    assert_true(!differ(&ring, &star) && ring.chosen == ring.shapes && star.chosen == star.shapes);
    ring = train(p, ONCE "--topology zero:2 --workers 2", "");
    assert_true(differ(&ring, &star));
}

static void bench_step_says_which(void **state) {
    struct job_output o = job_run(*state, "bench step --steps 1 --matmul 16 --device cuda --json " SHAPE
                                          " --set cuda.products=table.json");
    cJSON *j = cJSON_Parse(o.out);
    if (o.status || !j) fail_msg("status %d\n%s", o.status, o.err);
    const cJSON *products = job_item(j, "products");
    assert_string_equal(job_item(products, "file")->valuestring, "table.json");
    assert_int_equal(job_number(products, "unknown"), 1);  // the yardstick
    assert_int_equal(job_number(products, "chosen"), job_number(products, "shapes") - 1);
    cJSON_Delete(j);
    job_output_free(&o);
}

// Found beside the program, where a measurement without --out has left it.
static void a_table_beside_the_program_is_found(void **state) {
    struct job_place p = *(const struct job_place *)*state;
    struct outcome first = train(&p, "", ""), given = train(&p, TABLE, ""), found;
    char *copy = xasprintf("%s/starring", p.dir), *command = xasprintf("cp '%s' '%s'", p.program, copy);
    assert_int_equal(system(command), 0);
    p.program = copy;
    cJSON *j = tune(&p, "");
    assert_non_null(strstr(job_item(j, "file")->valuestring, "/starring-products.json"));
    cJSON_Delete(j);
    found = train(&p, "", "/starring-products.json, ");
    assert_true(found.table && !differ(&found, &given));
    found = train(&p, "--set cuda.products=none", "");
    assert_true(!found.table && !differ(&found, &first));
    free(copy);
    free(command);
}

// ---------------------------------------------------------------- tables that do not fit

static void other_versions_are_ignored_aloud(void **state) {
    const struct job_place *p = *state;
    struct outcome first = train(p, "", ""), other;
    setenv("EMULATED_CUBLASLT_VERSION", "130001", 1);
    other = train(p, TABLE, "are of others and ignored");
    assert_true(other.table && other.chosen == 0 && other.ignored >= other.shapes && !differ(&first, &other));
    // A file has room for both.
    cJSON *j = tune(p, "--out table.json");
    assert_int_equal(job_number(j, "kept"), other.ignored);
    cJSON_Delete(j);
    unsetenv("EMULATED_CUBLASLT_VERSION");
    other = train(p, TABLE, "of other devices or versions of cuBLASLt and ignored");
    assert_true(other.chosen == other.shapes && other.ignored >= other.shapes);
}

static void refused_algorithms_are_said(void **state) {
    const struct job_place *p = *state;
    struct outcome first = train(p, "", ""), refused;
    setenv("EMULATED_CUBLASLT_REFUSES", "1", 1);
    refused =
        train(p, TABLE,
              "the algorithm that was chosen for it is refused (CUBLAS_STATUS_NOT_SUPPORTED); the library's "
              "first one instead");
    unsetenv("EMULATED_CUBLASLT_REFUSES");
    assert_true(refused.refused > 0 && refused.refused + refused.chosen == refused.shapes);
    assert_false(differ(&first, &refused));
}

static void broken_tables_are_refused(void **state) {
    const struct job_place *p = *state;
    static const char *const options[] = {"", "--topology zero:2 --workers 2",
                                          "--topology ps:sync --workers 2"};
    char *command = xasprintf("cd '%s' && head -c 3000 table.json > cut.json", p->dir);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < 3; i++) {
        struct job_output o =
            job_run(p, TRAIN SHAPE " --set cuda.products=cut.json --out broken %s", options[i]);
        expect(&o, EXIT_USAGE,
               "cuda.products: cut.json cannot be used: measure one with `starring bench tune`, or run "
               "without it (--set cuda.products=none)");
    }
    struct job_output o = job_run(p, TRAIN SHAPE " --set cuda.products=absent.json --out broken");
    expect(&o, EXIT_USAGE, "cuda.products: absent.json cannot be used");
    o = job_run(p, "bench step --steps 1 --device cuda " SHAPE " --set cuda.products=cut.json");
    expect(&o, EXIT_USAGE, "cut.json:");
    o = job_run(p, TRAIN RUN SHAPE " --device cpu --set cuda.products=cut.json");
    expect(&o, 0, "cuda.products cut.json: this run computes on device cpu");
    free(command);
}

// As on two machines with another library each: the same file, other algorithms.
static void workers_with_other_choices_are_refused(void **state) {
    const struct job_place *p = *state;
    static const char star[] =
        "--model gpt2.json --data data.txt --topology ps:sync --workers 2 --servers 1 --seq 8 --batch 1 "
        "--steps 2 "
        "--dtype bf16 --device cuda --threads 1 --set eval_batches=0 --set cuda.products=table.json";
    char *address = NULL;
    pid_t scheduler = job_start(p, "scheduler %s", star), worker[2];
    for (double until = now_seconds() + 20; !address && now_seconds() < until; usleep(5000)) {
        char *err = job_printed(p, scheduler, "stderr"), *at = strstr(err, "tcp://");
        if (at && strchr(at, '\n')) {
            at[strcspn(at, " \n")] = 0;
            address = xstrdup(at);
        }
        free(err);
    }
    assert_non_null(address);
    pid_t server = job_start(p, "server %s --scheduler %s", star, address);
    for (int i = 0; i < 2; i++) {
        if (i == 1) setenv("EMULATED_CUBLASLT_VERSION", "129999", 1);
        worker[i] = job_start(p, "worker %s --no-weights --rank %d --scheduler %s", star, i, address);
    }
    unsetenv("EMULATED_CUBLASLT_VERSION");
    for (int i = 0; i < 2; i++) {
        struct job_output o = job_wait(p, worker[i], 60);
        expect(&o, 1, "workers choose the algorithms of their matrix products differently: worker ");
    }
    struct job_output o = job_wait(p, server, 60);
    job_output_free(&o);
    o = job_wait(p, scheduler, 60);
    job_output_free(&o);
    free(address);
}

static int open_emulated(void **state) { return job_setup(state) || !job_emulate(*state, 1) ? -1 : 0; }

int main(void) {
    // In this order: the first leaves table.json to the others.
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_fast_and_repeats_is_chosen),
        cmocka_unit_test(a_first_that_does_not_repeat_is_replaced),
        cmocka_unit_test(wrong_questions_are_errors),
        cmocka_unit_test(runs_take_the_table),
        cmocka_unit_test(bench_step_says_which),
        cmocka_unit_test(a_table_beside_the_program_is_found),
        cmocka_unit_test(refused_algorithms_are_said),
        cmocka_unit_test(broken_tables_are_refused),
        cmocka_unit_test(workers_with_other_choices_are_refused),
        cmocka_unit_test(other_versions_are_ignored_aloud),
    };
    return cmocka_run_group_tests_name("job: products chosen by measurement", tests, open_emulated,
                                       job_teardown);
}
