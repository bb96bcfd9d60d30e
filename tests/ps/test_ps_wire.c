// Headers: what is written is what is read; what was not written by us is refused, whatever it is.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ps/net/wire.h"
#include "shared/core/numbers.h"

static struct wire_header sample(enum wire_kind kind) {
    struct wire_header h = {.kind = kind,
                            .role = PS_SHARD,
                            .rank = 3,
                            .thread = 2,
                            .job = 0xfedcba9876543210u,
                            .incarnation = 77,
                            .key = 123456,
                            .step = 1ll << 40,
                            .version = 9,
                            .updates = 7,
                            .seq = 8,
                            .staleness = 5,
                            .pending_pushes = 2,
                            .flags = WIRE_HELD | WIRE_FINAL,
                            .lr = 0.1f,
                            .loss_scale = 65536.0f,
                            .clip = 1.0f,
                            .grad_scale = 1e-5f,
                            .data_offset = kind == WIRE_PUSH ? 1ull << 40 : 0,
                            .reply_offset = 4096,
                            .mask = UINT64_C(1) << 63 | 5,
                            .process_no = 3,
                            .loss = 3.25,
                            .norm = 0.125,
                            .ready_ns = INT64_MAX >> 2,
                            .peers_ready_ns = 1,
                            .link = {.number = 1ull << 40,
                                     .said = 1ull << 41,
                                     .heard = 1ull << 42,
                                     .missing = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20},
                                     .missing_count = kind == WIRE_WORD ? LINK_MISSING_MAX : 2,
                                     .seen = 1ull << 43,
                                     .again = kind % 2,
                                     .asks = kind % 3 == 0}};
    if (kind == WIRE_SHARD_SUM) {
        h.has_sum = true;
        for (int i = 0; i < EXACT_SUM_LIMBS; i++) h.sum.limb[i] = (1ll << 31) + i;
        h.sum.nonfinite = 17;
    }
    return h;
}

static bool carries(enum wire_kind k) {
    return k == WIRE_INIT || k == WIRE_PUSH || k == WIRE_PULL_REPLY || k == WIRE_SNAPSHOT_REPLY;
}

// The fields of each kind, besides its sender and the link's fields.
static const char *const carried[WIRE_KINDS] = {
    [WIRE_REFUSED] = "key step flags text",
    [WIRE_HEARTBEAT] = "step seq flags ready_ns",
    [WIRE_HEARTBEAT_ACK] = "flags ready_ns peers_ready_ns",
    [WIRE_ATTACH] = "seq flags text",
    [WIRE_ATTACHED] = "seq flags text",
    [WIRE_INIT] = "key seq",
    [WIRE_INIT_ACK] = "key seq",
    [WIRE_PUSH] =
        "key step version seq flags ready_ns lr grad_scale batch data_offset data_bytes reply_offset",
    [WIRE_PUSH_ACK] = "key step flags peers_ready_ns staleness batch",
    [WIRE_PULL] = "key step seq flags reply_offset",
    [WIRE_PULL_REPLY] =
        "key step version updates seq flags peers_ready_ns staleness data_bytes pending_pushes",
    [WIRE_SNAPSHOT] = "key version updates seq",
    [WIRE_SNAPSHOT_REPLY] = "key version updates seq",
    [WIRE_SHARD_SUM] = "step peers_ready_ns sum",
    [WIRE_DECISION] = "step flags peers_ready_ns grad_scale norm",
    [WIRE_REPORT] = "step flags ready_ns loss lr loss_scale clip mask values",
    [WIRE_STEP_DONE] = "step flags peers_ready_ns loss norm mask values",
    [WIRE_GATHER] = "seq values",
    [WIRE_GATHER_DONE] = "seq values",
    [WIRE_SHUTDOWN] = "values",
    [WIRE_ARRIVED] = "step mask",
    [WIRE_SET] = "step mask",
    [WIRE_JOIN] = "",
    [WIRE_JOINED] = "step seq mask values",
    [WIRE_MEMBER] = "key seq flags",
    [WIRE_TAKE] = "step version seq flags values",
    [WIRE_TAKEN] = "step flags batch",
    [WIRE_WORD] = "",
};

