// The codes of gradients and 1-bit Adam's operations (kernels/codec.h), one block of 256 elements at a time, in
// loops that compilers vectorise. Blocks are spread over all threads. The top-k of a partition runs on one
// thread: four counting passes (a radix selection, eight bits of the magnitude each), then one that writes.
#include <math.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"

static inline double squares(const float *restrict x) {
    double lane[ONEBIT_LANES] = {0};
    for (int i = 0; i < ONEBIT_BLOCK; i += ONEBIT_LANES)
        for (int l = 0; l < ONEBIT_LANES; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    for (int d = ONEBIT_LANES / 2; d > 0; d /= 2)
        for (int l = 0; l < d; l++) lane[l] += lane[l + d];
    return lane[0];
}

#define GRAIN (RANGE_ELEMENTS / CODE_BLOCK)  // blocks

static uint32_t size_bits(float x) { return f32_to_bits(x) & 0x7fffffffu; }

// x(CODE_BLOCK) = error * factor + gradient, for the block of elements from `at` on.
static void block_of(const struct code_encode_args *a, int64_t at, float *restrict x) {
    const float *restrict error = a->error + at;
    load_f32(a->dt, x, a->grad, at, chunk_min(CODE_BLOCK, a->n - at));
    for (int i = 0; i < CODE_BLOCK; i++) x[i] = __builtin_fmaf(error[i], a->factor, x[i]);
}

static inline double largest(const float *restrict x) {
    uint32_t most = 0;
    for (int i = 0; i < CODE_BLOCK; i++) most = size_bits(x[i]) > most ? size_bits(x[i]) : most;
    return (double)bits_to_f32(most);
}

// out op= value, as code_use says.
static void use(float *restrict out, const float *restrict value, enum code_use how) {
    for (int i = 0; i < CODE_BLOCK; i++)
        out[i] = how == CODE_SET ? value[i] : how == CODE_PLUS ? out[i] + value[i] : out[i] - value[i];
}

// Each row's loops over blocks [begin, end): encode_NAME, and add_NAME, which decodes. Numbers of eight bits are bytes,
// which compilers vectorise.
#define CPU_CODE(id, name, bits, statistic)                                                                 \
    static void encode_##name(const void *args, int64_t begin, int64_t end) {                               \
        const struct code_encode_args *a = args;                                                            \
        float x[CODE_BLOCK];                                                                                \
        for (int64_t b = begin; b < end; b++) {                                                             \
            block_of(a, b *CODE_BLOCK, x);                                                                  \
            const float scale = code_scale_##name(statistic(x));                                            \
            uint8_t *restrict byte = (uint8_t *)a->out + (size_t)b * BLOCK_CODE_BYTES(bits) + sizeof scale; \
            memcpy(byte - sizeof scale, &scale, sizeof scale);                                              \
            for (int i = 0; bits == 8 && i < CODE_BLOCK; i++)                                               \
                byte[i] = (uint8_t)code_number_##name(x[i], scale);                                         \
            for (uint32_t w = 0; bits < 8 && w < CODE_BLOCK / 32 * bits; w++) {                             \
                uint32_t word = 0;                                                                          \
                for (uint32_t l = 0; l < 32 / bits; l++)                                                    \
                    word |= (code_number_##name(x[32 / bits * w + l], scale) & ((1u << bits) - 1))          \
                            << l * bits;                                                                    \
                memcpy(byte + w * sizeof word, &word, sizeof word);                                         \
            }                                                                                               \
        }                                                                                                   \
    }                                                                                                       \
    static void add_##name(const void *args, int64_t begin, int64_t end) {                                  \
        const struct code_add_args *a = args;                                                               \
        float value[CODE_BLOCK], scale;                                                                     \
        for (int64_t b = begin; b < end; b++) {                                                             \
            const uint8_t *byte =                                                                           \
                (const uint8_t *)a->code + (size_t)b * BLOCK_CODE_BYTES(bits) + sizeof scale;               \
            memcpy(&scale, byte - sizeof scale, sizeof scale);                                              \
            for (int i = 0; bits == 8 && i < CODE_BLOCK; i++) value[i] = code_value_##name(byte[i], scale); \
            for (uint32_t w = 0; bits < 8 && w < CODE_BLOCK / 32 * bits; w++) {                             \
                uint32_t word;                                                                              \
                memcpy(&word, byte + w * sizeof word, sizeof word);                                         \
                for (uint32_t l = 0; l < 32 / bits; l++)                                                    \
                    value[32 / bits * w + l] =                                                              \
                        code_value_##name(word >> l * bits & ((1u << bits) - 1), scale);                    \
            }                                                                                               \
            use(a->out + b * CODE_BLOCK, value, a->use);                                                    \
        }                                                                                                   \
    }
