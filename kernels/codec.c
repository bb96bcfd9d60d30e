#include "kernels/codec.h"

#include <string.h>

static size_t bytes_of_onebit(const struct code_format *f, int64_t n) {
    (void)f;
    return onebit_bytes(n);
}

static size_t bytes_of_int8(const struct code_format *f, int64_t n) {
    (void)f;
    return (size_t)(n / CODE_BLOCK) * sizeof(struct int8_block);
}

static size_t bytes_of_topk(const struct code_format *f, int64_t n) {
    return (size_t)code_kept(f->share, n) * (sizeof(uint32_t) + sizeof(float));
}

// Any bits say something.
static const char *fault_of_blocks(const struct code_format *f, const void *code, size_t bytes, int64_t n) {
    (void)code;
    return bytes == code_bytes(f, n) ? NULL : "the payload's size is not that of the partition's code";
}

static const char *fault_of_topk(const struct code_format *f, const void *code, size_t bytes, int64_t n) {
    int64_t kept = code_kept(f->share, n), before = -1;
    if (bytes != bytes_of_topk(f, n)) return "the payload's size is not that of the partition's code";
    for (int64_t i = 0; i < kept; i++) {
        uint32_t index;
        memcpy(&index, (const char *)code + (size_t)i * sizeof index, sizeof index);
        if ((int64_t)index <= before || (int64_t)index >= n)
            return "its code names elements out of order, or outside of the partition";
        before = (int64_t)index;
    }
    return NULL;
}

static const struct codec rows[] = {
    [CODE_ONEBIT] = {"onebit", bytes_of_onebit, fault_of_blocks},
    [CODE_INT8] = {"int8", bytes_of_int8, fault_of_blocks},
    [CODE_TOPK] = {"topk", bytes_of_topk, fault_of_topk},
};

const struct codec *codec_of(enum code_kind kind) {
    return kind > CODE_NONE && (size_t)kind < sizeof rows / sizeof *rows ? &rows[kind] : NULL;
}

size_t code_bytes(const struct code_format *f, int64_t n) {
    const struct codec *row = codec_of(f->kind);
    return row ? row->bytes(f, n) : 0;
}
