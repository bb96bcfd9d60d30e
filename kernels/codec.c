#include "kernels/codec.h"

#include <assert.h>
#include <string.h>

#define BLOCK_FITS(id, name, bits, statistic) \
    static_assert((bits) <= 8 && 32 % (bits) == 0, #name ": a number may not cross a 32-bit word");
BLOCK_CODES(BLOCK_FITS)

static const char *fault_of_blocks(const struct code_format *f, const void *code, size_t bytes, int64_t n) {
    (void)code;
    return bytes == code_bytes(f, n) ? NULL : "the payload's size is not that of the partition's code";
}

static const char *fault_of_topk(const struct code_format *f, const void *code, size_t bytes, int64_t n) {
    int64_t kept = code_kept(f->share, n), before = -1;
    if (bytes != code_bytes(f, n)) return "the payload's size is not that of the partition's code";
    for (int64_t i = 0; i < kept; i++) {
        uint32_t index;
        memcpy(&index, (const char *)code + (size_t)i * sizeof index, sizeof index);
        if ((int64_t)index <= before || (int64_t)index >= n)
            return "its code names elements out of order, or outside of the partition";
        before = (int64_t)index;
    }
    return NULL;
}

const struct codec *codec_of(enum code_kind kind) {
#define BLOCK_ROW(id, name, bits, statistic) [CODE_##id] = {#name, fault_of_blocks},
    static const struct codec rows[CODE_KINDS] = {
        BLOCK_CODES(BLOCK_ROW)[CODE_TOPK] = {"topk", fault_of_topk}};
    return kind > CODE_NONE && kind < CODE_KINDS ? &rows[kind] : NULL;
}

size_t code_bytes(const struct code_format *f, int64_t n) {
#define BLOCK_BYTES(id, name, bits, statistic) [CODE_##id] = BLOCK_CODE_BYTES(bits),
    static const size_t block_bytes[CODE_KINDS] = {BLOCK_CODES(BLOCK_BYTES)};
    if (f->kind == CODE_TOPK) return (size_t)code_kept(f->share, n) * (sizeof(uint32_t) + sizeof(float));
    return (size_t)(n / CODE_BLOCK) * block_bytes[f->kind];
}
