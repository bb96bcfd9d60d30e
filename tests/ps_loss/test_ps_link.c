// The link: two of them over a network that loses, repeats, delays and reorders as a counter-based generator says, and one
// of them alone: when it speaks, what it says again, and that nothing travels in vain.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ps/net/link.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"

#define MESSAGES 400

struct packet {
    struct wire_header h;
    size_t bytes;
    uint32_t value;  // of the payload
};

struct end {
    struct link *link;
    struct net *net;
    struct end *other;
    uint64_t incarnation;
    struct packet way[4096];  // to the other end
    int count;
    int got[MESSAGES + 1];
    uint32_t values[MESSAGES + 1];
    uint32_t store[MESSAGES + 1];  // where payloads lie
    int sent;
    int payloads, renewed;
    bool needs_none;
};

struct net {
    struct end a, b;
    double now;
    uint64_t seed, draws;
    int drop, twice;
    bool in_order;
};

static uint64_t draw(struct net *n, uint64_t below) { return rng_below(n->seed, n->draws++, 7, below); }

static void put(void *ctx, int peer, const struct ps_message *m) {
    struct end *e = ctx;
    assert_int_equal(peer, 0);
    for (int copies = draw(e->net, 100) < (uint64_t)e->net->twice ? 2 : 1; copies > 0; copies--) {
        assert_in_range(e->count, 0, 4095);
        struct packet *p = &e->way[e->count++];
        *p = (struct packet){.h = m->header, .bytes = m->bytes};
        p->h.incarnation = e->incarnation;
        if (m->bytes) memcpy(&p->value, m->payload, sizeof p->value);
        e->payloads += m->bytes > 0;
    }
}

static bool renew(void *ctx, int peer, struct ps_message *m) {
    struct end *e = ctx;
    (void)peer;
    e->renewed++;
    m->header.version++;
    return !e->needs_none;
}

static void end_open(struct net *n, struct end *e, struct end *other, uint64_t incarnation, bool renews) {
    *e = (struct end){.net = n, .other = other, .incarnation = incarnation};
    e->link = star_link_create(&(struct star_link_options){
        .peers = 1, .repeat_most_s = 1, .network = {e, put}, .renew = renews ? renew : NULL, .ctx = e});
}

static struct net *net_open(uint64_t seed) {
    struct net *n = xcalloc(1, sizeof *n);
    n->seed = seed;
    end_open(n, &n->a, &n->b, 11, false);
    end_open(n, &n->b, &n->a, 22, false);
    return n;
}

static void net_close(struct net *n) {
    link_destroy(&n->a.link);
    link_destroy(&n->b.link);
    free(n);
}

// The next message, with a payload where its number is odd.
static void send_next(struct end *e) {
    int i = ++e->sent;
    struct ps_message m = {.header = {.kind = i % 2 ? WIRE_PUSH : WIRE_PULL, .step = i}};
    const struct ps_port port = star_link_port(e->link);
    e->store[i] = (uint32_t)i * 3;
    if (i % 5 == 0) m.header.count = 2, m.header.values[1] = i;
    if (i % 2) m.payload = &e->store[i], m.bytes = sizeof e->store[i];
    port.send(port.ctx, 0, &m);
}

static bool deliver(struct end *from, int at, bool lose) {
    struct end *to = from->other;
    struct packet p = from->way[at];
    memmove(&from->way[at], &from->way[at + 1], (size_t)(from->count - at - 1) * sizeof p);
    from->count--;
    if (lose) return false;
    if (!star_link_receive(to->link, 0, &p.h, from->net->now)) {
        assert_int_equal(p.h.kind, WIRE_WORD);
        return false;
    }
    if (p.h.kind == WIRE_HEARTBEAT) return true;
    assert_in_range(p.h.step, 1, MESSAGES);
    assert_int_equal(p.h.kind, p.h.step % 2 ? WIRE_PUSH : WIRE_PULL);
    if (p.h.step % 5 == 0) assert_true(p.h.values[1] == (double)p.h.step);
    to->got[p.h.step]++;
    to->values[p.h.step] = p.value;
    return true;
}

static void turn(struct net *n) {
    struct end *e = draw(n, 2) ? &n->a : &n->b;
    n->now += 0.001;
    if (e->count)
        deliver(e, n->in_order ? 0 : (int)draw(n, (uint64_t)e->count), draw(n, 100) < (uint64_t)n->drop);
    link_tick(n->a.link, n->now);
    link_tick(n->b.link, n->now);
}

static void check_all(const struct end *from) {
    for (int i = 1; i <= MESSAGES; i++) {
        if (from->other->got[i] != 1) fail_msg("message %d has come %d times", i, from->other->got[i]);
        if (i % 2) assert_int_equal(from->other->values[i], (uint32_t)i * 3);
    }
}

