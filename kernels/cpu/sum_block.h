// The ordered sum of several buffers in one pass, without storing intermediate sums: for reductions and the
// star's servers. It gives the same bits as adding one buffer after the other in fp32 and rounding at the end,
// because elements are independent.
#ifndef STARRING_KERNELS_CPU_SUM_BLOCK_H
#define STARRING_KERNELS_CPU_SUM_BLOCK_H

#include "kernels/cpu/vec.h"

// out and in are addressed by element and need no alignment. start NULL: the sum starts as in[0] (zero plus
// in[0] would lose -0).
struct sum_block {
    void *out;              // (n) of `to`
    const float *start;     // (n), added first, or NULL
    const void *const *in;  // count buffers, each (n) of `from`
    int count;              // >= 1 if start is NULL
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

// From low to high elements, each vector is stored after all of its inputs have been read. So out may be one of
// the inputs, and 16-bit results may be stored from the beginning of the floats they are computed from.
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
