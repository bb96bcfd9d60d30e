// The rows of consistency: names, numbers, and what each answers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "ps/job/consistency.h"
#include "ps/server/policy_list.h"
#include "shared/core/error.h"

static struct consistency_rule rule_of(const char *text, int workers) {
    struct config c = {.workers = workers};
    int row = consistency_parse(text, &c.bound);
    assert_true(row >= 0);
    c.variant = row;
    return consistency_of(&c);
}

// Each row is found by its name, with a number where it takes one and not without.
static void test_names(void **state) {
    (void)state;
    const struct consistency_row *row;
    int count = 0, number = -1;
    for (; (row = consistency_row(count)); count++) {
        char text[64];
        snprintf(text, sizeof text, "%s%s", row->name, row->argument ? ":7" : "");
        assert_int_equal(consistency_parse(text, &number), count);
        assert_int_equal(number, row->argument ? 7 : 0);
        snprintf(text, sizeof text, "%s%s", row->name, row->argument ? "" : ":7");
        assert_int_equal(consistency_parse(text, &number), -1);
        snprintf(text, sizeof text, "%sx%s", row->name, row->argument ? ":7" : "");
        assert_int_equal(consistency_parse(text, &number), -1);
    }
    assert_true(count >= 2);
    assert_null(consistency_row(-1));
    static const char *const wrong[] = {"",        ":",      "sync:",          "ssp:", "ssp:a",
                                        "ssp:1:2", "ssp:-1", "ssp:1234567890", "syn"};
    for (int i = 0; i < (int)(sizeof wrong / sizeof *wrong); i++)
        assert_int_equal(consistency_parse(wrong[i], &number), -1);
}

static void test_impossible_arguments(void **state) {
    (void)state;
    struct consistency_rule two = rule_of("backup:2", 3), three = rule_of("backup:3", 3),
                            sync = rule_of("sync", 1);
    error_quiet(1);
    assert_null(sync.row->check);
    assert_int_equal(two.row->check(&two, "--topology", "ps:backup:2"), 0);
    assert_int_equal(three.row->check(&three, "--topology", "ps:backup:3"), -1);
    assert_string_equal(error_last(),
                        "--topology: topology ps:backup:3: a step needs at least one of the 3 workers: "
                        "B must be below 3");
    struct consistency_rule none = rule_of("quorum:0", 3), four = rule_of("quorum:4", 3),
                            all = rule_of("quorum:3", 3), many = rule_of("backup:1", 65),
                            sync65 = rule_of("backup:0", 65);
    assert_int_equal(none.row->check(&none, "topology", "ps:quorum:0"), -1);
    assert_int_equal(four.row->check(&four, "topology", "ps:quorum:4"), -1);
    assert_string_equal(
        error_last(),
        "topology: topology ps:quorum:4: a step closes with Q of the 3 workers: Q must be 1 to 3");
    assert_int_equal(all.row->check(&all, "topology", "ps:quorum:3"), 0);
    assert_int_equal(many.row->check(&many, "topology", "ps:backup:1"), -1);
    assert_string_equal(
        error_last(),
        "topology: topology ps:backup:1: steps close without stragglers of at most 64 workers: there are 65");
    assert_int_equal(sync65.row->check(&sync65, "topology", "ps:backup:0"), 0);
    error_quiet(0);
}

// Which rows go on without workers that are late.
static void test_drops(void **state) {
    (void)state;
    static const struct {
        const char *row;
        int needs;
        bool drops, exact, graces;
    } rows[] = {{"sync", 3, false, false, false},   {"backup:0", 3, false, true, false},
                {"backup:1", 2, true, true, false}, {"quorum:3", 3, false, false, true},
                {"quorum:2", 2, true, false, true}, {"async", 1, false, false, false}};
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        struct consistency_rule c = rule_of(rows[i].row, 3);
        assert_int_equal(c.needs, rows[i].needs);
        assert_true(consistency_drops(c) == rows[i].drops);
        assert_true(c.row->exact == rows[i].exact && c.row->graces == rows[i].graces);
        assert_true(consistency_freezes(c) == (rows[i].needs == 3));
    }
}

