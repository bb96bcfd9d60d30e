// The meeting of three ranks, joined by a network that the input drives: it delivers, loses, repeats and overtakes; time
// passes; a stranger speaks to the book and to the seats, in anybody's name. No member's place is taken, what a rank reads
// under a name is what the other one has put there, and one that has ended says why.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/book.h"
#include "shared/fabric/seat.h"
#include "tests/fuzz/fuzz.h"

#define RANKS    3
#define FLIGHT   256
#define WANTS    4
#define IDENTITY "{\"steps\":\"10\",\"seed\":\"1\"}"

struct sent {
    struct meet_message m;
    void *data;
    int seat;  // to the seat of that rank, or -1: to the book
};

struct meeting {
    struct fuzz_bytes in;
    struct seat seats[RANKS];
    struct seat_want wants[RANKS][WANTS];
    struct book *book;
    struct sent flight[FLIGHT];
    int count, put;
    int cut;      // a rank that no answer reaches, as its connection has gone; -1: none
    bool spoken;  // as rank 0, or as a rank that has come: what seats hear may be anything
    double now_s;
};

static void post(struct meeting *x, int seat, const struct meet_message *m, const void *data) {
    if (x->count == FLIGHT) return;
    struct sent *s = &x->flight[x->count++];
    *s = (struct sent){*m, xcalloc(1, m->bytes + 1), seat};
    if (m->bytes) memcpy(s->data, data, m->bytes);
}

static void to_book(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data) {
    (void)rank, (void)life;
    post(ctx, -1, m, data);
}

static void to_seat(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data) {
    struct meeting *x = ctx;
    if (rank >= 0 && rank < RANKS && x->seats[rank].life == life && rank != x->cut)
        post(x, rank, m, data);
    else
        book_unreachable(x->book, rank, life,
                         x->now_s);  // as a ROUTER that nobody of the name has connected to
}

static void hear(struct meeting *x, const struct sent *s) {
    if (s->seat < 0)
        book_hear(x->book, &s->m, s->data, x->now_s);
    else
        seat_hear(&x->seats[s->seat], &s->m, s->data, x->now_s);
}

static void deliver(struct meeting *x, bool lost, bool twice) {
    if (!x->count) return;
    int i = (int)fuzz_below(&x->in, (uint64_t)x->count);
    struct sent s = x->flight[i];
    if (!lost) hear(x, &s);
    if (twice) hear(x, &s);
    memmove(&x->flight[i], &x->flight[i + 1], (size_t)(--x->count - i) * sizeof s);
    free(s.data);
}

// Of the sizes that the sockets let pass. A stranger does not know a member's life; a process of the job that has gone wrong
// does, but not of another rank.
static void stranger(struct meeting *x) {
    uint8_t how = fuzz_u8(&x->in);
    size_t bytes =
        fuzz_below(&x->in, 2) ? sizeof(struct meet_come) + fuzz_below(&x->in, 64) : fuzz_below(&x->in, 64);
    if (how & 16) bytes = RANKS * sizeof(struct rendezvous_member);
    struct sent s = {.seat = how & 1 ? (int)fuzz_below(&x->in, RANKS) : -1, .data = xcalloc(1, bytes + 1)};
    s.m = (struct meet_message){.magic = MEET_MAGIC,
                                .kind = (uint32_t)fuzz_below(&x->in, MEET_KINDS),
                                .rank = (int32_t)fuzz_number(&x->in),
                                .size = how & 2 ? RANKS : (int32_t)fuzz_number(&x->in),
                                .number = (uint64_t)fuzz_number(&x->in),
                                .bytes = bytes,
                                .at = fuzz_below(&x->in, 4) ? 0 : (uint64_t)fuzz_number(&x->in)};
    s.m.total = how & 64 ? (uint64_t)fuzz_number(&x->in) : s.m.at + bytes;
    if (how & 4) s.m.rank = (int32_t)fuzz_below(&x->in, RANKS);
    s.m.life = how & 8 && s.m.rank == 2 ? 3 : 100 + fuzz_below(&x->in, 4);
    snprintf(s.m.name, sizeof s.m.name, how & 32 ? "#%d" : "n%d", (int)fuzz_below(&x->in, WANTS));
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)s.data)[i] = x->in.left ? fuzz_u8(&x->in) : how;
    if (s.seat >= 0 || s.m.kind == MEET_COME || s.m.life == 3) x->spoken = true;
    hear(x, &s);
    free(s.data);
}

