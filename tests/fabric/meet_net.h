// A meeting's registry and its members' clients, joined by a network that loses, repeats, delays and shuffles what is said. A process is
// a client: of RANKS ranks the first ones, behind them those that the test lets come (net_comes).
#ifndef STARRING_TESTS_FABRIC_MEET_NET_H
#define STARRING_TESTS_FABRIC_MEET_NET_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/fabric/client.h"
#include "shared/fabric/registry.h"
#include "shared/state/identity.h"

#define RANKS     5
#define PROCESSES 64
#define FLIGHT    16384
#define NEWS      8192
#define IDENTITY  "{\"steps\":\"10\",\"seed\":\"1\"}"
#define SILENT_S  30.0

struct sent {
    struct meet_message m;
    void *data;
    int process;
    bool to_book;
    double at_s;
};

struct net {
    struct client clients[PROCESSES];
    int processes;
    struct registry *registry;
    // For a process: none of its messages arrives, sent or received; or it is stopped, and receives later.
    bool dead[PROCESSES], frozen[PROCESSES];
    struct sent flight[FLIGHT];
    int count;
    struct member_news news[NEWS];
    int heard;            // news
    int said[PROCESSES];  // messages to that one
    double now_s;
    unsigned seed, lose, twice;  // in 100
    double late_s;
};

static inline unsigned draw(struct net *n, unsigned below) {
    n->seed = n->seed * 1664525u + 1013904223u;
    return (n->seed >> 8) % below;
}

static inline void post(struct net *n, bool to_book, int process, const struct meet_message *m,
                        const void *data) {
    int copies = draw(n, 100) < n->lose ? 0 : draw(n, 100) < n->twice ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        if (n->count == FLIGHT) abort();
        struct sent *s = &n->flight[n->count++];
        *s = (struct sent){.m = *m, .process = process, .to_book = to_book, .data = xcalloc(1, m->bytes + 1)};
        if (m->bytes) memcpy(s->data, data, m->bytes);
        s->at_s = n->now_s + n->late_s * draw(n, 1000) / 1000.0;
    }
}

static inline int process_of(const struct net *n, int member, uint64_t life) {
    int i = n->processes - 1;
    while (i >= 0 && (n->clients[i].rank != member || n->clients[i].incarnation != life)) i--;
    return i;
}

static inline void to_book(void *ctx, int member, uint64_t life, const struct meet_message *m,
                           const void *data) {
    post(ctx, true, process_of(ctx, member, life), m, data);
}

static inline void to_seat(void *ctx, int member, uint64_t life, const struct meet_message *m,
                           const void *data) {
    struct net *n = ctx;
    int process = process_of(n, member, life);
    if (process >= 0)
        n->said[process]++, post(n, false, process, m, data);
    else
        registry_unreachable(n->registry, member, life, n->now_s);
}

static inline void hear_news(void *ctx, const struct member_news *news) {
    struct net *n = ctx;
    if (n->heard == NEWS) abort();
    n->news[n->heard++] = *news;
}

static inline void seat_new(struct net *n, int process, int member, uint64_t life, const char *host,
                            const char *identity, const struct rendezvous_options *o) {
    struct meet_join c = {.member.pid = 100 + process, .machine = (uint64_t)host[1]};
    snprintf(c.member.host, sizeof c.member.host, "%s", host);
    snprintf(c.member.address, sizeof c.member.address, host[1] == '1' ? "127.0.1.1" : "10.0.0.%c", host[1]);
    snprintf(c.reach, sizeof c.reach, host[1] == '1' ? "127.0.1.1" : "10.0.0.1");
    for (int i = 0; i < MEET_ROLES_MAX; i++) c.counts[i] = o->roles[i].count;
    n->clients[process] = (struct client){.rank = member,
                                          .size = RANKS,
                                          .incarnation = life,
                                          .where = "h1:29500",
                                          .silent_s = o->silent_s,
                                          .beat_s = o->beat_s,
                                          .send = to_book,
                                          .ctx = n};
    client_open(&n->clients[process], &c, identity);
}

// A meeting of RANKS ranks; o: what is not said here, or zeros.
static inline struct net *net_of(unsigned seed, struct rendezvous_options o) {
    static const char *const hosts[RANKS] = {"h1", "h2", "h1", "h3", "h2"};
    struct net *n = xcalloc(1, sizeof *n);
    n->now_s = 10, n->seed = seed, n->processes = RANKS;
    o.size = RANKS, o.identity = IDENTITY, o.differs = identity_texts_disagreement, o.silent_s = SILENT_S;
    for (int i = 0; i < RANKS; i++) seat_new(n, i, i, (uint64_t)i + 1, hosts[i], IDENTITY, &o);
    n->registry = registry_create(&o, "h1:29500", to_seat, hear_news, n);
    return n;
}

static inline void net_free(struct net *n) {
    for (int i = 0; i < n->count; i++) free(n->flight[i].data);
    for (int i = 0; i < n->processes; i++) client_close(&n->clients[i]);
    for (int i = 0; i < n->heard; i++) free(n->news[i].data);
    registry_destroy(&n->registry);
    free(n);
}

static inline bool is_due(const struct net *n, const struct sent *s) {
    return s->at_s <= n->now_s && (s->to_book || !n->frozen[s->process]);
}

static inline void deliver(struct net *n) {
    for (int left = n->count; left > 0; left--) {
        int due = -1;
        for (int i = 0; i < n->count; i++)
            if (is_due(n, &n->flight[i]) && (due < 0 || n->flight[i].at_s < n->flight[due].at_s)) due = i;
        if (due < 0) return;
        struct sent s = n->flight[due];
        memmove(&n->flight[due], &n->flight[due + 1], (size_t)(--n->count - due) * sizeof s);
        if (!n->dead[s.process]) {
            if (s.to_book)
                registry_receive(n->registry, &s.m, s.data, n->now_s);
            else
                client_receive(&n->clients[s.process], &s.m, s.data, n->now_s);
        }
        free(s.data);
    }
}

static inline void pass(struct net *n, double seconds) {
    for (double until_s = n->now_s + seconds; n->now_s < until_s; n->now_s += 0.1) {
        for (int i = 0; i < n->processes; i++)
            if (!n->dead[i] && !n->frozen[i]) client_tick(&n->clients[i], n->now_s);
        registry_tick(n->registry, n->now_s);
        deliver(n);
    }
}

static inline struct client_want want(const char *name) {
    struct client_want w = {0};
    snprintf(w.name, sizeof w.name, "%s", name);
    return w;
}

#endif