static bool settled(const struct net *n) {
    return link_is_acknowledged(n->a.link, 0) && link_is_acknowledged(n->b.link, 0);
}

// Under every fault of the network each message arrives once, and both sides know it.
static void test_each_once(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct net *n = net_open(seed);
        n->drop = (int)(seed % 5) * 12;
        n->twice = (int)(seed % 3) * 20;
        n->in_order = seed % 2;
        for (int i = 0; n->a.sent < MESSAGES || n->b.sent < MESSAGES || !settled(n); i++) {
            assert_true(i < 400000);
            if (n->a.sent < MESSAGES && draw(n, 4) == 0) send_next(&n->a);
            if (n->b.sent < MESSAGES && draw(n, 9) == 0) send_next(&n->b);
            turn(n);
        }
        check_all(&n->a);
        check_all(&n->b);
        net_close(n);
    }
}

// A network that loses and keeps the order: what was not lost travels once.
static void test_no_payload_in_vain(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct net *n = net_open(seed);
        int lost = 0;
        n->in_order = true;
        while (n->a.sent < MESSAGES || !settled(n)) {
            if (n->a.sent < MESSAGES && draw(n, 3) == 0) send_next(&n->a);
            n->now += 0.001;
            for (struct end *e = &n->a;; e = &n->b) {
                bool lose = draw(n, 100) < 20;
                lost += e->count && e->way[0].bytes && lose;
                if (e->count) deliver(e, 0, lose);
                if (e == &n->b) break;
            }
            link_tick(n->a.link, n->now);
            link_tick(n->b.link, n->now);
        }
        check_all(&n->a);
        assert_int_equal(n->a.payloads - lost, MESSAGES / 2);
        assert_true(lost > 20);
        net_close(n);
    }
}

// Nothing is lost: a message, and a word where nothing else goes the other way. Nothing is asked, nothing repeated.
static void test_clean(void **state) {
    (void)state;
    struct net *n = net_open(1);
    int words = 0;
    for (int i = 0; i < MESSAGES; i++) {
        send_next(&n->a);
        for (int ms = 0; ms < 200; ms++) {
            n->now += 0.001;
            if (n->a.count) deliver(&n->a, 0, false);
            words += n->b.count;
            if (n->b.count) deliver(&n->b, 0, false);
            link_tick(n->a.link, n->now);
            link_tick(n->b.link, n->now);
        }
    }
    check_all(&n->a);
    assert_int_equal(words, MESSAGES);
    const struct link_totals t = link_totals(n->a.link);
    assert_true(t.questions == 0 && t.resent == 0);
    // An immediate answer carries the acknowledgement itself.
    struct ps_port back = star_link_port(n->b.link);
    for (int i = 0; i < 10; i++) {
        n->a.sent = n->b.got[1] = 0;
        send_next(&n->a);
        deliver(&n->a, 0, false);
        back.send(back.ctx, 0, &(struct ps_message){.header = {.kind = WIRE_HEARTBEAT}});
        assert_int_equal(n->b.count, 1);
        deliver(&n->b, 0, false);
        assert_true(link_is_acknowledged(n->a.link, 0));
        for (int ms = 0; ms < 100; ms++) link_tick(n->b.link, n->now += 0.001);
        assert_int_equal(n->b.count, 0);
    }
    net_close(n);
}

// Ticks in milliseconds; when `a` said anything, in milliseconds, 0 behind the last.
static void pass(struct net *n, double end, int at[64]) {
    int k = 0;
    while (n->now < end) {
        n->now += 0.001;
        n->a.count = 0;
        link_tick(n->a.link, n->now);
        if (n->a.count && k < 63) at[k++] = (int)(n->now * 1000 + 0.5);
    }
    at[k] = 0;
}
static bool about(int at, int ms) { return at >= ms && at <= ms + 3; }

// No peer answers: for a payload only questions are sent, for a header the message itself, at the timeout, twice that,
// .., the most.
static void test_backs_off(void **state) {
    (void)state;
    for (int header = 0; header < 2; header++) {
        struct net *n = net_open(1);
        int at[64];
        if (header) n->a.sent = 1;
        send_next(&n->a);
        n->a.payloads = 0;
        pass(n, 6.0, at);
        for (int i = 0, ms = 140, pause = 140; i < 8;
             i++, pause = pause < 500 ? 2 * pause : 1000, ms += pause)
            assert_true(about(at[i], ms));
        assert_int_equal(n->a.payloads, 0);
        assert_true(n->a.way[0].h.link.asks && n->a.way[0].h.link.again == header);
        assert_int_equal(n->a.way[0].h.kind, header ? WIRE_PULL : WIRE_WORD);
        net_close(n);
    }
}

