// GELU and SwiGLU, forward and backward, and a sum of two buffers.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/spans.h"

#define GELU_2C   1.59576912f  // 2 sqrt(2/pi)
#define GELU_A    0.044715f
#define GELU_FLAT 10.0f  // beyond it gelu' is 1 to the last bit of a float, or under 1e-34 from 0

// 0.5 (1 + tanh(u)) = sigmoid(2u), which keeps its relative precision where tanh is near -1.
VEC_INLINE void gelu(enum dtype dt, const struct gelu_args *a, int64_t i, int64_t n) {
    vecf x[GROUP], s[GROUP];
    group_load(dt, a->x, i, n, x);
    EACH s[k] = GELU_2C * x[k] * vec_fma(GELU_A * x[k], x[k], vec_set(1.0f));
    vec_sigmoid(s, s);
    EACH x[k] *= s[k];
    group_store(dt, a->y, i, n, x);
}

// gelu'(x) = s + x s (1 - s) d(2u)/dx with s = sigmoid(2u) = 1/(1 + e), 1 - s = e s, e = exp(-2u).
VEC_INLINE void gelu_gradient(enum dtype dt, const struct gelu_args *a, int64_t i, int64_t n) {
    vecf x[GROUP], x2[GROUP], e[GROUP], s[GROUP], dy[GROUP];
    group_load(dt, a->x, i, n, x);
    EACH x[k] = vec_max(vec_set(-GELU_FLAT), vec_min(vec_set(GELU_FLAT), x[k]));  // no 0 * infinity
    EACH x2[k] = x[k] * x[k];
    EACH e[k] = -GELU_2C * x[k] * vec_fma(vec_set(GELU_A), x2[k], vec_set(1.0f));
    vec_exp_f32(e, e);
    EACH s[k] = 1.0f / (1.0f + e[k]);
    EACH x2[k] = GELU_2C * vec_fma(vec_set(3.0f * GELU_A), x2[k], vec_set(1.0f));
    EACH s[k] = vec_fma(x[k] * s[k] * (e[k] * s[k]), x2[k], s[k]);
    group_load(dt, a->dy, i, n, dy);
    EACH dy[k] *= s[k];
    group_store(dt, a->y, i, n, dy);
}

VEC_INLINE void gelu_fwd_range(enum dtype dt, const struct gelu_args *a, int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + GROUP * VEC <= end; i += GROUP * VEC) gelu(dt, a, i, GROUP * VEC);
    if (i < end) gelu(dt, a, i, end - i);
}

VEC_INLINE void gelu_bwd_range(enum dtype dt, const struct gelu_args *a, int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + GROUP * VEC <= end; i += GROUP * VEC) gelu_gradient(dt, a, i, GROUP * VEC);
    if (i < end) gelu_gradient(dt, a, i, end - i);
}

static void gelu_fwd_span(const void *args, int64_t begin, int64_t end) {
    const struct gelu_args *a = args;
    WITH_DTYPE(a->dt, gelu_fwd_range, a, begin, end);
}

static void gelu_bwd_span(const void *args, int64_t begin, int64_t end) {
    const struct gelu_args *a = args;
    WITH_DTYPE(a->dt, gelu_bwd_range, a, begin, end);
}

// Columns [i, i + n) of a row.
VEC_INLINE void swiglu(enum dtype dt, const struct swiglu_args *a, int64_t row, int64_t i, int64_t n) {
    int64_t at = row * 2 * a->width + i;
    vecf gate[GROUP], up[GROUP], s[GROUP];
    group_load(dt, a->gate_up, at, n, gate);
    vec_sigmoid(gate, s);
    group_load(dt, a->gate_up, at + a->width, n, up);
    EACH s[k] = gate[k] * s[k] * up[k];
    group_store(dt, a->y, row * a->width + i, n, s);
}

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g).
VEC_INLINE void swiglu_gradient(enum dtype dt, const struct swiglu_args *a, int64_t row, int64_t i,
                                int64_t n) {
    int64_t at = row * 2 * a->width + i;
    vecf gate[GROUP], up[GROUP], dy[GROUP], s[GROUP];
    group_load(dt, a->gate_up, at, n, gate);
    vec_sigmoid(gate, s);
    group_load(dt, a->gate_up, at + a->width, n, up);
    group_load(dt, a->dy, row * a->width + i, n, dy);
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

static void swiglu_fwd_span(const void *args, int64_t begin, int64_t end) {
    const struct swiglu_args *a = args;
    for (int64_t r = begin; r < end; r++) WITH_DTYPE(a->dt, swiglu_fwd_row, a, r);
}

static void swiglu_bwd_span(const void *args, int64_t begin, int64_t end) {
    const struct swiglu_args *a = args;
    for (int64_t r = begin; r < end; r++) WITH_DTYPE(a->dt, swiglu_bwd_row, a, r);
}

const char *cpu_gelu_fwd(int threads, const struct gelu_args *a) {
    for_spans(threads, a->n, SPAN_ELEMENTS, gelu_fwd_span, a);
    return NULL;
}

const char *cpu_gelu_bwd(int threads, const struct gelu_args *a) {
    for_spans(threads, a->n, SPAN_ELEMENTS, gelu_bwd_span, a);
    return NULL;
}

const char *cpu_swiglu_fwd(int threads, const struct swiglu_args *a) {
    for_spans(threads, a->rows, row_grain(2 * a->width), swiglu_fwd_span, a);
    return NULL;
}

const char *cpu_swiglu_bwd(int threads, const struct swiglu_args *a) {
    for_spans(threads, a->rows, row_grain(2 * a->width), swiglu_bwd_span, a);
    return NULL;
}

static void add_span(const void *args, int64_t begin, int64_t end) {
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
    for_spans(threads, a->n, SPAN_ELEMENTS, add_span, a);
    return NULL;
}
