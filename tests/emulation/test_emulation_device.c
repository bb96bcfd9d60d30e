// The emulated device itself: what it must compute, and the faults that it must find. Kernels with a
// fault each are in toys.cc.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/emulation/gpu/emulation.h"
#include "tests/emulation/toys.h"

#define KT_OPS emu_ops
#include "tests/kernels/kernel_test.h"

#define N      (8 * TOY_BLOCK)
#define ORDERS 9

// The text of the failure that toy must end in, in each order of threads.
static void assert_fails_with(enum toy toy, const char *text) {
    float in[N] = {0}, out[N];
    for (int order = 1; order <= ORDERS; order++) {
        const char *why = "";
        emu_set_order(order);
        assert_int_equal(toy_run(toy, out, in, N, &why), -1);
        if (!strstr(why, text)) fail_msg("order %d: \"%s\" does not say \"%s\"", order, why, text);
    }
}

static void barriers_and_shared_memory_work(void **state) {
    (void)state;
    static const enum toy toys[] = {TOY_REVERSE, TOY_REVERSE_DYNAMIC};
    float *in = kt_random(DT_F32, N, 1, 1.0f), *out = kt_poisoned(DT_F32, N);
    const char *why = "";
    for (int t = 0; t < 2; t++)
        for (int order = 1; order <= ORDERS; order++) {
            memset(out, 0xff, N * sizeof *out);
            emu_set_order(order);
            assert_int_equal(toy_run(toys[t], out, in, N, &why), 0);
            for (int i = 0; i < N; i++)
                assert_true(out[i] == in[i / TOY_BLOCK * TOY_BLOCK + TOY_BLOCK - 1 - i % TOY_BLOCK]);
        }
    KT_FREE(in, out);
}

static void shuffles_and_ballots_work(void **state) {
    (void)state;
    float in[TOY_BLOCK], out[TOY_BLOCK];
    const char *why = "";
    for (int i = 0; i < TOY_BLOCK; i++) in[i] = (float)(i % 32 - 3);
    for (int order = 1; order <= ORDERS; order++) {
        emu_set_order(order);
        assert_int_equal(toy_run(TOY_WARP_SUMS, out, in, TOY_BLOCK, &why), 0);
        for (int i = 0; i < TOY_BLOCK; i++) assert_true(out[i] == 400.0f + 1000.0f * 28.0f);
    }
}

// Half of the threads read before the others have written: poison in every order, so no order passes.
static void a_missing_barrier_is_caught(void **state) {
    (void)state;
    float *in = kt_random(DT_F32, N, 1, 1.0f), *out = kt_poisoned(DT_F32, N);
    const char *why = "";
    for (int order = 1; order <= ORDERS; order++) {
        int wrong = 0;
        emu_set_order(order);
        assert_int_equal(toy_run(TOY_REVERSE_WITHOUT_BARRIER, out, in, N, &why), 0);
        for (int i = 0; i < N; i++) wrong += isnan(out[i]);
        assert_int_equal(wrong, N / 2);
    }
    KT_FREE(in, out);
}

// The warp that runs ahead overwrites what the other has yet to read, whichever goes first.
static void a_missing_barrier_before_overwriting_is_caught(void **state) {
    (void)state;
    float *in = kt_random(DT_F32, N, 1, 1.0f), *out = kt_poisoned(DT_F32, N);
    const char *why = "";
    for (int order = 1; order <= ORDERS; order++) {
        int wrong = 0;
        emu_set_order(order);
        assert_int_equal(toy_run(TOY_REVERSE_TWICE, out, in, N, &why), 0);
        for (int i = 0; i < N; i++) wrong += out[i] == 0.0f;
        assert_int_equal(wrong, N / 2);
    }
    KT_FREE(in, out);
}

static void divergence_is_reported(void **state) {
    (void)state;
    assert_fails_with(TOY_BARRIER_FOR_SOME, "toys.cc line");
    assert_fails_with(TOY_BARRIER_FOR_SOME, "threads diverge");
    assert_fails_with(TOY_LEAVES_EARLY, "thread 63 has left");
    assert_fails_with(TOY_SHUFFLE_FOR_SOME, "is at a warp exchange");
    assert_fails_with(TOY_SHUFFLE_OF_SOME, "part of a warp");
    barriers_and_shared_memory_work(state);  // a failed launch leaves nothing behind
}