static bool does_carry(int kind, const char *field) {
    size_t n = strlen(field);
    for (const char *at = carried[kind]; (at = strstr(at, field)); at += n)
        if ((at == carried[kind] || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    return false;
}

// A field arrives as it was where the kind carries it, and not at all elsewhere.
static void check_field(int kind, const char *field, const void *got, const void *said, size_t bytes) {
    static const char none[sizeof(struct wire_header)];
    if (memcmp(got, does_carry(kind, field) ? said : none, bytes) == 0) return;
    fail_msg("%s: %s is another", wire_kind_name((enum wire_kind)kind), field);
}
#define CHECK(field) check_field(k, #field, &back.field, &h.field, sizeof back.field)

static void test_round_trip(void **state) {
    (void)state;
    for (int k = WIRE_REFUSED; k < WIRE_KINDS; k++) {
        uint8_t bytes[WIRE_HEADER_MAX];
        struct wire_header h = sample((enum wire_kind)k), back;
        h.batch = 1ll << 50;
        if (!carries((enum wire_kind)k) || k == WIRE_PULL_REPLY) h.data_bytes = 4096;
        for (h.count = 0; h.count < WIRE_VALUES_MAX; h.count++) h.values[h.count] = 1.0 / (h.count + 1);
        memset(h.text, 'x', sizeof h.text - 1);
        size_t n = wire_encode(&h, bytes);
        assert_in_range(n, 1, WIRE_HEADER_MAX);
        assert_int_equal(
            wire_decode(bytes, n, carries((enum wire_kind)k) && k != WIRE_PULL_REPLY ? 4 : 0, &back), 0);
        assert_int_equal(back.kind, h.kind);
        assert_int_equal(back.role, h.role);
        assert_int_equal(back.rank, h.rank);
        assert_int_equal(back.thread, h.thread);
        assert_true(back.job == h.job && back.incarnation == h.incarnation &&
                    back.process_no == h.process_no);
        assert_true(back.link.number == h.link.number && back.link.said == h.link.said);
        assert_true(back.link.heard == h.link.heard && back.link.seen == h.link.seen);
        assert_true(back.link.again == h.link.again && back.link.asks == h.link.asks);
        assert_int_equal(back.link.missing_count, h.link.missing_count);
        for (int i = 0; i < h.link.missing_count; i++) assert_true(back.link.missing[i] == h.link.missing[i]);
        CHECK(key), CHECK(step), CHECK(version), CHECK(seq), CHECK(flags), CHECK(staleness), CHECK(batch);
        CHECK(ready_ns), CHECK(peers_ready_ns), CHECK(lr), CHECK(grad_scale), CHECK(loss_scale), CHECK(clip);
        CHECK(data_offset), CHECK(data_bytes), CHECK(reply_offset), CHECK(text), CHECK(values), CHECK(sum);
        CHECK(loss), CHECK(norm), CHECK(mask), CHECK(pending_pushes), CHECK(updates);
        assert_int_equal(back.has_sum, k == WIRE_SHARD_SUM);
        assert_int_equal(back.count, does_carry(k, "values") ? WIRE_VALUES_MAX : 0);
        assert_string_not_equal(wire_kind_name((enum wire_kind)k), "unknown");
    }
    assert_string_equal(wire_kind_name(WIRE_NONE), "none");
    assert_string_equal(wire_kind_name(WIRE_REFUSED), "refused");
    assert_string_equal(wire_kind_name(WIRE_PUSH_ACK), "push_ack");
    assert_string_equal(wire_kind_name(WIRE_WORD), "word");
    assert_string_equal(wire_kind_name(WIRE_KINDS), "unknown");
}

static void test_small(void **state) {
    (void)state;
    uint8_t bytes[WIRE_HEADER_MAX];
    struct wire_header h = {
        .kind = WIRE_PUSH, .role = PS_WORKER, .rank = 1, .key = 5, .step = 100, .job = 1, .incarnation = 2};
    assert_in_range(wire_encode(&h, bytes), 1, 48);
}

static int decode_of(struct wire_header h, size_t payload) {
    uint8_t bytes[WIRE_HEADER_MAX];
    struct wire_header back;
    size_t n = wire_encode(&h, bytes);
    assert_true(n > 0);
    return wire_decode(bytes, n, payload, &back);
}

static void test_refused(void **state) {
    (void)state;
    struct wire_header h = sample(WIRE_PULL);
    assert_int_equal(decode_of(h, 0), 0);
    assert_int_equal(decode_of(h, 1), -1);  // a payload that nothing announces
    h = sample(WIRE_PUSH);
    assert_int_equal(decode_of(h, 0), -1);  // a push of nothing
    h.step = -1;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH);
    h.key = -5;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH);
    h.version = -1;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH);
    h.step = INT64_MAX;  // step + 1 is what a shard computes with
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH);
    h.version = (INT64_MAX >> 2) + 1;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PULL_REPLY);
    h.staleness = INT64_MAX;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PULL_REPLY);
    h.pending_pushes = h.step + 1;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH);
    h.flags = WIRE_FLAGS + 1;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH);
    h.ready_ns = -1;
    assert_int_equal(decode_of(h, 4), -1);
    h.ready_ns = INT64_MAX;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH_ACK);
    h.peers_ready_ns = -1;
    assert_int_equal(decode_of(h, 0), -1);
    h.peers_ready_ns = (INT64_MAX >> 2) + 1;
    assert_int_equal(decode_of(h, 0), -1);
    h = sample(WIRE_PUSH);
    h.role = (enum ps_role)PS_ROLES;
    assert_int_equal(decode_of(h, 4), -1);
    h = sample(WIRE_PUSH);
    h.rank = -2;
    assert_int_equal(decode_of(h, 4), -1);
    uint8_t bytes[WIRE_HEADER_MAX];
    h = sample((enum wire_kind)WIRE_KINDS);
    assert_int_equal(wire_encode(&h, bytes), 0);
    h = sample(WIRE_NONE);
    assert_int_equal(wire_encode(&h, bytes), 0);
    assert_int_equal(wire_decode((const uint8_t[]){8, 1}, 2, 0, &h), -1);  // a sender, and nothing else
    h = sample(WIRE_SHARD_SUM);
    // A digit is one of 32 bits: sums of many shards stay far from what a word holds.
    for (int i = 0; i <= EXACT_SUM_LIMBS; i++) {
        int64_t *word = i < EXACT_SUM_LIMBS ? &h.sum.limb[i] : &h.sum.nonfinite, was = *word;
        *word = i < EXACT_SUM_LIMBS ? INT64_C(1) << 32 : EXACT_SUM_NONFINITE_MOST + 1;
        assert_int_equal(decode_of(h, 0), -1);
        *word = was;
    }
    h.sum.limb[3] = -1;
    assert_int_equal(decode_of(h, 0), -1);
    h.sum.limb[3] = 0;
    h.has_sum = false;
    assert_int_equal(decode_of(h, 0), -1);
}

