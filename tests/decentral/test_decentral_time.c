// A late rank appears as waiting for peers, and a slow link as exposed communication, in all stages: threads.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "decentral/collective/hub.h"
#include "tests/decentral/time_cases.h"

#define RANKS 2

struct time_thread {
    const struct time_case *c;
    const struct layout *layout;
    struct collective_source source;
    pthread_t thread;
    int rc;
};

static void *time_main(void *arg) {
    struct time_thread *t = arg;
    t->rc = time_case_rank(t->c, &t->source, t->layout);
    return NULL;
}

static void run_case(struct time_case c) {
    struct hub *hub = hub_create(RANKS);
    struct layout *layout = zero_case_layout(RANKS, false);
    struct time_thread t[RANKS];
    for (int i = 0; i < RANKS; i++) {
        t[i] = (struct time_thread){&c, layout, {&collective_threads_kind, hub, i, RANKS, false}, 0, 0};
        assert_int_equal(pthread_create(&t[i].thread, NULL, time_main, &t[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(t[i].thread, NULL);
    layout_destroy(&layout);
    hub_destroy(&hub);
    for (int i = 0; i < RANKS; i++)
        if (t[i].rc)
            fail_msg("zero:%d, rank %d: its times are off (above) or it failed: %s", c.stage, i,
                     error_last());
}

static void run_stages(bool slow_link) {
    for (int stage = 0; stage < ZERO_STAGES; stage++)
        run_case((struct time_case){.stage = stage, .slow_link = slow_link});
}

// Ready times travel between clocks that have nothing to do with each other.
static void test_ranks_on_other_hosts(void **state) {
    (void)state;
    run_case((struct time_case){.stage = 1, .other_host = true});
    run_case((struct time_case){.stage = 3, .slow_link = true, .other_host = true});
}

static void test_a_late_rank_is_waited_for(void **state) {
    (void)state;
    run_stages(false);
}

static void test_a_slow_link_is_exposed(void **state) {
    (void)state;
    run_stages(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_late_rank_is_waited_for),
        cmocka_unit_test(test_a_slow_link_is_exposed),
        cmocka_unit_test(test_ranks_on_other_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
