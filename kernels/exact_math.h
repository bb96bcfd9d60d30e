// log, exp, power, sine and cosine in double with the same bits on every machine: straight-line code of + - * /
// in a fixed order. libm does not promise this: glibc selects a variant by processor, and
// releases differ. Numbers that enter weights use these functions; numbers that are only reported may use libm.
//
// Errors are a few units in the last digit of the result (test_kernels_exact_math.c); for sine and cosine, a
// few units in the last digit of 1. No state; any thread.
#ifndef STARRING_KERNELS_EXACT_MATH_H
#define STARRING_KERNELS_EXACT_MATH_H

#include <math.h>
#include <stdint.h>

// ln 2 as a sum of two numbers: the first has 32 bits, so its product with n is exact for |n| < 2^21.
#define EXACT_LN2_HIGH 0x1.62e42feep-1
#define EXACT_LN2_LOW  0x1.a39ef35793c76p-33

// Natural logarithm. x = m 2^e with sqrt(1/2) <= m < sqrt(2); log m = 2 atanh(s), s = (m-1)/(m+1), by the
// series of atanh. |s| < 0.1716, so the first omitted term is 1e-17 of the sum.
static inline double exact_log(double x) {
    if (!(x > 0)) return x == 0 ? -INFINITY : NAN;
    if (isinf(x)) return x;
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, p = 0;
    for (int k = 21; k >= 3; k -= 2) p = (p + 2.0 / k) * s2;
    return e * EXACT_LN2_HIGH + (2 * s + (s * p + e * EXACT_LN2_LOW));
}

// e^x: x = n ln2 + r, |r| <= ln2/2, Taylor's polynomial of degree 14 in r.
static inline double exact_exp(double x) {
    if (x != x) return x;
    if (x > 709.8) return INFINITY;
    if (x < -746) return 0;
    double n = floor(x * 1.4426950408889634 + 0.5), r = (x - n * EXACT_LN2_HIGH) - n * EXACT_LN2_LOW, p = 1;
    for (int k = 14; k >= 1; k--) p = 1 + r * p * (1.0 / k);
    return ldexp(p, (int)n);
}

// base^y for base > 0; the relative error grows with |y log base|.
static inline double exact_pow(double base, double y) { return exact_exp(y * exact_log(base)); }

// sin(x + quarters pi/2), x in radians, |x| < 2^24. x = n pi/2 + r, |r| <= pi/4, with pi/2 as a sum of numbers
// of 28, 28 and 53 bits (n times the first two is exact), then Taylor's polynomial of degree 17 or 16.
static inline double exact_sine_turned(double x, int64_t quarters) {
    double n = floor(x * 0x1.45f306dc9c883p-1 + 0.5), p = 1;
    double r = ((x - n * 0x1.921fb54p+0) - n * 0x1.10b461p-30) - n * 0x1.a62633145c06ep-58, r2 = r * r;
    quarters += (int64_t)n;
    if (quarters & 1) {
        for (int k = 16; k >= 2; k -= 2) p = 1 - r2 * p * (1.0 / (k * (k - 1)));
    } else {
        for (int k = 17; k >= 3; k -= 2) p = 1 - r2 * p * (1.0 / (k * (k - 1)));
        p *= r;
    }
    return quarters & 2 ? -p : p;
}

static inline double exact_sine(double x) { return exact_sine_turned(x, 0); }
static inline double exact_cosine(double x) { return exact_sine_turned(x, 1); }

#endif
