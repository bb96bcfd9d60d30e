// The rendezvous' two state machines over a network that loses, repeats, delays and shuffles what is said.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fabric/meet_net.h"

static struct net *net_new(unsigned seed) { return net_of(seed, (struct rendezvous_options){0}); }

static void seat_anew(struct net *n, int rank, uint64_t life, const char *host, const char *identity) {
    seat_new(n, rank, rank, life, host, identity, &(struct rendezvous_options){.silent_s = SILENT_S});
}

static void test_all_is_heard_once_and_in_order(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 60; seed++) {
        struct net *n = net_new(seed);
        n->lose = 20, n->twice = 20, n->late_s = 1.5;
        pass(n, 200);
        for (int i = 0; i < RANKS; i++) assert_non_null(n->clients[i].members);
        struct client_want last[RANKS], round[RANKS];
        for (int i = 0; i < RANKS; i++) {
            char text[8] = {(char)('A' + i)};
            last[i] = want("name 1");
            round[i] = want("#1");
            for (int k = 0; k < 20; k++) {
                char name[32], value[32];
                snprintf(name, sizeof name, "name %d", i);
                snprintf(value, sizeof value, "rank %d says %d", i, k);
                client_put(&n->clients[i], MEET_PUT, name, value, strlen(value));
            }
            client_put(&n->clients[i], MEET_PART, "#1", text, 2);
            client_want(&n->clients[i], &round[i]);
        }
        pass(n, 600);
        for (int i = 0; i < RANKS; i++) client_want(&n->clients[i], &last[i]);
        pass(n, 200);
        for (int i = 0; i < RANKS; i++) {
            assert_non_null(last[i].data);
            assert_string_equal(last[i].data, "rank 1 says 19");
            assert_int_equal(round[i].bytes, 2 * RANKS);
            assert_memory_equal(round[i].data, "A\0B\0C\0D\0E", 2 * RANKS);
            assert_string_equal(n->clients[i].ended, "");
            assert_int_equal(n->clients[i].losses, 0);
            client_unwant(&last[i]);
            client_unwant(&round[i]);
            free(last[i].data);
            free(round[i].data);
            client_put(&n->clients[i], MEET_BYE, "", NULL, 0);
        }
        assert_false(registry_is_over(n->registry));
        pass(n, 300);
        assert_true(registry_is_over(n->registry));
        for (int i = 0; i < RANKS; i++) assert_true(client_is_acknowledged(&n->clients[i]));
        net_free(n);
    }
}

static void test_a_late_put_wakes_who_waits_and_a_second_replaces_it(void **state) {
    (void)state;
    struct net *n = net_new(1);
    struct client_want early = want("x"), late = want("x");
    pass(n, 2);
    client_want(&n->clients[3], &early);
    pass(n, 2);
    assert_null(early.data);
    client_put(&n->clients[1], MEET_PUT, "x", "one", 3);
    n->now_s += 0.1;
    pass(n, 0.3);
    assert_string_equal(early.data, "one");
    client_put(&n->clients[4], MEET_PUT, "x", "", 0);
    pass(n, 1);
    client_want(&n->clients[3], &late);
    pass(n, 1);
    assert_non_null(late.data);
    assert_int_equal(late.bytes, 0);
    free(early.data);
    free(late.data);
    net_free(n);
}

// A rank reads its own value, or a later one, even if answers to other requests for the name are still in flight.
static void test_a_want_reads_nothing_that_is_older(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct net *n = net_new(seed);
        n->lose = 10, n->twice = 20, n->late_s = 1;
        pass(n, 60);
        for (int k = 0; k < 20; k++) {
            struct client_want two[] = {want("x"), want("x")};
            for (int i = 0; i < 2; i++) client_want(&n->clients[3], &two[i]);
            client_put(&n->clients[3], MEET_PUT, "x", &k, sizeof k);
            for (int i = 0; i < 2; i++) client_unwant(&two[i]), free(two[i].data);
            for (int i = 0; i < 2; i++) two[i] = want("x"), client_want(&n->clients[3], &two[i]);
            for (int i = 0; i < 300 && !two[0].data; i++) pass(n, 0.1);
            for (int i = 0; i < 2; i++) {
                assert_true(i || two[i].data);
                if (two[i].data) assert_memory_equal(two[i].data, &k, sizeof k);
                client_unwant(&two[i]);
                free(two[i].data);
            }
        }
        net_free(n);
    }
}

