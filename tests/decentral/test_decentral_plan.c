// The plan of every primitive: pieces cover what is summed, what one rank sends in a step is what the other
// receives, the bytes of all steps are the volume, and that is the formula's.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "decentral/collective/collective_plan.h"

#define RANKS 5

static struct collective_call call_of(enum collective_primitive p, size_t count, enum dtype dt, int root) {
    return (struct collective_call){.primitive = p, .dt = dt, .root = root, .count = count};
}

// Every element of what is summed belongs to exactly one rank, in rank order.
static void test_pieces_cover(void **state) {
    (void)state;
    const size_t counts[] = {0, 1, 2, 7, 1000, 4097};
    for (enum collective_primitive what = 0; what < COLLECTIVE_PRIMITIVES; what++)
        for (size_t n = 0; n < 6 && collective_reduces(what); n++)
            for (int size = 1; size <= RANKS; size++) {
                struct collective_call c = call_of(what, counts[n], DT_BF16, size - 1);
                struct collective_plan p = collective_plan_of(&c, 0, size);
                size_t total = p.row->n_sent ? counts[n] * (size_t)size : counts[n], at = 0;
                for (int i = 0; i < size; i++) {
                    struct collective_span piece = collective_piece(&p, i);
                    if (piece.count == 0) continue;
                    assert_int_equal(piece.at, at);
                    at += piece.count;
                }
                assert_int_equal(at, total);
            }
}

static void test_chunks_cover(void **state) {
    (void)state;
    struct collective_call c = call_of(COLLECTIVE_REDUCE_SCATTER, 1000, DT_BF16, 0);
    char staging[2 * 3 * 512], recv[2000], send[4 * 2000];
    const void *inputs[4];
    c.send = send;
    c.recv = recv;
    struct collective_staging_room room = {.at = staging, .bytes = sizeof staging};
    assert_int_equal(collective_slot(sizeof staging, 4, DT_BF16), 512);  // three peers, 512 elements each
    struct collective_plan p = collective_plan_steps(&c, 2, 4, &room);
    assert_int_equal(p.buffers, 2);
    assert_int_equal(p.slot, 256);
    assert_int_equal(p.steps, 4);
    size_t done = 0;
    for (size_t j = 0; j < p.steps; j++) {
        struct reduce_args sum = collective_step_sum(&p, j, inputs);
        assert_int_equal(sum.n, j < 3 ? 256 : 1000 - 3 * 256);
        assert_ptr_equal(sum.out, recv + 2 * done);
        for (int i = 0; i < 4; i++)  // peers' chunks out of the buffers in turn, the own one in place
            assert_ptr_equal(inputs[i], i == 2 ? send + 2 * (2000 + done)
                                               : staging + 512 * (i < 2 ? i : 2) + 3 * 512 * (j % 2));
        done += (size_t)sum.n;
    }
    assert_int_equal(done, 1000);
    assert_int_equal(collective_step_sum(&p, 4, inputs).n, 0);
    assert_int_equal(collective_slot(0, 4, DT_BF16), 0);  // no staging: refused
    assert_int_equal(collective_slot(3 * 255, 4, DT_F32), 0);
    c.count = 0;
    assert_int_equal(collective_plan_steps(&c, 2, 4, &room).steps, 0);
    p = collective_plan_steps(&c, 2, 4, &room);
    assert_int_equal(collective_actions(&p), 0);
}

// A small operation travels whole, through all of the staging; the least staging has one buffer.
static void test_small_pieces_are_not_cut(void **state) {
    (void)state;
    static char staging[3 * 512];
    struct collective_call c = call_of(COLLECTIVE_REDUCE_SCATTER, 200, DT_BF16, 0);
    struct collective_staging_room room = {.at = staging, .bytes = sizeof staging, .whole_bytes = 400};
    struct collective_plan p = collective_plan_steps(&c, 2, 4, &room);
    assert_int_equal(p.buffers, 1);
    assert_int_equal(p.steps, 1);
    room.whole_bytes = 399;
    p = collective_plan_steps(&c, 2, 4, &room);
    assert_int_equal(p.buffers, 2);
    assert_int_equal(p.steps, 2);
    c.count = 257;  // does not fit as a whole
    room.whole_bytes = 4000;
    p = collective_plan_steps(&c, 2, 4, &room);
    assert_int_equal(p.buffers, 2);
    assert_int_equal(p.steps, 3);
    room.bytes = 3 * 256;
    p = collective_plan_steps(&c, 2, 4, &room);
    assert_int_equal(p.buffers, 1);
    assert_int_equal(p.steps, 3);
}

