// The codes of gradients (kernels/codec.h) and 1-bit Adam's operations, with the bits that every backend must
// give.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

static double squares(const float *x) {
    double lane[ONEBIT_LANES] = {0};
    for (int i = 0; i < ONEBIT_BLOCK; i++) lane[i % ONEBIT_LANES] += (double)x[i] * (double)x[i];
    for (int d = ONEBIT_LANES / 2; d > 0; d /= 2)
        for (int l = 0; l < d; l++) lane[l] += lane[l + d];
    return lane[0];
}

static uint32_t size_bits(float x) { return f32_to_bits(x) & 0x7fffffffu; }

static double largest(const float *x) {
    uint32_t most = 0;
    for (int i = 0; i < CODE_BLOCK; i++) most = size_bits(x[i]) > most ? size_bits(x[i]) : most;
    return (double)bits_to_f32(most);
}

// The rows of BLOCK_CODES.
static const struct block_code {
    int bits;
    double (*statistic)(const float *x);
    float (*scale)(double statistic);
    uint32_t (*number)(float x, float scale);
    float (*value)(uint32_t number, float scale);
} block_codes[CODE_KINDS] = {
#define REF_CODE(id, name, bits, statistic) \
    [CODE_##id] = {bits, statistic, code_scale_##name, code_number_##name, code_value_##name},
    BLOCK_CODES(REF_CODE)};

static void encode_block(const struct block_code *c, char *out, const float *x) {
    uint32_t word[CODE_BLOCK] = {0}, mask = (uint32_t)((UINT64_C(1) << c->bits) - 1);
    float scale = c->scale(c->statistic(x));
    for (int i = 0; i < CODE_BLOCK; i++)
        word[i * c->bits / 32] |= (c->number(x[i], scale) & mask) << (i * c->bits % 32);
    memcpy(out, &scale, sizeof scale);
    memcpy(out + sizeof scale, word, (size_t)(CODE_BLOCK / 8 * c->bits));
}

struct element {
    uint32_t size, index;
};

static int larger_then_earlier(const void *a, const void *b) {
    const struct element *x = a, *y = b;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int earlier(const void *a, const void *b) {
    const struct element *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

static void encode_topk(char *out, const float *x, int64_t n, int64_t kept) {
    struct element *e = calloc((size_t)n + 1, sizeof *e);
    assert(e);
    for (int64_t i = 0; i < n; i++) e[i] = (struct element){size_bits(x[i]), (uint32_t)i};
    qsort(e, (size_t)n, sizeof *e, larger_then_earlier);
    qsort(e, (size_t)kept, sizeof *e, earlier);
    for (int64_t i = 0; i < kept; i++) {
        memcpy(out + (size_t)i * 4, &e[i].index, 4);
        memcpy(out + (size_t)(kept + i) * 4, &x[e[i].index], 4);
    }
    free(e);
}

void ref_code_encode(const struct code_encode_args *a) {
    float *x = calloc((size_t)a->n + 1, sizeof *x);
    assert(x && a->n % CODE_BLOCK == 0);
    for (int64_t i = 0; i < a->n; i++)
        x[i] = fmaf(a->error[i], a->factor, dtype_load(a->dt, a->grad, (size_t)i));
    const struct block_code *c = &block_codes[a->format.kind];
    for (int64_t b = 0; b < a->n / CODE_BLOCK && c->bits; b++)
        encode_block(c, (char *)a->out + (size_t)b * BLOCK_CODE_BYTES(c->bits), x + b * CODE_BLOCK);
    if (a->format.kind == CODE_TOPK) encode_topk(a->out, x, a->n, code_kept(a->format.share, a->n));
    free(x);
}

void ref_code_error(const struct code_error_args *a) {
    for (int64_t i = 0; i < a->n; i++)
        a->error[i] = fmaf(a->error[i], a->factor, dtype_load(a->dt, a->grad, (size_t)i));
}

static void use(float *out, enum code_use how, float value) {
    *out = how == CODE_SET ? value : how == CODE_PLUS ? *out + value : *out - value;
}

void ref_code_add(const struct code_add_args *a) {
    const struct block_code *c = &block_codes[a->format.kind];
    int64_t kept = code_kept(a->format.share, a->n);
    assert(a->n % CODE_BLOCK == 0);
    for (int64_t i = 0; i < a->n && c->bits; i++) {
        const char *block = (const char *)a->code + (size_t)(i / CODE_BLOCK) * BLOCK_CODE_BYTES(c->bits);
        int64_t bit = i % CODE_BLOCK * c->bits;
        float scale;
        uint32_t word;
        memcpy(&scale, block, sizeof scale);
        memcpy(&word, block + sizeof scale + bit / 32 * 4, sizeof word);
        use(&a->out[i], a->use, c->value(word >> bit % 32 & (uint32_t)((UINT64_C(1) << c->bits) - 1), scale));
    }
    for (int64_t i = 0; i < a->n && a->format.kind == CODE_TOPK && a->use == CODE_SET; i++) a->out[i] = 0;
    for (int64_t i = 0; i < kept && a->format.kind == CODE_TOPK; i++) {
        uint32_t index;
        float value;
        memcpy(&index, (const char *)a->code + (size_t)i * 4, 4);
        memcpy(&value, (const char *)a->code + (size_t)(kept + i) * 4, 4);
        if ((int64_t)index < a->n) use(&a->out[index], a->use, value);
    }
}

// ---------------------------------------------------------------- 1-bit Adam
// Encodes x(256) in *out. x receives the error: x minus the value of *out. v 0: masked.
static void encode_with_error(struct onebit_block *out, float *x, const float *v) {
    int counted = 0;
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        if (v[i] == 0) x[i] = 0;
        counted += v[i] != 0;
    }
    *out = (struct onebit_block){.scale = onebit_root(squares(x), counted)};
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        if (v[i] == 0) continue;
        out->sign[i / 32] |= (uint32_t)(x[i] >= 0) << (i % 32);
        x[i] -= onebit_value(out, i);
    }
}

void ref_onebit_encode(const struct onebit_encode_args *a) {
    assert(a->n % ONEBIT_BLOCK == 0);
    if (a->scalars->skip) return;
    for (int64_t i = 0; i < a->n; i++) {
        float g = dtype_load(a->dt, a->grad, (size_t)i) * a->own->grad_scale;
        a->error[i] += fmaf(a->beta1, a->m[i], (1.0f - a->beta1) * g);
    }
    for (int64_t b = 0; b < a->n / ONEBIT_BLOCK; b++)
        encode_with_error(&a->out[b], a->error + b * ONEBIT_BLOCK, a->v + b * ONEBIT_BLOCK);
}

void ref_onebit_sum(const struct onebit_sum_args *a) {
    int64_t blocks = a->n / ONEBIT_BLOCK;
    assert(a->n % ONEBIT_BLOCK == 0 && a->ranks >= 1);
    if (a->scalars->skip) return;
    for (int64_t i = 0; i < a->n; i++) {
        const struct onebit_block *in = a->in + i / ONEBIT_BLOCK;
        float total = onebit_value(in, i % ONEBIT_BLOCK);
        for (int32_t r = 1; r < a->ranks; r++) total += onebit_value(in + r * blocks, i % ONEBIT_BLOCK);
        a->error[i] += total * (1.0f / (float)a->ranks);
    }
    for (int64_t b = 0; b < blocks; b++)
        encode_with_error(&a->out[b], a->error + b * ONEBIT_BLOCK, a->v + b * ONEBIT_BLOCK);
}
