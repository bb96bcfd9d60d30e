// ZeRO stages 0-3 over collectives of threads: bits, bytes, bounds and errors against a scalar reference.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "decentral/collective/hub.h"
#include "decentral/mpi/mpi_engine.h"
#include "shared/core/error.h"
#include "tests/decentral/zero_cases.h"

#define MAX_RANKS 4

struct ring_thread {
    const struct zero_case *c;
    const struct zero_reference *ref;
    struct collective_source source;
    int (*body)(struct ring_thread *t);
    pthread_barrier_t *start;  // of all ranks
    char error[600];
    int rc;
    pthread_t thread;
};

static void assert_mentions(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not mention \"%s\"", text, part);
}

static void *ring_main(void *arg) {
    struct ring_thread *t = arg;
    error_quiet(1);
    error_clear();
    t->rc = t->body(t);
    snprintf(t->error, sizeof t->error, "%s", error_last());
    return NULL;
}

static void run_ring(struct ring_thread *t, const struct zero_case *c, int (*body)(struct ring_thread *)) {
    struct hub *hub = hub_create(c->world);
    struct zero_reference *ref = zero_reference_create(c);
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)c->world);
    for (int i = 0; i < c->world; i++) {
        t[i] = (struct ring_thread){.c = c, .ref = ref, .body = body, .start = &start};
        t[i].source = (struct collective_source){&collective_threads_kind, hub, i, c->world, false};
        assert_int_equal(pthread_create(&t[i].thread, NULL, ring_main, &t[i]), 0);
    }
    for (int i = 0; i < c->world; i++) pthread_join(t[i].thread, NULL);
    pthread_barrier_destroy(&start);
    zero_reference_destroy(&ref);
    hub_destroy(&hub);
}

static int body_train(struct ring_thread *t) { return zero_case_rank(t->c, t->ref, &t->source); }

static void train_all(struct zero_case c) {
    struct ring_thread t[MAX_RANKS];
    for (c.stage = 0; c.stage < 4; c.stage++) {
        for (c.world = 1; c.world <= MAX_RANKS; c.world++) {
            run_ring(t, &c, body_train);
            for (int i = 0; i < c.world; i++) {
                if (t[i].rc) fail_msg("zero:%d, rank %d of %d: %s", c.stage, i, c.world, t[i].error);
            }
        }
    }
}

// ---------------------------------------------------------------- bits, bytes, views

static void test_fp32_equals_the_reference(void **state) {
    (void)state;
    train_all((struct zero_case){.dtype = DT_F32, .steps = 5, .micro = 1});
}

static void test_bf16_equals_the_reference(void **state) {
    (void)state;
    train_all((struct zero_case){.dtype = DT_BF16, .steps = 5, .micro = 1, .tied = true});
}

static void test_fp16_equals_the_reference(void **state) {
    (void)state;
    train_all((struct zero_case){.dtype = DT_F16, .steps = 5, .micro = 1});
}

static void test_accumulation_equals_the_reference(void **state) {
    (void)state;
    train_all((struct zero_case){.dtype = DT_BF16, .steps = 3, .micro = 3, .tied = true});
    train_all((struct zero_case){.dtype = DT_F32, .steps = 3, .micro = 2});
}

static void test_without_overlap(void **state) {
    (void)state;
    train_all((struct zero_case){.dtype = DT_BF16, .steps = 3, .micro = 2, .tied = true, .no_overlap = true});
}

// 1-bit Adam: a skip in the warm-up or behind it, gradients that overflow in their sum alone, every number of ranks.
static void test_onebit_equals_the_reference(void **state) {
    (void)state;
    for (int k = 0; k < 18; k++) {
        struct zero_case c = {
            .dtype = (enum dtype)(k % 3), .steps = 6, .micro = 1 + k / 3 % 2, .freeze = k < 9 ? 1 : 3};
        struct ring_thread t[MAX_RANKS];
        c.tied = k % 2;
        c.no_overlap = k == 4;
        for (c.world = 1; c.world <= MAX_RANKS; c.world++) {
            run_ring(t, &c, body_train);
            for (int i = 0; i < c.world; i++)
                if (t[i].rc) fail_msg("1-bit, case %d, rank %d of %d: %s", k, i, c.world, t[i].error);
        }
    }
}

static struct topology *open_ring(struct ring_thread *t, struct device **dev, struct stream **compute,
                                  double deadline_s) {
    dev_open(backend_find("cpu", &(const char *){NULL}), &(struct device_options){.threads = 1}, dev);
    *compute = stream_create(*dev, "compute");
    struct config config = zero_case_config(t->c);
    config.deadline_ms = (int64_t)(deadline_s * 1e3);
    struct zero_options o = {
        .config = &config, .layout = t->ref->layout, .dev = *dev, .compute = *compute, .source = &t->source};
    return zero_create(&o);
}

