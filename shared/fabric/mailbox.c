#include "shared/fabric/mailbox.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/link.h"

#define ASK_MOST_S 8.0  // the longest pause between two requests of the link

// A piece of a value in flight. In a queue: a value whose bytes before m.at have been sent.
struct chunk {
    struct link_item item;
    struct meet_message m;
    struct meet_value *value;
};

struct peer_queues {
    struct queue {
        struct link_item *first, **last;
    } queues[2];                  // the first queue has priority
    size_t in_flight;             // bytes in flight, with their headers
    struct meet_value *arriving;  // the part of a value that has arrived so far
    size_t room;                  // its allocated bytes
};

struct mailbox {  // memory that the link owns
    struct link *link;
    void (*send)(void *ctx, int peer, struct meet_message *m, const void *data);
    void *ctx;
    int count;
    struct peer_queues peers[];
};

// ---------------------------------------------------------------- values
struct meet_value *meet_value_of(void *data, size_t bytes) {
    struct meet_value *v = xcalloc(1, sizeof *v);
    *v = (struct meet_value){1, bytes, data};
    return v;
}

void meet_value_free(struct meet_value *v) {
    if (!v || --v->users) return;
    free(v->data);
    free(v);
}

// ---------------------------------------------------------------- sending
static size_t cost(const struct chunk *k) { return sizeof k->m + k->m.bytes; }

static void send_with_ack(struct mailbox *p, int peer, struct meet_message m, const struct link_ack *w,
                          const void *data) {
    m.number = w->number;
    m.said = w->said;
    m.heard = w->heard;
    m.seen = w->seen;
    m.asks = w->asks;
    p->send(p->ctx, peer, &m, data);
}

static void send_chunk(void *own, int peer, const struct link_ack *w, struct link_item *item) {
    struct mailbox *p = own;
    const struct chunk *k = (const struct chunk *)item;
    struct meet_message word = meet_message(MEET_ACK, 0, 0);
    send_with_ack(p, peer, k ? k->m : word, w, k ? k->value->data + k->m.at : NULL);
}

static void drop(void *own, int peer, struct link_item *item) {
    struct chunk *k = (struct chunk *)item;
    ((struct mailbox *)own)->peers[peer].in_flight -= cost(k);
    meet_value_free(k->value);
    free(k);
}

void mailbox_send_once(struct mailbox *p, int peer, struct meet_message m, const void *data) {
    struct link_ack w = link_ack(p->link, peer);
    send_with_ack(p, peer, m, &w, data);
}

// A GET carries the number of all wants before it, so a GET does not overtake another one.
void mailbox_queue(struct mailbox *p, int peer, const struct meet_message *m, struct meet_value *v) {
    struct queue *two = p->peers[peer].queues;
    bool ahead = m->kind >= MEET_GET && v->bytes <= MEET_CHUNK;
    for (struct link_item *it = two[1].first; it && ahead; it = it->next) {
        const struct meet_message *waits = &((struct chunk *)it)->m;
        ahead = waits->kind != MEET_GET && strcmp(waits->name, m->name) != 0;
    }
    struct chunk *k = xcalloc(1, sizeof *k);
    *k = (struct chunk){{.bulk = true}, *m, v};
    k->m.total = v->bytes;
    *two[!ahead].last = &k->item;
    two[!ahead].last = &k->item.next;
}

void mailbox_flush(struct mailbox *p, int peer, bool lets) {
    struct peer_queues *n = &p->peers[peer];
    while (lets && n->in_flight + MEET_CHUNK + sizeof(struct meet_message) <= MEET_WINDOW) {
        struct queue *q = &n->queues[!n->queues[0].first];
        struct chunk *rest = (struct chunk *)q->first, *k = rest;
        if (!k) break;
        k->m.bytes = k->value->bytes - k->m.at;
        if (k->m.bytes > MEET_CHUNK) {
            k = xcalloc(1, sizeof *k);
            *k = *rest;
            k->m.bytes = MEET_CHUNK;
            k->value->users++;
            rest->m.at += MEET_CHUNK;
        } else if (!(q->first = k->item.next))
            q->last = &q->first;
        n->in_flight += cost(k);
        link_send(p->link, peer, &k->item);
    }
    link_answer(p->link, peer);
}

// ---------------------------------------------------------------- receiving
struct meet_value *mailbox_receive(struct mailbox *p, int peer, const struct meet_message *m,
                                   const void *data, double now_s) {
    struct peer_queues *n = &p->peers[peer];
    struct meet_value *v = n->arriving;
    struct link_ack w = {
        .number = m->number, .said = m->said, .heard = m->heard, .seen = m->seen, .asks = m->asks};
    if (!link_accept(p->link, peer, &w, m->kind != MEET_ACK, now_s) || !m->number) return NULL;
    if (!m->at && m->bytes == m->total)
        // A small value may arrive between pieces of a large one.
        return meet_value_of(meet_copy(data, m->bytes), m->bytes);
    size_t arrived = v && m->at ? v->bytes : 0;
    if (m->at != arrived || m->total > MEET_DATA_MAX || m->bytes > m->total - arrived) return NULL;
    if (!arrived || arrived + m->bytes > n->room) {
        n->room = arrived + m->bytes < m->total / 2 ? 2 * (arrived + m->bytes) : m->total;
        if (!v) v = n->arriving = meet_value_of(NULL, 0);
        v->data = xrealloc(v->data, n->room + 1);
    }
    memcpy(v->data + arrived, data, m->bytes);
    v->bytes = arrived + m->bytes;
    v->data[v->bytes] = 0;
    if (v->bytes < m->total) return NULL;
    n->arriving = NULL;
    return v;
}

void mailbox_tick(struct mailbox *p, double now_s) { link_tick(p->link, now_s); }

bool mailbox_is_acknowledged(const struct mailbox *p, int peer) {
    const struct queue *two = p->peers[peer].queues;
    return !two[0].first && !two[1].first && link_is_acknowledged(p->link, peer);
}

// ---------------------------------------------------------------- open and close
void mailbox_reset(struct mailbox *p, int peer) {
    struct peer_queues *n = &p->peers[peer];
    link_forget(p->link, peer);
    for (int i = 0; i < 2; i++)
        for (struct link_item *it = n->queues[i].first, *next; it; it = next) {
            next = it->next;
            drop(p, peer, it);
        }
    meet_value_free(n->arriving);
    *n = (struct peer_queues){.queues = {{.last = &n->queues[0].first}, {.last = &n->queues[1].first}}};
}

struct mailbox *mailbox_open(int peers,
                             void (*send)(void *ctx, int peer, struct meet_message *m, const void *data),
                             void *ctx) {
    struct link *l = link_new(
        &(struct link_rules){.peers = peers,
                             .repeat_most_s = ASK_MOST_S,
                             .ack_s = MEET_PAUSE_S,
                             .in_order = true,
                             .own = sizeof(struct mailbox) + (size_t)peers * sizeof(struct peer_queues),
                             .send = send_chunk,
                             .drop = drop});
    struct mailbox *p = link_owner(l);
    *p = (struct mailbox){l, send, ctx, peers};
    for (int i = 0; i < peers; i++) mailbox_reset(p, i);
    return p;
}

void mailbox_close(struct mailbox **at) {
    for (int i = 0; *at && i < (*at)->count; i++) mailbox_reset(*at, i);
    if (*at) link_destroy(&(struct link *){(*at)->link});
    *at = NULL;
}