// ---------------------------------------------------------------- actions
// Plays a plan's actions as an engine does. Every step begins, ends and is summed once, in this order; what a chunk lies
// in is written only while nothing waits there to be summed, and between the beginning and the end of an exchange
// nothing reads it. Returns how many sums had an exchange under way beside them.
#define SLOTS 64
static size_t play(const struct collective_plan *p) {
    enum { UNTOUCHED, COMING, THERE, SUMMED } state[SLOTS] = {UNTOUCHED};
    long holds[2] = {-1, -1};  // the chunk in each buffer that is not summed yet
    size_t beside = 0, under_way = 0;
    assert_true(p->steps <= SLOTS);
    for (size_t i = 0; i < collective_actions(p); i++) {
        struct collective_action a = collective_action(p, i);
        bool chunk = a.step < p->chunks;
        size_t buffer = chunk ? a.step % p->buffers : 0;
        assert_true(a.step < p->steps);
        if (a.what == ACTION_BEGIN) {
            assert_int_equal(state[a.step], UNTOUCHED);
            assert_int_equal(under_way, 0);  // engines have one exchange under way
            for (size_t j = 0; j < a.step; j++) assert_true(state[j] == SUMMED || (chunk && p->buffers == 2));
            if (chunk) assert_int_equal(holds[buffer], -1);
            if (chunk) holds[buffer] = (long)a.step;
            state[a.step] = COMING;
            under_way = 1;
        } else if (a.what == ACTION_END) {
            assert_int_equal(state[a.step], COMING);
            state[a.step] = chunk ? THERE : SUMMED;
            under_way = 0;
        } else {
            assert_true(chunk && state[a.step] == THERE);
            assert_int_equal(holds[buffer], a.step);
            holds[buffer] = -1;
            state[a.step] = SUMMED;
            beside += under_way;
        }
    }
    for (size_t j = 0; j < p->steps; j++) assert_int_equal(state[j], SUMMED);
    return beside;
}

// With two buffers every sum but the last has the next chunk's exchange beside it; with one, none.
static void test_a_buffer_is_free_before_it_is_written(void **state) {
    (void)state;
    static char staging[4 * 4096];
    const size_t counts[] = {0, 1, 128, 129, 300, 1001, 4097};
    for (enum collective_primitive what = 0; what < COLLECTIVE_PRIMITIVES; what++)
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
            for (int size = 1; size <= RANKS; size++)
                for (size_t room_bytes = 256; room_bytes <= 1024; room_bytes *= 2) {
                    struct collective_call c = call_of(what, counts[n], DT_BF16, 0);
                    struct collective_staging_room room = {staging, (size_t)(size - 1) * room_bytes, 0};
                    struct collective_plan p = collective_plan_steps(&c, size - 1, size, &room);
                    size_t beside = play(&p);
                    bool both = p.row->result != RESULT_MOVED && p.buffers == 2 && p.chunks > 0;
                    assert_int_equal(beside, both ? p.chunks - 1 : 0);
                }
}

// Chunks of the two buffers do not overlap, nor do peers' in one.
static void test_buffers_lie_apart(void **state) {
    (void)state;
    static char staging[4 * 1024], send[RANKS * 2002], recv[2002];
    struct collective_call c = call_of(COLLECTIVE_REDUCE_SCATTER, 1001, DT_BF16, 0);
    struct collective_staging_room room = {staging, sizeof staging, 0};
    c.send = send;
    c.recv = recv;
    for (int rank = 0; rank < RANKS; rank++) {
        struct collective_plan p = collective_plan_steps(&c, rank, RANKS, &room);
        char *last = NULL;
        for (size_t step = 0; step < 2; step++)
            for (int i = 0; i < RANKS; i++) {
                if (i == rank) continue;
                struct collective_transfer t = collective_step(&p, step, i);
                char *at = t.recv;
                assert_true(!last || at >= last);
                last = at + t.recv_bytes;
                assert_true(at >= staging && last <= staging + sizeof staging);
                assert_ptr_equal(collective_step(&p, step + 2, i).recv, at);  // the same buffer again
            }
    }
}

// The result of staging_bytes is enough for one chunk, or for chunks of its maximum.
static void test_staging(void **state) {
    (void)state;
    assert_true(collective_slot(collective_staging_bytes(5, 12345, DT_F32, 1 << 20), 5, DT_F32) >= 12345);
    assert_int_equal(collective_staging_bytes(5, 1 << 20, DT_F32, 4096), 4 * 4096);
    assert_int_equal(collective_staging_bytes(1, 12345, DT_F32, 4096), 0);
}

