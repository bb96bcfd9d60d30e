// Which steps straggle and how long delays are: a function of (seed, step, micro-batch, rank), with the distributions'
// shares, means and bounds; what lists may say; and what a compute stream is given, so that it computes longer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "shared/core/trouble.h"
#include "shared/train/slowdown.h"

static void refused(enum trouble_kind kind, const char *list, int ranks, const char *text) {
    char why[TROUBLE_WHY_MAX] = "";
    if (trouble_check(kind, list, ranks, why) == 0) fail_msg("%s was taken", list);
    if (!strstr(why, text)) fail_msg("%s: \"%s\" does not say \"%s\"", list, why, text);
}

static void lists_are_checked(void **state) {
    static const char *const straggle[] = {
        "",      "1",    "1:",   ":2",    "x:2", "-1:2", "1:2:", "1:2:0.5:1", "1:2,",     "1.5:2",
        "1:nan", "1:2x", "1 :2", "1:2:x", "*",   "*:",   "*1:2", "1:gauss:1", "1:pareto", "1:pareto:1:0.5"};
    static const char *const delay[] = {"",           "1:5",           "1:constant",     "1:constant:",
                                        "1:gauss:5",  "1:constant:-5", "1:constant:5:1", "1:pareto:inf",
                                        "1:pareto:5,"};
    char why[TROUBLE_WHY_MAX];
    (void)state;
    assert_int_equal(trouble_check(TROUBLE_STRAGGLE, NULL, 1, why), 0);
    assert_int_equal(trouble_check(TROUBLE_STRAGGLE, "0:1,3:2.5:0.25,1:1e6", 4, why), 0);
    assert_int_equal(trouble_check(TROUBLE_DELAY, "0:constant:0,1:exponential:.5,3:pareto:1e3", 4, why), 0);
    assert_int_equal(trouble_check(TROUBLE_STRAGGLE, "*:lognormal:0.5", 4, why), 0);
    assert_int_equal(trouble_check(TROUBLE_STRAGGLE, "0:pareto:2,2:3:0.5,1:constant:0", 4, why), 0);
    assert_int_equal(trouble_check(TROUBLE_DELAY, "*:lognormal:5", 1, why), 0);
    for (size_t i = 0; i < sizeof straggle / sizeof *straggle; i++)
        refused(TROUBLE_STRAGGLE, straggle[i], 4,
                "expected RANK:FACTOR[:PROBABILITY] or RANK:DISTRIBUTION:MEAN, RANK a number or *");
    for (size_t i = 0; i < sizeof delay / sizeof *delay; i++)
        refused(TROUBLE_DELAY, delay[i], 4, "expected RANK:DISTRIBUTION:MS, RANK a number or *");
    refused(TROUBLE_STRAGGLE, "1:2,4:2", 4, "\"4:2\": there is no rank 4: the ranks that compute are 0 to 3");
    refused(TROUBLE_DELAY, "1:pareto:3", 1, "rank 0 alone computes");
    refused(TROUBLE_STRAGGLE, "1:0.9", 4, "FACTOR");
    refused(TROUBLE_STRAGGLE, "1:2:0", 4, "PROBABILITY");
    refused(TROUBLE_STRAGGLE, "1:2:1.1", 4, "PROBABILITY");
    refused(TROUBLE_STRAGGLE, "1:2,0:3,1:4", 4, "rank 1 is there twice");
    refused(TROUBLE_DELAY, "1:pareto:3,1:constant:1", 4, "rank 1 is there twice");
    refused(TROUBLE_STRAGGLE, "*:2,3:2", 4, "\"3:2\": rank 3 is there twice");
    refused(TROUBLE_STRAGGLE, "2:pareto:1,*:2", 4, "\"*:2\": rank 2 is there twice");
    refused(TROUBLE_STRAGGLE, "1:pareto:1e7", 4, "MEAN must be from 0");
}

