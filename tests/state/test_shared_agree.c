// Ranks compare what they are: threads whose sum is a table with a barrier before and behind it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "shared/core/error.h"
#include "shared/core/topology.h"
#include "shared/state/identity.h"

#define RANKS 4

static pthread_barrier_t barrier;
static double table[RANKS][1024];
static int sums;  // that rank 0 has made

static int sum(struct topology *t, double *values, int count) {
    assert_true(count <= 1024);
    memcpy(table[t->rank], values, (size_t)count * sizeof *values);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < count; i++) {
        values[i] = 0;
        for (int r = 0; r < t->size; r++) values[i] += table[r][i];
    }
    sums += t->rank == 0;
    pthread_barrier_wait(&barrier);
    return 0;
}

struct rank {
    int number, rc;
    struct identity *identity;
    char error[512];
};

static void *run(void *of) {
    static const struct topology_ops ops = {.sum = sum};
    struct rank *r = of;
    struct topology t = {.ops = &ops, .rank = r->number, .size = RANKS};
    error_clear();
    error_quiet(1);
    r->rc = identity_agree(&t, r->identity);
    snprintf(r->error, sizeof r->error, "%s", error_last());
    return NULL;
}

static struct identity *standard(void) {
    return identity_parse(
        "{\"program\": \"starring 9\", \"data\": \"17 tokens, xxh64 aa\", \"steps\": \"7\", \"seed\": \"1\", "
        "\"cuda.bias_grad\": \"kernel\", \"optimizer.params.lr\": \"0.0003\", \"device\": \"cpu\", \"note\": \"\xc3\xa4\xff\"}");
}

static void run_all(struct rank ranks[RANKS]) {
    pthread_t threads[RANKS];
    sums = 0;
    for (int r = 0; r < RANKS; r++) pthread_create(&threads[r], NULL, run, &ranks[r]);
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
}

struct change {
    const char *key, *value;
    int ranks;  // bits
};

// Every rank's values, and how many sums that took.
static void check(const struct change *changes, int count, const char *expected[RANKS], int most_sums) {
    struct rank ranks[RANKS] = {{0}};
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.number = r, .identity = standard()};
        for (int i = 0; i < count; i++)
            if (changes[i].ranks >> r & 1) identity_put(ranks[r].identity, changes[i].key, changes[i].value);
    }
    run_all(ranks);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].rc, expected ? -1 : 0);
        assert_string_equal(ranks[r].error, expected ? expected[r] : "");
        identity_destroy(&ranks[r].identity);
    }
    assert_true(sums <= most_sums);
}

static void test_equal_ranks(void **state) {
    (void)state;
    check(NULL, 0, NULL, 1);
    // Not of one run's business: a device, a key of the configuration that nobody compares.
    check((struct change[]){{"device", "cuda", 4}, {"out", "elsewhere", 2}}, 2, NULL, 1);
}

static void test_one_differs(void **state) {
    (void)state;
#define WORDS "worker 2 has optimizer.params.lr = 0.001, worker 0 has 0.0003: use one configuration"
    check((struct change[]){{"optimizer.params.lr", "0.001", 4}}, 1,
          (const char *[]){WORDS, WORDS, WORDS, WORDS}, 9);
#undef WORDS
}

static void test_several_differ(void **state) {
    (void)state;
#define WORDS "worker 1 has steps = 9, worker 0 has 7: use one configuration (and 2 more workers differ)"
    const char *expected[RANKS] = {
        WORDS, "worker 1 has steps = 9, worker 0 has 7: use one configuration",
        "worker 2 has seed = 2, worker 0 has 1: use one configuration",
        "worker 3 has program = starring 10, worker 0 has starring 9: install one version of starring for all of them"};
    check((struct change[]){{"steps", "9", 2}, {"seed", "2", 4}, {"program", "starring 10", 8}}, 3, expected,
          9);
#undef WORDS
}

