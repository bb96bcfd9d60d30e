// Codes of gradients (kernels/codec.h): of any gradient, and any bytes that come as one. Reference and CPU agree to the
// bit, what a code says is what its squares are of, and what is made here is without a fault. Every buffer has exactly its
// size.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/operations.h"
#include "ps/job/push_code.h"
#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

#define BLOCKS_MAX 4

// The rest of the input, as often as it takes.
static void fill(struct fuzz_bytes *in, void *out, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)out)[i] = in->left ? in->p[i % in->left] : 0;
}

static int run(const op_fn *ops, int threads, enum op op, const void *args) {
    const char *why = "";
    return ops[op](threads, args, &why);
}

// The values of the code, by the reference: (n).
static float *said(const struct code_format *f, const void *code, int64_t n) {
    float *out[2];
    for (int side = 0; side < 2; side++) {
        out[side] = xcalloc((unsigned long)n, sizeof **out);
        const struct code_add_args a = {
            .out = out[side], .code = code, .n = n, .format = *f, .use = CODE_SET};
        FUZZ_CHECK(run(side ? cpu_ops : ref_ops, 1 + side, OP_CODE_ADD, &a) == 0, "code_add refuses");
        const struct code_add_args plus = {
            .out = out[side], .code = code, .n = n, .format = *f, .use = CODE_PLUS};
        FUZZ_CHECK(run(side ? cpu_ops : ref_ops, 1 + side, OP_CODE_ADD, &plus) == 0, "code_add refuses");
    }
    for (int64_t i = 0; i < n; i++)
        FUZZ_CHECK(isnan(out[0][i]) ? isnan(out[1][i]) : !memcmp(&out[0][i], &out[1][i], 4),
                   "element %lld: %a by the reference, %a by the CPU", (long long)i, (double)out[0][i],
                   (double)out[1][i]);
    const struct code_add_args again = {.out = out[0], .code = code, .n = n, .format = *f, .use = CODE_SET};
    run(ref_ops, 1, OP_CODE_ADD, &again);
    free(out[1]);
    return out[0];
}

static void check_squares(const struct code_format *f, const void *code, int64_t n) {
    struct exact_sum of_code, of_values;
    float *values = said(f, code, n);
    const struct sumsq_args a = {.out = &of_values, .x = values, .n = n, .zero_out = true, .dt = DT_F32};
    FUZZ_CHECK(run(cpu_ops, 1, OP_SUMSQ, &a) == 0 && push_squares(f, DT_F32, code, n, &of_code) == 0,
               "the squares are refused");
    double x = exact_sum_value(&of_code), y = exact_sum_value(&of_values);
    // topk's values are added in other blocks than those of all elements.
    bool same = f->kind == CODE_TOPK ? fabs(x - y) <= 1e-12 * y : !memcmp(&x, &y, sizeof x);
    FUZZ_CHECK(of_code.nonfinite == of_values.nonfinite,
               "%lld of the code's elements are not finite, and %lld of what it says",
               (long long)of_code.nonfinite, (long long)of_values.nonfinite);
    FUZZ_CHECK(same || of_code.nonfinite, "squares %a of the code, %a of what it says", x, y);
    free(values);
}

static void encode(struct fuzz_bytes *in, const struct code_format *f, int64_t n) {
    enum dtype dt = (enum dtype)fuzz_below(in, 3);
    size_t bytes = code_bytes(f, n);
    float *error = xcalloc((unsigned long)n, sizeof *error);
    void *grad = xcalloc((unsigned long)n, dtype_size(dt)), *code[2];
    float factor = (float)fuzz_u8(in);
    fill(in, grad, (size_t)n * dtype_size(dt));
    for (int64_t i = 0; i < n; i++) error[i] = (float)(i % 7) - 3;
    for (int side = 0; side < 2; side++) {
        code[side] = xcalloc(bytes, 1);
        const struct code_encode_args a = {.out = code[side],
                                           .error = error,
                                           .grad = grad,
                                           .n = n,
                                           .format = *f,
                                           .factor = factor,
                                           .dt = dt};
        FUZZ_CHECK(run(side ? cpu_ops : ref_ops, 1 + side, OP_CODE_ENCODE, &a) == 0, "code_encode refuses");
        const char *fault = codec_of(f->kind)->fault(f, code[side], bytes, n);
        FUZZ_CHECK(!fault, "an own code is refused: %s", fault);
    }
    float *a = said(f, code[0], n), *b = said(f, code[1], n);
    for (int64_t i = 0; i < n; i++)
        FUZZ_CHECK(isfinite(a[i]) ? !memcmp(&a[i], &b[i], 4) : !isfinite(b[i]),
                   "element %lld is coded as %a by the reference, as %a by the CPU", (long long)i,
                   (double)a[i], (double)b[i]);
    check_squares(f, code[1], n);
    free(a), free(b), free(code[0]), free(code[1]), free(error), free(grad);
}

FUZZ_TARGET(codes) {
    struct fuzz_bytes in = {data, size};
    struct code_format f = {.kind = (enum code_kind)(1 + fuzz_below(&in, 3))};
    f.share = (1 + (double)fuzz_below(&in, 256)) / 256;
    int64_t n = CODE_BLOCK * (1 + (int64_t)fuzz_below(&in, BLOCKS_MAX));
    uint8_t how = fuzz_u8(&in);
    if (how & 1) {
        encode(&in, &f, n);
        return;
    }
    // As it came: of any size, at any place.
    size_t right = code_bytes(&f, n), bytes = how & 2 ? in.left : right;
    char *came = xcalloc(bytes + 1, 1), *code = came + (how >> 2 & 1);
    fill(&in, code, bytes - (bytes && how & 4));
    if (how & 4 && bytes) bytes--;
    const char *fault = codec_of(f.kind)->fault(&f, code, bytes, n);
    FUZZ_CHECK(fault || bytes == right, "%zu bytes pass for a code of %zu", bytes, right);
    if (!fault) check_squares(&f, code, n);
    free(came);
}