static void a_list_is_of_the_ranks_that_it_names(void **state) {
    static const char straggle[] = "0:2,12:3:0.5", delay[] = "12:exponential:7,1:constant:3";
    (void)state;
    struct trouble t = trouble_of(straggle, delay, 12, 1);
    assert_true(t.factor == 3 && t.probability == 0.5 && t.delay.mean == 7);
    assert_int_equal(t.delay.distribution, TROUBLE_EXPONENTIAL);
    t = trouble_of(straggle, delay, 0, 1);
    assert_true(t.factor == 2 && t.probability == 1 && t.delay.mean == 0);
    t = trouble_of(straggle, delay, 2, 1);
    assert_true(t.factor == 1 && t.more.mean == 0 && t.delay.mean == 0);
    assert_true(trouble_factor(&t, 3, 0) == 1);
    assert_int_equal(trouble_delay_ns(&t, 3), 0);
    t = trouble_of(NULL, NULL, 0, 1);
    assert_true(t.factor == 1 && t.more.mean == 0 && t.delay.mean == 0);
    char *text = trouble_text(straggle, delay);
    assert_non_null(strstr(text, "rank 12 computes 3 times as long in a share of 0.5 of its steps; rank 12"));
    free(text);
    assert_null(trouble_text(NULL, NULL));
    text = trouble_text("*:lognormal:0.5", "1:lognormal:3");
    assert_string_equal(text,
                        "each rank computes 1.5 times as long on average (lognormal) in each micro-batch; "
                        "rank 1 computes 3 ms longer on average (lognormal) in each step");
    free(text);
}

#define STEPS 20000
static void a_share_of_the_steps_straggles(void **state) {
    struct trouble t = trouble_of("0:3:0.25,1:3:0.25,2:3", NULL, 0, 7), same = t, other, all, seed;
    int hits = 0, both = 0, of_seed = 0;
    (void)state;
    other = trouble_of("0:3:0.25,1:3:0.25,2:3", NULL, 1, 7);
    all = trouble_of("0:3:0.25,1:3:0.25,2:3", NULL, 2, 7);
    seed = trouble_of("0:3:0.25,1:3:0.25,2:3", NULL, 0, 8);
    for (int64_t s = 0; s < STEPS; s++) {
        double f = trouble_factor(&t, s, 0);
        assert_true(f == 1 || f == 3);
        assert_true(trouble_factor(&same, s, 0) == f);
        assert_true(trouble_factor(&all, s, 0) == 3);
        hits += f == 3;
        both += f == 3 && trouble_factor(&other, s, 0) == 3;
        of_seed += f == 3 && trouble_factor(&seed, s, 0) == 3;
    }
    assert_true(fabs((double)hits / STEPS - 0.25) < 0.02);
    assert_true(fabs((double)both / STEPS - 0.0625) < 0.01);  // ranks and seeds are independent
    assert_true(fabs((double)of_seed / STEPS - 0.0625) < 0.01);
}

static void delays_have_their_mean(void **state) {
    static const char list[] = "0:constant:5,1:exponential:5,2:pareto:5,3:lognormal:5";
    (void)state;
    for (int rank = 0; rank < 4; rank++) {
        struct trouble t = trouble_of(NULL, list, rank, 3);
        double sum = 0;
        int64_t least = INT64_MAX, longer = 0;
        for (int64_t s = 0; s < STEPS; s++) {
            int64_t ns = trouble_delay_ns(&t, s);
            assert_int_equal(ns, trouble_delay_ns(&t, s));
            sum += (double)ns * 1e-6;
            longer += ns > 10000000;
            if (ns < least) least = ns;
        }
        double mean = sum / STEPS, tail = (double)longer / STEPS;
        if (rank == 0) assert_true(least == 5000000 && mean == 5);
        if (rank == 1) assert_true(fabs(mean - 5) < 0.2 && fabs(tail - exp(-2)) < 0.01 && least < 10000);
        // (2.5 / 10)^2 of the Pareto's are above 10 ms; its mean converges slowly.
        if (rank == 2) assert_true(fabs(mean - 5) < 1 && fabs(tail - 0.0625) < 0.01 && least >= 2500000);
        // ln 2 + 1/2 standard deviations above the mean of the logarithm.
        if (rank == 3)
            assert_true(fabs(mean - 5) < 0.3 && fabs(tail - 0.5 * erfc((log(2) + 0.5) / sqrt(2))) < 0.01);
    }
}

