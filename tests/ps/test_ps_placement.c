// The servers of a star whose ranks others have started: each way of laying them, and words that name no machine.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "ps/launch_star.h"
#include "shared/core/error.h"

// h1 has ranks 0 and 3, h2 rank 1, h3 ranks 2 and 4.
static const struct rank_place ranks[] = {{"h1", 0}, {"h2", 1}, {"h3", 2}, {"h1", 0}, {"h3", 2}, {"", -1}};

static void lies(const char *servers_on, int servers, const int *expected) {
    int rank_of[8];
    assert_int_equal(
        placement_servers(servers_on, ranks, strcmp(servers_on, "workers") ? 6 : 5, servers, rank_of), 0);
    for (int s = 0; s < servers; s++) assert_int_equal(rank_of[s], expected[s]);
}

static void test_ways(void **state) {
    (void)state;
    lies("hosts", 2, (const int[]){0, 1});
    lies("hosts", 4, (const int[]){0, 1, 2, 0});
    lies("workers", 5, (const int[]){0, 1, 2, 3, 4});
    lies("h3", 2, (const int[]){2, 2});
    lies("h3,h1", 3, (const int[]){2, 0, 2});
    lies("1,h3", 2, (const int[]){1, 2});
    lies("2,2,0", 4, (const int[]){2, 2, 0, 2});
}

static void test_words_that_are_no_machine(void **state) {
    (void)state;
    static const struct {
        const char *servers_on, *word;
    } bad[] = {{"h4", "h4"}, {"3", "3"},     {"h1,", ""},    {"", ""},
               {"h", "h"},   {"h11", "h11"}, {"0,1x", "1x"}, {"own", "own"}};
    int rank_of[2];
    error_quiet(QUIET_ALL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *said = xasprintf("%s: %s is no machine of this job, which has 0 h1, 1 h2, 2 h3",
                               bad[i].servers_on, bad[i].word);
        assert_int_equal(placement_servers(bad[i].servers_on, ranks, 6, 2, rank_of), -1);
        assert_non_null(strstr(error_last(), said));
        free(said);
    }
    error_quiet(QUIET_NOT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ways),
                                       cmocka_unit_test(test_words_that_are_no_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
