#include "ps/net/link.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define WORD_S 0.02

struct star_link {
    struct star_link_options o;
    struct link *link;
    uint64_t incarnations[];  // (peers + 1) of the peers' processes, PEER_SCHEDULER's first; 0: unknown
};

struct kept {
    struct link_item item;
    size_t used;  // bytes of the header that are stored; most kinds do not use the end of the struct
    const void *payload;
    size_t bytes;
    struct wire_header header;
};

static void say(void *own, int peer, const struct link_ack *w, struct link_item *item) {
    struct star_link *s = own;
    struct kept *k = (struct kept *)item;
    struct ps_message m = {.header.kind = WIRE_WORD};
    if (k) {
        m.payload = k->payload;
        m.bytes = k->bytes;
        m.inflight = item->inflight;
        memcpy(&m.header, &k->header, k->used);
    }
    if (w->again && m.bytes && s->o.renew && !s->o.renew(s->o.ctx, peer, &m)) {
        item->bulk = false;
        item->inflight = NULL;
        k->bytes = 0;
        k->header.kind = WIRE_WORD;
        m = (struct ps_message){.header.kind = WIRE_WORD};
    }
    m.header.link = *w;
    s->o.network.send(s->o.network.ctx, peer, &m);
}

static void drop(void *own, int peer, struct link_item *item) {
    (void)own, (void)peer;
    free(item);
}

static void send_message(void *ctx, int peer, const struct ps_message *m) {
    struct star_link *s = ctx;
    const struct wire_header *h = &m->header;
    if (!wire_is_kept(h->kind)) {
        struct ps_message now = *m;
        now.header.link = link_ack(s->link, peer);
        s->o.network.send(s->o.network.ctx, peer, &now);
        return;
    }
    size_t used = h->has_sum || h->count || h->text[0] ? sizeof *h : offsetof(struct wire_header, sum);
    struct kept *k = xcalloc(1, offsetof(struct kept, header) + used);
    k->item.bulk = m->bytes > 0;
    k->item.inflight = m->inflight;
    k->used = used;
    k->payload = m->payload;
    k->bytes = m->bytes;
    memcpy(&k->header, h, used);
    link_send(s->link, peer, &k->item);
}

struct ps_port star_link_port(struct link *l) {
    return (struct ps_port){link_owner(l), send_message};
}

bool star_link_receive(struct link *l, int peer, struct wire_header *h, double now) {
    uint64_t *own = &((struct star_link *)link_owner(l))->incarnations[peer + 1];
    if (!h->incarnation) return true;
    if (*own && h->incarnation != *own) link_forget(l, peer);
    *own = h->incarnation;
    if (!link_accept(l, peer, &h->link, h->kind != WIRE_WORD, now)) h->kind = WIRE_WORD;
    return h->kind != WIRE_WORD || !h->link.said;
}

struct link *star_link_create(const struct star_link_options *o) {
    struct link *l = link_new(
        &(struct link_rules){.peers = o->peers,
                             .repeat_most_s = o->repeat_most_s,
                             .ack_s = WORD_S,
                             .own = sizeof(struct star_link) + ((size_t)o->peers + 1) * sizeof(uint64_t),
                             .send = say,
                             .drop = drop});
    struct star_link *s = link_owner(l);
    s->o = *o;
    s->link = l;
    return l;
}

// ---------------------------------------------------------------- errors of cores (port.h)
int core_fail(char error[WIRE_TEXT_MAX], const char *fmt, ...) {
    va_list args;
    if (error[0]) return -1;
    va_start(args, fmt);
    vsnprintf(error, WIRE_TEXT_MAX, fmt, args);
    va_end(args);
    return -1;
}