// However far ahead of use weights are gathered: the bits are the reference's, and bytes and memory as predicted.
static void test_any_depth_of_prefetch(void **state) {
    (void)state;
    static const struct unit_prefetch depths[] = {{.bounded = true},
                                                  {true, 1100, 0, false},
                                                  {true, INT64_MAX, 0, false},
                                                  {true, INT64_MAX, 4000, false}};
    struct ring_thread t[MAX_RANKS];
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (int tied = 0; tied < 2; tied++) {
            struct zero_case c = {.world = 3, .stage = 3, .dtype = DT_BF16, .steps = 3, .micro = 2};
            c.tied = tied;
            c.prefetch = depths[i];
            run_ring(t, &c, body_train);
            for (int r = 0; r < c.world; r++)
                if (t[r].rc) fail_msg("depth %zu, rank %d of %d: %s", i, r, c.world, t[r].error);
        }
}

// The bytes moved when unit 0 is in use and unit 1 was hinted at.
static int body_ahead(struct ring_thread *t) {
    struct device *dev;
    struct stream *compute;
    struct unit_view view;
    struct topology *z = open_ring(t, &dev, &compute, 60);
    int rc = topology_acquire(z, 0, PASS_FORWARD, &view);
    topology_prefetch(z, 1, PASS_FORWARD);
    rc |= topology_finish(z);
    uint64_t want = 0;
    for (int u = 0; u < zero_case_slots(t->c, t->ref->layout); u++)
        want += (uint64_t)(t->c->world - 1) * (uint64_t)unit_shard(t->ref->layout, u) * 2;
    if (atomic_load(&z->wire.payload_received) != want) rc = -1;
    topology_destroy(&z);
    stream_destroy(&compute);
    dev_close(&dev);
    return rc;
}

static void test_a_deeper_prefetch_gathers_earlier_and_needs_more(void **state) {
    (void)state;
    static const struct {
        struct unit_prefetch prefetch;
        int slots;
    } depths[] = {{{true, 0, 0, false}, 1},
                  {{0}, 2},
                  {{true, 1, 0, false}, 2},
                  {{true, INT64_MAX, 0, false}, ZERO_CASE_UNITS}};
    struct ring_thread t[MAX_RANKS];
    size_t last = 0;
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        struct zero_case c = {.world = 2, .stage = 3, .dtype = DT_BF16, .micro = 1};
        c.prefetch = depths[i].prefetch;
        run_ring(t, &c, body_ahead);
        for (int r = 0; r < 2; r++)
            if (t[r].rc) fail_msg("depth %zu, rank %d: %s", i, r, t[r].error);
        struct layout *l = zero_case_layout(2, false);
        struct collective_source src = {&collective_threads_kind, NULL, 0, 2, false};
        const struct config config = zero_case_config(&c);
        struct zero_options o = {.config = &config, .layout = l, .source = &src};
        struct topology_memory mem;
        struct wire_prediction wire;
        assert_int_equal(zero_case_slots(&c, l), depths[i].slots);
        assert_int_equal(zero_predict(&o, &mem, &wire), 0);
        if (i == 2)
            assert_int_equal(mem.predicted_bytes[MEM_COMM], last);
        else
            assert_true(mem.predicted_bytes[MEM_COMM] > last);
        last = mem.predicted_bytes[MEM_COMM];
        layout_destroy(&l);
    }
}

// The cases above are worth something: clipping was on, steps were skipped for the reasons meant, and the
// order of ranks matters to the bits.
static void test_the_reference_skips_and_clips(void **state) {
    (void)state;
    struct zero_case c = {.world = 3, .dtype = DT_F16, .steps = 5, .micro = 1};
    struct zero_reference *ref = zero_reference_create(&c);
    static const bool skipped[5] = {false, true, false, true, false};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ref->stats[i].skipped, skipped[i]);
        if (!skipped[i]) assert_true(ref->stats[i].grad_norm > 0);
        int same = memcmp(ref->weights[i][1], ref->weights[i + 1][1], 512) == 0;
        assert_int_equal(same, skipped[i]);
    }
    zero_reference_destroy(&ref);
    c.dtype = DT_F32;
    ref = zero_reference_create(&c);
    assert_true(ref->stats[0].grad_norm > (double)ZERO_CASE_CLIP);
    assert_true(ref->stats[1].skipped && !ref->stats[3].skipped);
    int64_t n = ref->layout->units[1].n_pad;
    char *grads[8], *swapped[8];
    float *a = calloc((size_t)n, 4), *b = calloc((size_t)n, 4);
    for (int r = 0; r < 3; r++) {
        swapped[2 - r] = grads[r] = calloc((size_t)n, 4);
        zero_reference_backward(&c, ref->layout, r, 0, 0, 1, false, grads[r]);
    }
    zero_reference_add_ranks(&c, grads, n, a);
    zero_reference_add_ranks(&c, swapped, n, b);
    assert_memory_not_equal(a, b, (size_t)n * 4);
    for (int r = 0; r < 3; r++) free(grads[r]);
    free(a);
    free(b);
    zero_reference_destroy(&ref);
}

