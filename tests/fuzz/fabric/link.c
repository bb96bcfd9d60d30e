// Two lines between two links, in order or not, over a network that the input drives: it delivers, loses, repeats and overtakes, or
// takes nothing; time passes; what is bulk leaves late; a line begins anew; and a stranger speaks in a peer's name. Nothing is
// handed on twice, nor, where order is promised, out of it. Where no stranger has spoken all is heard in the end.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/link.h"
#include "tests/fuzz/fuzz.h"

#define LINES  2  // 0 and -1
#define MOST   512
#define FLIGHT 256

struct parcel {
    struct link_item item;
    int id;
};

struct end {
    struct run *run;
    struct link *link;
    int at, said[LINES], last[LINES];  // last: of the other end's that was handed on
    bool got[LINES][MOST];
    _Atomic int leaves;
    int open;
};

struct run {
    struct fuzz_bytes in;
    struct end ends[2];
    struct sent {
        struct link_ack w;
        int to, peer, id;  // id -1: an empty word
    } flight[FLIGHT];
    int count;
    bool order, broken, spoken;
    double now;
};

static void say(void *own, int peer, const struct link_ack *w, struct link_item *item) {
    const struct end *e = *(struct end **)own;
    struct run *x = e->run;
    if (x->broken || x->count == FLIGHT) return;
    x->flight[x->count++] = (struct sent){*w, !e->at, peer, item ? ((struct parcel *)item)->id : -1};
}

static void drop(void *own, int peer, struct link_item *item) {
    (void)peer;
    (*(struct end **)own)->open--;
    free(item);
}

static void hear(struct run *x, const struct sent *s) {
    struct end *e = &x->ends[s->to];
    int line = s->peer + 1;
    bool fresh = link_accept(e->link, s->peer, &s->w, s->id >= 0, x->now);
    if (s->id < 0 || !fresh) return;
    FUZZ_CHECK(!e->got[line][s->id], "message %d of line %d is new twice", s->id, line);
    FUZZ_CHECK(!x->order || s->id > e->last[line], "message %d of line %d comes behind %d", s->id, line,
               e->last[line]);
    e->got[line][s->id] = true;
    e->last[line] = s->id;
}

static void deliver(struct run *x, bool lost, bool twice) {
    if (!x->count) return;
    int i = (int)fuzz_below(&x->in, (uint64_t)x->count);
    struct sent s = x->flight[i];
    memmove(&x->flight[i], &x->flight[i + 1], (size_t)(--x->count - i) * sizeof s);
    if (!lost) hear(x, &s);
    if (twice) hear(x, &s);
}

static void speak(struct run *x, struct end *e, int peer, uint8_t how) {
    if (how & 1) {  // what is not kept
        struct link_ack w = link_ack(e->link, peer);
        if (x->count < FLIGHT) x->flight[x->count++] = (struct sent){w, !e->at, peer, -1};
        return;
    }
    if (e->said[peer + 1] == MOST) return;
    struct parcel *k = xcalloc(1, sizeof *k);
    k->id = e->said[peer + 1]++;
    k->item.bulk = how & 2;
    k->item.inflight = how & 4 ? &e->leaves : NULL;
    e->open++;
    link_send(e->link, peer, &k->item);
}

static void stranger(struct run *x) {
    struct sent s = {.to = (int)fuzz_below(&x->in, 2), .peer = (int)fuzz_below(&x->in, 2) - 1, .id = -1};
    s.w = (struct link_ack){.number = (uint64_t)fuzz_number(&x->in),
                            .said = (uint64_t)fuzz_number(&x->in),
                            .heard = (uint64_t)fuzz_number(&x->in),
                            .missing_count = (int)fuzz_below(&x->in, LINK_MISSING_MAX + 1),
                            .seen = (uint64_t)fuzz_number(&x->in),
                            .asks = fuzz_u8(&x->in) & 1};
    for (int i = 0; i < s.w.missing_count; i++) s.w.missing[i] = (uint64_t)fuzz_number(&x->in);
    x->spoken = true;
    hear(x, &s);
}

static void tick(struct run *x, double seconds) {
    x->now += seconds;
    for (int i = 0; i < 2; i++) link_tick(x->ends[i].link, x->now);
}

// Both ends of a line have other processes; what was on its way to them is nobody's.
static void anew(struct run *x, int peer) {
    int kept = 0;
    for (int i = 0; i < x->count; i++)
        if (x->flight[i].peer != peer) x->flight[kept++] = x->flight[i];
    x->count = kept;
    for (int i = 0; i < 2; i++) {
        struct end *e = &x->ends[i];
        link_forget(e->link, peer);
        e->last[peer + 1] = -1;
        e->said[peer + 1] = 0;
        memset(e->got[peer + 1], 0, sizeof e->got[peer + 1]);
    }
}

static void turn(struct run *x) {
    static const double pauses[] = {0.01, 0.1, 1, 20};
    uint8_t what = fuzz_u8(&x->in), how = fuzz_u8(&x->in);
    struct end *e = &x->ends[how >> 7];
    int peer = (how >> 6 & 1) - 1;
    switch (what % 10) {
        case 0:
        case 1:
            deliver(x, false, false);
            break;
        case 2:
            deliver(x, true, false);
            break;
        case 3:
            deliver(x, false, true);
            break;
        case 4:
        case 5:
            speak(x, e, peer, how);
            break;
        case 6:
            stranger(x);
            break;
        case 7:
            if (how & 1) x->broken = !x->broken;
            if (how & 2) atomic_store(&e->leaves, !atomic_load(&e->leaves));
            if (how & 4) link_await(e->link, peer, how & 8);
            if (how & 16) link_answer(e->link, peer);
            if (how & 32) anew(x, peer);
            break;
        default:
            tick(x, pauses[how % 4]);
    }
}

static bool heard(const struct run *x) {
    bool all = true;
    for (int i = 0; i < 2; i++)
        for (int peer = -1; peer < 1; peer++) all = all && link_is_acknowledged(x->ends[i].link, peer);
    return all;
}

FUZZ_TARGET(link) {
    struct run *x = xcalloc(1, sizeof *x);
    x->in = (struct fuzz_bytes){data, size};
    x->now = 10;
    x->order = fuzz_u8(&x->in) & 1;
    for (int i = 0; i < 2; i++) {
        struct end *e = &x->ends[i];
        *e = (struct end){.run = x, .at = i, .last = {-1, -1}};
        e->link = link_new(&(struct link_rules){.peers = 1,
                                                .repeat_most_s = 2,
                                                .ack_s = 0.02,
                                                .in_order = x->order,
                                                .own = sizeof e,
                                                .send = say,
                                                .drop = drop});
        *(struct end **)link_owner(e->link) = e;
    }
    while (x->in.left) turn(x);
    x->broken = false;
    for (int i = 0; i < 2; i++) atomic_store(&x->ends[i].leaves, 0);
    for (int i = 0; i < 4000 && !x->spoken && !heard(x); i++, tick(x, 0.05))
        while (x->count) deliver(x, false, false);
    for (int i = 0; i < 2 && !x->spoken; i++)
        for (int line = 0; line < LINES; line++)
            for (int k = 0; k < x->ends[i].said[line]; k++)
                FUZZ_CHECK(x->ends[!i].got[line][k], "message %d of line %d has not come", k, line);
    FUZZ_CHECK(x->spoken || heard(x), "what has come is not known to have come");
    for (int i = 0; i < 2; i++) link_destroy(&x->ends[i].link);
    FUZZ_CHECK(!x->ends[0].open && !x->ends[1].open, "what was kept is not let go of");
    free(x);
}
