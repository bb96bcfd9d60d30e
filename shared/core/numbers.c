#include "shared/core/numbers.h"

#include <math.h>

#include "kernels/exact_math.h"

struct philox_out philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct philox_out){{c0, c1, c2, c3}};
}

uint64_t rng_below(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint64_t n) {
    struct philox_out r = philox(key, counter_low, counter_high);
    uint64_t x = ((uint64_t)r.v[1] << 32) | r.v[0];
    return (uint64_t)(((unsigned __int128)x * n) >> 64);
}

float rng_uniform(uint64_t key, uint64_t index) {
    return (float)((int32_t)(philox(key, index, 0x756e69666f726dULL).v[0] >> 8) - (1 << 23)) /
           (float)(1 << 23);
}

float rng_normal(uint64_t key, uint64_t index) {
    struct philox_out r = philox(key, index / 2, 0x6e6f726d616cULL);
    // 24 bits each. u1 is in (0, 1], so that the logarithm is finite.
    double u1 = ((double)(r.v[0] >> 8) + 1.0) / 16777216.0, u2 = (double)(r.v[1] >> 8) / 16777216.0;
    double radius = sqrt(-2.0 * exact_log(u1)), angle = 6.283185307179586 * u2;
    return (float)(radius * (index % 2 ? exact_sine(angle) : exact_cosine(angle)));
}
