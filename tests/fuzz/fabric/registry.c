// The meeting of three ranks and two workers that come and go, joined by a network that the input drives: it delivers, loses,
// repeats and overtakes, or reaches one of them no more; time passes; a stranger speaks to the registry and to the clients, in anybody's
// name. No rank's place is taken, what a rank reads under a name is what the other one has put there, a worker's incarnation comes and
// is over once and is heard in order between, and one that has ended says why.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/client.h"
#include "shared/fabric/registry.h"
#include "tests/fuzz/fuzz.h"

#define RANKS    3
#define WORKERS  2
#define CLIENTS  (RANKS + WORKERS)
#define LIVES    64  // of workers; theirs are 1000, 1001, ..
#define FLIGHT   256
#define WANTS    4
#define IDENTITY "{\"steps\":\"10\",\"seed\":\"1\"}"

struct sent {
    struct meet_message m;
    void *data;
    int seat;  // to that member's, or -1: to the registry
};

struct stall_reports {
    struct fuzz_bytes in;
    struct client clients[CLIENTS];
    struct client_want wants[RANKS][WANTS];
    struct lived {
        int member, said, heard;
        bool came, over;
    } lives[LIVES];
    int lived;
    struct registry *registry;
    struct sent flight[FLIGHT];
    int count, put;
    int cut;      // a member that no answer reaches, as its connection has gone; -1: none
    bool spoken;  // as rank 0, or as a rank that has come: what clients hear may be anything
    double now_s;
};

static void post(struct stall_reports *x, int seat, const struct meet_message *m, const void *data) {
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
    struct stall_reports *x = ctx;
    if (rank >= 0 && rank < CLIENTS && x->clients[rank].incarnation == life && rank != x->cut)
        post(x, rank, m, data);
    else
        registry_unreachable(x->registry, rank, life,
                             x->now_s);  // as a ROUTER that nobody of the name has connected to
}

static void hear_news(void *ctx, const struct member_news *n) {
    struct stall_reports *x = ctx;
    struct lived *l =
        n->incarnation >= 1000 && n->incarnation < 1000 + LIVES ? &x->lives[n->incarnation - 1000] : NULL;
    int word = 0;
    if (n->kind == MEMBER_SENT && n->bytes == sizeof word) memcpy(&word, n->data, sizeof word);
    free(n->data);
    FUZZ_CHECK(n->kind == MEMBER_REFUSED || (n->member >= 0 && n->member < CLIENTS), "news of member %d",
               n->member);
    if (!l || n->kind == MEMBER_REFUSED) return;
    FUZZ_CHECK(l->member == n->member && l->came == (n->kind != MEMBER_JOINED) && !l->over,
               "member %d: news %d, %s", n->member, n->kind,
               l->over   ? "which is over"
               : l->came ? "which had come"
                         : "which had not come");
    l->came = true;
    l->over = n->kind == MEMBER_LEFT || n->kind == MEMBER_LOST;
    if (n->kind == MEMBER_SENT)
        FUZZ_CHECK(word == l->heard++, "member %d says %d for %d", n->member, word, l->heard - 1);
}

// A new process of that member; the one before is heard no more, but for what is on its way.
static void sits_down(struct stall_reports *x, int member) {
    struct meet_join c = {.member = {.host = "h", .address = "10.0.0.1", .pid = 100 + member},
                          .machine = 1,
                          .counts = {WORKERS}};
    uint64_t life = (uint64_t)member + 1;
    if (member >= RANKS) {
        if (x->lived == LIVES) return;
        x->lives[x->lived].member = member;
        life = 1000 + (uint64_t)x->lived++;
        client_close(&x->clients[member]);
    }
    x->clients[member] = (struct client){.rank = member,
                                         .size = RANKS,
                                         .incarnation = life,
                                         .where = "h1:29500",
                                         .silent_s = 30,
                                         .send = to_book,
                                         .ctx = x};
    client_open(&x->clients[member], &c, member < RANKS ? IDENTITY : "");
}

static void hear(struct stall_reports *x, const struct sent *s) {
    if (s->seat < 0)
        registry_receive(x->registry, &s->m, s->data, x->now_s);
    else
        client_receive(&x->clients[s->seat], &s->m, s->data, x->now_s);
}

static void deliver(struct stall_reports *x, bool lost, bool twice) {
    if (!x->count) return;
    int i = (int)fuzz_below(&x->in, (uint64_t)x->count);
    struct sent s = x->flight[i];
    if (!lost) hear(x, &s);
    if (twice) hear(x, &s);
    memmove(&x->flight[i], &x->flight[i + 1], (size_t)(--x->count - i) * sizeof s);
    free(s.data);
}