// Rank 1 puts n0, n1, ..; rank 0 reads them. Ranks give up and leave.
static void turn(struct meeting *x) {
    char name[MEET_NAME_MAX];
    uint8_t what = fuzz_u8(&x->in);
    struct seat *s = &x->seats[(what >> 4) % RANKS];
    switch (what & 15) {
        case 0:
        case 1:
        case 2:
            deliver(x, false, false);
            break;
        case 3:
            deliver(x, true, false);
            break;
        case 4:
            deliver(x, false, true);
            break;
        case 5:
            stranger(x);
            break;
        case 6:
            x->now_s += 20;
            break;
        case 7:
            snprintf(name, sizeof name, "n%d", x->put);
            if (x->put < WANTS) seat_put(&x->seats[1], MEET_PUT, name, &x->put, sizeof x->put), x->put++;
            break;
        case 8:
            seat_put(s, MEET_PART, "#1", "part", 1 + (size_t)(what == 0xf8));
            break;
        case 9:
            seat_put(s, what & 128 ? MEET_ABORT : MEET_BYE, "", "it is enough", 12);
            break;
        case 10:
            book_unreachable(x->book, s->rank, s->life, x->now_s);
            break;
        case 11:
            seat_unreachable(s, x->now_s);
            x->cut = x->cut < 0 ? s->rank : -1;
            break;
        case 12:
            seat_put(s, MEET_DROP, "n0", NULL, 0);
            x->spoken = true;
            break;
        default:
            x->now_s += 0.5;
            book_tick(x->book, x->now_s);
            for (int i = 0; i < RANKS; i++) seat_tick(&x->seats[i], x->now_s);
    }
}

static void check(const struct meeting *x) {
    for (int r = 0; r < RANKS; r++) {
        const struct seat *s = &x->seats[r];
        for (int i = 0; s->members && i < RANKS; i++)
            FUZZ_CHECK(memchr(s->members[i].host, 0, sizeof s->members[i].host) &&
                           memchr(s->members[i].address, 0, sizeof s->members[i].address),
                       "rank %d has a member without the end of its name", r);
        FUZZ_CHECK(s->losses <= RANKS && memchr(s->ended, 0, sizeof s->ended), "rank %d has %d losses", r,
                   s->losses);
        for (int i = 0; i < WANTS && !x->spoken; i++) {
            const struct seat_want *w = &x->wants[r][i];
            FUZZ_CHECK(!w->data || (w->bytes == sizeof i && !memcmp(w->data, &i, sizeof i)) || r == 2,
                       "rank %d reads under %s what nobody has put there", r, w->named.name);
        }
    }
}

FUZZ_TARGET(book) {
    struct meeting x = {.in = {data, size}, .now_s = 10, .cut = -1};
    x.book = book_create(&(struct book_options){.size = RANKS,
                                                .least = fuzz_u8(&x.in) & 1 ? 2 : 0,
                                                .identity = IDENTITY,
                                                .place = "h1:29500",
                                                .silent_s = 30,
                                                .say = to_seat,
                                                .ctx = &x});
    for (int r = 0; r < RANKS; r++) {
        struct meet_come c = {.member = {.host = "h", .address = "10.0.0.1", .pid = 100 + r}, .machine = 1};
        x.seats[r] = (struct seat){.rank = r,
                                   .size = RANKS,
                                   .life = (uint64_t)r + 1,
                                   .place = "h1:29500",
                                   .silent_s = 30,
                                   .say = to_book,
                                   .ctx = &x};
        seat_open(&x.seats[r], &c, IDENTITY);
        for (int i = 0; i < WANTS; i++) {
            snprintf(x.wants[r][i].named.name, MEET_NAME_MAX, "n%d", i);
            seat_want(&x.seats[r], &x.wants[r][i]);
        }
    }
    while (x.in.left) turn(&x), check(&x);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < WANTS; i++) free(x.wants[r][i].data);
        seat_close(&x.seats[r]);
    }
    for (int i = 0; i < x.count; i++) free(x.flight[i].data);
    book_destroy(&x.book);
}
