// log, exp, power, sine and cosine of kernels/exact_math.h against the C library's in long double, in units
// of the last place of the result (for sine and cosine: of 1), and at the ends of their ranges.
#include "kernels/exact_math.h"

#include "tests/kernels/kernel_test.h"

#define COUNT 200000

static double units(double got, long double want) {
    double size = fabs((double)want);
    return (double)fabsl((long double)got - want) / (nextafter(size, INFINITY) - size);
}

static void test_log(void **state) {
    (void)state;
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = i % 2 ? exp(700 * (double)kt_uniform(1, i)) : 1 + 1e-3 * (double)kt_uniform(2, i);
        assert_true(units(exact_log(x), logl(x)) < 3);
    }
    assert_true(exact_log(1) == 0);
    assert_true(exact_log(0) == -INFINITY && exact_log(INFINITY) == INFINITY && isnan(exact_log(-1)));
    assert_true(isnan(exact_log(NAN)));
    assert_true(units(exact_log(5e-324), logl(5e-324)) < 3);
}

static void test_exp_and_pow(void **state) {
    (void)state;
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = 700 * (double)kt_uniform(1, i);
        assert_true(units(exact_exp(x), expl(x)) < 3);
        double beta = 0.95 + 0.05 * (double)kt_uniform(2, i), t = (double)(i % 50);
        assert_true(units(exact_pow(beta, t), powl(beta, t)) < 40);
    }
    assert_true(exact_exp(0) == 1 && exact_exp(-800) == 0 && exact_exp(800) == INFINITY &&
                isnan(exact_exp(NAN)));
    assert_true(exact_exp(-INFINITY) == 0 && exact_exp(INFINITY) == INFINITY);
    assert_true(exact_pow(10000, 0) == 1);
}

static void test_sine_and_cosine(void **state) {
    (void)state;
    const double sizes[] = {0.5, 7, 1000, 16e6};
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = sizes[i % 4] * (double)kt_uniform(1, i);
        assert_true(fabsl(exact_sine(x) - sinl(x)) < 3e-16L);
        assert_true(fabsl(exact_cosine(x) - cosl(x)) < 3e-16L);
    }
    assert_true(exact_sine(0) == 0 && exact_cosine(0) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_log), cmocka_unit_test(test_exp_and_pow),
                                       cmocka_unit_test(test_sine_and_cosine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
