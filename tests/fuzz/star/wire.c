// A message's header: what decodes is within the limits that the rest of the star relies on, encodes, and decodes to the
// same again. Or a header of any fields: what the codec takes of it arrives as it was, every field.
#include "ps/net/wire.h"

#include <math.h>
#include <string.h>

#include "ps/agree/step_set.h"
#include "tests/fuzz/fuzz.h"

#define SHARDS_MAX  4096
#define COUNTED_MAX (INT64_MAX >> 2)  // steps, versions, moments: their sums stay in range

// A zero loses its sign on the wire where it is a field of its own.
static bool same_number(double a, double b) { return memcmp(&a, &b, sizeof a) == 0 || (a == 0 && b == 0); }

static void check_limits(const struct wire_header *h) {
    FUZZ_CHECK(h->kind > WIRE_NONE && h->kind < WIRE_KINDS && (unsigned)h->role < PS_ROLES, "kind or role");
    FUZZ_CHECK(h->rank >= -1 && h->rank <= 1 << 20 && h->thread >= 0 && h->thread <= 1 << 16,
               "rank or thread");
    const int64_t counted[] = {h->key, h->step, h->version, h->staleness, h->ready_ns, h->peers_ready_ns};
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        FUZZ_CHECK(counted[i] >= 0 && counted[i] <= COUNTED_MAX, "number %zu is out of range", i);
    FUZZ_CHECK(h->count >= 0 && h->count <= WIRE_VALUES_MAX, "values");
    FUZZ_CHECK(memchr(h->text, 0, sizeof h->text), "a text without end");
    FUZZ_CHECK(!(h->flags & ~(uint32_t)WIRE_FLAGS), "flags");
    FUZZ_CHECK(h->has_sum == (h->kind == WIRE_SHARD_SUM), "a sum");
}

// Two such sums meet at a scheduler, one from each shard, and are made a number there.
static void add_sums(const struct wire_header *h) {
    struct exact_sum total = {{0}, 0};
    for (int i = 0; i < SHARDS_MAX; i++) exact_sum_merge(&total, &h->sum);
    exact_sum_value(&total);
}

// An opening (ps/elastic) that is read is written as the values that it was read from.
static void check_opening(const struct wire_header *h) {
    struct step_opening d;
    struct wire_header again;
    if (opening_read(h, &d) != 0) return;
    memset(&again, 0, sizeof again);
    opening_write(&d, &again);
    FUZZ_CHECK(again.count == h->count && again.mask == h->mask, "another deal");
    for (int i = 0; i < h->count; i++)
        FUZZ_CHECK(again.values[i] == h->values[i], "value %d of a deal was %g and is %g", i, h->values[i],
                   again.values[i]);
}

// Zeros that are fields of their own lose their sign on the wire.
static void check_same(const struct wire_header *h, const struct wire_header *again) {
    struct wire_header x = *h;
    FUZZ_CHECK(same_number(h->loss, again->loss) && same_number(h->norm, again->norm) &&
                   same_number(h->lr, again->lr) && same_number(h->loss_scale, again->loss_scale) &&
                   same_number(h->clip, again->clip) && same_number(h->grad_scale, again->grad_scale),
               "a number is another");
    x.loss = again->loss, x.norm = again->norm, x.lr = again->lr, x.loss_scale = again->loss_scale;
    x.clip = again->clip, x.grad_scale = again->grad_scale;
    FUZZ_CHECK(memcmp(&x, again, sizeof x) == 0, "the header is another");
}

static float any_float(struct fuzz_bytes *in) { return bits_to_f32((uint32_t)fuzz_word(in, 4)); }

static void make_text(struct fuzz_bytes *in, char *out, size_t room) {
    size_t n = fuzz_below(in, room);
    for (size_t i = 0; i < n; i++) out[i] = (char)(1 + fuzz_u8(in) % 127);
}

static void make_sum(struct fuzz_bytes *in, struct exact_sum *sum) {
    for (int i = 0; i < EXACT_SUM_LIMBS; i++) sum->limb[i] = (int64_t)fuzz_word(in, 4);
    sum->nonfinite = (int64_t)fuzz_u8(in);
}