// The call that meets a rank's own on its peer: send and recv meet each other.
static struct collective_call met_by(struct collective_call c, int rank) {
    if (c.primitive != COLLECTIVE_SEND && c.primitive != COLLECTIVE_RECV) return c;
    c.primitive = c.primitive == COLLECTIVE_SEND ? COLLECTIVE_RECV : COLLECTIVE_SEND;
    c.peer = rank;
    return c;
}

// Counts that cut evenly and do not, staging for a chunk of 64 elements.
static void test_both_ends_of_a_step_agree(void **state) {
    (void)state;
    static char send[RANKS * 1001 * 2], recv[RANKS * 1001 * 2], staging[4 * 512];
    for (enum collective_primitive what = 0; what < COLLECTIVE_PRIMITIVES; what++)
        for (int size = 2; size <= RANKS; size++)
            for (int rank = 0; rank < size; rank++) {
                struct collective_call c = call_of(what, 1001, DT_BF16, 1);
                struct collective_volume all = {0};
                c.send = send;
                c.recv = recv;
                c.peer = (rank + 1) % size;
                struct collective_staging_room room = {staging, (size_t)(size - 1) * 512, 0};
                struct collective_plan p = collective_plan_steps(&c, rank, size, &room);
                for (size_t j = 0; j < p.steps; j++)
                    for (int i = 0; i < size; i++) {
                        if (i == rank || (collective_rows[what].senders >= HOLDER_CALLER && i != c.peer))
                            continue;
                        struct collective_call theirs = met_by(c, rank);
                        struct collective_plan q = collective_plan_steps(&theirs, i, size, &room);
                        struct collective_transfer out = collective_step(&p, j, i);
                        struct collective_transfer in = collective_step(&q, j, rank);
                        assert_int_equal(q.steps, p.steps);
                        assert_int_equal(out.send_bytes, in.recv_bytes);
                        assert_int_equal(out.recv_bytes, in.send_bytes);
                        all.sent += out.send_bytes;
                        all.received += out.recv_bytes;
                    }
                struct collective_volume v = collective_volume(&p);
                assert_int_equal(all.sent, v.sent);
                assert_int_equal(all.received, v.received);
            }
}

// Everything sent is received, and the totals are the formulas'.
static void test_volumes(void **state) {
    (void)state;
    for (enum collective_primitive what = 0; what < COLLECTIVE_PRIMITIVES; what++) {
        if (what == COLLECTIVE_SEND || what == COLLECTIVE_RECV) continue;
        bool rooted = collective_rooted(what);
        struct collective_call c = call_of(what, 1001, DT_BF16, rooted ? 1 : 0);
        size_t out = 0, in = 0;
        for (int r = 0; r < 3; r++) {
            struct collective_plan p = collective_plan_of(&c, r, 3);
            struct collective_volume v = collective_volume(&p);
            out += v.sent;
            in += v.received;
        }
        assert_int_equal(out, in);
        size_t each = 1001 * 2, want = what == COLLECTIVE_BARRIER ? 0 : rooted ? 2 * each : 6 * each;
        if (what == COLLECTIVE_ALL_REDUCE) want = 4 * each;  // 2 (N-1)/N of the buffer, on each of N
        assert_int_equal(out, want);
    }
    struct collective_call s = call_of(COLLECTIVE_SEND, 10, DT_F64, 0),
                           r = call_of(COLLECTIVE_RECV, 10, DT_F64, 0);
    s.peer = 1;
    struct collective_plan ps = collective_plan_of(&s, 0, 2), pr = collective_plan_of(&r, 1, 2);
    assert_int_equal(collective_volume(&ps).sent, 80);
    assert_int_equal(collective_volume(&ps).received, 0);
    assert_int_equal(collective_volume(&pr).sent, 0);
    assert_int_equal(collective_volume(&pr).received, 80);
    struct collective_call a = call_of(COLLECTIVE_ALL_REDUCE, 1001, DT_BF16, 0);
    struct collective_plan pa = collective_plan_of(&a, 0, 4);
    assert_int_equal(collective_native_volume(&pa).sent, 2 * 3 * 2002 / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_cover),
        cmocka_unit_test(test_chunks_cover),
        cmocka_unit_test(test_small_pieces_are_not_cut),
        cmocka_unit_test(test_a_buffer_is_free_before_it_is_written),
        cmocka_unit_test(test_buffers_lie_apart),
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_both_ends_of_a_step_agree),
        cmocka_unit_test(test_volumes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
