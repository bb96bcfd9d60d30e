#include "ps/net/link.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define ROOM    64         // of a line's ring at first; doubles
#define WINDOW  (1 << 20)  // numbers behind a gap; what is beyond counts as lost
#define WORD_S  0.02       // a message without an answer of the core's is answered with an empty word
#define AWAIT_S 0.25       // before the first question to a peer that has heard all

// A message that the peer may not have.
struct kept {
    struct wire_header *header;  // the bytes that it uses; NULL: it has been heard
    size_t used;
    uint64_t after;  // the number of the next one that the peer may not have; of the last one: next
    uint64_t said;
    bool again;  // more than once
    double sent_s;
    const void *payload;
    size_t bytes;
    _Atomic int *inflight;
};

struct line {
    uint64_t incarnation;  // of the peer's process; 0: not heard yet
    // To the peer: numbers [first, next) may be open, kept[number % room]. The open ones are a list in their order, from first
    // (next: there are none).
    struct kept *kept;
    uint64_t room, first, next;
    int open;
    uint64_t said;
    // From the peer: all up to `heard` have come, and those beyond it that came[number % window] says, up to `top`.
    bool *came;
    uint64_t window, heard, top, seen;
    bool owes;  // a word, since:
    double owes_s;
    // Time.
    struct rto rto;
    double heard_s;           // when it said something last
    double asked_s;           // the last question
    double quiet_s;           // there is none to ask before; 0: not known
    uint64_t asked;           // its `said`; 0: it has been answered
    int unanswered, awaited;  // questions since the peer said something, and since it said something new
    bool awaits;
};

struct link {
    struct link_options o;
    struct line *lines;  // (peers + 1) the last one to PEER_SCHEDULER
    int count;
    double now;
    struct link_totals totals;
};

static struct line *line_of(const struct link *l, int peer) {
    return &l->lines[peer == PEER_SCHEDULER ? l->o.peers : peer];
}
static int peer_of(const struct link *l, int i) { return i < l->o.peers ? i : PEER_SCHEDULER; }

// ---------------------------------------------------------------- what has come
static void widen(struct line *n, uint64_t number) {
    uint64_t window = n->window ? n->window : ROOM;
    while (number - n->heard >= window) window *= 2;
    if (window == n->window) return;
    bool *came = xcalloc((unsigned long)window, sizeof *came);
    for (uint64_t i = n->heard + 1; i <= n->top; i++) came[i % window] = n->came[i % n->window];
    free(n->came);
    n->came = came;
    n->window = window;
}

// Whether that number is new.
static bool take_number(struct line *n, uint64_t number) {
    if (number <= n->heard || number - n->heard > WINDOW) return false;
    if (number == n->heard + 1 && n->top <= n->heard) {  // as ever, where nothing is lost
        n->heard = n->top = number;
        return true;
    }
    widen(n, number);
    if (number <= n->top && n->came[number % n->window]) return false;
    for (; n->top < number; n->top++) n->came[(n->top + 1) % n->window] = false;
    n->came[number % n->window] = true;
    while (n->heard < n->top && n->came[(n->heard + 1) % n->window]) n->heard++;
    return true;
}

// The word that goes with each message: up to which number all have come, but those that are named.
static void put_word(const struct line *n, struct wire_link *w) {
    w->seen = n->seen;
    w->heard = n->top > n->heard ? n->top : n->heard;
    for (uint64_t i = n->heard + 1; i < n->top; i++) {
        if (n->came[i % n->window]) continue;
        if (w->missing_count == WIRE_MISSING_MAX) {
            w->heard = i - 1;
            return;
        }
        w->missing[w->missing_count++] = i;
    }
}

// ---------------------------------------------------------------- saying
static void say(struct link *l, int peer, struct line *n, struct ps_message *m) {
    n->owes = false;
    m->header.link.said = ++n->said;
    put_word(n, &m->header.link);
    l->o.network.send(l->o.network.ctx, peer, m);
}

static void say_word(struct link *l, int peer, struct line *n, const struct wire_link *w) {
    struct ps_message m = {.header = {.kind = WIRE_WORD, .link = *w}};
    say(l, peer, n, &m);
}