// No field is left out; which ones a kind carries, tests/ps/test_ps_wire.c has.
static struct wire_header make_header(struct fuzz_bytes *in, size_t payload) {
    struct wire_header h;
    memset(&h, 0, sizeof h);
    h.kind = (enum wire_kind)(1 + fuzz_below(in, WIRE_KINDS - 1));
    h.role = (enum ps_role)fuzz_below(in, PS_ROLES);
    h.rank = (int32_t)fuzz_below(in, (1 << 20) + 2) - 1;
    h.thread = (int32_t)fuzz_below(in, (1 << 16) + 1);
    h.key = (int32_t)(fuzz_number(in) & INT32_MAX);
    h.job = fuzz_word(in, 8), h.incarnation = fuzz_word(in, 8);
    h.mask = fuzz_word(in, 8), h.seq = (uint64_t)fuzz_number(in);
    h.step = fuzz_number(in) & COUNTED_MAX, h.version = fuzz_number(in) & COUNTED_MAX;
    h.staleness = fuzz_number(in) & COUNTED_MAX;
    h.ready_ns = fuzz_number(in) & COUNTED_MAX, h.peers_ready_ns = fuzz_number(in) & COUNTED_MAX;
    h.flags = (uint32_t)fuzz_word(in, 2) & WIRE_FLAGS;
    h.data_offset = (uint64_t)fuzz_number(in), h.reply_offset = (uint64_t)fuzz_number(in);
    h.process_no = (uint32_t)fuzz_number(in);
    h.link = (struct link_ack){.number = fuzz_word(in, 8),
                               .said = fuzz_word(in, 8),
                               .heard = fuzz_word(in, 8),
                               .seen = fuzz_word(in, 8),
                               .again = fuzz_u8(in) & 1,
                               .asks = fuzz_u8(in) & 1,
                               .missing_count = (int)fuzz_below(in, LINK_MISSING_MAX + 1)};
    for (int i = 0; i < h.link.missing_count; i++) h.link.missing[i] = fuzz_word(in, 8);
    h.lr = any_float(in), h.loss_scale = any_float(in), h.clip = any_float(in), h.grad_scale = any_float(in);
    h.loss = (double)fuzz_number(in), h.norm = (double)fuzz_number(in);
    bool segment = h.kind == WIRE_PUSH || h.kind == WIRE_PULL_REPLY;
    if (segment && !payload) h.data_bytes = 1 + fuzz_below(in, 1 << 30);
    h.has_sum = h.kind == WIRE_SHARD_SUM;
    if (h.has_sum) make_sum(in, &h.sum);
    h.count = (int)fuzz_below(in, WIRE_VALUES_MAX + 1);
    for (int i = 0; i < h.count; i++) h.values[i] = (double)fuzz_number(in);
    make_text(in, h.text, sizeof h.text);
    return h;
}

static void pass(const struct wire_header *h, size_t payload, const char *what) {
    struct wire_header again;
    uint8_t bytes[WIRE_HEADER_MAX];
    size_t n = wire_encode(h, bytes);
    FUZZ_CHECK(n > 0, "%s does not fit", what);
    FUZZ_CHECK(wire_decode(bytes, n, payload, &again) == 0, "%s was encoded and does not decode", what);
    check_same(h, &again);
}

FUZZ_TARGET(wire) {
    static const size_t payloads[] = {0, 1, 64, 1 << 20};
    struct fuzz_bytes in = {data, size};
    uint8_t how = fuzz_u8(&in);
    size_t payload = payloads[how % 4];
    struct wire_header h;
    if (how & 128) {
        uint8_t bytes[WIRE_HEADER_MAX];
        h = make_header(&in, payload);
        size_t n = wire_encode(&h, bytes);
        // The fields that its kind does not carry are gone; the rest stays.
        struct wire_header carried;
        if (n && wire_decode(bytes, n, payload, &carried) == 0) pass(&carried, payload, "what was made");
        return;
    }
    if (wire_decode(in.p, in.left, payload, &h) != 0) return;
    check_limits(&h);
    check_opening(&h);
    if (h.has_sum) add_sums(&h);
    pass(&h, payload, "what was decoded");
}
