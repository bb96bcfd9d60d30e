// shared/core: the arena's ledger, unit layouts, counter-based random numbers, errors.
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/arena.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/text.h"
#include "shared/core/topology.h"
#include "shared/core/unit.h"

static void carve(struct arena *a) {
    arena_take(a, MEM_PARAMETER, 1000);
    arena_take(a, MEM_PARAMETER, 1);
    arena_take(a, MEM_GRADIENT, 256);
    arena_take(a, MEM_COMM, 0);
}

static void arena_measures_what_it_takes(void **state) {
    (void)state;
    const char *why = NULL;
    struct device *dev = NULL;
    assert_int_equal(
        dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 1, .label = "t"}, &dev), 0);
    struct arena plan, live;
    struct mem_usage usage;
    arena_init(&plan, NULL);
    arena_init(&live, dev);
    carve(&plan);
    carve(&live);
    dev_usage(dev, &usage);
    for (int c = 0; c < MEM_CLASSES; c++) {
        assert_int_equal(plan.bytes[c], live.bytes[c]);
        assert_int_equal(plan.bytes[c], usage.current_bytes[c]);
    }
    assert_int_equal(plan.bytes[MEM_PARAMETER], 1024 + 256);
    assert_int_equal(arena_total(&plan), 1024 + 256 + 256);
    dev_free(dev, MEM_COMM, dev_alloc(dev, MEM_COMM, 10), 10);  // one byte outside the plan shows
    dev_usage(dev, &usage);
    assert_int_not_equal(usage.peak_bytes[MEM_COMM], plan.bytes[MEM_COMM]);
    arena_release(&live);
    dev_usage(dev, &usage);
    for (int c = 0; c < MEM_CLASSES; c++) assert_int_equal(usage.current_bytes[c], 0);
    dev_close(&dev);
}

static struct layout *toy(int world) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = 2;
    l->units = xcalloc(2, sizeof *l->units);
    for (int u = 0; u < 2; u++) {
        struct unit *unit = &l->units[u];
        strcpy(unit->name, u ? "head" : "embedding");
        unit->count = 2;
        for (int i = 0; i < 2; i++) {
            strcpy(unit->tensors[i].name, i ? "b" : "a");
            unit->tensors[i].dims = 2 - i;
            unit->tensors[i].shape[0] = 7 + u;
            unit->tensors[i].shape[1] = i ? 1 : 37;
        }
    }
    layout_finish(l, world);
    return l;
}

static void layouts_align_and_pad(void **state) {
    (void)state;
    for (int world = 1; world <= 5; world++) {
        struct layout *l = toy(world);
        int64_t logical = 0, padded = 0;
        for (int u = 0; u < l->count; u++) {
            const struct unit *unit = &l->units[u];
            int64_t end = 0;
            for (int i = 0; i < unit->count; i++) {
                const struct tensor *t = &unit->tensors[i];
                assert_int_equal(t->offset % UNIT_ALIGN, 0);
                assert_true(t->offset >= end);
                assert_int_equal(t->logical_start, logical);
                end = t->offset + t->numel;
                logical += t->numel;
            }
            assert_int_equal(unit->n, end);
            assert_int_equal(unit->n_pad % (SUMSQ_BLOCK * world), 0);
            assert_true(unit->n_pad >= end && unit->n_pad - end < SUMSQ_BLOCK * world);
            assert_int_equal(unit_shard(l, u) * world, unit->n_pad);
            padded += unit->n_pad;
        }
        assert_int_equal(l->params, logical);
        assert_int_equal(l->params, 7 * 37 + 7 + 8 * 37 + 8);
        assert_int_equal(l->padded, padded);
        layout_destroy(&l);
        assert_null(l);
    }
}

static void layout_hashes_tell_layouts_apart(void **state) {
    (void)state;
    struct layout *a = toy(2), *b = toy(2), *c = toy(3);
    assert_true(layout_hash(a, DT_BF16) == layout_hash(b, DT_BF16));
    assert_true(layout_hash(a, DT_BF16) != layout_hash(a, DT_F32));
    assert_true(layout_hash(a, DT_BF16) != layout_hash(c, DT_BF16));
    b->units[1].tensors[0].shape[1]++;
    assert_true(layout_hash(a, DT_BF16) != layout_hash(b, DT_BF16));
    layout_destroy(&a);
    layout_destroy(&b);
    layout_destroy(&c);
}

// Known answers of Philox4x32-10 (Random123's kat_vectors).
static void philox_known_answers(void **state) {
    (void)state;
    struct philox_out z = philox(0, 0, 0), f = philox(~0ull, ~0ull, ~0ull);
    const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(z.v, zero, sizeof zero);
    assert_memory_equal(f.v, ones, sizeof ones);
}

static void normals_look_normal(void **state) {
    (void)state;
    double sum = 0, squares = 0, fourth = 0;
    int n = 200000;
    for (int i = 0; i < n; i++) {
        double x = rng_normal(42, (uint64_t)i);
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
        assert_true(isfinite(x));
    }
    assert_true(fabs(sum / n) < 0.01);
    assert_true(fabs(squares / n - 1.0) < 0.02);
    assert_true(fabs(fourth / n - 3.0) < 0.1);
    assert_true(rng_normal(42, 7) == rng_normal(42, 7));
    assert_true(rng_normal(42, 7) != rng_normal(43, 7));
}

