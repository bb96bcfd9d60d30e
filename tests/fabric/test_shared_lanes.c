// Messages in pieces on lanes: they arrive whole and in order, whatever waits for whom, what is on its way is bounded, and a
// peer that breaks the rules is named.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "tests/fabric/lanes_net.h"

#define BIG ((size_t)5 << 20)

static char *bytes_of(size_t n, unsigned seed) {
    char *b = xcalloc(1, n);
    for (size_t i = 0; i < n; i++) b[i] = (char)((i * 2654435761u + seed) >> 7);
    return b;
}

// Everything that is queued arrives, and everything that can be sent is.
static void settle(struct lanes_net *n) {
    char why[LANES_WHY];
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < NET_RANKS; i++) lanes_push(n->of[i]);
        for (int i = 0; i < NET_RANKS; i++)
            for (int k = 0; k < NET_RANKS; k++) {
                int rc = net_deliver(n, i, k, why);
                if (rc < 0) fail_msg("%s", why);
                any = any || rc == 0;
            }
    }
}

static int done(struct lanes_net *n, int rank, int lane) {
    char why[LANES_WHY];
    return lanes_done(n->of[rank], lane, why);
}

// Large and small, asked for before and after they come.
static void test_messages_arrive(void **state) {
    static const size_t sizes[] = {1, 4095, 4096, 4097, 262144, 262145, 1 << 20, BIG};
    (void)state;
    struct lanes_net n;
    net_open(&n);
    for (size_t k = 0; k < 2 * sizeof sizes / sizeof *sizes; k++) {
        size_t size = sizes[k / 2];
        char *from = bytes_of(size, (unsigned)k), *to = xcalloc(1, size);
        lanes_send(n.of[0], 1, 2, 7, from, size);
        if (k % 2) settle(&n);
        if (k % 2) assert_int_equal(done(&n, 0, 1), size <= LANES_WINDOW ? 1 : 0);
        lanes_receive(n.of[2], 1, 0, 7, to, size);
        settle(&n);
        assert_int_equal(done(&n, 0, 1), 1);
        assert_int_equal(done(&n, 2, 1), 1);
        assert_memory_equal(from, to, size);
        free(from);
        free(to);
    }
    net_close(&n);
}

// A receiver that does not come gets its window and no more; another lane goes on beside it; a third rank is not concerned.
static void test_the_window(void **state) {
    (void)state;
    struct lanes_net n;
    char *from = bytes_of(BIG, 1), *to = xcalloc(1, BIG);
    net_open(&n);
    lanes_send(n.of[1], 0, 0, 1, from, BIG);
    for (int i = 0; i < 4; i++) lanes_push(n.of[1]);
    assert_int_equal(n.queues[1][0].bytes, LANES_WINDOW);
    settle(&n);
    lanes_push(n.of[1]);
    assert_int_equal(n.queues[1][0].bytes, 0);
    assert_int_equal(lanes_moved(n.of[1], 0), LANES_WINDOW);
    lanes_send(n.of[1], 1, 0, 1, from, 3 << 20);
    lanes_receive(n.of[0], 1, 1, 1, to, 3 << 20);
    settle(&n);
    assert_int_equal(done(&n, 0, 1), 1);
    assert_int_equal(done(&n, 1, 0), 0);
    lanes_receive(n.of[0], 0, 1, 1, to, BIG);
    settle(&n);
    assert_int_equal(done(&n, 1, 0), 1);
    assert_memory_equal(from, to, BIG);
    free(from);
    free(to);
    net_close(&n);
}

// Pieces and credit that could not be queued are tried again.
static void test_a_full_queue(void **state) {
    (void)state;
    struct lanes_net n;
    char *from = bytes_of(BIG, 2), *to = xcalloc(1, BIG), why[LANES_WHY];
    net_open(&n);
    lanes_send(n.of[0], 0, 1, 1, from, BIG);
    n.full = true;
    lanes_push(n.of[0]);
    assert_int_equal(n.queues[0][1].pieces, 0);
    n.full = false;
    lanes_push(n.of[0]);
    lanes_receive(n.of[1], 0, 0, 1, to, BIG);
    n.full = true;
    while (net_deliver(&n, 0, 1, why) == 0) continue;
    assert_int_equal(n.queues[1][0].pieces, 0);
    n.full = false;
    settle(&n);
    assert_int_equal(done(&n, 1, 0), 1);
    assert_memory_equal(from, to, BIG);
    free(from);
    free(to);
    net_close(&n);
}