// For the sizes that the sockets accept. A stranger does not know a member's incarnation; a process of the job that has gone wrong
// does, but not of another rank.
static void stranger(struct stall_reports *x) {
    uint8_t how = fuzz_u8(&x->in);
    size_t bytes =
        fuzz_below(&x->in, 2) ? sizeof(struct meet_join) + fuzz_below(&x->in, 64) : fuzz_below(&x->in, 64);
    if (how & 16) bytes = RANKS * sizeof(struct rendezvous_member);
    struct sent s = {.seat = how & 1 ? (int)fuzz_below(&x->in, CLIENTS) : -1, .data = xcalloc(1, bytes + 1)};
    s.m = (struct meet_message){.magic = MEET_MAGIC,
                                .kind = (uint32_t)fuzz_below(&x->in, MEET_KINDS),
                                .rank = (int32_t)fuzz_number(&x->in),
                                .size = how & 2 ? RANKS : (int32_t)fuzz_number(&x->in),
                                .number = (uint64_t)fuzz_number(&x->in),
                                .bytes = bytes,
                                .at = fuzz_below(&x->in, 4) ? 0 : (uint64_t)fuzz_number(&x->in)};
    s.m.total = how & 64 ? (uint64_t)fuzz_number(&x->in) : s.m.at + bytes;
    if (how & 4) s.m.rank = (int32_t)fuzz_below(&x->in, CLIENTS);
    if (s.m.kind == MEET_JOIN && how & 128 && bytes >= sizeof(struct meet_join))
        ((struct meet_join *)s.data)->counts[0] = WORKERS;
    s.m.incarnation = how & 8 && s.m.rank == 2 ? 3 : 100 + fuzz_below(&x->in, 4);
    snprintf(s.m.name, sizeof s.m.name, how & 32 ? "#%d" : "n%d", (int)fuzz_below(&x->in, WANTS));
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)s.data)[i] = x->in.left ? fuzz_u8(&x->in) : how;
    if (s.seat >= 0 || s.m.kind == MEET_JOIN || s.m.incarnation == 3) x->spoken = true;
    hear(x, &s);
    free(s.data);
}

// A worker says its next word, is started again, stands still or turns again, or is given up.
static void worker(struct stall_reports *x, uint8_t what) {
    struct client *s = &x->clients[RANKS + (what >> 4) % WORKERS];
    struct lived *l = &x->lives[s->incarnation - 1000];
    char name[MEET_NAME_MAX];
    snprintf(name, sizeof name, "%d %llx", s->rank, (unsigned long long)s->incarnation);
    if (what >> 5 == 0)
        sits_down(x, s->rank);
    else if (what >> 5 == 1)
        s->frozen = !s->frozen;
    else if (what >> 5 == 2)
        client_put(&x->clients[0], MEET_END_PROCESS, name, "it is enough", 12);
    else
        client_put(s, MEET_SEND, "word", &l->said, sizeof l->said), l->said++;
}

// Rank 1 puts n0, n1, ..; rank 0 reads them. Ranks give up and leave.
static void turn(struct stall_reports *x) {
    char name[MEET_NAME_MAX];
    uint8_t what = fuzz_u8(&x->in);
    struct client *s = &x->clients[(what >> 4) % CLIENTS];
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
            if (x->put < WANTS) client_put(&x->clients[1], MEET_PUT, name, &x->put, sizeof x->put), x->put++;
            break;
        case 8:
            if (s->rank < RANKS) client_put(s, MEET_PART, "#1", "part", 1 + (size_t)(what == 0xf8));
            break;
        case 9:
            client_put(s, s->rank < RANKS && what & 128 ? MEET_ABORT : MEET_BYE, "", "it is enough", 12);
            break;
        case 10:
            registry_unreachable(x->registry, s->rank, s->incarnation, x->now_s);
            break;
        case 11:
            client_unreachable(s, x->now_s);
            x->cut = x->cut < 0 ? s->rank : -1;
            break;
        case 12:
            client_put(s, MEET_DROP, "n0", NULL, 0);
            x->spoken = true;
            break;
        case 13:
            worker(x, what);
            break;
        default:
            x->now_s += 0.5;
            registry_tick(x->registry, x->now_s);
            for (int i = 0; i < CLIENTS; i++) client_tick(&x->clients[i], x->now_s);
    }
}

static void check(const struct stall_reports *x) {
    for (int r = 0; r < CLIENTS; r++) {
        const struct client *s = &x->clients[r];
        FUZZ_CHECK((s->end != MEET_CONTINUES) == (s->ended[0] != 0), "member %d has ended without a word", r);
        for (int i = 0; s->members && i < RANKS; i++)
            FUZZ_CHECK(memchr(s->members[i].host, 0, sizeof s->members[i].host) &&
                           memchr(s->members[i].address, 0, sizeof s->members[i].address),
                       "rank %d has a member without the end of its name", r);
        FUZZ_CHECK(s->losses <= RANKS && memchr(s->ended, 0, sizeof s->ended), "rank %d has %d losses", r,
                   s->losses);
        for (int i = 0; r < RANKS && i < WANTS && !x->spoken; i++) {
            const struct client_want *w = &x->wants[r][i];
            FUZZ_CHECK(!w->data || (w->bytes == sizeof i && !memcmp(w->data, &i, sizeof i)) || r == 2,
                       "rank %d reads under %s what nobody has put there", r, w->name);
        }
    }
}

FUZZ_TARGET(registry) {
    struct stall_reports x = {.in = {data, size}, .now_s = 10, .cut = -1};
    uint8_t how = fuzz_u8(&x.in);
    x.registry = registry_create(&(struct rendezvous_options){.size = RANKS,
                                                              .min_ranks = how & 1 ? 2 : 0,
                                                              .roles = {{"worker", WORKERS}},
                                                              .replace = how & 2,
                                                              .identity = IDENTITY,
                                                              .silent_s = 30},
                                 "h1:29500", to_seat, hear_news, &x);
    for (int r = 0; r < CLIENTS; r++) sits_down(&x, r);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < WANTS; i++) {
            snprintf(x.wants[r][i].name, MEET_NAME_MAX, "n%d", i);
            client_want(&x.clients[r], &x.wants[r][i]);
        }
    while (x.in.left) turn(&x), check(&x);
    for (int r = 0; r < CLIENTS; r++) {
        for (int i = 0; r < RANKS && i < WANTS; i++) free(x.wants[r][i].data);
        client_close(&x.clients[r]);
    }
    for (int i = 0; i < x.count; i++) free(x.flight[i].data);
    registry_destroy(&x.registry);
}
