// Roles that come and go at a meeting, over a network that loses, repeats, delays and shuffles what is said; processes that freeze,
// die and are replaced.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/fabric/meet_net.h"

#define WORKERS 3
#define SERVERS 2
#define CAST    (WORKERS + SERVERS)
#define WORKER  RANKS  // the first of them
#define SERVER  (RANKS + WORKERS)

static const struct rendezvous_options with_cast = {.roles = {{"worker", WORKERS}, {"server", SERVERS}},
                                                    .member_0 = "the scheduler",
                                                    .replace = true,
                                                    .beat_s = 0.5,
                                                    .silent_s = SILENT_S};

static struct net *cast_new(unsigned seed, bool anew) {
    struct rendezvous_options o = with_cast;
    o.replace = anew;
    return net_of(seed, o);
}

// A new process for that member; its number, of which its incarnation is a hundredfold.
static int comes_told(struct net *n, int member, const struct rendezvous_options *told) {
    int process = n->processes++;
    assert_true(process < PROCESSES);
    seat_new(n, process, member, 100 * (uint64_t)process, "h4", "{}", told);
    return process;
}

static int comes(struct net *n, int member) { return comes_told(n, member, &with_cast); }

static void says(struct net *n, int process, const char *words) {
    client_put(&n->clients[process], MEET_SEND, "word", words, strlen(words));
}

static void gives_up(struct net *n, int process, const char *why) {
    char name[64];
    snprintf(name, sizeof name, "%d %llx", n->clients[process].rank,
             (unsigned long long)n->clients[process].incarnation);
    client_put(&n->clients[0], MEET_END_PROCESS, name, why, strlen(why));
}

// The k-th news of the roles: of that kind and process.
static const struct member_news *is_news(const struct net *n, int k, enum member_news_kind kind,
                                         int process) {
    for (int i = 0; i < n->heard; i++) {
        const struct member_news *news = &n->news[i];
        if ((news->member >= 0 && news->member < RANKS) || k--) continue;
        assert_int_equal(news->kind, kind);
        assert_int_equal(news->incarnation, 100 * process);
        return news;
    }
    fail_msg("no such news");
    return NULL;
}

static int cast_news(const struct net *n) {
    int count = 0;
    for (int i = 0; i < n->heard; i++) count += n->news[i].member < 0 || n->news[i].member >= RANKS;
    return count;
}

static void has_ended(const struct net *n, int process, enum meet_end how, const char *words) {
    const struct client *s = &n->clients[process];
    if (s->end != how || !strstr(s->ended, words))
        fail_msg("process %d: %d \"%s\", not %d \"%s\"", process, s->end, s->ended, how, words);
}

static void test_what_the_cast_says_is_heard_once_and_in_order(void **state) {
    (void)state;
    static char big[3 * MEET_CHUNK];
    for (unsigned seed = 1; seed <= 30; seed++) {
        struct net *n = cast_new(seed, true);
        int of[CAST], next[CAST] = {0}, left = 0;
        n->lose = 20, n->twice = 20, n->late_s = 1.5;
        for (int i = 0; i < CAST / 2; i++) of[i] = comes(n, WORKER + i);
        pass(n, 100);
        for (int i = CAST / 2; i < CAST; i++) of[i] = comes(n, WORKER + i);
        pass(n, 100);
        client_put(&n->clients[0], MEET_PUT, "start", "now", 3);
        struct client_want w = want("start");
        client_want(&n->clients[of[0]], &w);
        for (int i = 0; i < CAST; i++) {
            char words[32];
            assert_true(client_has_joined(&n->clients[of[i]]));
            for (int k = 0; k < 20; k++) says(n, of[i], (snprintf(words, sizeof words, "%d", k), words));
            memset(big, 'a' + i, sizeof big);
            client_put(&n->clients[of[i]], MEET_SEND, "big", big, sizeof big);
        }
        pass(n, 400);
        assert_string_equal(w.data, "now");
        free(w.data);
        client_unwant(&w);
        for (int i = 0; i < CAST; i++) client_put(&n->clients[of[i]], MEET_BYE, "", NULL, 0);
        pass(n, 100);
        for (int i = 0; i < n->heard; i++) {
            const struct member_news *news = &n->news[i];
            int who = news->member - WORKER, *at = &next[who < 0 ? 0 : who];
            if (who < 0) continue;
            assert_int_equal(news->incarnation, 100 * of[who]);
            assert_string_equal(news->host, "h4");
            assert_int_equal(news->pid, 100 + of[who]);
            if (*at == 0)
                assert_int_equal(news->kind, MEMBER_JOINED);
            else if (*at <= 20)
                assert_int_equal(atoi(news->data), *at - 1);
            else if (*at == 21)
                assert_true(news->bytes == sizeof big && ((char *)news->data)[sizeof big - 1] == 'a' + who);
            else
                assert_int_equal(news->kind, MEMBER_LEFT);
            left += news->kind == MEMBER_LEFT;
            (*at)++;
        }
        assert_int_equal(left, CAST);
        assert_int_equal(registry_roles_here(n->registry), 0);
        for (int i = 0; i < RANKS; i++) assert_true(!n->clients[i].losses && !n->clients[i].end);
        net_free(n);
    }
}