static void rng_below_covers_its_range(void **state) {
    (void)state;
    int seen[10] = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t x = rng_below(1, i, 0, 10);
        assert_true(x < 10);
        seen[x]++;
    }
    for (int i = 0; i < 10; i++) assert_in_range(seen[i], 60, 140);
}

static void fail_keeps_the_text(void **state) {
    (void)state;
    error_quiet(1);
    assert_int_equal((fail)("key %d of %s", 3, "file.json"), -1);
    assert_string_equal(error_last(), "key 3 of file.json");
    (fail)("job %d: %s", 7, error_last());
    assert_string_equal(error_last(), "job 7: key 3 of file.json");
    error_clear();
    assert_string_equal(error_last(), "");
    error_quiet(0);
}

// A text that is too long keeps whole words of its beginning and its end, where the reason is.
static void long_texts_keep_both_ends(void **state) {
    (void)state;
    char path[400], out[64];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    char *text = xasprintf("worker 1: /%s: No space left on device", path);
    assert_string_equal(text_shorten(out, sizeof out, text), "worker 1: .. No space left on device");
    assert_string_equal(text_shorten(out, sizeof out, text + 10), ".. No space left on device");
    assert_string_equal(text_shorten(out, 16, "a b c d e f g h i j"), "a b c .. h i j");
    assert_string_equal(text_shorten(out, sizeof out, "short"), "short");
    assert_string_equal(TEXT_SHORTEN(9, path), "..");
    free(text);
}

// The messages in a stream, each after an earlier one, and how many are reported as left out.
struct heard {
    FILE *from;
    long messages, last, left_out;
};

static void *hear(void *arg) {
    struct heard *h = arg;
    char line[1024];
    long number, count;
    while (fgets(line, sizeof line, h->from)) {
        if (sscanf(line, "starring: warning: message %ld", &number) == 1 && number > h->last) {
            h->messages++;
            h->last = number;
        }
        if (sscanf(line, "starring: %ld messages are left out", &count) == 1) h->left_out += count;
    }
    return NULL;
}

// Standard error takes nothing: who says something goes on, and what found no room is counted once it flows again.
static void messages_do_not_wait_for_a_reader(void **state) {
    (void)state;
    int ends[2], before = dup(STDERR_FILENO), said = 0;
    struct heard h = {0};
    pthread_t reader;
    assert_int_equal(pipe(ends), 0);
    h.from = fdopen(ends[0], "r");
    dup2(ends[1], STDERR_FILENO);
    output_thread_begin();
    while (said < 1000) warn("message %d %0300d", ++said, 0);
    output_thread_wait(0.01);
    assert_int_equal(pthread_create(&reader, NULL, hear, &h), 0);
    output_thread_wait(600);
    warn("the last one");
    output_thread_end();
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[1]);
    pthread_join(reader, NULL);
    fclose(h.from);
    assert_true(h.messages > 100 && h.messages < said);
    assert_int_equal(h.messages + h.left_out, said);
}

// Ranks that go together hand out a global batch a step, skipped or not; a rank that goes alone hears what is handed out.
static void plans_move_behind_steps(void **state) {
    (void)state;
    struct topology t = {.rank = 2, .size = 4, .plan = {.mean = 8, .samples = 80, .handed_out = 96}};
    assert_int_equal(step_plan_together(&t), 1);
    assert_int_equal(t.plan.first, 96 + 2 * 2);
    assert_int_equal(t.plan.next, t.plan.first + 8);
    step_plan_advance(&t, false);
    assert_int_equal(t.plan.samples, 88);
    step_plan_advance(&t, true);
    assert_int_equal(t.plan.samples, 88);
    assert_int_equal(t.plan.handed_out, 112);
    assert_int_equal(t.plan.version, 1);
    assert_int_equal(step_plan_steps_of_run(&t), 2);
    struct topology alone = {.size = 4,
                             .plan = {.independent = true, .mean = 2, .samples = 6, .handed_out = 7}};
    step_plan_advance(&alone, true);
    assert_int_equal(step_plan_handed_out(&alone.plan), 7);
    step_plan_advance(&alone, false);
    assert_int_equal(alone.plan.handed_out, 7);
    assert_int_equal(step_plan_handed_out(&alone.plan), 8);
    assert_int_equal(step_plan_steps_of_run(&alone), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_move_behind_steps),    cmocka_unit_test(arena_measures_what_it_takes),
        cmocka_unit_test(layouts_align_and_pad),      cmocka_unit_test(layout_hashes_tell_layouts_apart),
        cmocka_unit_test(philox_known_answers),       cmocka_unit_test(normals_look_normal),
        cmocka_unit_test(rng_below_covers_its_range), cmocka_unit_test(fail_keeps_the_text),
        cmocka_unit_test(long_texts_keep_both_ends),  cmocka_unit_test(messages_do_not_wait_for_a_reader),
    };
    return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