// A policy refuses each setting that its table does not have; those of the rows go with the settings that they have.
static void test_policies(void **state) {
    (void)state;
    static const struct push_policy none = {0};
    struct config units = {.ps.resident = PS_RESIDENT_UNITS}, elastic = {.recovery.elastic_max = 3},
                  records = {.ps.record_arrivals = true}, replays = {.ps.replay_arrivals = "run"},
                  codes = {.ps.code.kind = CODE_INT8}, groups = {.reduce_group = 2};
    const struct {
        const struct config *c;
        const char *setting;
    } settings[] = {{&units, "--resident units"},
                    {&elastic, "--elastic"},
                    {&records, "--record-arrivals"},
                    {&replays, "--replay-arrivals"},
                    {&codes, "parameter_server.compression"},
                    {&groups, "reduce_group"}};
    for (int i = 0; i < (int)(sizeof settings / sizeof *settings); i++) {
        assert_string_equal(push_policy_refuses(&none, settings[i].c), settings[i].setting);
        assert_null(push_policy_refuses(&push_in_order, settings[i].c));
    }
    assert_null(push_policy_refuses(&push_ringleader, &replays));
    assert_string_equal(push_policy_refuses(&push_ringleader, &elastic), "--elastic");
    static const struct {
        const char *row, *name;
        const struct push_policy *plain, *replayed;
        bool is_sync;
    } rows[] = {{"sync", "in_order", &push_in_order, &push_in_order, true},
                {"ssp:0", "in_order", &push_in_order, &push_in_order, true},
                {"ssp:1", "in_order", &push_in_order, &push_in_order, false},
                {"quorum:3", "in_order", &push_in_order, &push_in_order, true},
                {"quorum:2", "in_order", &push_set, &push_set, false},
                {"backup:1", "in_order", &push_set, &push_set, false},
                {"async", "on_arrival", &push_on_arrival, &push_replayed, false},
                {"ringleader", "ringleader", &push_ringleader, &push_ringleader, false}};
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        struct consistency_rule c = rule_of(rows[i].row, 3);
        const struct config plain = {.workers = 3};
        const char *name;
        push_policy_named(&c, &name);
        assert_string_equal(name, rows[i].name);
        assert_ptr_equal(push_policy_of(&plain, &c, false), rows[i].plain);
        assert_ptr_equal(push_policy_of(&plain, &c, true), rows[i].replayed);
        assert_true(consistency_is_sync(c) == rows[i].is_sync);
    }
    for (int i = 0; consistency_row(i); i++) assert_int_not_equal(consistency_row(i)->policy, PUSH_NONE);
    struct consistency_rule sync = rule_of("sync", 3);
    assert_ptr_equal(push_policy_of(&units, &sync, false), &push_units);
    assert_ptr_equal(push_policy_of(&elastic, &sync, false), &push_set);
    // No policy but sync's gives sync's updates, even where it waits for all workers.
    struct consistency_row other = *sync.row;
    other.policy = PUSH_RINGLEADER;
    sync.row = &other;
    assert_true(consistency_freezes(sync) && !consistency_is_sync(sync));
}

// Promises of every row that runs, whatever its numbers.
static void test_every_row(void **state) {
    (void)state;
    const struct consistency_row *row;
    for (int i = 0; (row = consistency_row(i)); i++)
        for (int workers = 1; workers <= 3 && row->resolve; workers++) {
            char text[64];
            snprintf(text, sizeof text, "%s%s", row->name, row->argument ? ":0" : "");
            struct consistency_rule c = rule_of(text, workers);
            assert_false(consistency_completes(c, 0));
            assert_true(consistency_completes(c, workers));
            assert_true(consistency_allows(c, 0));
        }
}

static void test_sync_and_async(void **state) {
    (void)state;
    struct consistency_rule sync = rule_of("sync", 3), async = rule_of("async", 3);
    assert_true(async.row->on_arrival && !sync.row->on_arrival);
    assert_true(!consistency_completes(sync, 2) && consistency_completes(sync, 3));
    assert_true(consistency_completes(async, 1));
    assert_false(consistency_allows(sync, 1));
    assert_true(consistency_allows(async, INT64_MAX));
}

// The messages that a worker need not have received, by what is decided about a step and who belongs to it.
static void test_lag(void **state) {
    (void)state;
    static const struct {
        const char *name;
        float clip;
        enum dtype dtype;
        int elastic, lag, lead;
    } cases[] = {{"sync", 0, DT_BF16, 0, 1, 0}, {"sync", 1, DT_BF16, 0, 0, 0},
                 {"sync", 0, DT_F16, 0, 0, 0},  {"sync", 0, DT_BF16, 1, 0, 0},
                 {"ssp:0", 0, DT_F32, 0, 1, 0}, {"ssp:0", 1, DT_F32, 0, 0, 0},
                 {"ssp:1", 0, DT_F32, 0, 1, 1}, {"ssp:3", 1, DT_F16, 0, 3, 3},
                 {"async", 0, DT_F32, 0, 0, 0}, {"backup:1", 0, DT_F32, 0, 0, 0}};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        struct config c = {.workers = 3, .clip = cases[i].clip, .dtype = cases[i].dtype};
        c.variant = consistency_parse(cases[i].name, &c.bound);
        c.recovery.elastic_max = cases[i].elastic ? 3 : 0;
        struct consistency_rule rule = consistency_of(&c);
        assert_int_equal(rule.lag, cases[i].lag);
        assert_int_equal(rule.lead, cases[i].lead);
        assert_int_equal(rule.delay == rule.lead, !rule.row->on_arrival);
        assert_false(rule.oldest);
        c.ps.read_oldest = true;
        assert_int_equal(consistency_of(&c).oldest, rule.lead > 0);
    }
}

static void test_staleness(void **state) {
    (void)state;
    struct staleness a = {0}, b = {0};
    staleness_count(&a, 1);
    staleness_count(&a, 3);
    staleness_count(&b, 500);
    assert_true(a.mean == 2.0 && a.max == 3 && a.count[1] == 1 && a.count[3] == 1);
    staleness_merge(&a, &b);
    assert_true(a.max == 500 && a.count[63] == 1 && a.mean == 168.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),     cmocka_unit_test(test_impossible_arguments),
        cmocka_unit_test(test_every_row), cmocka_unit_test(test_sync_and_async),
        cmocka_unit_test(test_lag),       cmocka_unit_test(test_staleness),
        cmocka_unit_test(test_drops),     cmocka_unit_test(test_policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