// Truncations, single flipped bits and noise: never a crash (run under the sanitizers), and a header
// that is accepted holds only values in range.
static void check_range(const struct wire_header *h) {
    assert_in_range(h->kind, 1, WIRE_KINDS - 1);
    assert_in_range(h->role, 0, PS_ROLES - 1);
    assert_true(h->rank >= -1 && h->key >= 0 && h->step >= 0 && h->version >= 0 && h->staleness >= 0);
    assert_true(h->ready_ns >= 0 && h->peers_ready_ns >= 0);
    assert_in_range(h->count, 0, WIRE_VALUES_MAX);
    assert_true(strnlen(h->text, WIRE_TEXT_MAX) < WIRE_TEXT_MAX);
}

static void test_fuzz(void **state) {
    (void)state;
    int accepted = 0, refused = 0;
    for (uint64_t i = 0; i < 60000; i++) {
        uint8_t bytes[WIRE_HEADER_MAX + 1];
        struct wire_header h = sample((enum wire_kind)(1 + i % (WIRE_KINDS - 1))), back;
        size_t n = wire_encode(&h, bytes), payload = carries(h.kind) ? 4 : 0;
        switch (i % 4) {
            case 0:
                n = (size_t)rng_below(1, i, 0, n);
                break;
            case 1:
                bytes[rng_below(2, i, 0, n)] ^= (uint8_t)(1u << rng_below(3, i, 0, 8));
                break;
            case 2:
                for (int k = 0; k < 8; k++)
                    bytes[rng_below(4, i, (uint64_t)k, n)] = (uint8_t)rng_below(5, i, (uint64_t)k, 256);
                break;
            default:
                n = 1 + (size_t)rng_below(6, i, 0, sizeof bytes);
                for (size_t k = 0; k < n; k++) bytes[k] = (uint8_t)rng_below(7, i, k, 256);
        }
        uint8_t *exact = malloc(n ? n : 1);  // reads past the end are seen by the address sanitizer
        memcpy(exact, bytes, n);
        if (wire_decode(exact, n, payload, &back) == 0) {
            check_range(&back);
            accepted++;
        } else {
            refused++;
        }
        free(exact);
    }
    assert_true(accepted > 100 && refused > 10000);
}

// A payload follows or lies in a segment, one of the two; only gradients and weights may lie there. A repeated
// message counts no byte twice.
static void test_places(void **state) {
    (void)state;
    for (int k = WIRE_REFUSED; k < WIRE_KINDS; k++) {
        uint8_t bytes[WIRE_HEADER_MAX];
        struct wire_header h = sample((enum wire_kind)k), back;
        bool may = k == WIRE_PUSH || k == WIRE_PULL_REPLY;
        h.data_bytes = 4096;
        size_t n = wire_encode(&h, bytes);
        if (!may) continue;
        assert_int_equal(wire_decode(bytes, n, 0, &back), 0);
        assert_int_equal(wire_decode(bytes, n, 4, &back), -1);
        h.link.again = false;
        assert_int_equal(wire_data_bytes(&h), 4096);
        h.link.again = true;
        assert_int_equal(wire_data_bytes(&h), 0);
        h.data_bytes = 0;
        n = wire_encode(&h, bytes);
        assert_int_equal(wire_decode(bytes, n, 0, &back), -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),  cmocka_unit_test(test_round_trip), cmocka_unit_test(test_small),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