// A third of a second each way: the first questions come too early, and their answers tell the round trip.
static void test_learns_the_round_trip(void **state) {
    (void)state;
    struct net *n = net_open(1);
    double due[2][4096];
    int early = 0;
    for (int i = 1; i < 60; i++) {
        n->a.sent = 1;
        send_next(&n->a);
        for (int ms = 0, was[2] = {n->a.count - 1, n->b.count}; ms < 3000; ms++) {
            n->now += 0.001;
            link_tick(n->a.link, n->now);
            link_tick(n->b.link, n->now);
            for (int k = 0; k < 2; k++) {
                struct end *e = k ? &n->b : &n->a;
                for (; was[k] < e->count; was[k]++) due[k][was[k]] = n->now + 0.3;
                while (e->count && due[k][0] <= n->now) {
                    deliver(e, 0, false);
                    memmove(due[k], due[k] + 1, (size_t)e->count * sizeof **due);
                    was[k]--;
                }
            }
        }
        if (i == 20) early = (int)link_totals(n->a.link).questions;
    }
    assert_in_range(early, 2, 30);
    assert_int_equal(link_totals(n->a.link).questions, early);
    net_close(n);
}

// A payload that the transport has not sent yet is neither asked about nor said again.
static void test_not_left_yet(void **state) {
    (void)state;
    struct net *n = net_open(1);
    _Atomic int inflight = 1;
    int at[64];
    const struct ps_port port = star_link_port(n->a.link);
    struct ps_message m = {
        .header = {.kind = WIRE_PUSH, .step = 1}, .payload = "abcd", .bytes = 4, .inflight = &inflight};
    port.send(port.ctx, 0, &m);
    pass(n, 5, at);
    assert_int_equal(at[0], 0);
    atomic_fetch_sub(&inflight, 1);
    pass(n, 6, at);
    assert_true(about(at[0], 5140));
    net_close(n);
}

static void send_payload(struct end *e, _Atomic int *inflight) {
    const struct ps_port port = star_link_port(e->link);
    const struct ps_message m = {
        .header = {.kind = WIRE_PUSH, .step = 1}, .payload = "abcd", .bytes = 4, .inflight = inflight};
    port.send(port.ctx, 0, &m);
}

// The other end's word reaches this one, a second later. Returns how many payloads that makes it say again.
static int word(struct net *n) {
    const struct ps_port back = star_link_port(n->b.link);
    int before = n->a.payloads;
    n->now += 1;
    back.send(back.ctx, 0, &(struct ps_message){.header = {.kind = WIRE_HEARTBEAT}});
    deliver(&n->b, n->b.count - 1, false);
    return n->a.payloads - before;
}

// A word that misses a payload has it said again once it has left, and once for each copy that is lost; of more gaps than a
// word names, those that it names.
static void test_missed(void **state) {
    (void)state;
    struct net *n = net_open(1);
    _Atomic int inflight = 1;
    n->a.sent = 1;
    send_payload(&n->a, &inflight);
    deliver(&n->a, 0, true);
    send_next(&n->a);
    deliver(&n->a, 0, false);
    assert_int_equal(word(n), 0);
    atomic_store(&inflight, 0);
    assert_int_equal(word(n), 1);
    assert_int_equal(word(n), 0);  // the copy is under way
    deliver(&n->a, 0, true);
    assert_int_equal(word(n), 0);
    n->a.sent = 1;
    send_next(&n->a);
    deliver(&n->a, 0, false);
    assert_int_equal(word(n), 1);
    net_close(n);
    n = net_open(1);
    for (int i = 0; i < 4 * LINK_MISSING_MAX; i++) {
        send_payload(&n->a, NULL);
        deliver(&n->a, 0, i % 2 == 0);
    }
    assert_int_equal(word(n), LINK_MISSING_MAX);
    net_close(n);
}

// A payload is said again as its owner makes it anew; where nobody needs it, an empty word goes in its place, for its number
// must come.
static void test_renewed(void **state) {
    (void)state;
    for (int needless = 0; needless < 2; needless++) {
        struct net *n = net_open(1);
        link_destroy(&n->a.link);
        end_open(n, &n->a, &n->b, 11, true);
        n->a.needs_none = needless;
        send_next(&n->a);
        deliver(&n->a, 0, true);
        n->now = 1;
        link_tick(n->a.link, n->now);
        deliver(&n->a, 0, false);  // the question
        deliver(&n->b, 0, false);  // the word
        assert_int_equal(n->a.renewed, 1);
        assert_int_equal(n->a.count, 1);
        struct packet p = n->a.way[0];
        assert_int_equal(p.h.link.number, 1);
        assert_true(p.h.link.again && !wire_is_payload(&p.h));
        assert_int_equal(p.bytes, needless ? 0 : 4);
        if (!needless) assert_int_equal(p.h.version, 1);
        if (needless) {  // that is lost as well: it is a header alone from now on, and its owner is asked no more
            deliver(&n->a, 0, true);
            link_tick(n->a.link, n->now += 1);
            assert_int_equal(n->a.count, 1);
            assert_int_equal(n->a.way[0].h.link.number, 1);
            assert_int_equal(n->a.renewed, 1);
        }
        deliver(&n->a, 0, false);
        assert_int_equal(n->b.got[1], !needless);
        link_tick(n->b.link, n->now += 0.1);
        deliver(&n->b, 0, false);
        assert_true(link_is_acknowledged(n->a.link, 0));
        net_close(n);
    }
}

