// kernels/cpu/peak.c: every multiply-add that it counts is computed, on every thread and by each way.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "kernels/cpu/peak.h"

static void expect_all(enum cpu_kernel kernel, enum dtype t, int threads) {
    struct cpu_peak p;
    char text[200];
    cpu_peak_init(&p, kernel, t, threads);
    assert_int_equal(cpu_peak_run(&p), 0);
    // Each element of a tile of ones counts the depth of all its thread's tiles.
    assert_int_equal(atomic_load(&p.results), p.depth * p.tiles * threads);
    assert_true(p.depth * p.tiles <= 1 << 24);  // exactly
    double elements = p.flops / (2.0 * (double)(p.depth * p.tiles * threads));
    assert_true(elements >= 6 * 16 && elements <= 32 * 32);
    cpu_peak_text(&p, text, sizeof text);
    bool plain = t != DT_BF16 || p.kernel == CPU_KERNEL_FMA;
    assert_true((strstr(text, "fp32 fma") != NULL) == plain);
}

static void everything_counted_is_computed(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) expect_all(CPU_KERNEL_AUTO, DT_F32, threads);
    for (int kernel = CPU_KERNEL_AUTO; kernel < CPU_KERNEL_COUNT; kernel++)
        expect_all((enum cpu_kernel)kernel, DT_BF16, 1);
    expect_all(CPU_KERNEL_FMA, DT_BF16, 2);
    expect_all(CPU_KERNEL_AUTO, DT_F16, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_counted_is_computed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
