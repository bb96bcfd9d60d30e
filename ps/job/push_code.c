#include "ps/job/push_code.h"

#include <string.h>

#include "kernels/operations.h"
#include "ps/job/shard_sizes.h"

static int squares(const void *x, enum dtype dtype, int64_t n, bool first, struct exact_sum *out) {
    const struct sumsq_args a = {.out = out, .x = x, .n = n, .zero_out = first, .dt = dtype};
    const char *why;
    return cpu_ops[OP_SUMSQ](1, &a, &why) == 0 ? 0 : -1;
}

// Sums only the values: all other elements are 0.
static int squares_of_topk(const struct code_format *code, const char *payload, int64_t n,
                           struct exact_sum *out) {
    int64_t kept = code_kept(code->share, n);
    const char *values = payload + (size_t)kept * sizeof(uint32_t);
    for (int64_t at = 0; at < kept; at += CODE_BLOCK) {
        float said[CODE_BLOCK] = {0};
        int64_t count = kept - at < CODE_BLOCK ? kept - at : CODE_BLOCK;
        memcpy(said, values + (size_t)at * sizeof(float), (size_t)count * sizeof(float));
        if (squares(said, DT_F32, CODE_BLOCK, at == 0, out) != 0) return -1;
    }
    return 0;
}

static int squares_of_blocks(const struct code_format *code, const char *payload, int64_t n,
                             struct exact_sum *out) {
    for (int64_t at = 0; at < n; at += CODE_BLOCK) {
        float said[CODE_BLOCK];
        const struct code_add_args a = {
            .out = said, .code = payload, .n = CODE_BLOCK, .format = *code, .use = CODE_SET};
        const char *why;
        if (cpu_ops[OP_CODE_ADD](1, &a, &why) != 0 || squares(said, DT_F32, CODE_BLOCK, at == 0, out) != 0)
            return -1;
        payload += code_bytes(code, CODE_BLOCK);
    }
    return 0;
}

int push_squares(const struct code_format *code, enum dtype dtype, const void *payload, int64_t n,
                 struct exact_sum *out) {
    if (code->kind == CODE_NONE) return squares(payload, dtype, n, true, out);
    return code->kind == CODE_TOPK ? squares_of_topk(code, payload, n, out)
                                   : squares_of_blocks(code, payload, n, out);
}

int push_bytes_of_units(const struct config *c, const struct layout *l, size_t *bytes) {
    struct shard_cut cut;
    if (shard_cut_of(c, l, &cut) != 0) return -1;
    for (int u = 0; u < l->count; u++) {
        struct size_class of[3];
        shard_sizes_of_unit(&cut, l->units[u].n_pad, of);
        bytes[u] = 0;
        for (int i = 0; i < 3; i++)
            if (of[i].keys > 0)
                bytes[u] += (size_t)of[i].keys * push_bytes(&c->ps.code, c->dtype, of[i].elements);
    }
    return 0;
}