static void test_machines_and_addresses(void **state) {
    (void)state;
    struct net *n = net_new(1);
    static const int machines[RANKS] = {0, 1, 0, 2, 1}, locals[RANKS] = {0, 0, 1, 0, 1};
    static const char *const addresses[RANKS] = {"10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3", "10.0.0.2"};
    pass(n, 2);
    for (int i = 0; i < RANKS; i++) {
        const struct rendezvous_member *m = &n->clients[4].members[i];
        assert_int_equal(m->machine, machines[i]);
        assert_int_equal(m->local_rank, locals[i]);
        assert_int_equal(m->pid, 100 + i);
        assert_string_equal(m->address, addresses[i]);
    }
    net_free(n);
}

static void test_the_missing_are_named(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->dead[1] = n->dead[2] = n->dead[4] = true;
    pass(n, 3);
    assert_string_equal(n->clients[3].waiting, "ranks 1-2, 4");
    n->dead[1] = n->dead[4] = false;
    pass(n, 3);
    assert_string_equal(n->clients[3].waiting, "rank 2");
    assert_null(n->clients[3].members);
    n->dead[2] = false;
    pass(n, 3);
    assert_non_null(n->clients[3].members);
    net_free(n);
}

static void test_a_rank_comes_twice(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->dead[4] = true;
    pass(n, 2);
    struct client first = n->clients[3];
    seat_anew(n, 3, 77, "h5", IDENTITY);
    pass(n, 2);
    assert_non_null(
        strstr(n->clients[3].ended,
               "rank 3 has joined h1:29500 twice: process 103 of h3 joined first, process 103 of h5"));
    client_close(&n->clients[3]);
    n->clients[3] = first;
    n->dead[4] = false;
    pass(n, 3);
    assert_non_null(n->clients[3].members);  // the first goes on
    assert_string_equal(n->clients[0].ended, "");
    net_free(n);
}

static void test_one_that_is_lost_before_the_beginning_may_come_anew(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->dead[4] = true;
    pass(n, 2);
    registry_unreachable(n->registry, 3, 4, n->now_s);
    n->dead[3] = true;
    pass(n, 4);
    n->dead[4] = false;
    pass(n, 3);
    assert_null(n->clients[4].members);  // nor does it begin without that one
    assert_string_equal(n->clients[4].waiting, "rank 3");
    client_close(&n->clients[3]);
    seat_anew(n, 3, 77, "h5", IDENTITY);
    n->dead[3] = false;
    pass(n, 3);
    assert_non_null(n->clients[0].members);
    assert_string_equal(n->clients[0].members[3].host, "h5");
    net_free(n);
}

// The same process, that is: what the two have said counts on.
static void test_one_that_is_lost_before_the_beginning_is_there_again(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->dead[4] = true;
    pass(n, 8);
    registry_unreachable(n->registry, 3, 4, n->now_s);
    n->dead[3] = true;
    pass(n, 4);
    assert_string_equal(n->clients[0].waiting, "ranks 3-4");
    n->dead[3] = false;
    pass(n, 10);
    assert_string_equal(n->clients[3].waiting, "rank 4");
    struct meet_message ping = {
        .magic = MEET_MAGIC, .kind = MEET_PING, .rank = 3, .incarnation = 4, .said = 1000};
    ping.seen = (uint64_t)n->said[3];
    n->dead[4] = false;
    n->frozen[3] = true;
    for (int i = 0; i < 30 && !n->clients[0].members; i++) pass(n, 0.1);
    assert_non_null(n->clients[0].members);
    pass(n, 0.4);
    int said = n->said[3];
    registry_receive(n->registry, &ping, "",
                     n->now_s);              // was on its way: it does not say that the table is lost
    assert_int_equal(n->said[3], said + 1);  // the answer
    n->frozen[3] = false;
    pass(n, 1);
    assert_non_null(n->clients[3].members);
    net_free(n);
}

