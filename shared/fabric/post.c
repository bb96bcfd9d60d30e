#include "shared/fabric/post.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/link.h"

#define ASK_MOST_S 8.0  // limit between two questions of the link

// A piece of a value in flight. In a queue: a value whose bytes before m.at have been sent.
struct piece {
    struct link_item item;
    struct meet_message m;
    struct meet_value *value;
};

struct letters {
    struct queue {
        struct link_item *first, **last;
    } queues[2];                // the first queue has priority
    size_t under_way;           // bytes in flight, with their headers
    struct meet_value *coming;  // the beginning of a value that is arriving
    size_t room;                // allocated bytes of it
};

struct post {  // memory that the link owns
    struct link *link;
    void (*say)(void *ctx, int peer, struct meet_message *m, const void *data);
    void *ctx;
    int count;
    struct letters peers[];
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
static size_t cost(const struct piece *k) { return sizeof k->m + k->m.bytes; }

static void say_under(struct post *p, int peer, struct meet_message m, const struct link_word *w,
                      const void *data) {
    m.number = w->number;
    m.said = w->said;
    m.heard = w->heard;
    m.seen = w->seen;
    m.asks = w->asks;
    p->say(p->ctx, peer, &m, data);
}

static void say_piece(void *own, int peer, const struct link_word *w, struct link_item *item) {
    struct post *p = own;
    const struct piece *k = (const struct piece *)item;
    struct meet_message word = meet_message(MEET_WORD, 0, 0);
    say_under(p, peer, k ? k->m : word, w, k ? k->value->data + k->m.at : NULL);
}

static void drop(void *own, int peer, struct link_item *item) {
    struct piece *k = (struct piece *)item;
    ((struct post *)own)->peers[peer].under_way -= cost(k);
    meet_value_free(k->value);
    free(k);
}

void post_say(struct post *p, int peer, struct meet_message m, const void *data) {
    struct link_word w = link_word(p->link, peer);
    say_under(p, peer, m, &w, data);
}

// A GET carries the number of all wants before it, so a GET does not overtake another one.
void post_put(struct post *p, int peer, const struct meet_message *m, struct meet_value *v) {
    struct queue *two = p->peers[peer].queues;
    bool ahead = m->kind >= MEET_GET && v->bytes <= MEET_PIECE;
    for (struct link_item *it = two[1].first; it && ahead; it = it->next) {
        const struct meet_message *waits = &((struct piece *)it)->m;
        ahead = waits->kind != MEET_GET && strcmp(waits->name, m->name) != 0;
    }
    struct piece *k = xcalloc(1, sizeof *k);
    *k = (struct piece){{.bulk = true}, *m, v};
    k->m.total = v->bytes;
    *two[!ahead].last = &k->item;
    two[!ahead].last = &k->item.next;
}

void post_push(struct post *p, int peer, bool lets) {
    struct letters *n = &p->peers[peer];
    while (lets && n->under_way + MEET_PIECE + sizeof(struct meet_message) <= MEET_WINDOW) {
        struct queue *q = &n->queues[!n->queues[0].first];
        struct piece *rest = (struct piece *)q->first, *k = rest;
        if (!k) break;
        k->m.bytes = k->value->bytes - k->m.at;
        if (k->m.bytes > MEET_PIECE) {
            k = xcalloc(1, sizeof *k);
            *k = *rest;
            k->m.bytes = MEET_PIECE;
            k->value->users++;
            rest->m.at += MEET_PIECE;
        } else if (!(q->first = k->item.next))
            q->last = &q->first;
        n->under_way += cost(k);
        link_say(p->link, peer, &k->item);
    }
    link_answer(p->link, peer);
}

// ---------------------------------------------------------------- receiving
struct meet_value *post_hear(struct post *p, int peer, const struct meet_message *m, const void *data,
                             double now_s) {
    struct letters *n = &p->peers[peer];
    struct meet_value *v = n->coming;
    struct link_word w = {
        .number = m->number, .said = m->said, .heard = m->heard, .seen = m->seen, .asks = m->asks};
    if (!link_hear(p->link, peer, &w, m->kind != MEET_WORD, now_s) || !m->number) return NULL;
    if (!m->at && m->bytes == m->total)
        return meet_value_of(meet_copy(data, m->bytes), m->bytes);  // maybe between pieces of another one
    size_t came = v && m->at ? v->bytes : 0;
    if (m->at != came || m->total > MEET_DATA_MAX || m->bytes > m->total - came) return NULL;
    if (!came || came + m->bytes > n->room) {
        n->room = came + m->bytes < m->total / 2 ? 2 * (came + m->bytes) : m->total;
        if (!v) v = n->coming = meet_value_of(NULL, 0);
        v->data = xrealloc(v->data, n->room + 1);
    }
    memcpy(v->data + came, data, m->bytes);
    v->bytes = came + m->bytes;
    v->data[v->bytes] = 0;
    if (v->bytes < m->total) return NULL;
    n->coming = NULL;
    return v;
}

void post_tick(struct post *p, double now_s) { link_tick(p->link, now_s); }

bool post_heard(const struct post *p, int peer) {
    const struct queue *two = p->peers[peer].queues;
    return !two[0].first && !two[1].first && link_heard(p->link, peer);
}

// ---------------------------------------------------------------- open and close
void post_forget(struct post *p, int peer) {
    struct letters *n = &p->peers[peer];
    link_forget(p->link, peer);
    for (int i = 0; i < 2; i++)
        for (struct link_item *it = n->queues[i].first, *next; it; it = next) {
            next = it->next;
            drop(p, peer, it);
        }
    meet_value_free(n->coming);
    *n = (struct letters){.queues = {{.last = &n->queues[0].first}, {.last = &n->queues[1].first}}};
}

struct post *post_open(int peers, void (*say)(void *ctx, int peer, struct meet_message *m, const void *data),
                       void *ctx) {
    struct link *l =
        link_new(&(struct link_rules){.peers = peers,
                                      .repeat_most_s = ASK_MOST_S,
                                      .word_s = MEET_PAUSE_S,
                                      .in_order = true,
                                      .own = sizeof(struct post) + (size_t)peers * sizeof(struct letters),
                                      .say = say_piece,
                                      .drop = drop});
    struct post *p = link_own(l);
    *p = (struct post){l, say, ctx, peers};
    for (int i = 0; i < peers; i++) post_forget(p, i);
    return p;
}

void post_close(struct post **at) {
    for (int i = 0; *at && i < (*at)->count; i++) post_forget(*at, i);
    if (*at) link_destroy(&(struct link *){(*at)->link});
    *at = NULL;
}
