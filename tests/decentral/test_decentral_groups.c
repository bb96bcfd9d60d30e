// Exchanges in groups of ranks: the plan of the legs without ranks, carried out on arrays and compared with a straight
// loop that follows the rule (docs/ring.md, Groups); then the ring over threads, with its reference.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "decentral/collective/collective_plan.h"
#include "decentral/collective/hub.h"
#include "decentral/collective/rank_liveness.h"
#include "shared/core/error.h"
#include "tests/decentral/zero_cases.h"

#define MOST  12  // ranks
#define COUNT 7   // elements of a block

static const struct {
    int size, group;
} cases[] = {{4, 2}, {6, 3}, {6, 2}, {12, 4}, {12, 3}, {4, 1}, {4, 4}, {5, 0}, {1, 1}};
#define CASES (sizeof cases / sizeof *cases)

struct world {
    int size, group;
    uint16_t buf[MOST][MOST * COUNT], out[MOST][MOST * COUNT];  // bf16
};

static struct collective_call call_of(struct world *w, enum collective_primitive what, int rank) {
    bool sums = what == COLLECTIVE_REDUCE_SCATTER;
    return (struct collective_call){.primitive = what,
                                    .send = w->buf[rank],
                                    .recv = sums ? (void *)w->out[rank] : (void *)w->out[rank],
                                    .count = COUNT,
                                    .dt = DT_BF16};
}

// The effects of the call's legs, one leg of all ranks after the other: pieces move from senders' buffers to
// receivers'.
static void carry_out(struct world *w, enum collective_primitive what) {
    struct collective_call first = call_of(w, what, 0);
    static uint16_t before[2][MOST][MOST * COUNT];
    for (int k = 0; k < collective_legs(&first, w->size, w->group); k++) {
        memcpy(before[0], w->buf, sizeof w->buf);
        memcpy(before[1], w->out, sizeof w->out);
        for (int rank = 0; rank < w->size; rank++) {
            struct collective_call call = call_of(w, what, rank);
            struct collective_call mine = collective_leg(&call, rank, w->size, w->group, k);
            struct collective_plan p = collective_plan_of(&mine, rank, w->size);
            struct collective_team team = collective_team_of(&mine, w->size);
            assert_int_equal(collective_member(team, p.rank), rank);
            for (int e = 0; e < COUNT; e++) {
                float sum = 0;
                for (int i = 0; i < p.size; i++) {
                    int peer = collective_member(team, i);
                    struct collective_call whole = call_of(w, what, peer);
                    struct collective_call theirs = collective_leg(&whole, peer, w->size, w->group, k);
                    bool in_out = (const char *)theirs.send >= (const char *)w->out;
                    size_t at = (size_t)((const char *)theirs.send -
                                         (in_out ? (const char *)w->out : (const char *)w->buf)) /
                                2;
                    float x =
                        dtype_load(DT_BF16, before[in_out], at + collective_piece(&p, p.rank).at + (size_t)e);
                    sum = i ? sum + x : x;
                    if (what == COLLECTIVE_ALL_GATHER)
                        dtype_store(DT_BF16, mine.recv, collective_recv_offset(&p, i) + (size_t)e, x);
                }
                if (what == COLLECTIVE_REDUCE_SCATTER) dtype_store(DT_BF16, mine.recv, (size_t)e, sum);
            }
        }
    }
}

static float value(int rank, int block, int e) {
    struct philox_out r = philox((uint64_t)rank, (uint64_t)block, (uint64_t)e);
    return ldexpf((float)((int)(r.v[0] % 2001) - 1000), (int)(r.v[1] % 9) - 4);
}

static struct world *world_of(size_t i) {
    struct world *w = calloc(1, sizeof *w);
    w->size = cases[i].size;
    w->group = cases[i].group;
    for (int r = 0; r < w->size; r++)
        for (int b = 0; b < w->size; b++)
            for (int e = 0; e < COUNT; e++)
                dtype_store(DT_BF16, w->buf[r], (size_t)(b * COUNT + e), value(r, b, e));
    return w;
}

static float rounded(float x) {
    uint16_t y;
    dtype_store(DT_BF16, &y, 0, x);
    return dtype_load(DT_BF16, &y, 0);
}

// The rule as one reads it.
static float by_the_rule(int size, int group, int block, int e) {
    float total = 0;
    for (int first = 0; first < size; first += group) {
        float sum = rounded(value(first, block, e));
        for (int r = first + 1; r < first + group; r++) sum += rounded(value(r, block, e));
        total = first ? total + rounded(sum) : rounded(sum);
    }
    return rounded(total);
}

static void test_sums_follow_the_rule(void **state) {
    (void)state;
    int other_bits = 0;
    for (size_t i = 0; i < CASES; i++) {
        struct world *w = world_of(i);
        carry_out(w, COLLECTIVE_REDUCE_SCATTER);
        for (int r = 0; r < w->size; r++)
            for (int e = 0; e < COUNT; e++) {
                float want = by_the_rule(w->size, w->group ? w->group : w->size, r, e);
                assert_true(dtype_load(DT_BF16, w->out[r], (size_t)e) == want);
                other_bits += want != by_the_rule(w->size, w->size, r, e);
            }
        free(w);
    }
    assert_true(other_bits > 0);  // or the order of sums would not be tested
}

static void test_gathers_bring_every_block(void **state) {
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct world *w = world_of(i);
        carry_out(w, COLLECTIVE_ALL_GATHER);
        for (int r = 0; r < w->size; r++)
            for (int b = 0; b < w->size; b++)
                assert_memory_equal(&w->out[r][b * COUNT], w->buf[b], COUNT * 2);
        free(w);
    }
}