// With a place for it or without one, before the ranks are there or later.
static void test_it_is_let_in_or_told_why_not(void **state) {
    (void)state;
    struct net *n = cast_new(1, false);
    n->dead[1] = true;  // the ranks are not complete
    int first = comes(n, WORKER + 1);
    pass(n, 2);
    assert_true(client_has_joined(&n->clients[first]) && !n->clients[0].members);
    int second = comes(n, WORKER + 1);
    struct rendezvous_options told = with_cast;
    told.roles[0].count = 8;
    int stranger = comes_told(n, RANKS + 8, &told);  // server 0, as it thinks
    pass(n, 2);
    has_ended(n, second, MEET_ENDED_ME, "worker 1 has joined already: process 105 of h4");
    has_ended(
        n, stranger, MEET_ENDED_ME,
        "server 0 of h4 was told that there are 5 ranks, 8 workers, 2 servers, the scheduler at h1:29500 that "
        "there are 5 ranks, 3 workers, 2 servers");
    told.roles[0].count = WORKERS - 1;
    int smaller = comes_told(n, SERVER - 1, &told);  // server 0, as it thinks; a worker's number
    pass(n, 2);
    has_ended(n, smaller, MEET_ENDED_ME,
              "server 0 of h4 was told that there are 5 ranks, 2 workers, 2 servers");
    is_news(n, 0, MEMBER_JOINED, first);
    assert_string_equal(is_news(n, 1, MEMBER_REFUSED, second)->why, n->clients[second].ended);
    assert_int_equal(is_news(n, 2, MEMBER_REFUSED, stranger)->member, -1);
    assert_int_equal(n->clients[first].end, MEET_CONTINUES);
    n->dead[1] = false;
    pass(n, 3);
    assert_non_null(n->clients[0].members);
    // A value of another identity is recognized by itself: it is not compared, as it is with ranks.
    assert_int_equal(cast_news(n), 4);
    net_free(n);
}

// A frozen process whose place another one has taken: it goes, whatever it said before, and does not come back.
static void test_one_that_is_replaced(void **state) {
    (void)state;
    struct net *n = cast_new(1, true);
    int old = comes(n, SERVER);
    pass(n, 5);
    n->frozen[old] = true;
    struct client *s = &n->clients[old];
    struct meet_message late = meet_message(MEET_JOIN, s->rank, s->incarnation);
    late.size = RANKS, late.bytes = s->join_bytes;
    pass(n, 5);
    int new = comes(n, SERVER);
    pass(n, 2);
    is_news(n, 0, MEMBER_JOINED, old);
    const struct member_news *lost = is_news(n, 1, MEMBER_LOST, old);
    assert_string_equal(lost->word, "replaced");
    assert_string_equal(lost->why, "was started again");
    is_news(n, 2, MEMBER_JOINED, new);
    registry_receive(n->registry, &late, s->join, n->now_s);
    n->frozen[old] = false;
    says(n, old, "I am here");
    pass(n, 2);
    has_ended(n, old, MEET_ENDED_ME, "server 0 has been started again: this process is not needed any more");
    says(n, new, "so am I");
    pass(n, 2);
    assert_string_equal(is_news(n, 3, MEMBER_SENT, new)->data, "so am I");
    assert_int_equal(cast_news(n), 4);
    assert_int_equal(n->clients[new].end, MEET_CONTINUES);
    net_free(n);
}

// It has stood still until after another one has its place.
static void test_one_that_wakes_too_late(void **state) {
    (void)state;
    struct net *n = cast_new(1, false);
    int old = comes(n, WORKER);
    pass(n, 5);
    n->frozen[old] = true;
    pass(n, SILENT_S + 2);
    is_news(n, 1, MEMBER_LOST, old);
    int new = comes(n, WORKER);
    pass(n, 1);
    is_news(n, 2, MEMBER_JOINED, new);
    n->frozen[old] = false;
    pass(n, 2);
    has_ended(n, old, MEET_ENDED_ME, "worker 0 has been started again");
    net_free(n);
}

