#include "ps/net/wire.h"

#include <string.h>

#include "proto/ps.pb-c.h"

// ---------------------------------------------------------------- bodies
// The offset in the header of each number of a body (proto/ps.proto).
static const size_t offset_of[] = {[1] = offsetof(struct wire_header, key),
                                   [2] = offsetof(struct wire_header, step),
                                   [3] = offsetof(struct wire_header, version),
                                   [4] = offsetof(struct wire_header, seq),
                                   [5] = offsetof(struct wire_header, flags),
                                   [6] = offsetof(struct wire_header, peers_ready_ns),
                                   [7] = offsetof(struct wire_header, ready_ns),
                                   [8] = offsetof(struct wire_header, staleness),
                                   [9] = offsetof(struct wire_header, lr),
                                   [10] = offsetof(struct wire_header, grad_scale),
                                   [11] = offsetof(struct wire_header, batch),
                                   [12] = offsetof(struct wire_header, data_offset),
                                   [13] = offsetof(struct wire_header, data_bytes),
                                   [14] = offsetof(struct wire_header, reply_offset),
                                   [15] = offsetof(struct wire_header, text),
                                   [16] = offsetof(struct wire_header, values),
                                   [17] = offsetof(struct wire_header, sum),
                                   [18] = offsetof(struct wire_header, loss),
                                   [19] = offsetof(struct wire_header, norm),
                                   [20] = offsetof(struct wire_header, loss_scale),
                                   [21] = offsetof(struct wire_header, clip),
                                   [22] = offsetof(struct wire_header, mask),
                                   [23] = offsetof(struct wire_header, pending_pushes),
                                   [24] = offsetof(struct wire_header, tokens),
                                   [25] = offsetof(struct wire_header, mean_tokens),
                                   [26] = offsetof(struct wire_header, updates)};
#define BODY       16   // a body's number is its kind's plus this
#define BODY_BYTES 256  // bytes of the largest body's struct

static const ProtobufCFieldDescriptor *body_of(enum wire_kind k) {
    return protobuf_c_message_descriptor_get_field(&starring__ps_message__descriptor, BODY + (unsigned)k);
}

const char *wire_kind_name(enum wire_kind k) {
    if (k == WIRE_NONE) return "none";
    return (unsigned)k < WIRE_KINDS ? body_of(k)->name : "unknown";
}

static size_t plain_bytes(ProtobufCType type) {
    return type == PROTOBUF_C_TYPE_UINT32 || type == PROTOBUF_C_TYPE_FLOAT ? 4 : 8;
}

static void fill_body(const ProtobufCMessageDescriptor *d, const struct wire_header *h, char *body) {
    _Static_assert(sizeof(double) == sizeof(int64_t) && sizeof(struct exact_sum) == 8 * EXACT_SUM_WORDS,
                   "what repeats has words of eight bytes");
    protobuf_c_message_init(d, body);
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const char *from = (const char *)h + offset_of[f->id];
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = f->type == PROTOBUF_C_TYPE_DOUBLE ? (size_t)h->count
                       : h->has_sum                      ? EXACT_SUM_WORDS
                                                         : 0;
            memcpy(body + f->quantifier_offset, &n, sizeof n);
            memcpy(body + f->offset, &from, sizeof from);
        } else if (f->type == PROTOBUF_C_TYPE_STRING) {
            memcpy(body + f->offset, &from, sizeof from);
        } else {
            memcpy(body + f->offset, from, plain_bytes(f->type));
        }
    }
}

// Returns -1 if the body has more than the header can hold.
static int read_body(const ProtobufCMessageDescriptor *d, const char *body, struct wire_header *out) {
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        char *to = (char *)out + offset_of[f->id];
        const void *place = body + f->offset;
        const char *far;  // the data, if the field is a pointer to it
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            bool values = f->type == PROTOBUF_C_TYPE_DOUBLE;
            size_t n;
            memcpy(&n, body + f->quantifier_offset, sizeof n);
            memcpy(&far, place, sizeof far);
            if (values ? n > WIRE_VALUES_MAX : n != EXACT_SUM_WORDS) return -1;
            if (n) memcpy(to, far, n * 8);
            if (values)
                out->count = (int)n;
            else
                out->has_sum = true;
        } else if (f->type == PROTOBUF_C_TYPE_STRING) {
            memcpy(&far, place, sizeof far);
            size_t n = strlen(far) + 1;
            if (n > WIRE_TEXT_MAX) return -1;
            memcpy(to, far, n);
        } else {
            memcpy(to, place, plain_bytes(f->type));
        }
    }
    return 0;
}

bool wire_is_kept(enum wire_kind k) {
    return k != WIRE_HEARTBEAT && k != WIRE_HEARTBEAT_ACK && k != WIRE_WORD;
}

bool wire_is_payload(const struct wire_header *h) {
    return !h->link.again &&
           (h->kind == WIRE_PUSH || (h->kind == WIRE_PULL_REPLY && !(h->flags & WIRE_FINAL)));
}

uint64_t wire_data_bytes(const struct wire_header *h) { return h->link.again ? 0 : h->data_bytes; }

