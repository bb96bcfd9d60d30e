#include "shared/fabric/post.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/link.h"

#define ASK_MOST_S 8.0  // between two questions of the link's

// What is on its way of a value; or, in the queue, a value of which all before m.at has left.
struct piece {
    struct link_item item;
    struct meet_message m;
    struct meet_value *value;
};

struct letters {
    struct link_item *first, **last;
    size_t under_way;           // bytes, with their heads
    struct meet_value *coming;  // the beginning of a value
    size_t room;                // for so many of its bytes
};

struct post {
    struct link *link;
    struct letters *peers;
    int count;
    void (*say)(void *ctx, int peer, struct meet_message *m, const void *data);
    void *ctx;
};

// ---------------------------------------------------------------- values
struct meet_value *meet_value_of(const void *data, size_t bytes) {
    struct meet_value *v = xcalloc(1, sizeof *v + bytes + 1);
    v->users = 1;
    v->bytes = bytes;
    if (data && bytes) memcpy(v->data, data, bytes);
    return v;
}

void meet_value_free(struct meet_value *v) {
    if (v && !--v->users) free(v);
}

// ---------------------------------------------------------------- saying
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
    struct post *p = *(struct post **)own;
    const struct piece *k = (const struct piece *)item;
    struct meet_message word = meet_message(MEET_WORD, 0, 0);
    say_under(p, peer, k ? k->m : word, w, k ? k->value->data + k->m.at : NULL);
}

static void drop(void *own, int peer, struct link_item *item) {
    struct post *p = *(struct post **)own;
    struct piece *k = (struct piece *)item;
    p->peers[peer].under_way -= cost(k);
    meet_value_free(k->value);
    free(k);
}

void post_say(struct post *p, int peer, struct meet_message m, const void *data) {
    struct link_word w = link_word(p->link, peer);
    say_under(p, peer, m, &w, data);
}

void post_put(struct post *p, int peer, const struct meet_message *m, struct meet_value *v, bool urgent) {
    struct letters *n = &p->peers[peer];
    struct link_item **to = urgent ? &n->first : n->last;
    struct piece *k = xcalloc(1, sizeof *k);
    *k = (struct piece){{.bulk = true, .next = *to}, *m, v};
    k->m.total = v->bytes;
    if (!*to) n->last = &k->item.next;
    *to = &k->item;
}

void post_push(struct post *p, int peer, bool lets) {
    struct letters *n = &p->peers[peer];
    while (lets && n->first && n->under_way + MEET_PIECE + sizeof(struct meet_message) <= MEET_WINDOW) {
        struct piece *rest = (struct piece *)n->first, *k = rest;
        k->m.bytes = k->value->bytes - k->m.at;
        if (k->m.bytes > MEET_PIECE) {
            k = xcalloc(1, sizeof *k);
            *k = *rest;
            k->m.bytes = MEET_PIECE;
            k->value->users++;
            rest->m.at += MEET_PIECE;
        } else if (!(n->first = k->item.next))
            n->last = &n->first;
        n->under_way += cost(k);
        link_say(p->link, peer, &k->item);
    }
    link_answer(p->link, peer);
}

// ---------------------------------------------------------------- hearing
struct meet_value *post_hear(struct post *p, int peer, const struct meet_message *m, const void *data,
                             double now_s) {
    struct letters *n = &p->peers[peer];
    struct meet_value *v = n->coming;
    struct link_word w = {
        .number = m->number, .said = m->said, .heard = m->heard, .seen = m->seen, .asks = m->asks};
    if (!link_hear(p->link, peer, &w, m->kind != MEET_WORD, now_s) || !m->number) return NULL;
    if (!m->at && m->bytes == m->total)
        return meet_value_of(data, m->bytes);  // maybe between pieces of another one
    size_t came = v && m->at ? v->bytes : 0;
    if (m->at != came || m->total > MEET_DATA_MAX || m->bytes > m->total - came) return NULL;
    if (!came || came + m->bytes > n->room) {
        n->room = came + m->bytes < m->total / 2 ? 2 * (came + m->bytes) : m->total;
        v = n->coming = xrealloc(v, sizeof *v + n->room + 1);
    }
    memcpy(v->data + came, data, m->bytes);
    v->users = 1;
    v->bytes = came + m->bytes;
    v->data[v->bytes] = 0;
    if (v->bytes < m->total) return NULL;
    n->coming = NULL;
    return v;
}

void post_tick(struct post *p, double now_s) { link_tick(p->link, now_s); }

bool post_heard(const struct post *p, int peer) { return !p->peers[peer].first && link_heard(p->link, peer); }

// ---------------------------------------------------------------- open and close
void post_forget(struct post *p, int peer) {
    struct letters *n = &p->peers[peer];
    link_forget(p->link, peer);
    for (struct link_item *it = n->first, *next; it; it = next) {
        next = it->next;
        drop(&p, peer, it);
    }
    meet_value_free(n->coming);
    *n = (struct letters){.last = &n->first};
}

struct post *post_open(int peers, void (*say)(void *ctx, int peer, struct meet_message *m, const void *data),
                       void *ctx) {
    struct post *p = xcalloc(1, sizeof *p);
    p->say = say;
    p->ctx = ctx;
    p->peers = xcalloc((size_t)peers, sizeof *p->peers);
    p->link = link_new(&(struct link_rules){.peers = peers,
                                            .repeat_most_s = ASK_MOST_S,
                                            .word_s = MEET_PAUSE_S,
                                            .in_order = true,
                                            .own = sizeof p,
                                            .say = say_piece,
                                            .drop = drop});
    *(struct post **)link_own(p->link) = p;
    p->count = peers;
    for (int i = 0; i < peers; i++) post_forget(p, i);
    return p;
}

void post_close(struct post **at) {
    struct post *p = *at;
    if (!p) return;
    for (int i = 0; i < p->count; i++) post_forget(p, i);
    link_destroy(&p->link);
    free(p->peers);
    free(p);
    *at = NULL;
}