static void test_another_configuration_ends_the_meeting(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->dead[1] = true;
    client_close(&n->clients[3]);
    seat_anew(n, 3, 4, "h3", "{\"steps\":\"20\",\"seed\":\"1\"}");
    pass(n, 2);
    for (int i = 0; i < RANKS; i++)
        if (i != 1)
            assert_non_null(strstr(n->clients[i].ended, "rank 3 on h3 has steps = 20, rank 0 has 10"));
    n->dead[1] = false;
    pass(n, 3);
    assert_non_null(strstr(n->clients[1].ended, "rank 3 on h3 has steps"));
    net_free(n);
}

static void test_it_begins_without_some_where_that_is_enough(void **state) {
    (void)state;
    struct net *n = net_of(1, (struct rendezvous_options){.min_ranks = 3});
    n->dead[1] = n->dead[3] = n->dead[4] = true;
    pass(n, SILENT_S + 5);
    assert_null(n->clients[0].members);  // two do not do
    n->dead[4] = false;
    // With the table each knows who is not in it: that ends no wait later.
    for (int i = 0; i < 100 && !n->clients[2].members; i++) pass(n, 0.1);
    assert_int_equal(n->clients[2].losses, 2);
    pass(n, 5);
    for (int i = 0; i < RANKS; i += 2) {
        assert_non_null(n->clients[i].members);
        assert_int_equal(n->clients[i].members[1].machine, -1);
        assert_int_equal(n->clients[i].members[4].machine, 1);
        assert_int_equal(n->clients[i].losses, 2);
        assert_int_equal(n->clients[i].first_lost, 1);
    }
    n->dead[1] = false;
    pass(n, 3);
    assert_non_null(strstr(n->clients[1].ended, "too late: the job has started without it"));
    for (int i = 0; i < RANKS; i++) client_put(&n->clients[i], MEET_BYE, "", NULL, 0);
    pass(n, 5);
    assert_true(registry_is_over(n->registry));
    net_free(n);
}

static void test_another_number_of_ranks(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->clients[2].size = 4;
    pass(n, 2);
    assert_non_null(
        strstr(n->clients[2].ended,
               "rank 2 of h1 was told that there are 4 ranks, rank 0 at h1:29500 that there are 5"));
    assert_non_null(strstr(n->clients[0].ended, "was told that there are 4"));
    n->clients[2].size = RANKS;
    net_free(n);
}

// A stranger that has gone before it can be told that it is refused, whatever rank it gives.
static void test_a_stranger_whom_no_answer_reaches(void **state) {
    (void)state;
    static const int ranks[] = {-1, RANKS, 1000000, INT32_MIN, INT32_MAX, 2};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        struct net *n = net_new(1);
        struct meet_join c = {.member.host = "h9"};
        pass(n, 2);
        struct meet_message m = {.magic = MEET_MAGIC, .kind = MEET_JOIN, .rank = ranks[i], .size = 4};
        m.incarnation = 99, m.bytes = sizeof c;
        registry_receive(n->registry, &m, &c, n->now_s);
        pass(n, 10);
        for (int r = 0; r < RANKS; r++) assert_true(!n->clients[r].losses && !*n->clients[r].ended);
        net_free(n);
    }
}

