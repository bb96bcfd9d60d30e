// What a block of the 1-bit code says, and its scale (kernels/codec/onebit.h), in loops that compilers vectorise.
#ifndef STARRING_KERNELS_CPU_OPS_ONEBIT_H
#define STARRING_KERNELS_CPU_OPS_ONEBIT_H

#include <math.h>

#include "kernels/codec/onebit.h"
#include "kernels/dtype.h"

// out[i] = what b says of element i.
static inline void onebit_decode(const struct onebit_block *b, float *restrict out) {
    uint32_t minus = f32_to_bits(-b->scale);
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        uint32_t word = b->sign[w];
        for (uint32_t l = 0; l < 32; l++)
            out[32 * (uint32_t)w + l] = bits_to_f32(minus ^ (word >> l & 1u) << 31);
    }
}

// The scale of a block of which so many elements count; the others are 0.
static inline float onebit_scale(const float *restrict x, int counted) {
    double lane[ONEBIT_LANES] = {0};
    for (int i = 0; i < ONEBIT_BLOCK; i += ONEBIT_LANES)
        for (int l = 0; l < ONEBIT_LANES; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    for (int d = ONEBIT_LANES / 2; d > 0; d /= 2)
        for (int l = 0; l < d; l++) lane[l] += lane[l + d];
    return counted ? (float)sqrt(lane[0] / counted) : 0.0f;
}

#endif