// ---------------------------------------------------------------- predictions

// The textbook's row: 7.5e9 parameters, 64 ranks, 16-bit, Adam: 120, 31.4, 16.6, 1.9 GB.
static void test_textbook_memory(void **state) {
    (void)state;
    static const double fp16_gb[4] = {120.0, 31.4, 16.6, 1.9};
    struct unit units[2] = {{.name = "a", .count = 1}, {.name = "b", .count = 1}};
    struct layout l = {.count = 2, .units = units};
    for (int u = 0; u < 2; u++)
        units[u].tensors[0] = (struct tensor){.name = "w", .shape = {62500, 60000}, .dims = 2};
    layout_finish(&l, 64);
    assert_int_equal(l.params, 7500000000);
    struct hub *hub = hub_create(64);
    struct collective_source src = {&collective_threads_kind, hub, 63, 64, false};
    for (int stage = 0; stage < 4; stage++) {
        struct topology_memory mem;
        struct wire_prediction wire;
        const struct config config =
            zero_case_config(&(struct zero_case){.world = 64, .stage = stage, .dtype = DT_BF16});
        struct zero_options o = {.config = &config, .layout = &l, .source = &src};
        assert_int_equal(zero_predict(&o, &mem, &wire), 0);
        double gb = (double)mem.formula_bytes / 1e9;
        assert_true(fabs(gb - fp16_gb[stage]) < 0.05);
        // The ledger agrees with the textbook up to padding; slots are on top, in a class of their own.
        double ledger = 0;
        for (int k = MEM_PARAMETER; k <= MEM_OPTIMIZER; k++) ledger += (double)mem.predicted_bytes[k];
        assert_true(fabs(ledger / (double)mem.formula_bytes - 1) < 1e-5);
        uint64_t volume = (uint64_t)l.padded * 2 / 64 * 63;
        // Both units lie in the slots at the turn: less than the textbook's 3U.
        assert_int_equal(wire.sent_per_step, 2 * volume);
        assert_int_equal(wire.received_per_step, wire.sent_per_step);
    }
    hub_destroy(&hub);
}

static void test_fp32_formula_counts_no_master(void **state) {
    (void)state;
    static const double per_parameter[4] = {16, 8 + 8 / 4.0, 4 + 12 / 4.0, 16 / 4.0};
    struct layout *l = zero_case_layout(4, false);
    struct hub *hub = hub_create(4);
    struct collective_source src = {&collective_threads_kind, hub, 0, 4, false};
    for (int stage = 0; stage < 4; stage++) {
        struct topology_memory mem;
        struct wire_prediction wire;
        const struct config config =
            zero_case_config(&(struct zero_case){.world = 4, .stage = stage, .dtype = DT_F32});
        struct zero_options o = {.config = &config, .layout = l, .source = &src};
        assert_int_equal(zero_predict(&o, &mem, &wire), 0);
        assert_true(fabs((double)mem.formula_bytes - per_parameter[stage] * (double)l->params) < 1);
        assert_int_equal(mem.predicted_bytes[MEM_MASTER], 0);
    }
    hub_destroy(&hub);
    layout_destroy(&l);
}