// Bytes of a header that it uses: of most kinds the tail is empty.
#define HEAD_BYTES offsetof(struct wire_header, sum)
static struct kept *keep(struct line *n, const struct ps_message *m) {
    const struct wire_header *h = &m->header;
    size_t size = h->has_sum || h->count || h->text[0] ? sizeof *h : HEAD_BYTES;
    if (n->next - n->first == n->room) {
        uint64_t room = n->room ? 2 * n->room : ROOM;
        struct kept *more = xcalloc((unsigned long)room, sizeof *more);
        for (uint64_t i = n->first; i < n->next; i++) more[i % room] = n->kept[i % n->room];
        free(n->kept);
        n->kept = more;
        n->room = room;
    }
    struct kept *k = &n->kept[n->next++ % n->room];
    *k = (struct kept){.header = xcalloc(1, size),
                       .used = size,
                       .after = n->next,
                       .payload = m->payload,
                       .bytes = m->bytes,
                       .inflight = m->inflight};
    memcpy(k->header, &m->header, size);
    n->open++;
    return k;
}

static void link_send(void *ctx, int peer, const struct ps_message *message) {
    struct link *l = ctx;
    struct line *n = line_of(l, peer);
    struct ps_message m = *message;
    m.header.link = (struct wire_link){0};
    if (wire_is_kept(m.header.kind)) {
        m.header.link.number = n->next;
        struct kept *k = keep(n, &m);
        k->said = n->said + 1;
        k->sent_s = l->now;
    }
    say(l, peer, n, &m);
}

struct ps_port link_port(struct link *l) {
    return (struct ps_port){l, link_send};
}

static void drop(struct line *n, struct kept *k) {
    free(k->header);
    k->header = NULL;
    n->open--;
}

static bool leaves(const struct kept *k) { return k->inflight && atomic_load(k->inflight) > 0; }

static void say_again(struct link *l, int peer, struct line *n, struct kept *k, bool asks) {
    struct wire_link w = {.number = k->header->link.number, .again = true, .asks = asks};
    struct ps_message m = {.payload = k->payload, .bytes = k->bytes, .inflight = k->inflight};
    memcpy(&m.header, k->header, k->used);
    k->said = n->said + 1;
    k->again = true;
    k->sent_s = l->now;
    if (k->bytes) l->totals.resent++;
    if (k->bytes && l->o.renew && !l->o.renew(l->o.ctx, peer, &m)) {
        k->bytes = 0;
        k->inflight = NULL;
        memset(k->header, 0, HEAD_BYTES);
        k->header->kind = WIRE_WORD;
        k->header->link.number = w.number;
        k->used = HEAD_BYTES;
        m = (struct ps_message){.header.kind = WIRE_WORD};
    }
    m.header.link = w;
    say(l, peer, n, &m);
}

// ---------------------------------------------------------------- hearing
// The peer's word about each message that it may not have had. Beyond what it has heard, those that it may have missed lie
// before the first one that was said once, and behind what it has seen.
static void take_word(struct link *l, int peer, struct line *n, const struct wire_link *w) {
    int at = 0;
    uint64_t *to = &n->first;  // the link of the list to this one
    for (uint64_t i; (i = *to) < n->next;) {
        struct kept *k = &n->kept[i % n->room];
        while (at < w->missing_count && w->missing[at] < i) at++;
        bool missing = i > w->heard || (at < w->missing_count && w->missing[at] == i);
        bool known = i <= w->heard || w->missing_count < WIRE_MISSING_MAX;
        l->totals.looked++;
        if (missing && i > w->heard && k->said >= w->seen && !k->again) return;
        if (!missing) {
            *to = k->after;
            drop(n, k);
            continue;
        }
        if (known && k->said < w->seen && !leaves(k) && l->now - k->sent_s >= 0.5 * rto_s(&n->rto))
            say_again(l, peer, n, k, false);
        to = &k->after;
    }
}

bool link_receive(struct link *l, int peer, struct wire_header *h, double now) {
    struct line *n = line_of(l, peer);
    const struct wire_link *w = &h->link;
    l->now = now;
    if (!h->incarnation) return true;
    if (n->incarnation && h->incarnation != n->incarnation) link_forget(l, peer);
    n->incarnation = h->incarnation;
    if (!w->said) return true;  // of a process that has no link yet
    n->heard_s = now;
    n->quiet_s = 0;
    n->unanswered = 0;
    if (w->number && !n->owes) n->owes_s = now;
    n->owes = n->owes || w->number;
    if (w->said > n->seen) n->seen = w->said;
    bool fresh = !w->number || take_number(n, w->number);
    if (n->asked && w->seen >= n->asked) {
        rto_sample(&n->rto, now - n->asked_s);
        n->asked = 0;
    }
    if (n->open) take_word(l, peer, n, w);
    if (w->asks) say_word(l, peer, n, &(struct wire_link){0});
    if (w->number && fresh && h->kind != WIRE_WORD) n->awaited = 0;
    if (!fresh) h->kind = WIRE_WORD;
    return h->kind != WIRE_WORD;
}

