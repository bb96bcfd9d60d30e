// GELU and SwiGLU, forward and backward, and a sum of two buffers.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/simd_math.h"

#define GELU_2C   1.59576912f  // 2 sqrt(2/pi)
#define GELU_A    0.044715f
#define GELU_FLAT 9.8f  // beyond it gelu' rounds to 1, or is within 1e-33 of 0

// e = 2^t with 0.5 (1 + tanh(u)) = 1 / (1 + e), u = sqrt(2/pi) (x + GELU_A x^3). This form keeps its relative
// precision where tanh is near -1. t is limited to GELU_END.
#define GELU_END 120.0f
VEC_INLINE void gelu_power(enum dtype dt, const struct gelu_args *a, int64_t i, int64_t n, float *e) {
    const float c = -GELU_2C * LOG2_E;
    vecf x[GROUP], t[GROUP];
    group_load(dt, a->x, i, n, 0, x);
    EACH t[k] = x[k] * x[k];
    EACH t[k] = vec_fma(vec_set(c * GELU_A), t[k], vec_set(c));
    EACH t[k] *= x[k];
    EACH t[k] = vec_max(vec_set(-126.0f), vec_min(vec_set(GELU_END), t[k]));
    vec_exp2(dt, t, 0.0f, t);
    EACH vec_store_f32(e + k * VEC, t[k]);
}

VEC_INLINE void gelu(enum dtype dt, const struct gelu_args *a, int64_t i, int64_t n, const float *power) {
    vecf x[GROUP], e[GROUP], d[GROUP], s[GROUP];
    EACH e[k] = vec_load_f32(power + k * VEC);
    EACH d[k] = 1.0f + e[k];
    vec_inverse(dt, d, s);
    EACH s[k] = vec_zero_above(e[k], 0x1p119f, s[k]);
    group_load(dt, a->x, i, n, 0, x);
    EACH x[k] *= s[k];
    group_store(dt, a->y, i, n, x);
}

// gelu'(x) = s + x s (1 - s) d(2u)/dx with s = 1/(1 + e), 1 - s = e s.
VEC_INLINE void gelu_gradient(enum dtype dt, const struct gelu_args *a, int64_t i, int64_t n,
                              const float *power) {
    vecf x[GROUP], slope[GROUP], e[GROUP], d[GROUP], s[GROUP];
    EACH e[k] = vec_load_f32(power + k * VEC);
    EACH d[k] = 1.0f + e[k];
    vec_inverse(dt, d, s);
    group_load(dt, a->x, i, n, 0, x);
    EACH x[k] = vec_max(vec_set(-GELU_FLAT), vec_min(vec_set(GELU_FLAT), x[k]));  // avoids 0 * infinity
    EACH slope[k] = x[k] * x[k];
    EACH slope[k] = vec_fma(vec_set(3.0f * GELU_A * GELU_2C), slope[k], vec_set(GELU_2C));
    EACH s[k] = vec_fma(x[k] * slope[k] * (e[k] * s[k]), s[k], s[k]);
    group_load(dt, a->dy, i, n, 0, d);
    EACH s[k] *= d[k];
    group_store(dt, a->y, i, n, s);
}

// Two loops over a chunk, because 16 registers are too few for the whole chain of four vectors. That is a third
// faster with AVX2, and within a tenth with AVX-512.
#define GELU_CHUNK 256  // short, so that memory is read without pauses between the loops
VEC_INLINE void gelu_range(enum dtype dt, const struct gelu_args *a, int64_t begin, int64_t end,
                           bool gradient) {
    float e[GELU_CHUNK];
    for (int64_t c = begin; c < end; c += GELU_CHUNK) {
        int64_t n = chunk_min(GELU_CHUNK, end - c);
        for (int64_t j = 0; j < n; j += GROUP * VEC) gelu_power(dt, a, c + j, n - j, e + j);
        for (int64_t j = 0; j < n; j += GROUP * VEC) {
            if (gradient)
                gelu_gradient(dt, a, c + j, n - j, e + j);
            else
                gelu(dt, a, c + j, n - j, e + j);
        }
    }
}

static void gelu_fwd_range(const void *args, int64_t begin, int64_t end) {
    const struct gelu_args *a = args;
    WITH_DTYPE(a->dt, gelu_range, a, begin, end, false);
}

static void gelu_bwd_range(const void *args, int64_t begin, int64_t end) {
    const struct gelu_args *a = args;
    WITH_DTYPE(a->dt, gelu_range, a, begin, end, true);
}

