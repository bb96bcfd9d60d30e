// An exact, associative sum of non-negative doubles. The global gradient norm needs it: it must not depend on
// how elements are partitioned over ranks, shards or threads (docs/numerics.md).
//
// Idea (Kulisch's long accumulator, as in Demmel & Nguyen, "Parallel Reproducible Summation", 2015, section 2):
// a fixed-point number wide enough for every term. It is kept in 32-bit digits (limbs) with 31 bits of head
// room, so adding is integer addition: exact, commutative and associative. Ranks merge sums by adding limbs,
// which any integer all-reduce can do.
//
//     value = sum_i limb[i] * 2^(32*i - 320)        i = 0 .. 19
//
// Range: the square of the smallest fp32 subnormal is 2^-298, the square of the largest fp32 is 2^256; 2^31
// terms fit before a digit could overflow. The unit of partitioning is SUMSQ_BLOCK elements: the squares of one
// block are added in double in index order, then the block's sum is added here. Every shard and partition
// boundary is a multiple of SUMSQ_BLOCK, so every partition adds the same numbers.
#ifndef STARRING_KERNELS_EXACT_SUM_H
#define STARRING_KERNELS_EXACT_SUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SUMSQ_BLOCK     256  // elements
#define EXACT_SUM_LIMBS 20

struct exact_sum {
    int64_t limb[EXACT_SUM_LIMBS];
    int64_t nonfinite;  // how many elements were infinite or NaN; their blocks add nothing
};

#define EXACT_SUM_WORDS ((int)(sizeof(struct exact_sum) / sizeof(int64_t)))

// Adds a finite x >= 0 that is a multiple of 2^-320.
static inline void exact_sum_add(struct exact_sum *s, double x) {
    if (x <= 0.0) return;
    // Reads the number's bits: calls of frexp and ldexp took up to a third of the time of a sum of squares.
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t mant = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;  // x = mant * 2^(exponent - 1075)
    int shift = (int)(bits >> 52) - 1075 + 320;                              // position of mant's lowest bit
    if (shift < 0) {
        mant >>= -shift;  // bits below 2^-320 are zero by the contract
        shift = 0;
    }
    int i = shift / 32, r = shift % 32;
    unsigned __int128 wide = (unsigned __int128)mant << r;  // < 2^85: three digits
    for (; wide && i < EXACT_SUM_LIMBS; i++, wide >>= 32) s->limb[i] += (int64_t)(uint32_t)wide;
}

static inline void exact_sum_merge(struct exact_sum *into, const struct exact_sum *from) {
    for (int i = 0; i < EXACT_SUM_LIMBS; i++) into->limb[i] += from->limb[i];
    into->nonfinite += from->nonfinite;
}

// Carries, so that each digit has 32 bits, and bounds the count; the value does not change. Many carried sums
// can be added without overflow, so a sum is carried before it is sent.
#define EXACT_SUM_NONFINITE_MOST ((int64_t)1 << 40)
static inline void exact_sum_carry(struct exact_sum *s) {
    int64_t carry = 0;
    for (int i = 0; i < EXACT_SUM_LIMBS; i++) {
        int64_t v = s->limb[i] + carry;
        s->limb[i] = v & 0xffffffff;
        carry = v >> 32;
    }
    if (s->nonfinite > EXACT_SUM_NONFINITE_MOST) s->nonfinite = EXACT_SUM_NONFINITE_MOST;
}

// Returns the sum rounded to double. Equal sums give equal results, whether their digits are carried or not.
static inline double exact_sum_value(const struct exact_sum *s) {
    int64_t d[EXACT_SUM_LIMBS], carry = 0;
    for (int i = 0; i < EXACT_SUM_LIMBS; i++) {
        int64_t v = s->limb[i] + carry;
        d[i] = v & 0xffffffff;
        carry = v >> 32;
    }
    double x = (double)carry;
    for (int i = EXACT_SUM_LIMBS - 1; i >= 0; i--) x = x * 4294967296.0 + (double)d[i];
    return ldexp(x, -320);
}

#endif
