// What a block of the 1-bit code says, and its scale (kernels/codec/onebit.h).
#ifndef STARRING_KERNELS_REF_ONEBIT_H
#define STARRING_KERNELS_REF_ONEBIT_H

#include <math.h>

#include "kernels/codec/onebit.h"

// What a block says of its element i.
static inline float onebit_said(const struct onebit_block *b, int64_t i) {
    return b->sign[i / 32] >> (i % 32) & 1 ? b->scale : -b->scale;
}

// The scale of a block of which so many elements count; the others are 0.
static inline float onebit_scale(const float *x, int counted) {
    double lane[ONEBIT_LANES] = {0};
    for (int i = 0; i < ONEBIT_BLOCK; i++) lane[i % ONEBIT_LANES] += (double)x[i] * (double)x[i];
    for (int d = ONEBIT_LANES / 2; d > 0; d /= 2)
        for (int l = 0; l < d; l++) lane[l] += lane[l + d];
    return counted ? (float)sqrt(lane[0] / counted) : 0.0f;
}

#endif
