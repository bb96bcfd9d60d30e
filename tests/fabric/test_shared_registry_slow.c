// The meeting over slow links: what a rank hands over and reads takes little more than its bytes, little waits in memory, and nobody is
// lost. Each direction of a rank's link is a queue that keeps the order, loses nothing, and takes so many bytes a second.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/fabric/client.h"
#include "shared/fabric/registry.h"

#define RANKS    3
#define IDENTITY "{\"steps\":\"10\"}"
#define SILENT_S 30.0
#define STEP_S   0.02
#define TRIP_S   0.04
#define BYTES    ((size_t)3 << 20)

struct sent {
    struct meet_message m;
    void *data;
    double at_s;
    struct sent *next;
};

struct line {
    struct sent *first, **last;
    double free_s;  // when the last byte of what waits has left
    double bytes, waits, most;
};

struct slow {
    struct client clients[RANKS];
    struct registry *registry;
    struct line up[RANKS], down[RANKS];
    double rate, now_s, cut_s;  // cut_s: no link delivers before
};

static double size_of(const struct meet_message *m) { return (double)(sizeof *m + m->bytes); }

static void post(struct slow *n, struct line *l, const struct meet_message *m, const void *data) {
    struct sent *s = xcalloc(1, sizeof *s);
    *s = (struct sent){*m, xcalloc(1, m->bytes + 1), 0, NULL};
    if (m->bytes) memcpy(s->data, data, m->bytes);
    if (l->free_s < n->now_s) l->free_s = n->now_s;
    l->free_s += size_of(m) / n->rate;
    s->at_s = l->free_s + TRIP_S / 2;
    *l->last = s;
    l->last = &s->next;
    l->bytes += size_of(m);
    l->waits += size_of(m);
    if (l->waits > l->most) l->most = l->waits;
}

static void to_book(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data) {
    struct slow *n = ctx;
    (void)life;
    post(n, &n->up[rank], m, data);
}

static void to_seat(void *ctx, int rank, uint64_t life, const struct meet_message *m, const void *data) {
    struct slow *n = ctx;
    (void)life;
    post(n, &n->down[rank], m, data);
}

static void deliver(struct slow *n, struct line *l, int rank, bool up) {
    struct sent *s;
    while ((s = l->first) && s->at_s <= n->now_s && n->now_s >= n->cut_s) {
        if (!(l->first = s->next)) l->last = &l->first;
        l->waits -= size_of(&s->m);
        if (up)
            registry_receive(n->registry, &s->m, s->data, n->now_s);
        else
            client_receive(&n->clients[rank], &s->m, s->data, n->now_s);
        free(s->data);
        free(s);
    }
}

static void pass(struct slow *n, double seconds) {
    for (double until_s = n->now_s + seconds; n->now_s < until_s; n->now_s += STEP_S) {
        for (int i = 0; i < RANKS; i++) {
            deliver(n, &n->up[i], i, true);
            deliver(n, &n->down[i], i, false);
            client_tick(&n->clients[i], n->now_s);
        }
        registry_tick(n->registry, n->now_s);
    }
}

static struct slow *slow_new(double rate) {
    struct slow *n = xcalloc(1, sizeof *n);
    n->rate = rate;
    n->now_s = 10;
    for (int i = 0; i < RANKS; i++) {
        struct meet_join c = {.member = {.host = "h", .address = "10.0.0.1", .pid = 100 + i}, .machine = 1};
        n->up[i].last = &n->up[i].first;
        n->down[i].last = &n->down[i].first;
        n->clients[i] = (struct client){.rank = i,
                                        .size = RANKS,
                                        .incarnation = (uint64_t)i + 1,
                                        .where = "h1:29500",
                                        .silent_s = SILENT_S,
                                        .send = to_book,
                                        .ctx = n};
        client_open(&n->clients[i], &c, IDENTITY);
    }
    n->registry = registry_create(
        &(struct rendezvous_options){.size = RANKS, .identity = IDENTITY, .silent_s = SILENT_S}, "h1:29500",
        to_seat, NULL, n);
    pass(n, 5);
    for (int i = 0; i < RANKS; i++) {
        assert_non_null(n->clients[i].members);
        n->up[i].bytes = n->down[i].bytes = 0;
    }
    return n;
}

static void slow_free(struct slow *n) {
    for (int i = 0; i < RANKS; i++) {
        assert_string_equal(n->clients[i].ended, "");
        assert_int_equal(n->clients[i].losses, 0);
        client_close(&n->clients[i]);
        for (int k = 0; k < 2; k++)
            for (struct sent *s = k ? n->up[i].first : n->down[i].first, *next; s; s = next) {
                next = s->next;
                free(s->data);
                free(s);
            }
    }
    registry_destroy(&n->registry);
    free(n);
}

static void is_what_was_put(const struct client_want *w, const char *data) {
    assert_non_null(w->data);
    assert_int_equal(w->bytes, BYTES);
    assert_memory_equal(w->data, data, BYTES);
}

