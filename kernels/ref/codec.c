// The codes of gradients (kernels/codec/codec.h): bit for bit what every backend computes.
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec/codec.h"
#include "kernels/ref/onebit.h"
#include "kernels/ref/ref.h"

static uint32_t size_bits(float x) { return f32_to_bits(x) & 0x7fffffffu; }

static void encode_onebit(struct onebit_block *out, const float *x) {
    float scale = onebit_scale(x, CODE_BLOCK);
    *out = (struct onebit_block){.scale = isfinite(scale) ? scale : INFINITY};
    for (int i = 0; i < CODE_BLOCK; i++) out->sign[i / 32] |= (uint32_t)(x[i] >= 0) << (i % 32);
}

static void encode_int8(struct int8_block *out, const float *x) {
    uint32_t most = 0;
    for (int i = 0; i < CODE_BLOCK; i++) most = size_bits(x[i]) > most ? size_bits(x[i]) : most;
    bool finite = most < 0x7f800000u;
    out->scale = finite ? bits_to_f32(most) / 127.0f : INFINITY;
    for (int i = 0; i < CODE_BLOCK; i++)
        out->q[i] = finite && out->scale > 0 ? (int8_t)fminf(fmaxf(rintf(x[i] / out->scale), -127), 127) : 0;
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

int ref_op_code_encode(int threads, const void *args, const char **why) {
    const struct code_encode_args *a = args;
    float *x = calloc((size_t)a->n + 1, sizeof *x);
    (void)threads;
    (void)why;
    assert(x && a->n % CODE_BLOCK == 0);
    for (int64_t i = 0; i < a->n; i++)
        x[i] = fmaf(a->error[i], a->factor, dtype_load(a->dt, a->grad, (size_t)i));
    for (int64_t b = 0; b < a->n / CODE_BLOCK; b++) {
        if (a->format.kind == CODE_ONEBIT)
            encode_onebit((struct onebit_block *)a->out + b, x + b * CODE_BLOCK);
        if (a->format.kind == CODE_INT8) encode_int8((struct int8_block *)a->out + b, x + b * CODE_BLOCK);
    }
    if (a->format.kind == CODE_TOPK) encode_topk(a->out, x, a->n, code_kept(a->format.share, a->n));
    free(x);
    return 0;
}

int ref_op_code_error(int threads, const void *args, const char **why) {
    const struct code_error_args *a = args;
    (void)threads;
    (void)why;
    for (int64_t i = 0; i < a->n; i++)
        a->error[i] = fmaf(a->error[i], a->factor, dtype_load(a->dt, a->grad, (size_t)i));
    return 0;
}

static void use(float *out, enum code_use how, float said) {
    *out = how == CODE_SET ? said : how == CODE_PLUS ? *out + said : *out - said;
}

int ref_op_code_add(int threads, const void *args, const char **why) {
    const struct code_add_args *a = args;
    int64_t kept = code_kept(a->format.share, a->n);
    (void)threads;
    (void)why;
    assert(a->n % CODE_BLOCK == 0);
    for (int64_t i = 0; i < a->n && a->format.kind != CODE_TOPK; i++) {
        int64_t at = i % CODE_BLOCK;
        struct onebit_block sign;
        struct int8_block number;
        if (a->format.kind == CODE_ONEBIT) {
            memcpy(&sign, (const char *)a->code + (size_t)(i / CODE_BLOCK) * sizeof sign, sizeof sign);
            use(&a->out[i], a->use, onebit_said(&sign, at));
        } else {
            memcpy(&number, (const char *)a->code + (size_t)(i / CODE_BLOCK) * sizeof number, sizeof number);
            use(&a->out[i], a->use, number.scale * (float)number.q[at]);
        }
    }
    for (int64_t i = 0; i < a->n && a->format.kind == CODE_TOPK && a->use == CODE_SET; i++) a->out[i] = 0;
    for (int64_t i = 0; i < kept && a->format.kind == CODE_TOPK; i++) {
        uint32_t index;
        float value;
        memcpy(&index, (const char *)a->code + (size_t)i * 4, 4);
        memcpy(&value, (const char *)a->code + (size_t)(kept + i) * 4, 4);
        if ((int64_t)index < a->n) use(&a->out[index], a->use, value);
    }
    return 0;
}