// Each micro-batch of each rank draws anew, and always the same; a share of the steps holds for all of a step's.
static void micro_batches_straggle_each_by_itself(void **state) {
    struct trouble each[2], share = trouble_of("0:3:0.5", NULL, 0, 3), other;
    double sum = 0, product = 0, square = 0, of_steps = 0;
    int n = 0;
    (void)state;
    for (int r = 0; r < 2; r++) each[r] = trouble_of("*:exponential:0.5", NULL, r, 3);
    other = trouble_of("*:exponential:0.5", NULL, 0, 4);
    for (int64_t step = 0; step < STEPS / 4; step++)
        for (int64_t micro = 0; micro < 4; micro++, n++) {
            double a = trouble_factor(&each[0], step, micro) - 1,
                   b = trouble_factor(&each[1], step, micro) - 1,
                   next = trouble_factor(&each[0], step, micro + 1) - 1;
            assert_true(a >= 0 && a == trouble_factor(&each[0], step, micro) - 1);
            assert_true(a != b && a != next && a != trouble_factor(&other, step, micro) - 1);
            assert_true(a != trouble_factor(&each[0], step + 1, micro) - 1);
            assert_true(trouble_factor(&share, step, micro) == trouble_factor(&share, step, 0));
            sum += a;
            square += a * a;
            product += a * b;
            of_steps += a * next;
        }
    // Independent: the mean of products is the product of the means.
    assert_true(fabs(sum / n - 0.5) < 0.02 && fabs(square / n - 0.5) < 0.05);
    assert_true(fabs(product / n - 0.25) < 0.02 && fabs(of_steps / n - 0.25) < 0.02);
}

// ---------------------------------------------------------------- on a stream
// The calls that a stream receives, in order: "busy NS FACTOR;" for OP_BUSY (that this takes its time is test_kernels_reduce's),
// "unit;" for a unit.
static char given[512];

static void note(const char *text) {
    size_t used = strlen(given);
    assert_true(used + strlen(text) < sizeof given);
    strcpy(given + used, text);
}

static void note_launch(struct stream *s, enum op op, const void *args, size_t args_bytes) {
    const struct busy_args *a = args;
    char text[64];
    (void)s;
    assert_true(op == OP_BUSY && args_bytes == sizeof *a && a->clock);
    snprintf(text, sizeof text, "busy %lld %g;", (long long)a->ns, a->factor);
    note(text);
}

static void the_stream_computes_longer(void **state) {
    const struct {
        const char *straggle, *delay, *given;
    } rows[] = {
        {NULL, NULL, "unit;unit;"},
        {"1:3", NULL, "busy 0 0;unit;busy 0 2;busy 0 0;unit;busy 0 2;"},
        {"0:9", NULL, "unit;unit;"},  // another rank's
        {NULL, "1:constant:10", "busy 10000000 0;unit;unit;"},
        {"1:2", "1:constant:10", "busy 10000000 0;unit;busy 0 1;busy 0 0;unit;busy 0 1;"},
        {"*:constant:0.5", NULL, "busy 0 0;unit;busy 0 0.5;busy 0 0;unit;busy 0 0.5;"},
    };
    const char *why;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct config c = {.straggle = (char *)rows[i].straggle, .delay = (char *)rows[i].delay, .seed = 1};
        struct device *dev;
        struct slowdown *h;
        size_t bytes[MEM_CLASSES] = {0};
        struct mem_usage usage;
        assert_int_equal(dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 2}, &dev),
                         0);
        const struct backend *cpu = dev->backend;
        struct backend notes = *cpu;
        notes.launch = note_launch;
        struct stream *s = stream_create(dev, "compute");
        assert_int_equal(slowdown_create(&c, dev, s, &h), 0);
        assert_true(!h == (!c.straggle && !c.delay));
        slowdown_predict(&c, bytes);
        dev_usage(dev, &usage);
        assert_memory_equal(bytes, usage.peak_bytes, sizeof bytes);
        dev->backend = &notes;
        for (int step = 0; step < 2; step++) {  // the delay comes again with each step
            given[0] = 0;
            slowdown_micro(h, 1, step, 0);
            for (int u = 0; u < 2; u++) {
                slowdown_before(h);
                note("unit;");
                slowdown_after(h);
            }
            assert_string_equal(given, rows[i].given);
            given[0] = 0;  // it comes once a step
            slowdown_micro(h, 1, step, 1);
            slowdown_before(h);
            assert_null(strstr(given, "busy 1"));
        }
        dev->backend = cpu;
        stream_destroy(&s);
        slowdown_destroy(&h);
        dev_usage(dev, &usage);
        assert_int_equal(usage.current_bytes[MEM_WORKSPACE], 0);
        dev_close(&dev);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_checked),
        cmocka_unit_test(a_list_is_of_the_ranks_that_it_names),
        cmocka_unit_test(a_share_of_the_steps_straggles),
        cmocka_unit_test(delays_have_their_mean),
        cmocka_unit_test(micro_batches_straggle_each_by_itself),
        cmocka_unit_test(the_stream_computes_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