// Loads n columns of gate and up from element `at` on. s = sigmoid(gate).
VEC_INLINE void swiglu_load(enum dtype dt, const struct swiglu_args *a, int64_t at, int64_t n, vecf *gate,
                            vecf *up, vecf *s) {
    vecf t[GROUP];
    group_prefetch(dt, a->gate_up, at + 2 * a->width);
    group_prefetch(dt, a->gate_up, at + 3 * a->width);
    group_load(dt, a->gate_up, at, n, 0, gate);
    EACH t[k] = -LOG2_E * gate[k];
    vec_sigmoid2(dt, t, s);
    group_load(dt, a->gate_up, at + a->width, n, 0, up);
}

VEC_INLINE void swiglu(enum dtype dt, const struct swiglu_args *a, int64_t row, int64_t i, int64_t n) {
    vecf gate[GROUP], up[GROUP], s[GROUP];
    swiglu_load(dt, a, row * 2 * a->width + i, n, gate, up, s);
    EACH s[k] = gate[k] * s[k] * up[k];
    group_store(dt, a->y, row * a->width + i, n, s);
}

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g).
VEC_INLINE void swiglu_gradient(enum dtype dt, const struct swiglu_args *a, int64_t row, int64_t i,
                                int64_t n) {
    int64_t at = row * 2 * a->width + i;
    vecf gate[GROUP], up[GROUP], dy[GROUP], s[GROUP];
    swiglu_load(dt, a, at, n, gate, up, s);
    group_load(dt, a->dy, row * a->width + i, n, 0, dy);
    EACH up[k] = dy[k] * up[k] * (s[k] * vec_fma(gate[k], 1.0f - s[k], vec_set(1.0f)));
    EACH dy[k] = dy[k] * (gate[k] * s[k]);
    group_store(dt, a->y, at, n, up);
    group_store(dt, a->y, at + a->width, n, dy);
}

VEC_INLINE void swiglu_fwd_row(enum dtype dt, const struct swiglu_args *a, int64_t row) {
    int64_t i = 0;
    for (; i + GROUP * VEC <= a->width; i += GROUP * VEC) swiglu(dt, a, row, i, GROUP * VEC);
    if (i < a->width) swiglu(dt, a, row, i, a->width - i);
}

VEC_INLINE void swiglu_bwd_row(enum dtype dt, const struct swiglu_args *a, int64_t row) {
    int64_t i = 0;
    for (; i + GROUP * VEC <= a->width; i += GROUP * VEC) swiglu_gradient(dt, a, row, i, GROUP * VEC);
    if (i < a->width) swiglu_gradient(dt, a, row, i, a->width - i);
}

static void swiglu_fwd_range(const void *args, int64_t begin, int64_t end) {
    const struct swiglu_args *a = args;
    for (int64_t r = begin; r < end; r++) WITH_DTYPE(a->dt, swiglu_fwd_row, a, r);
}

static void swiglu_bwd_range(const void *args, int64_t begin, int64_t end) {
    const struct swiglu_args *a = args;
    for (int64_t r = begin; r < end; r++) WITH_DTYPE(a->dt, swiglu_bwd_row, a, r);
}

const char *cpu_gelu_fwd(int threads, const struct gelu_args *a) {
    for_ranges(threads, a->n, RANGE_ELEMENTS, gelu_fwd_range, a);
    return NULL;
}

const char *cpu_gelu_bwd(int threads, const struct gelu_args *a) {
    for_ranges(threads, a->n, RANGE_ELEMENTS, gelu_bwd_range, a);
    return NULL;
}

const char *cpu_swiglu_fwd(int threads, const struct swiglu_args *a) {
    for_ranges(threads, a->rows, row_grain(2 * a->width), swiglu_fwd_range, a);
    return NULL;
}

const char *cpu_swiglu_bwd(int threads, const struct swiglu_args *a) {
    for_ranges(threads, a->rows, row_grain(2 * a->width), swiglu_bwd_range, a);
    return NULL;
}

static void add_range(const void *args, int64_t begin, int64_t end) {
    const struct add_args *s = args;
    float a[CHUNK], b[CHUNK];
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - i);
        load_f32(s->dt, a, s->a, i, n);
        load_f32(s->dt, b, s->b, i, n);
        for (int64_t j = 0; j < n; j++) a[j] += b[j];
        store_f32(s->dt, s->y, i, a, n);
    }
}

const char *cpu_add(int threads, const struct add_args *a) {
    for_ranges(threads, a->n, RANGE_ELEMENTS, add_range, a);
    return NULL;
}