// The peer has heard all, and something is awaited of it: it is asked whether it lives, ever more rarely.
static void test_awaits(void **state) {
    (void)state;
    struct net *n = net_open(1);
    int at[64], count = 0;
    link_await(n->a.link, 0, true);
    for (double end = 60; n->now < end;) {
        n->now += 0.001;
        link_tick(n->a.link, n->now);
        count += n->a.count;
        if (n->a.count) deliver(&n->a, 0, false);
        if (n->b.count) deliver(&n->b, 0, false);
    }
    assert_in_range(count, 60, 64);
    send_next(&n->b);
    deliver(&n->b, 0, false);  // its part: the next wait begins with short pauses
    n->a.count = 0;
    link_tick(n->a.link, n->now += 0.02);
    double start_ms = n->now * 1000;
    pass(n, n->now + 0.5, at);
    assert_in_range(at[0] - (int)start_ms, 200, 300);
    link_await(n->a.link, 0, false);
    pass(n, n->now + 9, at);
    assert_int_equal(at[0], 0);
    net_close(n);
}

// Another process of the peer begins anew, and nothing of the old one is said to it.
static void test_lives(void **state) {
    (void)state;
    struct net *n = net_open(1);
    for (int i = 0; i < 5; i++) send_next(&n->a);
    send_next(&n->b);
    deliver(&n->b, 0, false);
    while (n->a.count) deliver(&n->a, 0, n->a.count == 3);
    assert_int_equal(n->b.got[3], 0);
    n->a.count = n->b.count = 0;
    link_destroy(&n->b.link);
    end_open(n, &n->b, &n->a, 23, false);
    send_next(&n->b);
    assert_false(link_is_acknowledged(n->a.link, 0));
    deliver(&n->b, 0, false);
    assert_int_equal(n->a.got[1], 2);
    assert_true(link_is_acknowledged(n->a.link, 0));
    n->a.sent = 0;
    send_next(&n->a);
    deliver(&n->a, n->a.count - 1, false);
    assert_int_equal(n->b.got[1], 1);
    net_close(n);
}

// A gap behind which thousands have come is named in as many words as it takes; a number from nowhere changes nothing.
static void test_large_gaps(void **state) {
    (void)state;
    struct net *n = net_open(3);
    const struct ps_port port = star_link_port(n->a.link);
    int came = 0;
    for (int i = 0; i < 3000; i++) {
        port.send(port.ctx, 0, &(struct ps_message){.header = {.kind = WIRE_PULL, .step = 2}});
        struct packet p = n->a.way[0];
        n->a.count = 0;
        if (i % 100 < 60) came += star_link_receive(n->b.link, 0, &p.h, n->now);
    }
    assert_int_equal(came, 1800);
    for (int ms = 0; ms < 60000 && !link_is_acknowledged(n->a.link, 0); ms++) {
        n->now += 0.001;
        link_tick(n->a.link, n->now);
        link_tick(n->b.link, n->now);
        while (n->a.count || n->b.count) {
            if (n->a.count) came += deliver(&n->a, 0, false);
            if (n->b.count) deliver(&n->b, 0, false);
        }
    }
    assert_int_equal(came, 3000);
    struct wire_header far = {
        .kind = WIRE_PULL, .incarnation = 11, .link = {.number = UINT64_MAX, .said = 1}};
    assert_false(star_link_receive(n->b.link, 0, &far, n->now));
    far = (struct wire_header){
        .kind = WIRE_PULL, .incarnation = 11, .link = {.said = 9, .heard = UINT64_MAX, .seen = UINT64_MAX}};
    assert_true(star_link_receive(n->b.link, 0, &far, n->now));
    net_close(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_once),  cmocka_unit_test(test_no_payload_in_vain),
        cmocka_unit_test(test_clean),      cmocka_unit_test(test_backs_off),
        cmocka_unit_test(test_renewed),    cmocka_unit_test(test_learns_the_round_trip),
        cmocka_unit_test(test_awaits),     cmocka_unit_test(test_not_left_yet),
        cmocka_unit_test(test_large_gaps), cmocka_unit_test(test_lives),
        cmocka_unit_test(test_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
