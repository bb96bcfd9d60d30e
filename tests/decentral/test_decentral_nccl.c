// NCCL's collectives without a GPU: what moves where (pieces, chunks, bytes), the rendezvous, and the errors.
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

static struct collective_call call_of(enum collective_op op, size_t count, enum dtype dt, int root) {
    return (struct collective_call){.op = op, .dt = dt, .root = root, .count = count};
}

// Every element of what is summed belongs to exactly one rank, in rank order.
static void test_pieces_cover(void **state) {
    (void)state;
    const enum collective_op ops[] = {COLLECTIVE_REDUCE, COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE_SCATTER};
    const size_t counts[] = {0, 1, 2, 7, 1000, 4097};
    for (size_t o = 0; o < 3; o++)
        for (size_t n = 0; n < 6; n++)
            for (int size = 1; size <= 5; size++) {
                struct collective_call c =
                    call_of(ops[o], counts[n], DT_BF16, ops[o] == COLLECTIVE_REDUCE ? size - 1 : -1);
                size_t total = ops[o] == COLLECTIVE_REDUCE_SCATTER ? counts[n] * (size_t)size : counts[n],
                       at = 0;
                for (int i = 0; i < size; i++) {
                    struct nccl_piece p = nccl_piece_of(&c, size, i);
                    if (p.end == p.begin) continue;
                    assert_int_equal(p.begin, at);
                    at = p.end;
                }
                assert_int_equal(at, total);
            }
}

static void test_chunks_cover(void **state) {
    (void)state;
    struct collective_call c = call_of(COLLECTIVE_REDUCE_SCATTER, 1000, DT_BF16, -1);
    size_t slot = nccl_slot(3 * 512, 4, DT_BF16);  // three peers, 256 elements each
    assert_int_equal(slot, 256);
    assert_int_equal(nccl_chunks(&c, 4, slot), 4);
    struct nccl_piece p = nccl_piece_of(&c, 4, 2);
    size_t sum = 0;
    for (size_t j = 0; j < 4; j++) sum += nccl_chunk(p, j * slot, slot);
    assert_int_equal(sum, 1000);
    assert_int_equal(nccl_chunk(p, 3 * slot, slot), 1000 - 3 * 256);
    assert_int_equal(nccl_chunk(p, 4 * slot, slot), 0);
    assert_int_equal(nccl_slot(0, 4, DT_BF16), 0);  // no staging: refused
    assert_int_equal(nccl_slot(3 * 255, 4, DT_F32), 0);
    c.count = 0;
    assert_int_equal(nccl_chunks(&c, 4, slot), 0);
}

static void test_staging(void **state) {
    (void)state;
    assert_int_equal(collective_nccl_staging_bytes(1, 1 << 20, DT_BF16), 0);
    assert_int_equal(collective_nccl_staging_bytes(4, 100, DT_BF16), 3 * 256);
    assert_int_equal(collective_nccl_staging_bytes(2, (size_t)1 << 30, DT_F32), (size_t)32 << 20);
    // What it gives is enough for one chunk, or for chunks of its maximum.
    assert_true(nccl_slot(collective_nccl_staging_bytes(5, 12345, DT_F32), 5, DT_F32) >= 12345);
}

// Everything sent is received, and the totals are the formulas'.
static void test_volumes(void **state) {
    (void)state;
    for (int op = 0; op < COLLECTIVE_OPS; op++) {
        if (op == COLLECTIVE_SEND || op == COLLECTIVE_RECV) continue;
        bool rooted = op == COLLECTIVE_BROADCAST || op == COLLECTIVE_SCATTER || op == COLLECTIVE_REDUCE ||
                      op == COLLECTIVE_GATHER;
        struct collective_call c = call_of((enum collective_op)op, 1001, DT_BF16, rooted ? 1 : -1);
        size_t out = 0, in = 0, sent, received;
        for (int r = 0; r < 3; r++) {
            nccl_volume(&c, r, 3, &sent, &received);
            out += sent;
            in += received;
        }
        assert_int_equal(out, in);
        size_t each = 1001 * 2, want = op == COLLECTIVE_BARRIER ? 0 : rooted ? 2 * each : 6 * each;
        if (op == COLLECTIVE_ALL_REDUCE) want = 4 * each;  // 2 (N-1)/N of the buffer, on each of N
        assert_int_equal(out, want);
    }
    size_t sent, received;
    struct collective_call s = call_of(COLLECTIVE_SEND, 10, DT_F64, 1),
                           r = call_of(COLLECTIVE_RECV, 10, DT_F64, 0);
    nccl_volume(&s, 0, 2, &sent, &received);
    assert_int_equal(sent, 80);
    assert_int_equal(received, 0);
    nccl_volume(&r, 1, 2, &sent, &received);
    assert_int_equal(sent, 0);
    assert_int_equal(received, 80);
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
    struct threads_hub *hub;
    int rank;
    pthread_t thread;
    char seen[RANKS][16];
    int rc;
};

static void *meeting_main(void *arg) {
    struct meeting_rank *m = arg;
    struct collective_source under = collective_source_threads(m->hub, m->rank);
    struct nccl_meeting *meeting = NULL;
    m->rc = nccl_meeting_open(&meeting, &under, 10);
    if (m->rc != 0) return NULL;
    struct nccl_rendezvous r = nccl_meeting_rendezvous(meeting);
    for (int root = 0; root < RANKS; root++) {
        snprintf(m->seen[root], sizeof m->seen[root], "from %d", m->rank);
        if (r.share(r.ctx, root, m->seen[root], sizeof m->seen[root]) != 0) m->rc = -1;
    }
    nccl_meeting_close(&meeting);
    return NULL;
}

static void test_meeting_shares(void **state) {
    (void)state;
    struct meeting_rank m[RANKS];
    struct threads_hub *hub = threads_hub_create(RANKS);
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
    threads_hub_destroy(&hub);
}

static void test_meeting_misses_a_rank(void **state) {
    (void)state;
    struct threads_hub *hub = threads_hub_create(2);
    struct collective_source under = collective_source_threads(hub, 0);
    struct nccl_meeting *meeting = NULL;
    char bytes[8] = "x";
    error_quiet(1);
    assert_int_equal(nccl_meeting_open(&meeting, &under, 0.05), 0);
    struct nccl_rendezvous r = nccl_meeting_rendezvous(meeting);
    assert_int_equal(r.share(r.ctx, 0, bytes, sizeof bytes), -1);
    assert_non_null(strstr(error_last(), "rank 1"));
    error_quiet(0);
    nccl_meeting_close(&meeting);
    threads_hub_destroy(&hub);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_cover),
        cmocka_unit_test(test_chunks_cover),
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_volumes),
        cmocka_unit_test(test_needs_cuda),
        cmocka_unit_test(test_meeting_shares),
        cmocka_unit_test(test_meeting_misses_a_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
