// The members of a step: the scheduler's core of --elastic, without rounds and messages.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ps/agree/step_set.h"
#include "shared/core/error.h"

#define OWN 2

static struct step_set *set_of(int workers, int min, int shards) {
    struct step_set_options o = {.workers = workers, .min = min, .shards = shards, .own = OWN};
    scaler_init(&o.start.scaler, &o.scaler);
    return step_set_create(&o);
}

// Worker w has done its part of the open step.
static void part(struct step_set *s, int shards, int w) {
    step_set_reported(s, w);
    for (int i = 0; i < shards; i++) step_set_arrived(s, i, elastic_bit(w));
}

// With all there every step is everybody's, and the samples are those without --elastic.
static void test_all_there(void **state) {
    (void)state;
    struct step_set *s = set_of(3, 1, 2);
    for (int64_t t = 0; t < 4; t++) {
        for (int w = 2; w >= 0; w--) {
            assert_false(step_set_fix(s, 0));
            part(s, 2, w);
        }
        assert_true(step_set_fix(s, 0));
        assert_false(step_set_fix(s, 0));  // once
        assert_true(step_set_fixed(s) == 7);
        step_set_close(s, t == 1, true);
        const struct train_state *x = step_set_state(s);
        assert_int_equal(x->step, t + 1);
        assert_int_equal(x->handed_out, 3 * OWN * (t + 1));
        assert_int_equal(x->updates, t + (t < 1));
        assert_int_equal(x->samples, 3 * OWN * x->updates);
        assert_int_equal(x->skipped_in_a_row, t == 1);
        assert_true(step_set_members(s) == 7 && step_set_fixed(s) == 0);
    }
    step_set_destroy(&s);
}

// The first two are enough; the third one's part comes too late for the step, and in time for the next.
static void test_enough(void **state) {
    (void)state;
    struct step_set_options o = {.workers = 3, .min = 1, .needs = 2, .shards = 2, .own = OWN};
    struct step_set *s = step_set_create(&o);
    part(s, 2, 2);
    step_set_reported(s, 0);
    assert_false(step_set_fix(s, 0));
    part(s, 2, 0);
    assert_true(step_set_fix(s, 0));
    part(s, 2, 1);
    assert_false(step_set_fix(s, 0));
    assert_true(step_set_fixed(s) == 5);
    step_set_close(s, false, true);
    assert_int_equal(step_set_state(s)->samples, 2 * OWN);
    part(s, 2, 1);
    step_set_lost(s, 0);
    assert_false(step_set_fix(s, 0));
    step_set_lost(s, 2);
    assert_true(step_set_fix(s, 0));  // nobody else is left
    step_set_destroy(&s);
}

// Backup workers: no more than are needed, and of those that come at the same moment each is left out in turn.
static void test_exact(void **state) {
    (void)state;
    struct step_set_options o = {.workers = 3, .min = 1, .needs = 2, .exact = true, .shards = 1, .own = OWN};
    struct step_set *s = step_set_create(&o);
    static const uint64_t sets[] = {3, 6, 5, 3};
    for (int t = 0; t < 4; t++) {
        for (int w = 0; w < 3; w++) part(s, 1, w);
        assert_true(step_set_fix(s, 0) && step_set_fixed(s) == sets[t]);
        step_set_close(s, false, true);
    }
    step_set_destroy(&s);
}

// A quorum waits for others until its grace is over, or all have come; each step anew.
static void test_grace(void **state) {
    (void)state;
    struct step_set_options o = {.workers = 3, .min = 1, .needs = 1, .grace_s = 2, .shards = 1, .own = OWN};
    struct step_set *s = step_set_create(&o);
    assert_false(step_set_in_grace(s));
    part(s, 1, 2);
    assert_false(step_set_fix(s, 10));
    assert_true(step_set_in_grace(s));
    part(s, 1, 0);
    assert_false(step_set_fix(s, 11.9));
    assert_true(step_set_fix(s, 12) && step_set_fixed(s) == 5);
    assert_false(step_set_in_grace(s));
    step_set_close(s, false, true);
    assert_false(step_set_in_grace(s));
    part(s, 1, 1);
    assert_false(step_set_fix(s, 13));  // its grace begins
    part(s, 1, 0);
    part(s, 1, 2);
    assert_true(step_set_fix(s, 13.1) && step_set_fixed(s) == 7);
    step_set_destroy(&s);
}

static int64_t of_record(void *ctx, int worker, int64_t step) {
    (void)ctx;
    return worker == 1 + step % 2 ? 0 : -1;
}

// A step that is repeated has the set that was recorded, though others have come before.
static void test_recorded(void **state) {
    (void)state;
    struct step_set_options o = {
        .workers = 3, .min = 1, .needs = 1, .shards = 1, .own = OWN, .recorded = of_record};
    struct step_set *s = step_set_create(&o);
    for (int t = 0; t < 4; t++) {
        part(s, 1, 0);
        part(s, 1, 2 - t % 2);
        assert_false(step_set_fix(s, 0));
        part(s, 1, 1 + t % 2);
        assert_true(step_set_fix(s, 0) && step_set_fixed(s) == elastic_bit(1 + t % 2));
        step_set_close(s, false, true);
    }
    step_set_destroy(&s);
}

