#include "shared/fabric/link.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define GAPS_MAX (1u << 16)  // missing numbers that are stored; a message beyond them counts as lost
#define AWAIT_S  0.25        // before the first question to a peer that has acknowledged all

struct line {
    // To the peer: messages that are not acknowledged yet, in the order of their numbers.
    struct link_item *open, **last;
    uint64_t number, said;
    // From the peer: all numbers up to `top` have arrived, except those in `missing` (ascending).
    uint64_t *missing, top, seen;
    int missing_count;
    bool owes;  // an acknowledgement, since:
    double owes_s;
    // Times and questions.
    struct rto rto;
    double heard_s;  // when the peer's last message arrived
    double asked_s;  // when the last question was sent
    double quiet_s;  // no question is due before this time; 0: not known
    uint64_t asked;  // the `said` of the unanswered question; 0: it has been answered
    // Requests for an acknowledgement since the peer's last message; since its last new one.
    int unanswered, awaited;
    bool awaits, busy;  // busy: link_tick checks this line
};

struct link {
    struct link_rules r;
    struct line *lines;  // (peers + 1): the first one is the line to -1
    int *busy, count;    // peers whose lines are busy
    double now;
    struct link_totals totals;
    void *own;
};

static struct line *line_of(const struct link *l, int peer) { return &l->lines[peer + 1]; }

static void is_busy(struct link *l, int peer) {
    struct line *n = line_of(l, peer);
    if (!n->busy) l->busy[l->count++] = peer;
    n->busy = true;
}

// ---------------------------------------------------------------- numbers that have arrived
// Returns whether the number is new.
static bool take_number(const struct link *l, struct line *n, uint64_t number) {
    if (number > n->top) {
        uint64_t gap = number - n->top - 1, count = (uint64_t)n->missing_count;
        if (l->r.in_order ? gap > 0 : gap > GAPS_MAX - count) return false;
        if (gap) n->missing = xrealloc(n->missing, (count + gap) * sizeof *n->missing);
        while (++n->top < number) n->missing[n->missing_count++] = n->top;
        return true;
    }
    int i = 0;
    while (i < n->missing_count && n->missing[i] < number) i++;
    if (i == n->missing_count || n->missing[i] != number) return false;
    memmove(&n->missing[i], &n->missing[i + 1], (size_t)(--n->missing_count - i) * sizeof *n->missing);
    return true;
}

// ---------------------------------------------------------------- sending
// The acknowledgement names one number: all messages up to it have arrived, except those that are listed as missing.
struct link_ack link_ack(struct link *l, int peer) {
    struct line *n = line_of(l, peer);
    bool more = n->missing_count > LINK_MISSING_MAX;
    struct link_ack w = {.said = ++n->said,
                         .seen = n->seen,
                         .heard = more ? n->missing[LINK_MISSING_MAX] - 1 : n->top,
                         .missing_count = more ? LINK_MISSING_MAX : n->missing_count};
    n->owes = false;
    if (n->missing) memcpy(w.missing, n->missing, (size_t)w.missing_count * sizeof *w.missing);
    return w;
}

static void send(struct link *l, int peer, struct link_item *item, bool again, bool asks) {
    struct link_ack w = link_ack(l, peer);
    w.again = again;
    w.asks = asks;
    if (item) {
        w.number = item->number;
        item->said = w.said;
        item->again = again;
        item->sent_s = l->now;
        l->totals.resent += again && item->bulk;
    }
    l->r.send(l->own, peer, &w, item);
}

void link_send(struct link *l, int peer, struct link_item *item) {
    struct line *n = line_of(l, peer);
    item->number = ++n->number;
    item->next = NULL;
    *n->last = item;
    n->last = &item->next;
    is_busy(l, peer);
    send(l, peer, item, false, false);
}

void link_answer(struct link *l, int peer) {
    if (line_of(l, peer)->owes) send(l, peer, NULL, false, false);
}

static bool leaves(const struct link_item *k) { return k->inflight && atomic_load(k->inflight) > 0; }

// ---------------------------------------------------------------- receiving
// Applies the peer's acknowledgement to each open message. Above w->heard the loop stops at the first message that was
// sent only once, and not before the one that the peer has seen last: all messages after it were sent later too.
static void take_ack(struct link *l, int peer, struct line *n, const struct link_ack *w) {
    int at = 0;
    struct link_item **to = &n->open;
    for (struct link_item *k; (k = *to);) {
        uint64_t i = k->number;
        while (at < w->missing_count && w->missing[at] < i) at++;
        bool missing = i > w->heard || (at < w->missing_count && w->missing[at] == i);
        bool known = i <= w->heard || w->missing_count < LINK_MISSING_MAX;
        l->totals.looked++;
        if (missing && i > w->heard && k->said >= w->seen && !k->again) return;
        if (!missing) {
            if (!(*to = k->next)) n->last = to;
            l->r.drop(l->own, peer, k);
            continue;
        }
        if (known && k->said < w->seen && !leaves(k) && l->now - k->sent_s >= 0.5 * rto_s(&n->rto))
            send(l, peer, k, true, false);
        to = &k->next;
    }
}