// Each rank that comes puts off the end of the others' wait; one that comes again and again does not.
static void test_who_comes_is_progress(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->dead[1] = n->dead[2] = n->dead[4] = true;
    pass(n, 5);
    double alone_s = n->clients[3].progress_s;
    assert_true(alone_s > 0 && n->clients[3].missing == 3);
    pass(n, 5);
    assert_true(n->clients[3].progress_s == alone_s);
    n->dead[1] = false;
    pass(n, 5);
    double came_s = n->clients[3].progress_s;
    assert_true(came_s >= alone_s + 5 && n->clients[3].missing == 2);
    for (uint64_t again = 0; again < 3; again++) {
        registry_unreachable(n->registry, 1, n->clients[1].incarnation, n->now_s);
        n->dead[1] = true;
        pass(n, 5);
        client_close(&n->clients[1]);
        seat_anew(n, 1, 80 + again, "h2", IDENTITY);
        n->dead[1] = false;
        pass(n, 5);
    }
    assert_true(n->clients[3].progress_s == came_s && n->clients[3].missing == 2);
    net_free(n);
}

static void test_who_vanishes_is_told_to_all(void **state) {
    (void)state;
    struct net *n = net_new(1);
    n->lose = 30;
    pass(n, 20);
    n->dead[2] = true;
    pass(n, SILENT_S - 5);
    assert_int_equal(n->clients[4].first_lost, -1);
    n->dead[3] = true;
    pass(n, SILENT_S + 20);
    for (int i = 0; i < RANKS; i++) {
        if (n->dead[i]) continue;
        assert_int_equal(n->clients[i].first_lost, 2);
        assert_int_equal(n->clients[i].losses, 2);
        assert_string_equal(n->clients[i].ended, "");  // with those who are left it goes on
    }
    n->dead[2] = false;
    pass(n, 5);
    assert_non_null(strstr(n->clients[2].ended, "has given this process up"));
    for (int i = 0; i < RANKS; i++) client_put(&n->clients[i], MEET_BYE, "", NULL, 0);
    pass(n, 20);
    assert_true(registry_is_over(n->registry));
    net_free(n);
}

static void test_a_broken_connection_that_is_mended_is_no_loss(void **state) {
    (void)state;
    struct net *n = net_new(1);
    pass(n, 2);
    registry_unreachable(n->registry, 2, 3, n->now_s);
    pass(n, 10);  // its pings come
    assert_int_equal(n->clients[0].losses, 0);
    n->dead[2] = true;
    registry_unreachable(n->registry, 2, 99, n->now_s);  // of another process
    pass(n, 10);
    assert_int_equal(n->clients[0].losses, 0);
    registry_unreachable(n->registry, 2, 3, n->now_s);
    pass(n, 4);
    assert_int_equal(n->clients[0].first_lost, 2);
    net_free(n);
}

static void test_a_book_that_stood_still_has_heard_nobody(void **state) {
    (void)state;
    struct net *n = net_new(1);
    pass(n, 2);
    n->now_s += 3 * SILENT_S;
    deliver(n);  // what was said before is heard now
    registry_tick(n->registry, n->now_s);
    pass(n, 10);
    for (int i = 0; i < RANKS; i++) assert_int_equal(n->clients[i].losses, 0);
    // From then on it counts as before, and no more.
    n->dead[2] = true;
    pass(n, SILENT_S - 3);
    assert_int_equal(n->clients[0].losses, 0);
    pass(n, 6);
    assert_int_equal(n->clients[0].first_lost, 2);
    // However slow its turns are, who says nothing is lost.
    n->dead[3] = true;
    for (int k = 0; k < 35; k++, n->now_s += 2 * SILENT_S) {
        for (int i = 0; i < RANKS; i++)
            if (!n->dead[i]) client_tick(&n->clients[i], n->now_s);
        deliver(n);
        registry_tick(n->registry, n->now_s);
    }
    pass(n, 2);
    assert_int_equal(n->clients[0].losses, 2);
    assert_string_equal(n->clients[0].ended, "");
    net_free(n);
}