// A worker that is lost before all of it has come counts for no key, and nobody waits for it.
static void test_lost_in_the_middle(void **state) {
    (void)state;
    struct step_set *s = set_of(3, 2, 2);
    part(s, 2, 0);
    part(s, 2, 2);
    step_set_reported(s, 1);
    step_set_arrived(s, 0, elastic_bit(1));  // shard 1 lacks a gradient
    assert_false(step_set_fix(s, 0));
    assert_true(step_set_can_lose(s, 1));
    step_set_lost(s, 1);
    assert_true(step_set_fix(s, 0));
    assert_true(step_set_fixed(s) == 5);
    step_set_arrived(s, 1, elastic_bit(1));  // too late: the set is what it is
    assert_true(step_set_fixed(s) == 5);
    step_set_close(s, false, true);
    assert_true(step_set_members(s) == 5);
    assert_int_equal(step_set_state(s)->handed_out, 3 * OWN);  // its slice went with it
    assert_int_equal(step_set_state(s)->samples, 2 * OWN);     // two contributed
    // Fewer than MIN, or without worker 0: not borne.
    assert_false(step_set_can_lose(s, 2));
    assert_false(step_set_can_lose(s, 0));
    step_set_destroy(&s);
}

// A complete contribution counts, whatever happens to its sender, before and after the set is fixed.
static void test_complete_and_lost(void **state) {
    (void)state;
    struct step_set *s = set_of(3, 1, 1);
    part(s, 1, 1);
    step_set_lost(s, 1);
    part(s, 1, 0);
    assert_false(step_set_fix(s, 0));
    part(s, 1, 2);
    assert_true(step_set_fix(s, 0));
    assert_true(step_set_fixed(s) == 7);
    step_set_lost(s, 2);
    assert_true(step_set_fixed(s) == 7);
    step_set_close(s, false, true);
    assert_true(step_set_members(s) == 1);
    assert_int_equal(step_set_state(s)->samples, 3 * OWN);
    step_set_destroy(&s);
}

// A returning worker belongs to the next step, not to the one in progress.
static void test_join(void **state) {
    (void)state;
    struct step_set *s = set_of(3, 1, 1);
    assert_true(step_set_can_lose(s, 1) && step_set_can_lose(s, 2) && !step_set_can_lose(s, 0));
    step_set_lost(s, 1);
    part(s, 1, 0);
    part(s, 1, 2);
    assert_true(step_set_fix(s, 0));
    step_set_close(s, false, true);
    assert_true(step_set_members(s) == 5);
    step_set_join(s, 1);
    part(s, 1, 1);  // what is not a member's does not count
    part(s, 1, 0);
    part(s, 1, 2);
    assert_true(step_set_fix(s, 0));
    assert_true(step_set_fixed(s) == 5);
    step_set_close(s, false, true);
    assert_true(step_set_members(s) == 7);
    assert_int_equal(step_set_state(s)->handed_out, 5 * OWN);
    step_set_join(s, 1);
    step_set_lost(s, 1);  // before it was taken in
    step_set_close(s, false, true);
    assert_true(step_set_live(s) == 5);
    step_set_destroy(&s);
}

static void test_words(void **state) {
    (void)state;
    assert_true(elastic_all(64) == UINT64_MAX && elastic_all(3) == 7);
    assert_int_equal(elastic_index(0xb, 3), 2);
    assert_int_equal(elastic_index(0xb, 0), 0);
    assert_true(set_scale(&(struct set_share){4, 4, 0, 0}) == 1.0f &&
                set_scale(&(struct set_share){3, 2, 0, 0}) == 1.5f);
    // The loss scale is followed for those who join, and its end is the workers' to tell.
    struct step_set_options o = {.workers = 1, .min = 1, .shards = 1, .own = 1};
    o.scaler = (struct scaler_config){
        .enabled = true, .initial_power = 4, .window = 2, .hysteresis = 1, .min_scale = 8};
    scaler_init(&o.start.scaler, &o.scaler);
    struct step_set *s = step_set_create(&o);
    part(s, 1, 0);
    assert_true(step_set_fix(s, 0));
    step_set_close(s, true, true);
    assert_true(step_set_state(s)->scaler.scale == 8.0);
    part(s, 1, 0);
    assert_true(step_set_fix(s, 0));
    step_set_close(s, true, true);  // at its minimum it stays, and is told as it was
    assert_true(step_set_state(s)->scaler.scale == 8.0);
    step_set_destroy(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_there),
        cmocka_unit_test(test_enough),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_grace),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_lost_in_the_middle),
        cmocka_unit_test(test_complete_and_lost),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