static void test_one_that_is_silent(void **state) {
    (void)state;
    for (int anew = 0; anew < 2; anew++) {
        struct net *n = cast_new(1, anew);
        int old = comes(n, WORKER), other = comes(n, WORKER + 1);
        pass(n, 5);
        n->frozen[old] = true;
        pass(n, SILENT_S - 2);
        assert_int_equal(cast_news(n), 2);
        pass(n, 4);
        const struct member_news *lost = is_news(n, 2, MEMBER_LOST, old);
        assert_string_equal(lost->word, "silent");
        assert_true(lost->silent_s >= SILENT_S && lost->silent_s < SILENT_S + 1);
        assert_non_null(strstr(lost->why, "was silent for 30."));
        // While its place is free it hears that it may come anew; then that it has been replaced.
        n->frozen[old] = false;
        pass(n, 2);
        has_ended(
            n, old, MEET_LOST_ME,
            "the scheduler at h1:29500 has given this process up: it received nothing from it for 30 s");
        int new = comes(n, WORKER);
        pass(n, 2);
        is_news(n, 3, MEMBER_JOINED, new);
        n->clients[old].end = MEET_CONTINUES;
        pass(n, 2);
        has_ended(n, old, MEET_ENDED_ME, "worker 0 has been started again");
        for (int i = 0; i < RANKS; i++) assert_true(!n->clients[i].losses && !n->clients[i].end);
        assert_true(!n->clients[other].end && !n->clients[new].end && cast_news(n) == 4);
        net_free(n);
    }
}

// It lives, but a thread of it does not turn.
static void test_one_that_says_no_sign_of_life(void **state) {
    (void)state;
    struct net *n = cast_new(1, true);
    int worker = comes(n, WORKER);
    pass(n, 5);
    n->clients[worker].frozen = true;
    says(n, worker, "nothing of it is heard");
    pass(n, SILENT_S + 2);
    assert_string_equal(is_news(n, 1, MEMBER_LOST, worker)->word, "silent");
    n->clients[worker].frozen = false;
    pass(n, 2);
    has_ended(n, worker, MEET_LOST_ME, "received nothing from it");
    assert_int_equal(cast_news(n), 2);
    net_free(n);
}

static void test_one_whose_connection_has_closed(void **state) {
    (void)state;
    struct net *n = cast_new(1, true);
    int worker = comes(n, WORKER), other = comes(n, WORKER + 1);
    pass(n, 5);
    registry_unreachable(n->registry, WORKER, n->clients[worker].incarnation, n->now_s);
    registry_unreachable(n->registry, WORKER + 1, 12345, n->now_s);
    registry_unreachable(n->registry, RANKS + CAST, 12345, n->now_s);
    pass(n, 10);  // it is made anew
    assert_int_equal(cast_news(n), 2);
    n->frozen[worker] = true;
    registry_unreachable(n->registry, WORKER, n->clients[worker].incarnation, n->now_s);
    pass(n, MEET_CLOSED_S + 1);
    const struct member_news *lost = is_news(n, 2, MEMBER_LOST, worker);
    assert_string_equal(lost->word, "gone");
    assert_string_equal(lost->why, "has gone: its connection has closed");
    assert_int_equal(n->clients[other].end, MEET_CONTINUES);
    net_free(n);
}

static void test_one_that_is_given_up(void **state) {
    (void)state;
    struct net *n = cast_new(1, false);
    int worker = comes(n, WORKER), lost = comes(n, WORKER + 1);
    pass(n, 5);
    n->lose = 30;
    gives_up(n, worker, "its disk is full");
    pass(n, 10);
    has_ended(n, worker, MEET_ENDED_ME, "its disk is full");
    int new = comes(n, WORKER);  // the place is free
    pass(n, 20);
    is_news(n, 2, MEMBER_JOINED, new);
    gives_up(n, worker, "of a life that is past");
    pass(n, 10);
    assert_int_equal(n->clients[new].end, MEET_CONTINUES);
    // One that is lost hears the reason too, and that there is no way back.
    n->frozen[lost] = true;
    pass(n, SILENT_S + 5);
    is_news(n, 3, MEMBER_LOST, lost);
    gives_up(n, lost, "the job goes on without it");
    pass(n, 10);
    n->frozen[lost] = false;
    pass(n, 10);
    has_ended(n, lost, MEET_ENDED_ME, "the job goes on without it");
    net_free(n);
}

