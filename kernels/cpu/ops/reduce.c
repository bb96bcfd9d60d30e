// Ordered reductions of several buffers, the gradient of a bias, casts and zero fill.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/sum_block.h"

static void sum_range(const void *args, int64_t begin, int64_t end) {
    const struct reduce_args *a = args;
    const void *in[REDUCE_MAX];
    for (int32_t k = 0; k < a->count; k++) in[k] = dtype_at(a->dt, a->inputs[k], begin);
    sum_block(&(struct sum_block){.out = dtype_at_mut(a->dt, a->out, begin),
                                  .in = in,
                                  .count = a->count,
                                  .n = end - begin,
                                  .from = a->dt,
                                  .to = a->dt});
}

// All reductions but sums of floats, which use sum_block. Joins total(n), elements of T, with x(n). Sums and
// products are computed in U, so that those of integers wrap.
#define JOINED(value)                                                       \
    for (int64_t j = 0; j < n; j++) total[j] = (__typeof__(*total))(value); \
    break
#define JOIN(name, T, U)                                                                      \
    static void name(enum reduction how, T *restrict total, const T *restrict x, int64_t n) { \
        switch (how) {                                                                        \
            case REDUCTION_SUM:                                                               \
                JOINED((U)total[j] + (U)x[j]);                                                \
            case REDUCTION_MIN:                                                               \
                JOINED(total[j] != total[j] || total[j] <= x[j] ? total[j] : x[j]);           \
            case REDUCTION_MAX:                                                               \
                JOINED(total[j] != total[j] || total[j] >= x[j] ? total[j] : x[j]);           \
            case REDUCTION_PROD:                                                              \
                JOINED((U)total[j] * (U)x[j]);                                                \
            default:                                                                          \
                JOINED(total[j] != 0 || x[j] != 0);                                           \
        }                                                                                     \
    }
JOIN(join_f32, float, float)
JOIN(join_f64, double, double)
JOIN(join_i64, int64_t, uint64_t)

static void join_range(const void *args, int64_t begin, int64_t end) {
    const struct reduce_args *a = args;
    union {
        float f32[CHUNK];
        double f64[CHUNK];
        int64_t i64[CHUNK];
    } total, x;
    bool wide = a->dt == DT_F64 || a->dt == DT_I64;
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - i);
        for (int32_t k = 0; k < a->count; k++) {
            if (wide)
                memcpy(&x, dtype_at(a->dt, a->inputs[k], i), (size_t)n * dtype_size(a->dt));
            else
                load_f32(a->dt, x.f32, a->inputs[k], i, n);
            if (k == 0) memcpy(&total, &x, (size_t)n * (wide ? sizeof *x.f64 : sizeof *x.f32));
            // The first input is not joined, except by LOR with itself, which makes it 0 or 1.
            if (k == 0 && a->how != REDUCTION_LOR) continue;
            if (a->dt == DT_I64)
                join_i64(a->how, total.i64, x.i64, n);
            else if (a->dt == DT_F64)
                join_f64(a->how, total.f64, x.f64, n);
            else
                join_f32(a->how, total.f32, x.f32, n);
        }
        if (wide)
            memcpy(dtype_at_mut(a->dt, a->out, i), &total, (size_t)n * dtype_size(a->dt));
        else
            store_f32(a->dt, a->out, i, total.f32, n);
    }
}

const char *cpu_reduce(int threads, const struct reduce_args *a) {
    assert(a->count >= 1 && a->count <= REDUCE_MAX && a->dt != DT_U8);
    bool vectors = a->how == REDUCTION_SUM && a->dt != DT_F64 && a->dt != DT_I64;
    for_ranges(threads, a->n, RANGE_ELEMENTS, vectors ? sum_range : join_range, a);
    return NULL;
}

static void cast_range(const void *args, int64_t begin, int64_t end) {
    const struct cast_args *a = args;
    bool scaled = a->factor != 0 && a->factor != 1.0f;
    float x[CHUNK];
    if (a->from == a->to && !scaled) {
        memcpy(dtype_at_mut(a->to, a->out, begin), dtype_at(a->from, a->in, begin),
               (size_t)(end - begin) * dtype_size(a->to));
        return;
    }
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - i);
        load_f32(a->from, x, a->in, i, n);
        for (int64_t k = 0; scaled && k < n; k++) x[k] *= a->factor;
        store_f32(a->to, a->out, i, x, n);
    }
}

const char *cpu_cast(int threads, const struct cast_args *a) {
    for_ranges(threads, a->n, RANGE_ELEMENTS, cast_range, a);
    return NULL;
}

static void fill_zero_range(const void *args, int64_t begin, int64_t end) {
    const struct fill_zero_args *a = args;
    memset((char *)a->out + begin, 0, (size_t)(end - begin));
}

const char *cpu_fill_zero(int threads, const struct fill_zero_args *a) {
    for_ranges(threads, a->bytes, RANGE_ELEMENTS * (int64_t)sizeof(float), fill_zero_range, a);
    return NULL;
}

// ---------------------------------------------------------------- the gradient of a bias
#define BIAS_COLUMNS 64  // per cut between threads: whole cache lines of 16-bit elements
#define BIAS_ROWS    64  // summed separately before they are added to the total: shorter chains round less
#define BIAS_PASS    4   // rows added in one pass over their sum
#define BIAS_CHUNK   4096

// part(n) += `rows` rows of dy, stride elements apart; the first begins at element `at`.
VEC_INLINE void add_rows(enum dtype dt, float *part, const void *dy, int64_t at, int64_t stride, int64_t rows,
                         int64_t n) {
    for (int64_t i = 0; i < n; i += GROUP * VEC) {
        vecf sum[GROUP], x[GROUP];
        group_load(DT_F32, part, i, n - i, 0, sum);
        for (int64_t r = 0; r < rows; r++) {
            group_load(dt, dy, at + r * stride + i, n - i, 0, x);
            EACH sum[k] += x[k];
        }
        group_store(DT_F32, part, i, n - i, sum);
    }
}

// Columns [begin, end). The order of a column's additions depends only on the number of rows, so columns may be
// cut anywhere, and two rows on the stack suffice as scratch.
static void bias_grad_range(const void *args, int64_t begin, int64_t end) {
    const struct bias_grad_args *a = args;
    float total[BIAS_CHUNK], part[BIAS_CHUNK];
    for (int64_t c = begin; c < end; c += BIAS_CHUNK) {
        int64_t n = chunk_min(BIAS_CHUNK, end - c);
        memset(total, 0, sizeof total);
        for (int64_t r0 = 0; r0 < a->rows; r0 += BIAS_ROWS) {
            int64_t r1 = chunk_min(r0 + BIAS_ROWS, a->rows);
            memset(part, 0, sizeof part);
            for (int64_t r = r0; r < r1; r += BIAS_PASS)
                WITH_DTYPE(a->dt, add_rows, part, a->dy, r * a->n + c, a->n, chunk_min(BIAS_PASS, r1 - r), n);
            for (int64_t j = 0; j < n; j++) total[j] += part[j];
        }
        if (a->accumulate) WITH_DTYPE(a->dt, add_rows, total, a->dbias, c, 0, 1, n);
        store_f32(a->dt, a->dbias, c, total, n);
    }
}

const char *cpu_bias_grad(int threads, const struct bias_grad_args *a) {
    for_ranges(a->rows * a->n < RANGE_ELEMENTS ? 1 : threads, a->n, BIAS_COLUMNS, bias_grad_range, a);
    return NULL;
}