// ---------------------------------------------------------------- time
// The peer may take its time before it sends an empty word, and looks at its clock now and then: that is added to the
// timer. One timer for a line, as RFC 6298 has one for a connection: it runs from the oldest message that may be lost, anew from
// each word of the peer, and doubles while there is none. Where the peer has heard all and its part is awaited, questions
// are rare: it waits for others.
static void line_tick(struct link *l, int peer, struct line *n) {
    struct kept *oldest = NULL;
    double since_s = fmax(n->asked_s, n->heard_s), first_s = rto_s(&n->rto) + 2 * WORD_S;
    int repeats = n->unanswered;
    if (n->owes && l->now - n->owes_s >= WORD_S) say_word(l, peer, n, &(struct wire_link){0});
    if ((!n->open && !n->awaits) || l->now <= n->quiet_s) return;
    if (l->now - since_s <= rto_backoff(fmin(first_s, l->o.repeat_most_s), repeats, l->o.repeat_most_s))
        return;
    for (uint64_t i = n->first; n->open && i < n->next; i = n->kept[i % n->room].after) {
        struct kept *k = &n->kept[i % n->room];
        bool left = !leaves(k);
        l->totals.looked++;
        if (!left) k->sent_s = l->now;  // what has not left is not lost
        if (!left && !k->again) break;  // nor has what is behind it
        if (left && (!oldest || k->sent_s < oldest->sent_s)) oldest = k;
    }
    if (!oldest && !n->awaits) return;
    if (!oldest) {
        first_s = fmax(first_s, AWAIT_S);
        repeats = repeats > n->awaited ? repeats : n->awaited;
    }
    if (oldest) since_s = fmax(since_s, oldest->sent_s);
    double pause_s = rto_backoff(fmin(first_s, l->o.repeat_most_s), repeats, l->o.repeat_most_s);
    if (l->now - since_s <= pause_s) {
        if (oldest) n->quiet_s = since_s + pause_s;

        return;
    }
    n->asked_s = l->now;
    n->asked = n->said + 1;
    n->unanswered++;
    n->awaited += !oldest;
    l->totals.questions++;
    if (oldest && !oldest->bytes)
        say_again(l, peer, n, oldest, true);
    else
        say_word(l, peer, n, &(struct wire_link){.asks = true});
}

void link_tick(struct link *l, double now) {
    l->now = now;
    for (int i = 0; i < l->count; i++) line_tick(l, peer_of(l, i), &l->lines[i]);
}

void link_await(struct link *l, int peer, bool awaits) { line_of(l, peer)->awaits = awaits; }
bool link_heard(const struct link *l, int peer) { return line_of(l, peer)->open == 0; }
struct link_totals link_totals(const struct link *l) {
    return l->totals;
}

// ---------------------------------------------------------------- create and destroy
static void line_free(struct line *n) {
    for (uint64_t i = n->first; i < n->next; i++) free(n->kept[i % n->room].header);
    free(n->kept);
    free(n->came);
}

void link_forget(struct link *l, int peer) {
    struct line *n = line_of(l, peer);
    line_free(n);
    *n = (struct line){.first = 1, .next = 1, .heard_s = l->now};
}

struct link *link_create(const struct link_options *o) {
    struct link *l = xcalloc(1, sizeof *l);
    l->o = *o;
    l->count = o->peers + 1;
    l->lines = xcalloc((unsigned long)l->count, sizeof *l->lines);
    for (int i = 0; i < l->count; i++) link_forget(l, peer_of(l, i));
    return l;
}

void link_destroy(struct link **at) {
    struct link *l = *at;
    if (!l) return;
    for (int i = 0; i < l->count; i++) line_free(&l->lines[i]);
    free(l->lines);
    free(l);
    *at = NULL;
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
