#include "ps/net/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/ps.pb-c.h"

const char *wire_kind_name(enum wire_kind k) {
    static const char *const names[WIRE_KINDS] = {
        "none",          "hello",    "welcome",    "refused",  "start",          "heartbeat",
        "heartbeat_ack", "attach",   "attached",   "init",     "init_ack",       "push",
        "push_ack",      "pull",     "pull_reply", "snapshot", "snapshot_reply", "shard_sum",
        "decision",      "report",   "step_done",  "gather",   "gather_done",    "goodbye",
        "goodbye_ack",   "shutdown", "abort",      "rollback", "arrived",        "set",
        "join",          "joined",   "replicate",  "rescue",   "replicate_ack",  "pulse",
        "member",        "take",     "taken",      "word"};
    return (unsigned)k < WIRE_KINDS ? names[k] : "unknown";
}

const char *ps_role_name(enum ps_role r) {
    static const char *const names[PS_ROLES] = {"worker", "server", "shard", "scheduler"};
    return (unsigned)r < PS_ROLES ? names[r] : "unknown";
}

bool wire_is_kept(enum wire_kind k) {
    switch (k) {
        case WIRE_HELLO:
        case WIRE_WELCOME:
        case WIRE_START:
        case WIRE_ATTACH:
        case WIRE_ATTACHED:
        case WIRE_JOIN:
        case WIRE_JOINED:
        case WIRE_ROLLBACK:
        case WIRE_HEARTBEAT:
        case WIRE_HEARTBEAT_ACK:
        case WIRE_PULSE:
        case WIRE_WORD:
            return false;
        default:
            return true;
    }
}

bool wire_is_payload(const struct wire_header *h) {
    return !h->link.again &&
           (h->kind == WIRE_PUSH || (h->kind == WIRE_PULL_REPLY && !(h->flags & WIRE_FINAL)));
}

bool wire_is_replica(const struct wire_header *h) {
    return h->kind == WIRE_REPLICATE && !h->seq && !h->link.again;
}

uint64_t wire_place_bytes(const struct wire_header *h) { return h->link.again ? 0 : h->place_bytes; }

// The fields that are the same on both sides of the codec.
#define PLAIN_FIELDS(X) \
    X(rank)             \
    X(job)              \
    X(incarnation)      \
    X(manifest)         \
    X(step)             \
    X(version)          \
    X(seq)              \
    X(staleness)        \
    X(flags)            \
    X(place)            \
    X(place_bytes)      \
    X(into)             \
    X(lr)               \
    X(loss_scale)       \
    X(clip)             \
    X(grad_scale)       \
    X(loss)             \
    X(norm) X(ready_ns) X(peers_ready_ns) X(clock) X(epoch) X(mask) X(life) X(batch)
#define ENCODE(field) p.field = h->field;
#define DECODE(field) out->field = p->field;

size_t wire_encode(const struct wire_header *h, uint8_t out[WIRE_HEADER_MAX]) {
    Starring__PsHeader p = STARRING__PS_HEADER__INIT;
    int64_t words[EXACT_SUM_WORDS];
    p.kind = (uint32_t)h->kind;
    p.role = (uint32_t)h->role;
    p.thread = (uint32_t)h->thread;
    p.key = (uint32_t)h->key;
    PLAIN_FIELDS(ENCODE)
    p.number = h->link.number;
    p.said = h->link.said;
    p.heard = h->link.heard;
    p.seen = h->link.seen;
    p.missing = (uint64_t *)h->link.missing;
    p.n_missing = (size_t)h->link.missing_count;
    p.again = h->link.again;
    p.asks = h->link.asks;
    if (h->has_sum) {
        memcpy(words, &h->sum, sizeof words);
        p.sum = words;
        p.n_sum = EXACT_SUM_WORDS;
    }
    p.values = (double *)h->values;
    p.n_values = (size_t)h->count;
    if (h->text[0]) p.text = (char *)h->text;
    if (h->host[0]) p.host = (char *)h->host;
    size_t n = starring__ps_header__get_packed_size(&p);
    if (n == 0 || n > WIRE_HEADER_MAX) return 0;
    return starring__ps_header__pack(&p, out);
}

