// Helpers of the kernel tests: buffers of random numbers in a storage type, an operation's cpu version
// against its reference over thread counts, and gradients against finite differences.
//
// Buffers come from malloc with their exact size, so that the address sanitizer sees the first byte
// written past an output. An operation's output is poisoned first: every byte 0xff, which is NaN in each float
// format, so that an element that is left out, or read before it is written, shows.
//
// Random numbers are the same in every run. STARRING_TEST_SEED=N gives others.
#ifndef STARRING_TESTS_KERNELS_KERNEL_TEST_H
#define STARRING_TESTS_KERNELS_KERNEL_TEST_H

// cmocka.h wants these before it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

// The operations under test, where the buffers that they are given come from, how often each case runs, what
// random numbers begin with, and what ends a program. One that includes a test may have chosen others before
// (tests/emulation/, tests/device/).
#ifndef KT_OPS
#define KT_OPS cpu_ops
#endif
#ifndef KT_ALLOC
#define KT_ALLOC(bytes) malloc(bytes)
#define KT_RELEASE(p)   free(p)
#endif
#ifndef KT_RUNS
#define KT_RUNS 3
#endif
#ifndef KT_PRODUCTS_ROUNDED
#define KT_PRODUCTS_ROUNDED false
#endif
#ifndef KT_SEED
#define KT_SEED kt_seed_given(0)
#endif
#ifndef KT_TEARDOWN
#define KT_TEARDOWN NULL
#endif

static const enum dtype kt_dtypes[] = {DT_F32, DT_BF16, DT_F16};
#define KT_DTYPES 3

