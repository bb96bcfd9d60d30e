#include "shared/fabric/lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define PIECES 4  // pieces per window

struct kept {
    struct kept *next;
    struct lane_head head;
    struct lane_piece piece;
};

// The state between this process and one peer, on one lane.
struct pair {
    // The message that is being sent, and how much of it has been queued.
    const char *out;
    size_t out_bytes, sent;
    uint64_t credit;  // bytes that may be queued now
    uint32_t out_tag;
    bool sends, receives;
    _Atomic int held;  // pieces whose bytes the transport still reads
    // The message that is being received, and how much of it has arrived.
    uint32_t in_tag;
    char *in;
    size_t in_bytes, came;
    struct kept *kept, **last;  // pieces that arrived before their message was requested
    uint64_t kept_bytes, owed;  // owed: credit that has not been returned
};

struct lanes {
    struct lanes_options o;
    size_t window, piece;
    struct pair *pairs;  // (lanes, size)
    struct lane {
        uint64_t moved;       // bytes
        int sends, receives;  // pairs
        bool owes;            // some credit could not be queued and must be sent later
        char failed[LANES_WHY];
    } * lane;  // (lanes)
};

static struct pair *pair_of(const struct lanes *l, int lane, int peer) {
    return &l->pairs[(size_t)lane * (size_t)l->o.size + (size_t)peer];
}

struct lanes *lanes_create(const struct lanes_options *o) {
    struct lanes *l = xcalloc(1, sizeof *l);
    size_t count = (size_t)o->lanes * (size_t)o->size, share = LANES_KEPT / (size_t)o->size;
    l->o = *o;
    l->window = share < LANES_WINDOW ? share : LANES_WINDOW;
    l->piece = l->window / PIECES;
    l->pairs = xcalloc(count, sizeof *l->pairs);
    l->lane = xcalloc((size_t)o->lanes, sizeof *l->lane);
    for (size_t i = 0; i < count; i++) {
        l->pairs[i].credit = l->window;
        l->pairs[i].last = &l->pairs[i].kept;
    }
    return l;
}

static void release(const struct lane_piece *p) {
    if (p->release) p->release(p->hold);
}

static void forget_first(struct pair *p) {
    struct kept *k = p->kept;
    p->kept_bytes -= k->piece.bytes;
    if (!(p->kept = k->next)) p->last = &p->kept;
    release(&k->piece);
    free(k);
}

void lanes_destroy(struct lanes **at) {
    struct lanes *l = *at;
    if (!l) return;
    for (size_t i = 0; i < (size_t)l->o.lanes * (size_t)l->o.size; i++)
        while (l->pairs[i].kept) forget_first(&l->pairs[i]);
    free(l->pairs);
    free(l->lane);
    free(l);
    *at = NULL;
}

// ---------------------------------------------------------------- sending
// Returns whether a piece was queued.
static bool send_piece(struct lanes *l, int lane, int to) {
    struct pair *p = pair_of(l, lane, to);
    if (!p->sends) return false;
    size_t left = p->out_bytes - p->sent, bytes = left < l->piece ? left : l->piece;
    struct lane_head h = {
        .kind = LANE_PIECE, .lane = (uint32_t)lane, .tag = p->out_tag, .total = p->out_bytes, .at = p->sent};
    if (p->credit < bytes) return false;
    bool copied = bytes <= LANES_COPIED;
    if (!copied) atomic_fetch_add(&p->held, 1);
    if (!l->o.send(l->o.ctx, to, &h, p->out + p->sent, bytes, copied ? NULL : &p->held)) return false;
    p->credit -= bytes;
    p->sent += bytes;
    l->lane[lane].moved += bytes;
    p->sends = p->sent < p->out_bytes;
    l->lane[lane].sends -= !p->sends;
    return true;
}

static void give_credit(struct lanes *l, int lane, int to) {
    struct pair *p = pair_of(l, lane, to);
    if (p->owed < l->piece) return;
    struct lane_head h = {.kind = LANE_CREDIT, .lane = (uint32_t)lane, .total = p->owed};
    if (l->o.send(l->o.ctx, to, &h, NULL, 0, NULL))
        p->owed = 0;
    else
        l->lane[lane].owes = true;
}

// Each rank starts with the next higher rank, and peers alternate. Returns whether a piece was queued.
static bool push_lane(struct lanes *l, int lane) {
    bool any = false;
    if (l->lane[lane].owes) {
        l->lane[lane].owes = false;
        for (int i = 0; i < l->o.size; i++) give_credit(l, lane, i);
    }
    for (int k = 1; k < l->o.size && l->lane[lane].sends; k++)
        if (send_piece(l, lane, (l->o.rank + k) % l->o.size)) any = true;
    return any;
}

void lanes_push(struct lanes *l) {
    for (bool more = true; more;) {
        more = false;
        for (int lane = 0; lane < l->o.lanes; lane++)
            if (push_lane(l, lane)) more = true;
    }
}

