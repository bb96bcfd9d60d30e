// Rotary position embedding, in place on the query and key heads of qkv.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"

// Rotates pairs [i, i + n) of every q and k head of one row. The heads are adjacent, q first.
static void rope_row(const struct rope_args *a, int64_t row, int64_t i, int64_t n) {
    float cosine[CHUNK], sine[CHUNK], x[CHUNK], y[CHUNK], left[CHUNK], right[CHUNK];
    int64_t pairs = a->head_size / 2, heads = a->heads + a->kv_heads;
    int64_t width = (int64_t)(a->heads + 2 * a->kv_heads) * a->head_size;
    const float *restrict table = a->cos_sin + ((row % a->seq) * pairs + i) * 2;
    float sign = a->inverse ? -1.0f : 1.0f;
    for (int64_t j = 0; j < n; j++) {
        cosine[j] = table[2 * j];
        sine[j] = sign * table[2 * j + 1];
    }
    for (int64_t h = 0; h < heads; h++) {
        int64_t at = row * width + h * a->head_size + i;
        load_f32(a->dt, x, a->qkv, at, n);
        load_f32(a->dt, y, a->qkv, at + pairs, n);
        for (int64_t j = 0; j < n; j++) {
            left[j] = __builtin_fmaf(x[j], cosine[j], -(y[j] * sine[j]));
            right[j] = __builtin_fmaf(y[j], cosine[j], x[j] * sine[j]);
        }
        store_f32(a->dt, a->qkv, at, left, n);
        store_f32(a->dt, a->qkv, at + pairs, right, n);
    }
}

static void rope_range(const void *args, int64_t begin, int64_t end) {
    const struct rope_args *a = args;
    int64_t pairs = a->head_size / 2;
    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < pairs; i += CHUNK) rope_row(a, row, i, chunk_min(CHUNK, pairs - i));
}

const char *cpu_rope(int threads, const struct rope_args *a) {
    assert(a->head_size % 2 == 0);
    int64_t rotated = (int64_t)(a->heads + a->kv_heads) * a->head_size;
    for_ranges(threads, a->batch * a->seq, row_grain(rotated), rope_range, a);
    if (!a->dbias) return NULL;
    struct bias_grad_args bias = rope_bias_grad(a);
    return cpu_bias_grad(threads, &bias);
}
