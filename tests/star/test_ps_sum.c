// A server's sum of one key: as many gradients as there may be, in whatever parts they come, in groups of workers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "ps/server/key_pass.h"
#include "tests/ps/test_ps_toy.h"

// More gradients than are added in one go, on top of a part that was added before, in one buffer with the result.
static void test_many_gradients(void **state) {
    (void)state;
    enum { N = 512, COUNT = 70 };
    static uint16_t grads[COUNT][N];
    static float acc[N], want[N];
    const void *in[COUNT];
    for (int k = 0; k < COUNT; k++) {
        in[k] = grads[k];
        for (int i = 0; i < N; i++) grads[k][i] = f32_to_bf16(toy_noise((uint64_t)k, (uint64_t)i));
    }
    for (int i = 0; i < N; i++) want[i] = acc[i] = toy_noise(99, (uint64_t)i);
    for (int k = 0; k < COUNT; k++)
        for (int i = 0; i < N; i++) want[i] += bf16_to_f32(grads[k][i]);
    struct sum_args a = {.acc = acc, .grads = in, .count = COUNT, .n = N, .dtype = DT_BF16};
    sum_finish(&a, 0, N / 2, acc);
    sum_finish(&a, N / 2, N / 2, (uint16_t *)acc + N / 2);
    for (int i = 0; i < N; i++) assert_int_equal(((uint16_t *)acc)[i], f32_to_bf16(want[i]));
}

// Groups of workers (docs/ring.md, Groups), in whatever parts the gradients come.
static void test_groups_of_gradients(void **state) {
    (void)state;
    enum { N = 2500, WORKERS = 12 };
    static uint16_t grads[WORKERS][N], out[N];
    static float acc[N], group_acc[N];
    const void *in[WORKERS];
    int groups[] = {2, 3, 4, 6}, other_bits = 0;
    for (int k = 0; k < WORKERS; k++) {
        in[k] = grads[k];
        for (int i = 0; i < N; i++) grads[k][i] = f32_to_bf16(toy_noise((uint64_t)k, (uint64_t)i));
    }
    for (int part = 1; part <= WORKERS; part++)
        for (int g = 0; g < 4; g++) {
            struct sum_args a = {
                .acc = acc, .group_acc = group_acc, .n = N, .dtype = DT_BF16, .group = groups[g]};
            for (; a.first_worker + part < WORKERS; a.first_worker += part) {
                a.grads = in + a.first_worker;
                a.count = part;
                sum_add(&a);
            }
            a.grads = in + a.first_worker;
            a.count = WORKERS - a.first_worker;
            sum_finish(&a, 0, 1300, out);
            sum_finish(&a, 1300, N - 1300, out + 1300);
            for (int i = 0; i < N; i++) {
                float total = 0, flat = 0;
                for (int k = 0; k < WORKERS; k += groups[g]) {
                    float sum = bf16_to_f32(grads[k][i]);
                    for (int j = 1; j < groups[g]; j++) sum += bf16_to_f32(grads[k + j][i]);
                    total += bf16_to_f32(f32_to_bf16(sum));
                }
                for (int k = 0; k < WORKERS; k++) flat += bf16_to_f32(grads[k][i]);
                assert_int_equal(out[i], f32_to_bf16(total));
                other_bits += out[i] != f32_to_bf16(flat);
            }
        }
    assert_true(other_bits > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_gradients),
        cmocka_unit_test(test_groups_of_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