// ---------------------------------------------------------------- random buffers
static inline uint64_t kt_seed_given(uint64_t otherwise) {
    const char *text = getenv("STARRING_TEST_SEED");
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

// splitmix64 (Steele, Lea & Flood 2014): a hash of (the program's seed, seed, index).
static inline uint64_t kt_hash(uint64_t seed, uint64_t index) {
    static uint64_t base;
    static bool known;
    if (!known) base = KT_SEED;
    known = true;
    uint64_t z =
        (seed + base * 0x2545f4914f6cdd1du) * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// Uniform in (-1, 1).
static inline float kt_uniform(uint64_t seed, uint64_t index) {
    return (float)((double)(kt_hash(seed, index) >> 11) * 0x1p-52 - 1.0);
}

// Every buffer whose address an operation is given is one of these. KT_FREE frees it.
static inline void *kt_alloc(enum dtype dt, int64_t n) {
    void *p = KT_ALLOC(n ? (size_t)n * dtype_size(dt) : 1);
    assert_non_null(p);
    return p;
}

// n elements with the contents of from.
static inline void *kt_copy(enum dtype dt, int64_t n, const void *from) {
    void *p = kt_alloc(dt, n);
    memcpy(p, from, (size_t)n * dtype_size(dt));
    return p;
}

// n elements, uniform in scale * (-1, 1). The caller frees.
static inline void *kt_random(enum dtype dt, int64_t n, uint64_t seed, float scale) {
    void *p = kt_alloc(dt, n);
    for (int64_t i = 0; i < n; i++) dtype_store(dt, p, (size_t)i, scale * kt_uniform(seed, (uint64_t)i));
    return p;
}

// n elements, every byte 0xff. The caller frees.
static inline void *kt_poisoned(enum dtype dt, int64_t n) {
    void *p = kt_alloc(dt, n);
    memset(p, 0xff, (size_t)n * dtype_size(dt));
    return p;
}

// Rows of a matrix `stride` elements apart: as kt_random (which it equals for stride = width), each gap as
// kt_poisoned. The last row has no gap behind it.
static inline void *kt_random_rows(enum dtype dt, int64_t rows, int64_t width, int64_t stride, uint64_t seed,
                                   float scale) {
    char *p = kt_poisoned(dt, (rows - 1) * stride + width);
    for (int64_t i = 0; i < rows * width; i++)
        dtype_store(dt, p, (size_t)(i / width * stride + i % width), scale * kt_uniform(seed, (uint64_t)i));
    return p;
}

static inline void kt_assert_gaps(enum dtype dt, const void *p, int64_t rows, int64_t width, int64_t stride) {
    size_t e = dtype_size(dt);
    for (int64_t r = 0; r + 1 < rows; r++)
        for (size_t i = (size_t)(r * stride + width) * e; i < (size_t)((r + 1) * stride) * e; i++)
            if (((const unsigned char *)p)[i] != 0xff)
                fail_msg("the gap behind row %lld was written to", (long long)r);
}

// n integers in [0, below). The caller frees.
static inline int32_t *kt_tokens(int64_t n, uint64_t seed, int64_t below) {
    int32_t *p = kt_alloc(DT_U8, n * (int64_t)sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)(kt_hash(seed, (uint64_t)i) % (uint64_t)below);
    return p;
}

static inline void kt_free(void *const *p, int count) {
    for (int i = 0; i < count; i++) KT_RELEASE(p[i]);
}
#define KT_FREE(...) \
    kt_free((void *const[]){__VA_ARGS__}, (int)(sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *)))

// ---------------------------------------------------------------- comparisons
// The distance between 1 and the next number of a format.
static inline double kt_unit(enum dtype dt) {
    return dt == DT_F32 ? 0x1p-23 : dt == DT_BF16 ? 0x1p-7 : 0x1p-10;
}

// One output of an operation. units > 0: |cpu - ref| <= units * kt_unit * max(|ref|, floor), each
// element; units 0: the same bits. Cpu results of different thread counts always have the same bits, and so
// have a device's of different runs.
struct kt_out {
    void *p;
    int64_t n;
    enum dtype dt;
    double units, floor;
};

static inline void kt_assert_close(const struct kt_out *o, const void *got, const void *want) {
    for (int64_t i = 0; i < o->n; i++) {
        double g = dtype_load(o->dt, got, (size_t)i), w = dtype_load(o->dt, want, (size_t)i);
        double bound = o->units * kt_unit(o->dt) * fmax(fabs(w), o->floor);
        if ((isnan(g) && isnan(w)) || g == w) continue;
        if (!(fabs(g - w) <= bound))
            fail_msg("%s element %lld: got %.9g, want %.9g within %.3g", dtype_name(o->dt), (long long)i, g,
                     w, bound);
    }
}

static inline size_t kt_out_bytes(const struct kt_out *o) { return (size_t)o->n * dtype_size(o->dt); }

static inline void kt_run(const op_fn *ops, enum op op, int threads, const void *args) {
    const char *why = "";
    if (ops[op](threads, args, &why) != 0) fail_msg("%s failed: %s", op_name(op), why);
}

#define KT_OUTS_MAX 6

// Runs op by ref and by cpu with 1, 2 .. KT_RUNS threads, each time on what the outputs hold now, and
// compares. The outputs are left as cpu wrote them.
static inline void kt_check(enum op op, const void *args, const struct kt_out *outs, int count) {
    unsigned char *before[KT_OUTS_MAX], *want[KT_OUTS_MAX], *got[KT_OUTS_MAX];
    assert_true(count <= KT_OUTS_MAX);
    for (int i = 0; i < count; i++) {
        size_t bytes = kt_out_bytes(&outs[i]);
        before[i] = malloc(bytes + 1);
        want[i] = malloc(bytes + 1);
        got[i] = malloc(bytes + 1);
        memcpy(before[i], outs[i].p, bytes);
    }
    kt_run(ref_ops, op, 1, args);
    for (int i = 0; i < count; i++) memcpy(want[i], outs[i].p, kt_out_bytes(&outs[i]));
    for (int threads = 1; threads <= KT_RUNS; threads++) {
        for (int i = 0; i < count; i++) memcpy(outs[i].p, before[i], kt_out_bytes(&outs[i]));
        kt_run(KT_OPS, op, threads, args);
        for (int i = 0; i < count; i++) {
            if (threads > 1) {
                assert_memory_equal(outs[i].p, got[i], kt_out_bytes(&outs[i]));
                continue;
            }
            memcpy(got[i], outs[i].p, kt_out_bytes(&outs[i]));
            if (outs[i].units > 0)
                kt_assert_close(&outs[i], got[i], want[i]);
            else
                assert_memory_equal(got[i], want[i], kt_out_bytes(&outs[i]));
        }
    }
    for (int i = 0; i < count; i++) {
        free(before[i]);
        free(want[i]);
        free(got[i]);
    }
}

// ---------------------------------------------------------------- finite differences
// The gradient of a scalar function of x(n), fp32, by central differences with step h, against
// grad(n), fp32: |difference| <= tolerance * max(1, |grad|) each element. fn(ctx) computes the scalar
// from the present x, in double.
struct kt_gradient {
    double (*fn)(void *ctx);
    void *ctx;
    float *x;
    const float *grad;
    int64_t n;
    double h, tolerance;
};

static inline void kt_check_gradient(const struct kt_gradient *k) {
    for (int64_t i = 0; i < k->n; i++) {
        float x = k->x[i], up = (float)(x + k->h), down = (float)(x - k->h);
        k->x[i] = up;
        double f_up = k->fn(k->ctx);
        k->x[i] = down;
        double f_down = k->fn(k->ctx);
        k->x[i] = x;
        double slope = (f_up - f_down) / ((double)up - (double)down), grad = k->grad[i];
        if (!(fabs(slope - grad) <= k->tolerance * fmax(1.0, fabs(grad))))
            fail_msg("element %lld: gradient %.7g, finite difference %.7g", (long long)i, grad, slope);
    }
}

// sum of a(n) * b(n) in double: the scalar that makes b the gradient with respect to a.
static inline double kt_dot(const float *a, const float *b, int64_t n) {
    double total = 0.0;
    for (int64_t i = 0; i < n; i++) total += (double)a[i] * (double)b[i];
    return total;
}

#endif