BLOCK_CODES(CPU_CODE)
static const struct {
    range_fn encode, add;
} block_codes[CODE_KINDS] = {
#define CPU_CODE_ROW(id, name, bits, statistic) [CODE_##id] = {encode_##name, add_##name},
    BLOCK_CODES(CPU_CODE_ROW)};

// Returns the kept-th largest magnitude. *equal receives how many elements of exactly that magnitude are kept.
static uint32_t kth_largest(const struct code_encode_args *a, int64_t kept, int64_t *equal) {
    float x[CODE_BLOCK];
    uint32_t found = 0, known = 0;
    int64_t rest = kept;  // how many more are needed from the elements whose known bits equal found's
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        for (int64_t at = 0; at < a->n; at += CODE_BLOCK) {
            block_of(a, at, x);
            for (int i = 0; i < CODE_BLOCK; i++) {
                uint32_t size = size_bits(x[i]);
                count[size >> shift & 255u] += (size & known) == found;
            }
        }
        uint32_t digit = 255;
        while (rest > count[digit]) rest -= count[digit--];
        found |= digit << shift;
        known |= 255u << shift;
    }
    *equal = rest;
    return found;
}

static void encode_topk(const struct code_encode_args *a) {
    int64_t kept = code_kept(a->format.share, a->n), equal = 0, done = 0;
    if (!kept) return;
    uint32_t least = kth_largest(a, kept, &equal), *index = a->out;
    void *after_indices = index + kept;
    float *value = after_indices, x[CODE_BLOCK];
    for (int64_t at = 0; at < a->n; at += CODE_BLOCK) {
        block_of(a, at, x);
        for (int i = 0; i < CODE_BLOCK; i++) {
            uint32_t size = size_bits(x[i]);
            if (size < least || (size == least && equal == 0)) continue;
            equal -= size == least;
            index[done] = (uint32_t)(at + i);
            value[done++] = x[i];
        }
    }
    assert(done == kept);
}

const char *cpu_code_encode(int threads, const struct code_encode_args *a) {
    assert(a->n % CODE_BLOCK == 0 && codec_of(a->format.kind));
    if (a->format.kind == CODE_TOPK)
        encode_topk(a);
    else
        for_ranges(threads, a->n / CODE_BLOCK, GRAIN, block_codes[a->format.kind].encode, a);
    return NULL;
}

static void error_range(const void *args, int64_t begin, int64_t end) {
    const struct code_error_args *a = args;
    float grad[CHUNK];
    for (int64_t at = begin; at < end; at += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - at);
        float *restrict error = a->error + at;
        load_f32(a->dt, grad, a->grad, at, n);
        for (int64_t i = 0; i < n; i++) error[i] = __builtin_fmaf(error[i], a->factor, grad[i]);
    }
}

const char *cpu_code_error(int threads, const struct code_error_args *a) {
    for_ranges(threads, a->n, RANGE_ELEMENTS, error_range, a);
    return NULL;
}