// A message of another length is an error that names both lengths. A message of another tag is never received,
// and is missing.
static void test_mismatch(void **state) {
    (void)state;
    struct lanes_net n;
    char x[28] = {0}, why[LANES_WHY];
    bool missing[NET_RANKS];
    net_open(&n);
    lanes_send(n.of[0], 0, 1, 1, x, 24);
    lanes_receive(n.of[1], 0, 0, 1, x, 28);
    settle(&n);
    assert_int_equal(lanes_done(n.of[1], 0, why), -1);
    assert_string_equal(why, "rank 0 sent 24 bytes where rank 1 expects 28");
    lanes_send(n.of[0], 1, 1, 1, x, 24);
    lanes_receive(n.of[1], 1, 0, 2, x, 24);
    settle(&n);
    assert_int_equal(lanes_done(n.of[1], 1, why), 0);
    assert_true(lanes_missing(n.of[1], 1, missing) && missing[0] && !missing[2]);
    net_close(&n);
}

// Messages that no peer of this program sends.
static void test_rules_that_are_broken(void **state) {
    static const struct {
        struct lane_head head;
        int from;
        size_t bytes;
        const char *says;
    } bad[] = {
        {{.kind = LANE_PIECE, .total = 8}, -1, 8, "rank -1"},
        {{.kind = LANE_PIECE, .total = 8}, 0, 8, "rank 0"},
        {{.kind = LANE_PIECE, .total = 8}, NET_RANKS, 8, "rank 3"},
        {{.kind = 2, .total = 8}, 1, 8, "unknown kind or lane"},
        {{.kind = LANE_PIECE, .lane = NET_LANES, .total = 8}, 1, 8, "unknown kind or lane"},
        {{.kind = LANE_PIECE, .total = 8, .at = 1}, 1, 8, "beyond its end"},
        {{.kind = LANE_PIECE, .total = 8, .at = UINT64_MAX}, 1, 8, "beyond its end"},
        {{.kind = LANE_PIECE, .total = 7}, 1, 8, "beyond its end"},
        {{.kind = LANE_PIECE, .total = 8}, 1, 0, "beyond its end"},
        {{.kind = LANE_CREDIT, .total = 1}, 1, 0, "credit that it does not owe"},
        {{.kind = LANE_CREDIT, .total = UINT64_MAX}, 1, 0, "credit that it does not owe"},
    };
    (void)state;
    struct lanes_net n;
    char why[LANES_WHY];
    net_open(&n);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *data = xcalloc(1, bad[i].bytes + 1);
        struct lane_piece p = {data, bad[i].bytes, free, data};
        if (lanes_hear(n.of[0], bad[i].from, &bad[i].head, &p, why) != -1 || !strstr(why, bad[i].says))
            fail_msg("%zu: \"%s\" does not mention \"%s\"", i, why, bad[i].says);
    }
    struct lane_head h = {.kind = LANE_PIECE, .total = 2 * LANES_WINDOW};
    int rc = 0;
    for (int i = 0; i < 5 && !rc; i++) {
        char *data = xcalloc(1, LANES_WINDOW / 4);
        struct lane_piece p = {data, LANES_WINDOW / 4, free, data};
        rc = lanes_hear(n.of[0], 1, &h, &p, why);
        h.at += LANES_WINDOW / 4;
        assert_int_equal(rc, i < 4 ? 0 : -1);
    }
    assert_non_null(strstr(why, "rank 1 has sent what is no message of this job: more than its window"));
    net_close(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_arrive),       cmocka_unit_test(test_the_window),
        cmocka_unit_test(test_a_full_queue),          cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_rules_that_are_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