void lanes_send(struct lanes *l, int lane, int to, uint32_t tag, const void *at, size_t bytes) {
    struct pair *p = pair_of(l, lane, to);
    p->out = at;
    p->out_bytes = bytes;
    p->sent = 0;
    p->out_tag = tag;
    p->sends = true;
    l->lane[lane].sends++;
}

// ---------------------------------------------------------------- receiving
// Copies a piece of the message that is asked for. Returns 0; 1: it belongs to another message; -1 after failing the
// lane.
static int place(struct lanes *l, int lane, int from, const struct lane_head *h,
                 const struct lane_piece *piece) {
    struct pair *p = pair_of(l, lane, from);
    if (!p->receives || h->tag != p->in_tag) return 1;
    if (h->total != p->in_bytes || h->at != p->came) {
        snprintf(l->lane[lane].failed, LANES_WHY, "rank %d sent %llu bytes where rank %d expects %zu", from,
                 (unsigned long long)h->total, l->o.rank, p->in_bytes);
        return -1;
    }
    memcpy(p->in + p->came, piece->data, piece->bytes);
    p->came += piece->bytes;
    p->owed += piece->bytes;
    l->lane[lane].moved += piece->bytes;
    p->receives = p->came < p->in_bytes;
    l->lane[lane].receives -= !p->receives;
    give_credit(l, lane, from);
    return 0;
}

void lanes_receive(struct lanes *l, int lane, int from, uint32_t tag, void *at, size_t bytes) {
    struct pair *p = pair_of(l, lane, from);
    p->in = at;
    p->in_bytes = bytes;
    p->came = 0;
    p->in_tag = tag;
    p->receives = true;
    l->lane[lane].receives++;
    while (p->kept && place(l, lane, from, &p->kept->head, &p->kept->piece) == 0) forget_first(p);
}

static int broken(char why[LANES_WHY], int from, const char *what) {
    snprintf(why, LANES_WHY, "rank %d has sent what is no message of this job: %s", from, what);
    return -1;
}

static int hear_piece(struct lanes *l, int from, const struct lane_head *h, const struct lane_piece *piece,
                      char why[LANES_WHY]) {
    struct pair *p = pair_of(l, (int)h->lane, from);
    if (!piece->bytes || h->total < piece->bytes || h->at > h->total - piece->bytes)
        return broken(why, from, "a piece beyond its end");
    int rc = p->kept ? 1 : place(l, (int)h->lane, from, h, piece);
    if (rc <= 0) {
        release(piece);
        return 0;
    }
    if (p->kept_bytes + piece->bytes > l->window) return broken(why, from, "more than its window");
    struct kept *k = xcalloc(1, sizeof *k);
    *k = (struct kept){.head = *h, .piece = *piece};
    *p->last = k;
    p->last = &k->next;
    p->kept_bytes += piece->bytes;
    return 0;
}

int lanes_hear(struct lanes *l, int from, const struct lane_head *h, const struct lane_piece *p,
               char why[LANES_WHY]) {
    int rc = -1;
    if (from < 0 || from >= l->o.size || from == l->o.rank)
        snprintf(why, LANES_WHY, "a message of rank %d, which is none of the others", from);
    else if (h->kind > LANE_CREDIT || h->lane >= (uint32_t)l->o.lanes)
        broken(why, from, "an unknown kind or lane");
    else if (h->kind == LANE_PIECE)
        rc = hear_piece(l, from, h, p, why);
    else if (h->total > l->window - pair_of(l, (int)h->lane, from)->credit)
        broken(why, from, "credit that it does not owe");
    else {
        pair_of(l, (int)h->lane, from)->credit += h->total;
        release(p);
        return 0;
    }
    if (rc) release(p);
    return rc;
}

// ---------------------------------------------------------------- messages in flight
static bool is_out(const struct pair *p) { return p->sends || atomic_load(&p->held) > 0; }

int lanes_done(const struct lanes *l, int lane, char why[LANES_WHY]) {
    if (*l->lane[lane].failed) {
        snprintf(why, LANES_WHY, "%s", l->lane[lane].failed);
        return -1;
    }
    if (l->lane[lane].sends || l->lane[lane].receives) return 0;
    for (int i = 0; i < l->o.size; i++)
        if (is_out(pair_of(l, lane, i))) return 0;
    return 1;
}

bool lanes_missing(const struct lanes *l, int lane, bool *missing) {
    bool any = false;
    for (int i = 0; i < l->o.size; i++) {
        missing[i] = is_out(pair_of(l, lane, i)) || pair_of(l, lane, i)->receives;
        any = any || missing[i];
    }
    return any;
}

uint64_t lanes_moved(const struct lanes *l, int lane) { return l->lane[lane].moved; }

void lanes_drop(struct lanes *l, int lane) {
    for (int i = 0; i < l->o.size; i++) pair_of(l, lane, i)->sends = pair_of(l, lane, i)->receives = false;
    l->lane[lane].sends = l->lane[lane].receives = 0;
}

bool lanes_held(const struct lanes *l) {
    for (size_t i = 0; i < (size_t)l->o.lanes * (size_t)l->o.size; i++)
        if (atomic_load(&l->pairs[i].held) > 0) return true;
    return false;
}