// ---------------------------------------------------------------- decoding
static void add_topk(const struct code_add_args *a) {
    int64_t kept = code_kept(a->format.share, a->n);
    const char *indices = a->code, *values = indices + (size_t)kept * sizeof(uint32_t);
    if (a->use == CODE_SET) memset(a->out, 0, (size_t)a->n * sizeof *a->out);
    for (int64_t i = 0; i < kept; i++) {
        uint32_t index;
        float value;
        memcpy(&index, indices + (size_t)i * sizeof index, sizeof index);
        memcpy(&value, values + (size_t)i * sizeof value, sizeof value);
        if ((int64_t)index >= a->n) continue;
        float was = a->out[index];
        a->out[index] = a->use == CODE_SET ? value : a->use == CODE_PLUS ? was + value : was - value;
    }
}

const char *cpu_code_add(int threads, const struct code_add_args *a) {
    assert(a->n % CODE_BLOCK == 0 && codec_of(a->format.kind));
    if (a->format.kind == CODE_TOPK)
        add_topk(a);
    else
        for_ranges(threads, a->n / CODE_BLOCK, GRAIN, block_codes[a->format.kind].add, a);
    return NULL;
}

// ---------------------------------------------------------------- 1-bit Adam
// Encodes x(256) in *out. x receives the error: x minus the value of *out. Elements whose variance v is 0 are masked:
// their sign bit and their error are 0.
static void encode_with_error(struct onebit_block *out, float *restrict x, const float *restrict v) {
    int32_t counted = 0;
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        x[i] = v[i] != 0 ? x[i] : 0;
        counted += v[i] != 0;
    }
    out->scale = onebit_root(squares(x), counted);
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        uint32_t word = 0;
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t i = 32 * (uint32_t)w + l;
            word |= (uint32_t)((x[i] >= 0) & (v[i] != 0)) << l;
        }
        out->sign[w] = word;
    }
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        float y = x[i] - (x[i] >= 0 ? out->scale : -out->scale);
        x[i] = v[i] != 0 ? y : 0;
    }
}

static void onebit_encode_range(const void *args, int64_t begin, int64_t end) {
    const struct onebit_encode_args *a = args;
    const float scale = a->own->grad_scale, beta1 = a->beta1, rest1 = 1.0f - a->beta1;
    float grad[ONEBIT_BLOCK];
    for (int64_t b = begin; b < end; b++) {
        int64_t at = b * ONEBIT_BLOCK;
        float *restrict x = a->error + at;
        const float *restrict m = a->m + at;
        load_f32(a->dt, grad, a->grad, at, chunk_min(ONEBIT_BLOCK, a->n - at));
        for (int i = 0; i < ONEBIT_BLOCK; i++) x[i] += __builtin_fmaf(beta1, m[i], rest1 * (grad[i] * scale));
        encode_with_error(&a->out[b], x, a->v + at);
    }
}

const char *cpu_onebit_encode(int threads, const struct onebit_encode_args *a) {
    assert(a->n % ONEBIT_BLOCK == 0);
    if (!a->scalars->skip) for_ranges(threads, a->n / ONEBIT_BLOCK, GRAIN, onebit_encode_range, a);
    return NULL;
}

static void sum_range(const void *args, int64_t begin, int64_t end) {
    const struct onebit_sum_args *a = args;
    const float part = 1.0f / (float)a->ranks;
    int64_t blocks = a->n / ONEBIT_BLOCK;
    float total[ONEBIT_BLOCK], one[ONEBIT_BLOCK];
    for (int64_t b = begin; b < end; b++) {
        float *restrict x = a->error + b * ONEBIT_BLOCK;
        onebit_decode(&a->in[b], total);
        for (int32_t r = 1; r < a->ranks; r++) {
            onebit_decode(&a->in[r * blocks + b], one);
            for (int i = 0; i < ONEBIT_BLOCK; i++) total[i] += one[i];
        }
        for (int i = 0; i < ONEBIT_BLOCK; i++) x[i] += total[i] * part;
        encode_with_error(&a->out[b], x, a->v + b * ONEBIT_BLOCK);
    }
}

const char *cpu_onebit_sum(int threads, const struct onebit_sum_args *a) {
    assert(a->n % ONEBIT_BLOCK == 0 && a->ranks >= 1);
    if (!a->scalars->skip) for_ranges(threads, a->n / ONEBIT_BLOCK, GRAIN, sum_range, a);
    return NULL;
}
