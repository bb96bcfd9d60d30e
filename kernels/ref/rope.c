// Rotary position embedding, pair by pair.
#include "kernels/ref/ref.h"

void ref_rope(const struct rope_args *a) {
    int64_t half = a->head_size / 2, width = (int64_t)(a->heads + 2 * a->kv_heads) * a->head_size;
    for (int64_t row = 0; row < a->batch * a->seq; row++) {
        for (int64_t h = 0; h < a->heads + a->kv_heads; h++) {
            for (int64_t i = 0; i < half; i++) {
                const float *cs = a->cos_sin + ((row % a->seq) * half + i) * 2;
                double c = (double)cs[0], s = a->inverse ? -(double)cs[1] : (double)cs[1];
                int64_t left = row * width + h * a->head_size + i, right = left + half;
                double x = dtype_load(a->dt, a->qkv, left), y = dtype_load(a->dt, a->qkv, right);
                dtype_store(a->dt, a->qkv, left, (float)(x * c - y * s));
                dtype_store(a->dt, a->qkv, right, (float)(y * c + x * s));
            }
        }
    }
    if (!a->dbias) return;
    struct bias_grad_args bias = rope_bias_grad(a);
    ref_bias_grad(&bias);
}
