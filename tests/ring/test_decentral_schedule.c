// The schedule of stage 3's gathers, without ranks: how many slots a budget makes, who is gathered when, and that no
// gather ever takes the slot of weights that are still needed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "shared/model/step_tasks.h"

#define UNITS 6

// Units of 100, 10, 20, 30, 40, 200 elements.
static struct unit units[UNITS] = {{.n_pad = 100}, {.n_pad = 10}, {.n_pad = 20},
                                   {.n_pad = 30},  {.n_pad = 40}, {.n_pad = 200}};
static const struct layout plain = {.count = UNITS, .units = units};
static const struct layout tied = {.count = UNITS, .units = units, .tied = true};

static void test_slots_of_a_budget(void **state) {
    (void)state;
    static const struct {
        struct unit_prefetch p;
        int slots;
        int64_t elements[UNITS];
    } cases[] = {
        {{0}, 2, {100, 200}},                       // one unit ahead
        {{true, 0, 0, false}, 1, {200}},            // nothing ahead
        {{true, 1, 0, false}, 2, {100, 200}},       // the first unit may exceed the budget
        {{true, 10, 0, false}, 2, {100, 200}},      // the budget is used up by u1
        {{true, 11, 0, false}, 3, {100, 40, 200}},  // u0: u1, u2 ahead
        {{true, 60, 0, false},
         4,
         {100, 200, 20, 30}},  // u0: u1, u2, u3 ahead: 10 + 20 < 60, with u3 it is not
        {{true, INT64_MAX, 0, false}, 6, {100, 10, 20, 30, 40, 200}},
        {{true, INT64_MAX, 350, false}, 5, {200, 10, 20, 30, 40}},  // six slots would hold 400
        {{.all = true}, 6, {100, 10, 20, 30, 40, 200}},
        {{true, INT64_MAX, 1, false}, 1, {200}},  // one slot there must be
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct unit_schedule s;
        unit_schedule_open(&s, &plain, &cases[i].p);
        if (s.slots != cases[i].slots) fail_msg("case %zu: %d slots, not %d", i, s.slots, cases[i].slots);
        for (int k = 0; k < s.slots; k++)
            assert_int_equal(unit_schedule_elements(&s, k), cases[i].elements[k]);
        unit_schedule_close(&s);
    }
    struct unit_schedule s;
    unit_schedule_open(&s, &tied, &(struct unit_prefetch){0});
    assert_int_equal(unit_schedule_count(&s), 3);
    assert_int_equal(unit_schedule_elements(&s, 2), 100);
    assert_int_equal(unit_schedule_elements(&s, 0), 40);
    unit_schedule_close(&s);
}

// The gathers of a step, and the repeated ones among them.
struct gathers {
    int64_t all[UNITS], again[UNITS];
};

static void count_gather(void *ctx, struct step_tasks *t, int u, int idle, bool again) {
    struct gathers *g = ctx;
    (void)idle;
    step_tasks_add(t, TASK_ALL_GATHER, ON_GATHER);
    g->all[u] += t->times;
    g->again[u] += again ? t->times : 0;
}

static struct gathers gathers_of(const struct layout *l, struct unit_prefetch p, int64_t micro) {
    struct gathers g = {0};
    struct step_tasks t = {.micro_batches = micro};
    const struct step_hooks hooks = {.slots = &p, .ahead = true, .fetch = count_gather};
    step_tasks_walk(&t, l, &hooks, &g);
    step_tasks_free(&t);
    return g;
}

static void expect(const struct layout *l, struct unit_prefetch p, int64_t micro, const int64_t *forward,
                   const int64_t *backward) {
    const struct gathers g = gathers_of(l, p, micro);
    for (int u = 0; u < UNITS; u++)
        if (g.all[u] != forward[u] + backward[u])
            fail_msg("%lld micro-batches, unit %d: %lld gathers, not %lld + %lld", (long long)micro, u,
                     (long long)g.all[u], (long long)forward[u], (long long)backward[u]);
}
#define LIST(...) \
    (const int64_t[]) { __VA_ARGS__ }

static void test_what_a_turn_leaves_is_not_gathered_again(void **state) {
    (void)state;
    const struct unit_prefetch one = {0}, none = {.bounded = true}, all = {true, INT64_MAX, 0, false};
    expect(&plain, one, 1, LIST(1, 1, 1, 1, 1, 1), LIST(1, 1, 1, 1, 0, 0));
    expect(&plain, one, 3, LIST(1, 1, 3, 3, 3, 3), LIST(3, 3, 3, 3, 0, 0));
    expect(&plain, one, 700000000, LIST(1, 1, 700000000, 700000000, 700000000, 700000000),
           LIST(700000000, 700000000, 700000000, 700000000, 0, 0));
    expect(&tied, one, 3, LIST(1, 1, 1, 3, 3, 3), LIST(0, 3, 3, 3, 0, 0));
    expect(&plain, none, 2, LIST(1, 2, 2, 2, 2, 2), LIST(2, 2, 2, 2, 2, 0));
    expect(&plain, all, 1000000000, LIST(1, 1, 1, 1, 1, 1), LIST(0, 0, 0, 0, 0, 0));
    expect(&tied, all, 2, LIST(1, 1, 1, 1, 1, 1), LIST(0, 0, 0, 0, 0, 0));
}

