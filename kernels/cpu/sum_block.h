// The ordered sum of several buffers in one pass, without storing anything in between: what reductions and the
// star's servers do. The same bits as adding one buffer after the other in fp32 and rounding at the end, since
// every element is added by itself.
#ifndef STARRING_KERNELS_CPU_SUM_BLOCK_H
#define STARRING_KERNELS_CPU_SUM_BLOCK_H

#include "kernels/cpu/vec.h"

// out and in are addressed by element; none needs to be aligned. start NULL: the sum starts as in[0] (not as zero
// plus it: -0 stays -0).
struct sum_block {
    void *out;              // (n) of `to`
    const float *start;     // (n), added first, or NULL
    const void *const *in;  // count buffers, each (n) of `from`
    int count;              // >= 1 where start is NULL
    int64_t n;
    enum dtype from, to;
};

VEC_INLINE void sum_block_typed(enum dtype from, enum dtype to, const struct sum_block *b) {
    int64_t i = 0;
    for (; i + VEC <= b->n; i += VEC) {
        vecf total = b->start ? vec_load_f32(b->start + i) : vec_load(from, b->in[0], i);
        for (int k = b->start ? 0 : 1; k < b->count; k++) total += vec_load(from, b->in[k], i);
        vec_store(to, b->out, i, total);
    }
    if (i == b->n) return;
    vecf total =
        b->start ? vec_load_part(DT_F32, b->start, i, b->n - i) : vec_load_part(from, b->in[0], i, b->n - i);
    for (int k = b->start ? 0 : 1; k < b->count; k++) total += vec_load_part(from, b->in[k], i, b->n - i);
    vec_store_part(to, b->out, i, b->n - i, total);
}

// Walking upwards, each vector is stored after all of its inputs have been read: out may be one of them, and
// elements of 16 bits may be stored from the start of the floats that they are the sums of.
static inline void sum_block(const struct sum_block *b) {
    if (b->from == DT_F32)
        sum_block_typed(DT_F32, DT_F32, b);
    else if (b->from == DT_BF16 && b->to == DT_BF16)
        sum_block_typed(DT_BF16, DT_BF16, b);
    else if (b->from == DT_BF16)
        sum_block_typed(DT_BF16, DT_F32, b);
    else if (b->to == DT_F16)
        sum_block_typed(DT_F16, DT_F16, b);
    else
        sum_block_typed(DT_F16, DT_F32, b);
}

#endif