// The pairs of an exchange, and its bytes: a rank still sends N-1 blocks, of which N/g-1 leave the group.
static void test_traffic(void **state) {
    (void)state;
    static const enum collective_primitive what[] = {COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALL_GATHER};
    for (size_t i = 0; i < 2 * CASES; i++) {
        int size = cases[i / 2].size, group = cases[i / 2].group;
        struct collective_call c = {.primitive = what[i % 2], .count = COUNT, .dt = DT_BF16};
        for (int rank = 0; rank < size; rank++) {
            struct collective_volume sum = {0}, across = {0}, all = {0};
            int messages = 0, messages_across = 0;
            for (int k = 0; k < collective_legs(&c, size, group); k++) {
                struct collective_call leg = collective_leg(&c, rank, size, group, k);
                struct collective_plan p = collective_plan_of(&leg, rank, size);
                struct collective_volume v = collective_volume(&p);
                all.sent += v.sent;
                all.received += v.received;
                messages += p.size - 1;
                if (leg.team.step > 1) messages_across += p.size - 1;
                for (int j = 0; j < p.size; j++) {
                    int peer = collective_member(collective_team_of(&leg, size), j);
                    if (peer == rank) continue;
                    struct collective_transfer m =
                        collective_plan_of(&leg, rank, size).row->result == RESULT_MOVED
                            ? collective_step(&p, 0, j)
                            : (struct collective_transfer){.send_bytes = COUNT * 2, .recv_bytes = COUNT * 2};
                    sum.sent += m.send_bytes;
                    sum.received += m.recv_bytes;
                    if (!group || peer / group == rank / group) continue;
                    across.sent += m.send_bytes;
                    across.received += m.recv_bytes;
                }
            }
            assert_int_equal(all.sent, sum.sent);
            assert_int_equal(all.received, sum.received);
            assert_int_equal(all.sent, (size - 1) * COUNT * 2);
            assert_int_equal(across.sent, group ? (size / group - 1) * COUNT * 2 : 0);
            assert_int_equal(across.received, across.sent);
            assert_int_equal(messages, size - 1);
            assert_int_equal(messages_across, group > 1 && group < size ? size / group - 1 : 0);
        }
    }
}

// ---------------------------------------------------------------- the ring
struct ring_thread {
    const struct zero_case *c;
    const struct zero_reference *ref;
    struct collective_source source;
    int rc;
    pthread_t thread;
};

// world: a hub of threads, or memory of one of processes.
static void *ring_main(void *arg) {
    struct ring_thread *t = arg;
    bool process = t->source.kind == &collective_shm_kind;
    struct rank_liveness *lives = rank_liveness_open(t->source.rank, t->source.size);
    struct hub *hub = process ? hub_join(t->source.world, t->source.rank, t->source.size, lives) : NULL;
    if (process) t->source.world = hub;
    t->rc = zero_case_rank(t->c, t->ref, &t->source);
    hub_destroy(&hub);
    rank_liveness_close(&lives);
    return NULL;
}

static void train_on(struct zero_case c, const struct collective_kind *kind, void *world) {
    struct ring_thread t[6];
    struct zero_reference *ref = zero_reference_create(&c);
    for (int i = 0; i < c.world; i++) {
        t[i] = (struct ring_thread){&c, ref, {kind, world, i, c.world, false}, 0, 0};
        assert_int_equal(pthread_create(&t[i].thread, NULL, ring_main, &t[i]), 0);
    }
    for (int i = 0; i < c.world; i++) pthread_join(t[i].thread, NULL);
    for (int i = 0; i < c.world; i++)
        if (t[i].rc) fail_msg("zero:%d, groups of %d, rank %d of %d", c.stage, c.group, i, c.world);
    zero_reference_destroy(&ref);
}

// By threads, and by ranks that share nothing but memory, as processes do.
static void train(struct zero_case c) {
    struct hub *hub = hub_create(c.world);
    size_t bytes = hub_bytes(c.world);
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    train_on(c, &collective_threads_kind, hub);
    train_on(c, &collective_shm_kind, memory);
    hub_destroy(&hub);
    munmap(memory, bytes);
}

static void test_every_stage_equals_the_reference(void **state) {
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        train((struct zero_case){
            .world = 4, .group = 2, .stage = stage, .dtype = DT_BF16, .steps = 5, .micro = 1, .tied = true});
        train((struct zero_case){
            .world = 6, .group = 3, .stage = stage, .dtype = DT_F32, .steps = 3, .micro = 2});
        train((struct zero_case){.world = 6,
                                 .group = 2,
                                 .stage = stage,
                                 .dtype = DT_F16,
                                 .steps = 5,
                                 .micro = 1,
                                 .no_overlap = stage == 3});
        train((struct zero_case){
            .world = 4, .group = 4, .stage = stage, .dtype = DT_BF16, .steps = 3, .micro = 1});
        train((struct zero_case){
            .world = 4, .group = 1, .stage = stage, .dtype = DT_BF16, .steps = 3, .micro = 1});
    }
}

static void test_what_cannot_be_is_refused(void **state) {
    (void)state;
    struct layout *l = zero_case_layout(4, false);
    struct collective_source source = {.kind = &collective_threads_kind, .size = 4};
    const struct config config =
        zero_case_config(&(struct zero_case){.world = 4, .dtype = DT_BF16, .group = 3});
    struct zero_options o = {.config = &config, .layout = l, .source = &source};
    struct topology_memory mem;
    struct wire_prediction wire;
    error_quiet(1);
    assert_int_equal(zero_predict(&o, &mem, &wire), -1);
    assert_non_null(strstr(error_last(), "4 ranks are not groups of 3"));
    error_quiet(0);
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_follow_the_rule),
        cmocka_unit_test(test_gathers_bring_every_block),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_every_stage_equals_the_reference),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