static void test_rank_0_vanishes(void **state) {
    (void)state;
    struct net *n = net_new(1);
    pass(n, 2);
    n->lose = 100;
    pass(n, SILENT_S - 2);
    assert_string_equal(n->clients[1].ended, "");
    client_unreachable(&n->clients[2], n->now_s - 2.5);
    pass(n, 1);
    assert_string_equal(n->clients[2].ended, "rank 0 at h1:29500 has gone");
    pass(n, 4);
    assert_string_equal(n->clients[1].ended, "rank 0 at h1:29500 has sent nothing for 30 s");
    net_free(n);
}

static void test_one_gives_up(void **state) {
    (void)state;
    struct net *n = net_new(3);
    n->lose = 40;
    pass(n, 20);
    client_put(&n->clients[3], MEET_ABORT, "", "the disk is full", 16);
    pass(n, 30);
    for (int i = 0; i < RANKS; i++) assert_string_equal(n->clients[i].ended, "the disk is full");
    net_free(n);
}

static void test_parts_of_other_sizes(void **state) {
    (void)state;
    struct net *n = net_new(3);
    pass(n, 2);
    client_put(&n->clients[3], MEET_PART, "#1", "abc", 3);
    pass(n, 1);
    client_put(&n->clients[1], MEET_PART, "#1", "ab", 2);
    pass(n, 2);
    assert_non_null(strstr(n->clients[4].ended, "rank 1 sends 2 bytes to gather #1, the others 3"));
    net_free(n);
}

static void test_what_is_no_members_is_not_heard(void **state) {
    (void)state;
    struct net *n = net_new(3);
    struct client_want w = want("x");
    pass(n, 2);
    struct meet_message m = {
        .magic = MEET_MAGIC, .kind = MEET_PUT, .rank = 3, .incarnation = 5, .number = 1, .name = "x"};
    registry_receive(n->registry, &m, "", n->now_s);
    m.rank = RANKS;
    registry_receive(n->registry, &m, "", n->now_s);
    m.rank = -1;
    registry_receive(n->registry, &m, "", n->now_s);
    m = (struct meet_message){.kind = MEET_JOIN, .rank = 1, .incarnation = 9, .bytes = 3};
    registry_receive(n->registry, &m, "abc", n->now_s);
    client_want(&n->clients[0], &w);
    pass(n, 4);
    assert_null(w.data);
    net_free(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_heard_once_and_in_order),
        cmocka_unit_test(test_a_late_put_wakes_who_waits_and_a_second_replaces_it),
        cmocka_unit_test(test_a_want_reads_nothing_that_is_older),
        cmocka_unit_test(test_machines_and_addresses),
        cmocka_unit_test(test_the_missing_are_named),
        cmocka_unit_test(test_a_rank_comes_twice),
        cmocka_unit_test(test_one_that_is_lost_before_the_beginning_may_come_anew),
        cmocka_unit_test(test_one_that_is_lost_before_the_beginning_is_there_again),
        cmocka_unit_test(test_another_configuration_ends_the_meeting),
        cmocka_unit_test(test_another_number_of_ranks),
        cmocka_unit_test(test_a_stranger_whom_no_answer_reaches),
        cmocka_unit_test(test_who_comes_is_progress),
        cmocka_unit_test(test_it_begins_without_some_where_that_is_enough),
        cmocka_unit_test(test_who_vanishes_is_told_to_all),
        cmocka_unit_test(test_a_broken_connection_that_is_mended_is_no_loss),
        cmocka_unit_test(test_a_book_that_stood_still_has_heard_nobody),
        cmocka_unit_test(test_rank_0_vanishes),
        cmocka_unit_test(test_one_gives_up),
        cmocka_unit_test(test_parts_of_other_sizes),
        cmocka_unit_test(test_what_is_no_members_is_not_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