bool link_accept(struct link *l, int peer, const struct link_ack *w, bool live, double now) {
    struct line *n = line_of(l, peer);
    l->now = now;
    if (!w->said) return true;  // the sender has no link yet
    n->heard_s = now;
    n->quiet_s = 0;
    n->unanswered = 0;
    if (w->number && !n->owes) n->owes_s = now;
    n->owes = n->owes || w->number;
    if (n->owes) is_busy(l, peer);
    if (w->said > n->seen) n->seen = w->said;
    bool fresh = !w->number || take_number(l, n, w->number);
    if (n->asked && w->seen >= n->asked) {
        rto_sample(&n->rto, now - n->asked_s);
        n->asked = 0;
    }
    if (n->open) take_ack(l, peer, n, w);
    if (w->asks) send(l, peer, NULL, false, false);
    if (w->number && fresh && live) n->awaited = 0;
    return fresh;
}

// ---------------------------------------------------------------- timers
// The peer may wait ack_s before it sends an empty acknowledgement, and checks its clock only now and then: both are
// added to the timeout. A line has one timer, as a connection has in RFC 6298. It runs from the oldest message that
// may be lost, restarts with each message of the peer, and doubles while there is none. If the peer has acknowledged
// all and an answer is awaited, questions are rare: the peer itself waits for others.
static void line_tick(struct link *l, int peer, struct line *n) {
    struct link_item *oldest = NULL;
    double since_s = fmax(n->asked_s, n->heard_s), first_s = rto_s(&n->rto) + 2 * l->r.ack_s;
    int repeats = n->unanswered;
    if (l->now - n->owes_s >= l->r.ack_s) link_answer(l, peer);
    if ((!n->open && !n->awaits) || l->now <= n->quiet_s) return;
    if (l->now - since_s <= rto_backoff(first_s, repeats, l->r.repeat_most_s)) return;
    for (struct link_item *k = n->open; k; k = k->next) {
        bool left = !leaves(k);
        l->totals.looked++;
        if (!left) k->sent_s = l->now;  // a message that has not left the queue is not lost
        if (!left && !k->again) break;  // the same is true of the messages after it
        if (left && (!oldest || k->sent_s < oldest->sent_s)) oldest = k;
    }
    if (!oldest && !n->awaits) return;
    if (!oldest) {
        first_s = fmax(first_s, AWAIT_S);
        repeats = repeats > n->awaited ? repeats : n->awaited;
    }
    if (oldest) since_s = fmax(since_s, oldest->sent_s);
    double pause_s = rto_backoff(first_s, repeats, l->r.repeat_most_s);
    if (l->now - since_s <= pause_s) {
        if (oldest) n->quiet_s = since_s + pause_s;
        return;
    }
    n->asked_s = l->now;
    n->asked = n->said + 1;
    n->unanswered++;
    n->awaited += !oldest;
    l->totals.questions++;
    bool small = oldest && !oldest->bulk;
    send(l, peer, small ? oldest : NULL, small, true);
}

void link_tick(struct link *l, double now) {
    l->now = now;
    for (int i = 0; i < l->count;) {
        int peer = l->busy[i];
        struct line *n = line_of(l, peer);
        line_tick(l, peer, n);
        n->busy = n->open || n->owes || n->awaits;
        if (n->busy)
            i++;
        else
            l->busy[i] = l->busy[--l->count];
    }
}

void link_await(struct link *l, int peer, bool awaits) {
    line_of(l, peer)->awaits = awaits;
    if (awaits) is_busy(l, peer);
}
bool link_is_acknowledged(const struct link *l, int peer) { return !line_of(l, peer)->open; }
struct link_totals link_totals(const struct link *l) {
    return l->totals;
}
void *link_owner(struct link *l) { return l->own; }

// ---------------------------------------------------------------- create and destroy
static void line_free(struct link *l, int peer) {
    struct line *n = line_of(l, peer);
    for (struct link_item *k = n->open, *next; k; k = next) {
        next = k->next;
        l->r.drop(l->own, peer, k);
    }
    free(n->missing);
}

void link_forget(struct link *l, int peer) {
    struct line *n = line_of(l, peer);
    line_free(l, peer);
    *n = (struct line){.heard_s = l->now, .last = &n->open, .busy = n->busy};
}

struct link *link_new(const struct link_rules *r) {
    struct link *l = xcalloc(1, sizeof *l);
    l->r = *r;
    l->lines = xcalloc((unsigned long)r->peers + 1, sizeof *l->lines);
    l->busy = xcalloc((unsigned long)r->peers + 1, sizeof *l->busy);
    l->own = xcalloc(1, r->own + 1);
    for (int i = -1; i < r->peers; i++) link_forget(l, i);
    return l;
}

void link_destroy(struct link **at) {
    struct link *l = *at;
    if (!l) return;
    for (int i = -1; i < l->r.peers; i++) line_free(l, i);
    free(l->lines);
    free(l->busy);
    free(l->own);
    free(l);
    *at = NULL;
}