// Which kinds carry a payload, behind the header or, some, in a segment; WIRE_HELLO may (a server's endpoints).
static bool payload_fits(const Starring__PsHeader *p, size_t payload_bytes) {
    switch (p->kind) {
        case WIRE_PUSH:
        case WIRE_PULL_REPLY:
            return (payload_bytes > 0) != (p->place_bytes > 0);
        case WIRE_START:
        case WIRE_SNAPSHOT_REPLY:
        case WIRE_INIT:
        case WIRE_REPLICATE:
            return payload_bytes > 0 && !p->place_bytes;
        case WIRE_HELLO:
            return !p->place_bytes;
        default:
            return payload_bytes == 0 && !p->place_bytes;
    }
}

static int header_check(const Starring__PsHeader *p, size_t payload_bytes) {
    if (p->kind == WIRE_NONE || p->kind >= WIRE_KINDS || p->role >= PS_ROLES) return -1;
    if (p->rank < -1 || p->rank > 1 << 20 || p->thread > 1 << 16 || p->key > INT32_MAX) return -1;
    // What follows a step or a version, and differences and sums of two moments, stay in range.
    if (p->step < 0 || p->step > INT64_MAX >> 2 || p->version < 0 || p->version > INT64_MAX >> 2) return -1;
    if (p->batch < 0 || p->batch > INT64_MAX >> 2) return -1;
    if (p->staleness < 0 || p->staleness > INT64_MAX >> 2) return -1;
    if (p->ready_ns < 0 || p->ready_ns > INT64_MAX >> 2) return -1;
    if (p->peers_ready_ns < 0 || p->peers_ready_ns > INT64_MAX >> 2) return -1;
    if (p->epoch > INT32_MAX || p->flags & ~(uint32_t)WIRE_FLAGS) return -1;
    if (p->n_sum != 0 && p->n_sum != (size_t)EXACT_SUM_WORDS) return -1;
    if ((p->kind == WIRE_SHARD_SUM) != (p->n_sum != 0)) return -1;
    if (p->n_values > WIRE_VALUES_MAX || strlen(p->text) >= WIRE_TEXT_MAX || strlen(p->host) >= WIRE_HOST_MAX)
        return -1;
    if (p->n_missing > WIRE_MISSING_MAX) return -1;
    // Digits of 32 bits, as exact_sum_carry leaves them: the sums of 2^31 shards meet without an overflow.
    for (size_t i = 0; i < p->n_sum; i++)
        if (p->sum[i] < 0 ||
            p->sum[i] > (i < EXACT_SUM_LIMBS ? (int64_t)UINT32_MAX : EXACT_SUM_NONFINITE_MOST))
            return -1;
    return payload_fits(p, payload_bytes) ? 0 : -1;
}

int wire_decode(const uint8_t *bytes, size_t size, size_t payload_bytes, struct wire_header *out) {
    memset(out, 0, sizeof *out);
    if (size == 0 || size > WIRE_HEADER_MAX) return -1;
    Starring__PsHeader *p = starring__ps_header__unpack(NULL, size, bytes);
    if (!p) return -1;
    if (header_check(p, payload_bytes) != 0) {
        starring__ps_header__free_unpacked(p, NULL);
        return -1;
    }
    out->kind = (enum wire_kind)p->kind;
    out->role = (enum ps_role)p->role;
    out->thread = (int32_t)p->thread;
    out->key = (int32_t)p->key;
    PLAIN_FIELDS(DECODE)
    out->link = (struct wire_link){.number = p->number,
                                   .said = p->said,
                                   .heard = p->heard,
                                   .missing_count = (int)p->n_missing,
                                   .seen = p->seen,
                                   .again = p->again,
                                   .asks = p->asks};
    if (p->n_missing) memcpy(out->link.missing, p->missing, p->n_missing * sizeof *p->missing);
    out->has_sum = p->n_sum != 0;
    if (out->has_sum) memcpy(&out->sum, p->sum, sizeof out->sum);
    out->count = (int)p->n_values;
    if (p->n_values) memcpy(out->values, p->values, p->n_values * sizeof(double));
    snprintf(out->host, sizeof out->host, "%s", p->host);
    memcpy(out->text, p->text, strlen(p->text) + 1);
    starring__ps_header__free_unpacked(p, NULL);
    return 0;
}