// ---------------------------------------------------------------- codec
size_t wire_encode(const struct wire_header *h, uint8_t out[WIRE_HEADER_MAX]) {
    char body[BODY_BYTES] __attribute__((aligned(8)));
    const ProtobufCFieldDescriptor *f = h->kind > WIRE_NONE && h->kind < WIRE_KINDS ? body_of(h->kind) : NULL;
    if (!f) return 0;
    fill_body(f->descriptor, h, body);
    Starring__PsMessage p = STARRING__PS_MESSAGE__INIT;
    p.role = (uint32_t)h->role;
    p.rank = h->rank;
    p.thread = (uint32_t)h->thread;
    p.job = h->job;
    p.incarnation = h->incarnation;
    p.process_no = h->process_no;
    p.number = h->link.number;
    p.said = h->link.said;
    p.heard = h->link.heard;
    p.seen = h->link.seen;
    p.missing = (uint64_t *)h->link.missing;
    p.n_missing = (size_t)h->link.missing_count;
    p.again = h->link.again;
    p.asks = h->link.asks;
    p.body_case = (Starring__PsMessage__BodyCase)f->id;
    p.word = (Starring__Nothing *)(void *)body;  // any body: all are in a union
    size_t n = starring__ps_message__get_packed_size(&p);
    return n <= WIRE_HEADER_MAX ? starring__ps_message__pack(&p, out) : 0;
}

// Whether the kind allows the payload, which follows the header or, for some kinds, is in a segment.
static bool payload_fits(const struct wire_header *h, size_t payload_bytes) {
    switch (h->kind) {
        case WIRE_PUSH:
        case WIRE_PULL_REPLY:
            return (payload_bytes > 0) != (h->data_bytes > 0);
        case WIRE_SNAPSHOT_REPLY:
        case WIRE_INIT:
            return payload_bytes > 0;
        default:
            return payload_bytes == 0;
    }
}

// Whether a count or time is in a range in which the next one, and sums and differences of two, do not overflow.
static bool counts(int64_t x) { return x >= 0 && x <= INT64_MAX >> 2; }

static int header_check(const struct wire_header *h, size_t payload_bytes) {
    if ((unsigned)h->role >= PS_ROLES || h->rank < -1 || h->rank > 1 << 20) return -1;
    if (h->thread < 0 || h->thread > 1 << 16 || h->key < 0) return -1;
    if (!counts(h->step) || !counts(h->version) || !counts(h->updates) || !counts(h->batch) ||
        !counts(h->staleness))
        return -1;
    if (h->tokens < 0 || h->mean_tokens < h->tokens) return -1;
    if (h->pending_pushes < 0 || h->pending_pushes > h->step) return -1;
    if (!counts(h->ready_ns) || !counts(h->peers_ready_ns) || h->flags & ~(uint32_t)WIRE_FLAGS) return -1;
    // Digits of 32 bits, as exact_sum_carry leaves them: the sums of 2^31 shards can be added without overflow.
    for (int i = 0; h->has_sum && i < EXACT_SUM_LIMBS; i++)
        if (h->sum.limb[i] < 0 || h->sum.limb[i] > UINT32_MAX) return -1;
    if (h->sum.nonfinite < 0 || h->sum.nonfinite > EXACT_SUM_NONFINITE_MOST) return -1;
    return payload_fits(h, payload_bytes) ? 0 : -1;
}

// Memory for an unpacked message: 1023 bytes are at most as many words.
struct room {
    size_t used;
    char bytes[3 * 8192] __attribute__((aligned(16)));
};

static void *take(void *room, size_t bytes) {
    struct room *r = room;
    size_t at = r->used;
    if (bytes > sizeof r->bytes - at) return NULL;
    r->used = at + (bytes + 15) / 16 * 16;
    if (r->used > sizeof r->bytes) r->used = sizeof r->bytes;
    return r->bytes + at;
}
static void leave(void *room, void *bytes) { (void)room, (void)bytes; }

int wire_decode(const uint8_t *bytes, size_t size, size_t payload_bytes, struct wire_header *out) {
    struct room room;
    ProtobufCAllocator unpacks = {take, leave, &room};
    memset(out, 0, sizeof *out);
    room.used = 0;
    if (size == 0 || size > WIRE_HEADER_MAX) return -1;
    const Starring__PsMessage *p = starring__ps_message__unpack(&unpacks, size, bytes);
    if (!p || p->body_case == STARRING__PS_MESSAGE__BODY__NOT_SET || p->n_missing > LINK_MISSING_MAX)
        return -1;
    out->kind = (enum wire_kind)(p->body_case - BODY);
    out->role = (enum ps_role)p->role;
    out->rank = p->rank;
    out->thread = (int32_t)p->thread;
    out->job = p->job;
    out->incarnation = p->incarnation;
    out->process_no = p->process_no;
    out->link = (struct link_ack){.number = p->number,
                                  .said = p->said,
                                  .heard = p->heard,
                                  .missing_count = (int)p->n_missing,
                                  .seen = p->seen,
                                  .again = p->again,
                                  .asks = p->asks};
    if (p->n_missing) memcpy(out->link.missing, p->missing, p->n_missing * sizeof *p->missing);
    if (read_body(body_of(out->kind)->descriptor, (const char *)p->word, out) != 0) return -1;
    return header_check(out, payload_bytes);
}
