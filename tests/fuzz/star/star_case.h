// Shared by the targets of the star's state machines: a small job, and any message, of few bytes.
#ifndef STARRING_TESTS_FUZZ_STAR_STAR_CASE_H
#define STARRING_TESTS_FUZZ_STAR_STAR_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ps/net/wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/ps/test_ps_toy.h"

static inline struct toy_case star_case(struct fuzz_bytes *in) {
    uint8_t a = fuzz_u8(in), b = fuzz_u8(in);
    struct toy_case t = {.dtype = (a & 3) == 0   ? DT_F16
                                  : (a & 3) == 1 ? DT_F32
                                                 : DT_BF16,
                         .consistency = a >> 5 == 7 ? "async" : "sync",
                         .workers = 1 + (a >> 2 & 1) + (a >> 3 & 1),
                         .servers = 1 + (a >> 4 & 1),
                         .threads = 1 + (b & 1),
                         .steps = 1 + (b >> 1 & 1) + (b >> 2 & 1),
                         .overflow_step = -1,
                         .seed = 1,
                         .share = (enum toy_share)(b >> 3 & 3),
                         .clip = b & 32 ? 0.5f : 0.0f,
                         .rows = 4};
    bool sync = strcmp(t.consistency, "sync") == 0;
    if (t.dtype == DT_F16 && b & 64 && sync) t.overflow_step = 0;
    if (!sync && t.share == SHARE_IN_PLACE) t.share = SHARE_NOTHING;
    if (!sync) t.clip = 0;
    return t;
}

// Any header, mostly of small numbers that occur. The sender's fields are not set.
static inline struct wire_header star_header(struct fuzz_bytes *in, int keys) {
    struct wire_header h = {.kind = (enum wire_kind)(1 + fuzz_below(in, WIRE_KINDS - 1)),
                            .key = (int32_t)fuzz_below(in, (uint64_t)keys + 2),
                            .step = (int64_t)fuzz_below(in, 6)};
    uint8_t more = fuzz_u8(in);
    h.version = more & 1 ? fuzz_number(in) & INT64_MAX : h.step;
    h.seq = more & 2 ? (uint64_t)fuzz_number(in) : 1;
    if (more & 4) h.flags = (uint32_t)fuzz_word(in, 2) & WIRE_FLAGS;
    if (more & 8) h.link.number = (uint64_t)fuzz_number(in), h.link.said = fuzz_u8(in);
    if (more & 16) h.data_offset = (uint64_t)fuzz_number(in), h.data_bytes = (uint64_t)fuzz_number(in);
    if (more & 16) h.reply_offset = (uint64_t)fuzz_number(in);
    if (more & 32) h.count = (int)fuzz_below(in, WIRE_VALUES_MAX + 1), h.mask = fuzz_word(in, 1);
    for (int i = 0; i < h.count; i++) h.values[i] = (double)fuzz_u8(in) - 1;
    h.lr = more & 64 ? (float)fuzz_u8(in) : TOY_LR;
    h.loss_scale = h.clip = h.grad_scale = 1;
    if (more & 128) {
        h.step = fuzz_number(in) & INT64_MAX;
        h.staleness = fuzz_number(in) & INT64_MAX;
        h.ready_ns = (fuzz_number(in) & INT64_MAX) >> 2;
        h.peers_ready_ns = (fuzz_number(in) & INT64_MAX) >> 2;
        h.norm = (double)fuzz_number(in);
    }
    h.has_sum = h.kind == WIRE_SHARD_SUM;
    if (h.has_sum)
        for (int i = 0; i < EXACT_SUM_LIMBS; i++)
            h.sum.limb[i] = (int64_t)fuzz_u8(in) << (more & 128 ? 24 : 0);
    return h;
}

#endif