// A cluster's blocks meet and read each other; what would race or hang on a GPU is named.
static void clusters_work(void **state) {
    float *in = kt_random(DT_F32, N, 1, 1.0f), *out = kt_poisoned(DT_F32, N);
    const int all = TOY_BLOCK * TOY_CLUSTER_BLOCKS;
    const char *why = "";
    for (int order = 1; order <= ORDERS; order++) {
        int unwritten = 0;
        emu_set_order(order);
        memset(out, 0xff, N * sizeof *out);
        assert_int_equal(toy_run(TOY_CLUSTER, out, in, N, &why), 0);
        for (int i = 0; i < N; i++) {
            float want = 0.0f;
            for (int b = 0; b < TOY_CLUSTER_BLOCKS; b++) want += in[i / all * all + b * TOY_BLOCK];
            assert_true(out[i] == want);
        }
        why = "";
        bool refused = toy_run(TOY_CLUSTER_WITHOUT_BARRIER, out, in, N, &why) != 0;
        for (int i = 0; !refused && i < N; i++) unwritten += isnan(out[i]);
        assert_true(refused ? strstr(why, "not there") != NULL : unwritten > 0);
    }
    assert_fails_with(TOY_CLUSTER_LEAVES, "not there (any more)");
    assert_fails_with(TOY_CLUSTER_TWICE, "arrives again");
    assert_int_equal(toy_run(TOY_CLUSTER, out, in, 6 * TOY_BLOCK, &why), -1);
    assert_non_null(strstr(why, "clusters of 1 to 8"));
    barriers_and_shared_memory_work(state);
    KT_FREE(in, out);
}

static void limits_are_kept(void **state) {
    (void)state;
    assert_fails_with(TOY_TOO_MANY_THREADS, "1024 threads");
    assert_fails_with(TOY_TOO_MUCH_SHARED, "shared memory");
}

// A sum that depends on the order of blocks shows; ours (the backward of a bias) do not depend on it.
static void results_do_not_depend_on_the_order_of_blocks(void **state) {
    (void)state;
    float in[N] = {0}, first = 0.0f;
    const char *why = "";
    int different = 0;
    in[0] = 1e8f;
    for (int i = 1; i < N; i++) in[i] = i % TOY_BLOCK ? 0.0f : 3.0f;
    for (int order = 1; order <= ORDERS; order++) {
        float sum = 0.0f;
        emu_set_order(order);
        assert_int_equal(toy_run(TOY_RACE_FOR_ORDER, &sum, in, N, &why), 0);
        if (order == 1) first = sum;
        different += sum != first;
    }
    assert_true(different > 0);
    int64_t rows = 300, n = 520;
    void *dy = kt_random(DT_BF16, rows * n, 1, 1.0f), *want = kt_poisoned(DT_BF16, n),
         *got = kt_poisoned(DT_BF16, n);
    struct bias_grad_args a = {.dbias = want, .dy = dy, .rows = rows, .n = n, .dt = DT_BF16};
    kt_run(KT_OPS, OP_BIAS_GRAD, 1, &a);
    a.dbias = got;
    for (int order = 2; order <= ORDERS; order++) {
        memset(got, 0xff, (size_t)n * 2);
        kt_run(KT_OPS, OP_BIAS_GRAD, order, &a);
        assert_memory_equal(got, want, (size_t)n * 2);
    }
    KT_FREE(dy, want, got);
}

// Whether a process that runs toy ends by itself. Its complaint is not shown.
static bool survives(enum toy toy) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        float *in = calloc(N, sizeof *in), *out = calloc(N, sizeof *out);
        const char *why = "";
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        emu_set_order(1);
        _exit(in && out && toy_run(toy, out, in, N, &why) == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void the_address_sanitizer_finds_steps_beyond_memory(void **state) {
    (void)state;
    assert_true(survives(TOY_REVERSE));
#ifdef __SANITIZE_ADDRESS__
    assert_false(survives(TOY_READS_BEYOND));
    assert_false(survives(TOY_WRITES_BEYOND));
    assert_false(survives(TOY_SHARED_BEYOND));
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_and_shared_memory_work),
        cmocka_unit_test(shuffles_and_ballots_work),
        cmocka_unit_test(a_missing_barrier_is_caught),
        cmocka_unit_test(a_missing_barrier_before_overwriting_is_caught),
        cmocka_unit_test(divergence_is_reported),
        cmocka_unit_test(clusters_work),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(results_do_not_depend_on_the_order_of_blocks),
        cmocka_unit_test(the_address_sanitizer_finds_steps_beyond_memory),
    };
    return cmocka_run_group_tests_name("emulation: device", tests, NULL, NULL);
}
