// GELU and SwiGLU, forward and backward.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/spans.h"

#define GELU_2C   1.59576912f  // 2 sqrt(2/pi)
#define GELU_A    0.044715f
#define GELU_FLAT 10.0f  // beyond it gelu' is 1 to the last bit of a float, or under 1e-34 from 0

// 0.5 (1 + tanh(u)) = sigmoid(2u), which keeps its relative precision where tanh is near -1.
static inline float gelu_f32(float x) {
    float u2 = GELU_2C * x * __builtin_fmaf(GELU_A * x, x, 1.0f);
    return x * sigmoid_f32(u2);
}

// gelu'(x) = s + x s (1 - s) d(2u)/dx with s = sigmoid(2u) = 1/(1 + e), 1 - s = e s, e = exp(-2u).
static inline float gelu_slope_f32(float x) {
    x = x > GELU_FLAT ? GELU_FLAT : x;  // keeps e finite: no 0 * infinity
    x = x < -GELU_FLAT ? -GELU_FLAT : x;
    float x2 = x * x;
    float e = exp_f32(-GELU_2C * x * __builtin_fmaf(GELU_A, x2, 1.0f));
    float s = 1.0f / (1.0f + e);
    float du2 = GELU_2C * __builtin_fmaf(3.0f * GELU_A, x2, 1.0f);
    return __builtin_fmaf(x * s * (e * s), du2, s);
}

static void gelu_fwd_span(const void *args, int64_t begin, int64_t end) {
    const struct gelu_args *a = args;
    float x[CHUNK];
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - i);
        load_f32(a->dt, x, a->x, i, n);
        for (int64_t j = 0; j < n; j++) x[j] = gelu_f32(x[j]);
        store_f32(a->dt, a->y, i, x, n);
    }
}

static void gelu_bwd_span(const void *args, int64_t begin, int64_t end) {
    const struct gelu_args *a = args;
    float x[CHUNK], dy[CHUNK];
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - i);
        load_f32(a->dt, x, a->x, i, n);
        load_f32(a->dt, dy, a->dy, i, n);
        for (int64_t j = 0; j < n; j++) dy[j] *= gelu_slope_f32(x[j]);
        store_f32(a->dt, a->y, i, dy, n);
    }
}

static void swiglu_fwd_span(const void *args, int64_t begin, int64_t end) {
    const struct swiglu_args *a = args;
    float gate[CHUNK], up[CHUNK];
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < a->width; i += CHUNK) {
            int64_t n = chunk_min(CHUNK, a->width - i), at = r * 2 * a->width + i;
            load_f32(a->dt, gate, a->gate_up, at, n);
            load_f32(a->dt, up, a->gate_up, at + a->width, n);
            for (int64_t j = 0; j < n; j++) gate[j] = gate[j] * sigmoid_f32(gate[j]) * up[j];
            store_f32(a->dt, a->y, r * a->width + i, gate, n);
        }
    }
}

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g).
static void swiglu_bwd_span(const void *args, int64_t begin, int64_t end) {
    const struct swiglu_args *a = args;
    float gate[CHUNK], up[CHUNK], dy[CHUNK];
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < a->width; i += CHUNK) {
            int64_t n = chunk_min(CHUNK, a->width - i), at = r * 2 * a->width + i;
            load_f32(a->dt, gate, a->gate_up, at, n);
            load_f32(a->dt, up, a->gate_up, at + a->width, n);
            load_f32(a->dt, dy, a->dy, r * a->width + i, n);
            for (int64_t j = 0; j < n; j++) {
                float s = sigmoid_f32(gate[j]), g = gate[j];
                gate[j] = dy[j] * up[j] * (s * __builtin_fmaf(g, 1.0f - s, 1.0f));
                up[j] = dy[j] * (g * s);
            }
            store_f32(a->dt, a->y, at, gate, n);
            store_f32(a->dt, a->y, at + a->width, up, n);
        }
    }
}

int cpu_op_gelu_fwd(int threads, const void *args, const char **why) {
    (void)why;
    for_spans(threads, ((const struct gelu_args *)args)->n, SPAN_ELEMENTS, gelu_fwd_span, args);
    return 0;
}

int cpu_op_gelu_bwd(int threads, const void *args, const char **why) {
    (void)why;
    for_spans(threads, ((const struct gelu_args *)args)->n, SPAN_ELEMENTS, gelu_bwd_span, args);
    return 0;
}

int cpu_op_swiglu_fwd(int threads, const void *args, const char **why) {
    const struct swiglu_args *a = args;
    (void)why;
    for_spans(threads, a->rows, row_grain(2 * a->width), swiglu_fwd_span, a);
    return 0;
}

int cpu_op_swiglu_bwd(int threads, const void *args, const char **why) {
    const struct swiglu_args *a = args;
    (void)why;
    for_spans(threads, a->rows, row_grain(2 * a->width), swiglu_bwd_span, a);
    return 0;
}
