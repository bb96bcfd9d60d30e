// NCCL's collectives without a GPU: their staging, the rendezvous, and the errors.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decentral/collective/hub.h"
#include "decentral/collective/ring_bootstrap.h"
#include "decentral/nccl/nccl_engine.h"
#include "shared/core/error.h"

static void test_staging(void **state) {
    (void)state;
    assert_int_equal(collective_nccl_kind.staging_bytes(1, 1 << 20, DT_BF16), 0);
    assert_int_equal(collective_nccl_kind.staging_bytes(4, 100, DT_BF16), 3 * 256);
    assert_int_equal(collective_nccl_kind.staging_bytes(2, (size_t)1 << 30, DT_F32), (size_t)32 << 20);
}

static void test_needs_cuda(void **state) {
    (void)state;
    const char *why = NULL;
    struct device *cpu = NULL;
    struct nccl_world *w = NULL;
    error_quiet(1);
    assert_int_equal(dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 1}, &cpu), 0);
    assert_int_equal(nccl_world_open(&w, &(struct nccl_world_options){.device = cpu, .size = 2}), -1);
    assert_null(w);
    assert_non_null(strstr(error_last(), "--device"));
    error_quiet(0);
    dev_close(&cpu);
}

// ---------------------------------------------------------------- the rendezvous

#define RANKS 3
struct meeting_rank {
    struct hub *hub;
    int rank;
    pthread_t thread;
    char seen[RANKS][16];
    int rc;
};

static void *meeting_main(void *arg) {
    struct meeting_rank *m = arg;
    struct collective_source under = {&collective_threads_kind, m->hub, m->rank, RANKS, false};
    struct ring_bootstrap meeting = {0};
    m->rc = ring_bootstrap_open(&meeting, &under, 10);
    if (m->rc != 0) return NULL;
    for (int root = 0; root < RANKS; root++) {
        snprintf(m->seen[root], sizeof m->seen[root], "from %d", m->rank);
        if (ring_bootstrap_broadcast(&meeting, root, m->seen[root], sizeof m->seen[root]) != 0) m->rc = -1;
    }
    ring_bootstrap_close(&meeting);
    return NULL;
}

static void test_meeting_shares(void **state) {
    (void)state;
    struct meeting_rank m[RANKS];
    struct hub *hub = hub_create(RANKS);
    for (int i = 0; i < RANKS; i++) {
        m[i] = (struct meeting_rank){.hub = hub, .rank = i};
        assert_int_equal(pthread_create(&m[i].thread, NULL, meeting_main, &m[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(m[i].thread, NULL);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(m[i].rc, 0);
        for (int root = 0; root < RANKS; root++) {
            char want[32];
            snprintf(want, sizeof want, "from %d", root);
            assert_string_equal(m[i].seen[root], want);
        }
    }
    hub_destroy(&hub);
}

static void test_meeting_misses_a_rank(void **state) {
    (void)state;
    struct hub *hub = hub_create(2);
    struct collective_source under = {&collective_threads_kind, hub, 0, 2, false};
    struct ring_bootstrap meeting = {0};
    char bytes[8] = "x";
    error_quiet(1);
    assert_int_equal(ring_bootstrap_open(&meeting, &under, 0.05), 0);
    assert_int_equal(ring_bootstrap_broadcast(&meeting, 0, bytes, sizeof bytes), -1);
    assert_non_null(strstr(error_last(), "rank 1"));
    error_quiet(0);
    ring_bootstrap_close(&meeting);
    hub_destroy(&hub);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_needs_cuda),
        cmocka_unit_test(test_meeting_shares),
        cmocka_unit_test(test_meeting_misses_a_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