static void test_how_all_ends(void **state) {
    (void)state;
    for (int aborts = 0; aborts < 2; aborts++) {
        struct net *n = cast_new(1, true);
        int worker = comes(n, WORKER), left = comes(n, SERVER);
        pass(n, 5);
        for (int i = 0; i < 2; i++) client_put(&n->clients[left], MEET_BYE, "", NULL, 0);
        pass(n, 1);
        assert_int_equal(cast_news(n), 3);
        for (int i = 0; i < RANKS; i++)
            if (!aborts) client_put(&n->clients[i], MEET_BYE, "", NULL, 0);
        if (aborts) client_put(&n->clients[0], MEET_ABORT, "", "worker 2 is gone", 16);
        pass(n, 0.2);  // before it asks
        has_ended(n, worker, MEET_JOB_OVER, aborts ? "worker 2 is gone" : "the job has ended");
        n->lose = 50;
        int late = comes(n, WORKER + 1);
        pass(n, 40);
        has_ended(n, late, MEET_JOB_OVER, aborts ? "worker 2 is gone" : "the job has ended");
        for (int i = 0; i < RANKS; i++)  // who leaves in order does so, however slow the roles is
            assert_int_equal(n->clients[i].end, aborts ? MEET_JOB_OVER : MEET_CONTINUES);
        net_free(n);
    }
    struct net *n = cast_new(1, true);
    int worker = comes(n, WORKER);
    pass(n, 5);
    n->lose = 100;
    pass(n, SILENT_S + 5);
    has_ended(n, worker, MEET_MEMBER_0_LOST, "rank 0 at h1:29500 has sent nothing for 30 s");
    net_free(n);
}

// A message that only ranks, or only member 0, may send has no effect from one of the roles or from a rank.
static void test_what_only_others_may_say(void **state) {
    (void)state;
    struct net *n = cast_new(1, true);
    int worker = comes(n, WORKER), other = comes(n, WORKER + 1);
    pass(n, 5);
    char name[64];
    snprintf(name, sizeof name, "%d %llx", WORKER + 1, (unsigned long long)n->clients[other].incarnation);
    client_put(&n->clients[worker], MEET_PART, "#1", "abcd", 4);
    client_put(&n->clients[worker], MEET_ABORT, "", "I say so", 8);
    client_put(&n->clients[worker], MEET_END_PROCESS, name, "and so", 6);
    client_put(&n->clients[2], MEET_END_PROCESS, name, "and so", 6);
    client_put(&n->clients[0], MEET_END_PROCESS, "1 2", "a rank", 6);
    client_put(&n->clients[0], MEET_END_PROCESS, "-1 1", "nobody", 6);
    client_put(&n->clients[0], MEET_END_PROCESS, "99 1", "nobody", 6);
    pass(n, 5);
    for (int i = 0; i < n->processes; i++) assert_true(!n->clients[i].end && !n->clients[i].losses);
    assert_int_equal(cast_news(n), 2);
    struct client_want w = want("#1");
    client_want(&n->clients[3], &w);
    for (int i = 0; i < RANKS; i++) client_put(&n->clients[i], MEET_PART, "#1", "ABCDE" + i, 1);
    pass(n, 2);
    assert_memory_equal(w.data, "ABCDE", RANKS);
    free(w.data);
    client_unwant(&w);
    // A rank may say something too, and a number that is none's is nobody's.
    says(n, 2, "dead");
    pass(n, 2);
    const struct member_news *news = &n->news[n->heard - 1];
    assert_true(news->kind == MEMBER_SENT && news->member == 2 && news->incarnation == 3);
    struct meet_message m = meet_message(MEET_SEND, RANKS + CAST, 0);
    m.number = 1;
    registry_receive(n->registry, &m, "", n->now_s);
    m.rank = WORKER + 2;
    registry_receive(n->registry, &m, "", n->now_s);
    assert_ptr_equal(news, &n->news[n->heard - 1]);
    net_free(n);
}

// A registry that stood still has heard nobody, and loses nobody for it.
static void test_a_book_that_stood_still(void **state) {
    (void)state;
    struct net *n = cast_new(1, true);
    for (int i = 0; i < CAST; i++) comes(n, WORKER + i);
    pass(n, 2);
    n->now_s += 3 * SILENT_S;
    registry_tick(n->registry, n->now_s);
    pass(n, 10);
    assert_int_equal(cast_news(n), CAST);
    assert_int_equal(registry_roles_here(n->registry), CAST);
    net_free(n);
}