// The gathers that hpZ keeps within a group: all gathers of a unit but its first after an update.
static void test_which_gathers_are_not_the_first(void **state) {
    (void)state;
    const struct unit_prefetch one = {0};
    for (int tie = 0; tie < 2; tie++)
        for (int64_t micro = 1; micro < 4; micro++) {
            const struct gathers g = gathers_of(tie ? &tied : &plain, one, micro);
            for (int u = 0; u < UNITS; u++) assert_int_equal(g.again[u], g.all[u] - 1);
        }
    struct unit_schedule s;
    unit_schedule_open(&s, &plain, &one);
    unit_schedule_gathered(&s, 2, PASS_EVAL);
    assert_false(unit_schedule_is_repeat(&s, 2, PASS_FORWARD));
    unit_schedule_gathered(&s, 2, PASS_FORWARD);
    assert_true(unit_schedule_is_repeat(&s, 2, PASS_BACKWARD));
    assert_false(unit_schedule_is_repeat(&s, 2, PASS_EVAL));
    assert_false(unit_schedule_is_repeat(&s, 4, PASS_BACKWARD));
    unit_schedule_invalidate(&s);
    assert_false(unit_schedule_is_repeat(&s, 2, PASS_FORWARD));
    unit_schedule_close(&s);
}

// A use with what is gathered ahead of it. in_use: its slot must stay its own.
static void use(struct unit_schedule *s, int u, enum pass pass) {
    int next = pass == PASS_BACKWARD ? u - 1 : u + 1;
    unit_schedule_gathered(s, u, pass);
    for (int k = 0, v; (v = unit_schedule_ahead(s, next, pass, k)) >= 0; k++) {
        assert_int_equal(v, pass == PASS_BACKWARD ? next - k : next + k);
        assert_int_not_equal(unit_schedule_slot(s, v), unit_schedule_slot(s, u));
        unit_schedule_gathered(s, v, pass);
    }
    assert_true(unit_schedule_holds(s, u, pass));
    bool kept = s->layout->tied && next == 0;
    if (next >= 0 && next < UNITS) assert_int_equal(unit_schedule_holds(s, next, pass), s->slots > 1 || kept);
}

static void test_nothing_in_use_is_overwritten(void **state) {
    (void)state;
    const struct layout *layouts[] = {&plain, &tied};
    for (int i = 0; i < 2; i++)
        for (int64_t budget = 0; budget < 500; budget++) {
            struct unit_schedule s;
            unit_schedule_open(&s, layouts[i], &(struct unit_prefetch){true, budget, 0, false});
            for (int u = 0; u < UNITS; u++) use(&s, u, PASS_FORWARD);
            for (int u = UNITS - 1; u >= 0; u--) use(&s, u, PASS_BACKWARD);
            unit_schedule_close(&s);
        }
}

// Where each unit has a slot of its own nothing is gathered, whatever happens.
static void test_all_units(void **state) {
    (void)state;
    const struct unit_prefetch all = {.all = true};
    const struct layout *layouts[] = {&plain, &tied};
    for (int i = 0; i < 2; i++) {
        struct unit_schedule s;
        unit_schedule_open(&s, layouts[i], &all);
        unit_schedule_gathered(&s, 1, PASS_EVAL);
        unit_schedule_invalidate(&s);
        int64_t elements = 0;
        for (int u = 0; u < UNITS; u++) {
            assert_true(unit_schedule_holds(&s, u, PASS_FORWARD));
            assert_int_equal(unit_schedule_ahead(&s, u, PASS_FORWARD, 0), -1);
            assert_int_equal(unit_schedule_elements(&s, unit_schedule_slot(&s, u)),
                             layouts[i]->units[u].n_pad);
        }
        for (int k = 0; k < unit_schedule_count(&s); k++) elements += unit_schedule_elements(&s, k);
        for (int u = 0; u < UNITS; u++) elements -= layouts[i]->units[u].n_pad;
        assert_int_equal(elements, 0);
        unit_schedule_close(&s);
        expect(layouts[i], all, 3, LIST(0, 0, 0, 0, 0, 0), LIST(0, 0, 0, 0, 0, 0));
    }
}

// An evaluation may use what training gathered, but not the other way round: or a step's bytes would depend on it.
static void test_evaluation_is_apart(void **state) {
    (void)state;
    struct unit_schedule s;
    unit_schedule_open(&s, &plain, &(struct unit_prefetch){0});
    unit_schedule_gathered(&s, 2, PASS_EVAL);
    assert_true(unit_schedule_holds(&s, 2, PASS_EVAL));
    assert_false(unit_schedule_holds(&s, 2, PASS_FORWARD));
    unit_schedule_gathered(&s, 2, PASS_BACKWARD);
    assert_true(unit_schedule_holds(&s, 2, PASS_EVAL) && unit_schedule_holds(&s, 2, PASS_FORWARD));
    unit_schedule_invalidate(&s);
    assert_false(unit_schedule_holds(&s, 2, PASS_EVAL));
    unit_schedule_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_of_a_budget),
        cmocka_unit_test(test_what_a_turn_leaves_is_not_gathered_again),
        cmocka_unit_test(test_which_gathers_are_not_the_first),
        cmocka_unit_test(test_nothing_in_use_is_overwritten),
        cmocka_unit_test(test_all_units),
        cmocka_unit_test(test_evaluation_is_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