// It is rank 0 that is alone: each of the others differs from it.
static void test_the_first_differs(void **state) {
    (void)state;
    const char *expected[RANKS] = {
        "worker 1 has seed = 1, worker 0 has 5: use one configuration (and 2 more workers differ)",
        "worker 1 has seed = 1, worker 0 has 5: use one configuration",
        "worker 2 has seed = 1, worker 0 has 5: use one configuration",
        "worker 3 has seed = 1, worker 0 has 5: use one configuration"};
    check((struct change[]){{"seed", "5", 1}}, 1, expected, 9);
}

static void test_kernels_and_data(void **state) {
    (void)state;
#define KERNEL "worker 3 has cuda.bias_grad = epilogue, worker 0 has kernel: use one configuration"
#define DATA                                                                                           \
    "worker 1 has data = 17 tokens, xxh64 ab, worker 0 has 17 tokens, xxh64 aa: give all of them the " \
    "same files (data.path, data.val_path, data.val_fraction)"
    check((struct change[]){{"cuda.bias_grad", "epilogue", 8}}, 1,
          (const char *[]){KERNEL, KERNEL, KERNEL, KERNEL}, 9);
    check((struct change[]){{"data", "17 tokens, xxh64 ab", 2}}, 1, (const char *[]){DATA, DATA, DATA, DATA},
          9);
}

// A GPU's choices are known to GPUs alone: workers on a CPU beside them are no difference.
static void test_mixed_devices(void **state) {
    (void)state;
    check((struct change[]){{"cuda.gelu", "fused", 4}}, 1, NULL, 9);
}

// A value that a checkpoint of an earlier version does not have, or has in other words, moves no bit for that.
static void test_other_words(void **state) {
    (void)state;
    static const struct {
        const char *was, *is, *key;  // key: NULL, no bit moves
    } cases[] = {
        {"{}",
         "{\"parameter_server.compression\": \"none\", \"parameter_server.compression_share\": \"0.01\"}",
         NULL},
        {"{}", "{\"parameter_server.compression\": \"int8\"}", "parameter_server.compression"},
        {"{\"dtype\": \"fp32\", \"data_types.grad_accum_dtype\": \"auto\"}",
         "{\"dtype\": \"fp32\", \"data_types.grad_accum_dtype\": \"fp32\"}", NULL},
        {"{\"dtype\": \"bf16\", \"data_types.grad_accum_dtype\": \"auto\"}",
         "{\"dtype\": \"bf16\", \"data_types.grad_accum_dtype\": \"bf16\"}", NULL},
        {"{\"dtype\": \"bf16\"}", "{\"dtype\": \"bf16\", \"data_types.grad_accum_dtype\": \"fp32\"}",
         "data_types.grad_accum_dtype"},
        {"{\"workers\": \"4\", \"reduce_group\": \"none\"}", "{\"workers\": \"4\", \"reduce_group\": \"4\"}",
         NULL},
        {"{\"workers\": \"4\", \"reduce_group\": \"none\"}", "{\"workers\": \"4\", \"reduce_group\": \"1\"}",
         NULL},
        {"{\"workers\": \"4\", \"reduce_group\": \"none\"}", "{\"workers\": \"4\", \"reduce_group\": \"2\"}",
         "reduce_group"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct identity *was = identity_parse(cases[i].was), *is = identity_parse(cases[i].is);
        char *bits = identity_difference((struct identity_side){"it", was},
                                         (struct identity_side){"the other", is}, IDENTITY_BITS);
        if (!bits != !cases[i].key || (bits && !strstr(bits, cases[i].key)))
            fail_msg("%s and %s: %s", cases[i].was, cases[i].is, bits ? bits : "equal");
        free(bits);
        identity_destroy(&was);
        identity_destroy(&is);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_ranks),      cmocka_unit_test(test_one_differs),
        cmocka_unit_test(test_several_differ),   cmocka_unit_test(test_the_first_differs),
        cmocka_unit_test(test_kernels_and_data), cmocka_unit_test(test_mixed_devices),
        cmocka_unit_test(test_other_words),
    };
    pthread_barrier_init(&barrier, NULL, RANKS);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    pthread_barrier_destroy(&barrier);
    return rc;
}