// ---------------------------------------------------------------- whatever happens
struct lived {
    int said, heard;  // words: "0", "1", ..
    bool came, over;
};

static void check_news(struct net *n, struct lived *lived, int from) {
    for (int i = from; i < n->heard; i++) {
        const struct member_news *news = &n->news[i];
        if (news->member < RANKS || news->kind == MEMBER_REFUSED) continue;
        struct lived *l = &lived[news->incarnation / 100];
        assert_int_equal(n->clients[news->incarnation / 100].rank, news->member);
        if (news->kind == MEMBER_JOINED) {
            assert_false(l->came);
            l->came = true;
            for (int p = RANKS; p < n->processes; p++)  // a place has one
                assert_true(p == (int)news->incarnation / 100 || n->clients[p].rank != news->member ||
                            !lived[p].came || lived[p].over);
        }
        assert_true(l->came && !l->over);
        if (news->kind == MEMBER_SENT) {
            assert_int_equal(atoi(news->data), l->heard);
            l->heard++;
        }
        if (news->kind == MEMBER_LOST || news->kind == MEMBER_LEFT) l->over = true;
    }
}

// Processes die, freeze, wake and are started again, at random moments. Each incarnation comes once and is over once, its words come once
// and in order, and in the end everybody knows whether he is one of those who are here.
static void test_whatever_happens(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 100; seed++) {
        struct net *n = cast_new(seed, seed % 4 != 0);
        struct lived lived[PROCESSES] = {0};
        int last[CAST], from = 0;
        n->lose = seed % 3 * 10, n->twice = 15, n->late_s = seed % 5 * 0.5;
        for (int i = 0; i < CAST; i++) last[i] = comes(n, WORKER + i);
        for (int turn = 0; turn < 60; turn++) {
            int who = (int)draw(n, CAST), p = last[who];
            char words[16];
            snprintf(words, sizeof words, "%d", lived[p].said);
            switch (draw(n, 8)) {
                case 0:
                    n->dead[p] = true;
                    break;
                case 1:
                    n->frozen[p] = true;
                    break;
                case 2:
                    for (int i = 0; i < n->processes; i++) n->frozen[i] = n->frozen[i] && draw(n, 2);
                    break;
                case 3:
                    if (n->processes < PROCESSES && draw(n, 2)) last[who] = comes(n, WORKER + who);
                    break;
                case 4:
                    if (n->dead[p] || n->frozen[p])
                        registry_unreachable(n->registry, WORKER + who, n->clients[p].incarnation, n->now_s);
                    break;
                default:
                    if (!n->dead[p] && !n->frozen[p]) says(n, p, words), lived[p].said++;
            }
            pass(n, draw(n, 12));
            check_news(n, lived, from);
            from = n->heard;
        }
        n->lose = 0, n->late_s = 0;
        memset(n->frozen, 0, sizeof n->frozen);
        pass(n, 2 * SILENT_S);
        check_news(n, lived, from);
        int here = 0;
        for (int p = RANKS; p < n->processes; p++) {
            bool is = lived[p].came && !lived[p].over;
            here += is;
            if (n->dead[p]) assert_false(is);
            if (!n->dead[p] && is == (n->clients[p].end != MEET_CONTINUES))
                fail_msg("seed %u, process %d: here %d, %s", seed, p, is, n->clients[p].ended);
            if (is) assert_int_equal(lived[p].heard, lived[p].said);
        }
        assert_int_equal(registry_roles_here(n->registry), here);
        for (int i = 0; i < RANKS; i++) assert_true(!n->clients[i].losses && !n->clients[i].end);
        net_free(n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_cast_says_is_heard_once_and_in_order),
        cmocka_unit_test(test_it_is_let_in_or_told_why_not),
        cmocka_unit_test(test_one_that_is_replaced),
        cmocka_unit_test(test_one_that_is_silent),
        cmocka_unit_test(test_one_that_wakes_too_late),
        cmocka_unit_test(test_one_that_says_no_sign_of_life),
        cmocka_unit_test(test_one_whose_connection_has_closed),
        cmocka_unit_test(test_one_that_is_given_up),
        cmocka_unit_test(test_how_all_ends),
        cmocka_unit_test(test_what_only_others_may_say),
        cmocka_unit_test(test_a_book_that_stood_still),
        cmocka_unit_test(test_whatever_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
