// A message's header: what decodes is within the limits that the rest of the star relies on, encodes, and decodes to the
// same again.
#include "ps/net/wire.h"

#include <math.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

#define SHARDS_MAX 4096

// A zero loses its sign on the wire where it is a field of its own.
static bool same_number(double a, double b) { return memcmp(&a, &b, sizeof a) == 0 || (a == 0 && b == 0); }

static void check_limits(const struct wire_header *h) {
    FUZZ_CHECK(h->kind > WIRE_NONE && h->kind < WIRE_KINDS && (unsigned)h->role < PS_ROLES, "kind or role");
    FUZZ_CHECK(h->rank >= -1 && h->rank <= 1 << 20 && h->thread >= 0 && h->thread <= 1 << 16,
               "rank or thread");
    FUZZ_CHECK(h->key >= 0 && h->step >= 0 && h->version >= 0 && h->staleness >= 0, "a negative number");
    FUZZ_CHECK(h->ready_ns >= 0 && h->peers_ready_ns >= 0, "a negative moment");
    FUZZ_CHECK(h->count >= 0 && h->count <= WIRE_VALUES_MAX, "values");
    FUZZ_CHECK(memchr(h->text, 0, sizeof h->text) && memchr(h->host, 0, sizeof h->host),
               "a text without end");
    FUZZ_CHECK(!(h->flags & ~(uint32_t)WIRE_FLAGS), "flags");
    FUZZ_CHECK(h->has_sum == (h->kind == WIRE_SHARD_SUM), "a sum");
}

// Two such sums meet at a scheduler, one from each shard, and are made a number there.
static void add_sums(const struct wire_header *h) {
    struct exact_sum total = {{0}, 0};
    for (int i = 0; i < SHARDS_MAX; i++) exact_sum_merge(&total, &h->sum);
    exact_sum_value(&total);
}

FUZZ_TARGET(wire) {
    static const size_t payloads[] = {0, 1, 64, 1 << 20};
    struct fuzz_bytes in = {data, size};
    size_t payload = payloads[fuzz_below(&in, 4)];
    struct wire_header h, again;
    uint8_t bytes[WIRE_HEADER_MAX];
    if (wire_decode(in.p, in.left, payload, &h) != 0) return;
    check_limits(&h);
    if (h.has_sum) add_sums(&h);
    FUZZ_CHECK(wire_is_payload(&h) + wire_is_replica(&h) <= 1, "both a payload and a replica");
    size_t n = wire_encode(&h, bytes);
    FUZZ_CHECK(n > 0, "%zu bytes decode to what does not fit", in.left);
    FUZZ_CHECK(wire_decode(bytes, n, payload, &again) == 0, "what was encoded does not decode");
    FUZZ_CHECK(same_number(h.loss, again.loss) && same_number(h.norm, again.norm) &&
                   same_number(h.lr, again.lr) && same_number(h.loss_scale, again.loss_scale) &&
                   same_number(h.clip, again.clip) && same_number(h.grad_scale, again.grad_scale),
               "a number is another");
    h.loss = again.loss, h.norm = again.norm, h.lr = again.lr, h.loss_scale = again.loss_scale;
    h.clip = again.clip, h.grad_scale = again.grad_scale;
    FUZZ_CHECK(memcmp(&h, &again, sizeof h) == 0, "the header is another");
}