static char *numbers(void) {
    char *data = xcalloc(1, BYTES);
    for (size_t i = 0; i < BYTES; i++) data[i] = (char)(i * 2654435761u >> 13);
    return data;
}

// Rank 1 hands over 3 MB, which rank 2 reads.
static void test_a_slow_link_carries_what_is_useful(void **state) {
    (void)state;
    static const double rates[] = {20e3, 200e3, 500e3, 1e8};
    char *data = numbers();
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        struct slow *n = slow_new(rates[i]);
        double begun_s = n->now_s, least_s = 2 * (double)BYTES / rates[i];  // up, then down
        struct client_want w = {.name = "x"};
        client_put(&n->clients[1], MEET_PUT, "x", data, BYTES);
        client_want(&n->clients[2], &w);
        while (!w.data && n->now_s < begun_s + 5 * least_s + 60) pass(n, 1);
        is_what_was_put(&w, data);
        double took_s = n->now_s - begun_s, up = n->up[1].bytes, down = n->down[2].bytes;
        print_message(
            "%9g B/s: %6.1f s of %6.1f s; up %.3f, down %.3f of what is useful; at most %.0f and %.0f kB wait\n",
            rates[i], took_s, least_s, up / (double)BYTES, down / (double)BYTES, 1e-3 * n->up[1].most,
            1e-3 * n->down[2].most);
        assert_true(up < 1.1 * (double)BYTES && down < 1.1 * (double)BYTES);
        assert_true(n->up[1].most < 1.2 * (double)MEET_WINDOW && n->down[2].most < 1.2 * (double)MEET_WINDOW);
        assert_true(took_s < 1.25 * least_s + 20);
        client_unwant(&w);
        free(w.data);
        slow_free(n);
    }
    free(data);
}

// Rank 0 is cut off from all, in the middle of it, for less than the deadline: that costs time alone, and no more bytes than wait.
static void test_a_link_that_is_cut_for_less_than_the_deadline(void **state) {
    (void)state;
    char *data = numbers();
    struct slow *n = slow_new(500e3);
    struct client_want w = {.name = "x"};
    client_put(&n->clients[1], MEET_PUT, "x", data, BYTES);
    client_want(&n->clients[2], &w);
    for (int cuts = 0; cuts < 3; cuts++) {
        pass(n, 2);
        n->cut_s = n->now_s + SILENT_S - 3;
        pass(n, SILENT_S - 3);
    }
    pass(n, 60);
    is_what_was_put(&w, data);
    assert_true(n->up[1].bytes < 1.3 * (double)BYTES && n->down[2].bytes < 1.3 * (double)BYTES);
    assert_true(n->up[1].most < 2 * (double)MEET_WINDOW && n->down[2].most < 2 * (double)MEET_WINDOW);
    client_unwant(&w);
    free(w.data);
    slow_free(n);
    free(data);
}

static void soon(struct slow *n, struct client *s, double within_s) {
    struct client_want w = {.name = "y"};
    client_want(s, &w);
    pass(n, within_s);
    assert_non_null(w.data);
    client_unwant(&w);
    free(w.data);
}

// While 3 MB of one name go up, then down, another name is asked for and read. A process that asks for that name reads its own
// value, even if it has asked before, and is answered now.
static void test_what_is_small_does_not_wait_for_what_is_long(void **state) {
    (void)state;
    char *data = numbers();
    const double trip_s = (double)BYTES / 200e3;
    struct slow *n = slow_new(200e3);
    struct client_want early = {.name = "x"}, own = early, other = early, behind = {.name = "y"};
    client_put(&n->clients[1], MEET_PUT, "y", "y", 1);
    client_want(&n->clients[1], &early);
    pass(n, 1);
    client_put(&n->clients[1], MEET_PUT, "x", data, BYTES);
    soon(n, &n->clients[1], 3);
    client_want(&n->clients[1], &own);
    client_want(&n->clients[1], &behind);  // the GET of x
    soon(n, &n->clients[0], 3);
    client_put(&n->clients[0], MEET_PUT, "x", "older", 5);
    pass(n, trip_s);
    assert_non_null(behind.data);
    assert_string_equal(early.data, "older");
    assert_null(own.data);
    client_want(&n->clients[2], &other);
    pass(n, 1);
    soon(n, &n->clients[2], 3);
    assert_null(other.data);
    pass(n, 1.5 * trip_s);
    is_what_was_put(&own, data);
    is_what_was_put(&other, data);
    struct client_want *all[] = {&early, &own, &behind, &other};
    for (int i = 0; i < 4; i++) client_unwant(all[i]), free(all[i]->data);
    slow_free(n);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slow_link_carries_what_is_useful),
        cmocka_unit_test(test_a_link_that_is_cut_for_less_than_the_deadline),
        cmocka_unit_test(test_what_is_small_does_not_wait_for_what_is_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
