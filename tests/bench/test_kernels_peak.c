// kernels/cpu/peak.c: every multiply-add that it counts is computed, on every thread and of either kind.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "kernels/cpu/peak.h"

// The bits that one thread's chains end with.
static unsigned expected(const struct cpu_peak *p) {
    float total = 0;
    for (int chain = 1; chain <= 12; chain++) total += (float)chain + (float)p->steps;
    return f32_to_bits(total);
}

static void expect_all(enum cpu_kernel kernel, enum dtype t, int threads) {
    struct cpu_peak p;
    char text[200];
    unsigned want = 0;
    cpu_peak_init(&p, kernel, t, threads);
    assert_int_equal(cpu_peak_run(&p), 0);
    for (int i = 0; i < threads; i++) want ^= expected(&p) + (unsigned)i;
    assert_int_equal(atomic_load(&p.results), want);
    assert_true(p.steps < 1 << 23);  // each chain counts exactly
    double lanes = p.flops / (2.0 * 12 * (double)p.steps * threads * (p.pairs ? 2 : 1));
    assert_true(lanes == 8 || lanes == 16);
    cpu_peak_text(&p, text, sizeof text);
    bool widened = !p.pairs && t != DT_F32;
    assert_true((strstr(text, "products run on fp32 fma here") != NULL) == widened);
    assert_true((strstr(text, "vdpbf16ps") != NULL) == p.pairs);
}

static void everything_counted_is_computed(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) expect_all(CPU_KERNEL_AUTO, DT_F32, threads);
    expect_all(CPU_KERNEL_AUTO, DT_BF16, 1);
    expect_all(CPU_KERNEL_FMA, DT_BF16, 2);
    expect_all(CPU_KERNEL_AUTO, DT_F16, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_counted_is_computed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