static void test_impossible_options_are_refused(void **state) {
    (void)state;
    error_quiet(1);
    struct layout *l = zero_case_layout(2, false);
    struct hub *hub = hub_create(2), *three = hub_create(3);
    struct collective_source src = {&collective_threads_kind, hub, 0, 2, false},
                             other = {&collective_threads_kind, three, 0, 3, false};
    struct config config = zero_case_config(&(struct zero_case){.world = 2, .stage = 1, .dtype = DT_BF16});
    struct zero_options o = {.config = &config, .layout = l, .source = &src};
    struct topology_memory mem;
    struct wire_prediction wire;
    assert_int_equal(zero_predict(&o, &mem, &wire), 0);
    o.source = &other;
    assert_int_equal(zero_predict(&o, &mem, &wire), -1);
    assert_non_null(strstr(error_last(), "2 ranks"));
    struct collective_source mpi = {&collective_mpi_kind, NULL, 0, 2, false};
    o.source = &mpi;
    assert_int_equal(zero_predict(&o, &mem, &wire), 0);
    config.reduce_native = true;
    assert_int_equal(zero_predict(&o, &mem, &wire), -1);
    assert_non_null(strstr(error_last(), "natively"));
    config.dtype = DT_F32;
    assert_int_equal(zero_predict(&o, &mem, &wire), 0);
    hub_destroy(&hub);
    hub_destroy(&three);
    layout_destroy(&l);
    error_quiet(0);
}

// ---------------------------------------------------------------- failures

// Rank 1 takes no part in the step; or gives up without a deadline.
static int body_lost(struct ring_thread *t, double deadline_s) {
    struct device *dev;
    struct stream *compute;
    struct topology *z = open_ring(t, &dev, &compute, deadline_s);
    pthread_barrier_wait(t->start);
    double loss_sum = 1;
    struct step_input in = {.step = 41, .loss_scale = 1, .loss_sum = &loss_sum, .loss_tokens = 1};
    struct step_stats out;
    int rc = -1;
    if (t->source.rank != 1)
        rc = topology_step(z, &in, &out);
    else if (deadline_s == 0)
        topology_abort(z, "rank 1 was told to stop");
    topology_destroy(&z);
    stream_destroy(&compute);
    dev_close(&dev);
    return rc;
}

static int body_missing(struct ring_thread *t) { return body_lost(t, 1); }
static int body_stopped(struct ring_thread *t) { return body_lost(t, 0); }

static void test_a_lost_rank_ends_the_step_of_all(void **state) {
    (void)state;
    struct ring_thread t[MAX_RANKS];
    for (int stage = 0; stage < 4; stage += 3) {
        struct zero_case c = {.world = 3, .stage = stage, .dtype = DT_BF16, .micro = 1};
        run_ring(t, &c, body_missing);
        for (int i = 0; i < 3; i += 2) {
            assert_int_equal(t[i].rc, -1);
            assert_mentions(t[i].error, "step 41");
            assert_mentions(t[i].error, "rank 1 did not come");
        }
        run_ring(t, &c, body_stopped);
        for (int i = 0; i < 3; i += 2) {
            assert_int_equal(t[i].rc, -1);
            assert_mentions(t[i].error, "rank 1 was told to stop");
        }
    }
}

// Unit 2 while unit 0 still holds the slot of the even ones.
static int body_slot_in_use(struct ring_thread *t) {
    struct device *dev;
    struct stream *compute;
    struct unit_view view;
    struct topology *z = open_ring(t, &dev, &compute, 60);
    int rc =
        topology_acquire(z, 0, PASS_FORWARD, &view) == 0 && topology_acquire(z, 2, PASS_FORWARD, &view) == -1
            ? 0
            : -1;
    topology_destroy(&z);
    stream_destroy(&compute);
    dev_close(&dev);
    return rc;
}

static void test_a_slot_in_use_is_not_given_away(void **state) {
    (void)state;
    struct ring_thread t[MAX_RANKS];
    struct zero_case c = {.world = 2, .stage = 3, .dtype = DT_BF16, .micro = 1};
    run_ring(t, &c, body_slot_in_use);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(t[i].rc, 0);
        assert_non_null(strstr(t[i].error, "unit embedding still holds its slot"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32_equals_the_reference),
        cmocka_unit_test(test_bf16_equals_the_reference),
        cmocka_unit_test(test_fp16_equals_the_reference),
        cmocka_unit_test(test_accumulation_equals_the_reference),
        cmocka_unit_test(test_without_overlap),
        cmocka_unit_test(test_onebit_equals_the_reference),
        cmocka_unit_test(test_any_depth_of_prefetch),
        cmocka_unit_test(test_a_deeper_prefetch_gathers_earlier_and_needs_more),
        cmocka_unit_test(test_the_reference_skips_and_clips),
        cmocka_unit_test(test_textbook_memory),
        cmocka_unit_test(test_fp32_formula_counts_no_master),
        cmocka_unit_test(test_impossible_options_are_refused),
        cmocka_unit_test(test_a_lost_rank_ends_the_step_of_all),
        cmocka_unit_test(test_a_slot_in_use_is_not_given_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
