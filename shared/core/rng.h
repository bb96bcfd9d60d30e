// Counter-based random numbers: a value is a pure function of (key, counter), so it does not depend on ranks,
// threads or order. Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3).
#ifndef STARRING_SHARED_CORE_RNG_H
#define STARRING_SHARED_CORE_RNG_H

#include <stdint.h>

struct philox_out {
    uint32_t v[4];
};

struct philox_out philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);
// Uniform in [0, n), n > 0; the bias is negligible (64-bit multiply-high).
uint64_t rng_below(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint64_t n);
// Standard normal (Box & Muller 1958), element `index` of the stream `key`.
float rng_normal(uint64_t key, uint64_t index);

#endif
