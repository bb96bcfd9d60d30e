// One budget of batches for workers that run ahead of each other: over messages that come twice, late or not at all every batch is
// done once, and nobody is told that none is left before it is so.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include <stdlib.h>
#include <string.h>

#include "ps/agree/budget.h"
#include "shared/core/numbers.h"

#define WORKERS 4
#define TOTAL   60
#define WORDS   (1 + BATCHES_OPEN * WORKERS)

// A worker as the scheduler sees it: it asks, computes, has its gradients acknowledged by two keys, one after the other.
struct walker {
    bool asked, told;     // told: that none is left
    int64_t step, batch;  // in hand; -1: none
    int64_t flying;       // the batch before, that the second key lacks
};

struct world {
    struct budget *b;
    struct walker w[WORKERS];
    int64_t keys[2][WORDS];
    int count[2][TOTAL];
    uint64_t seed, draws;
};

static uint64_t draw(struct world *x, uint64_t n) {
    x->draws = (x->draws + x->seed) * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (x->draws >> 33) % n;
}

static void bring(struct world *x, int key, int64_t batch) {
    int words = WORDS;
    assert_in_range(batch, 0, TOTAL - 1);
    if (batches_has(x->keys[key], words, batch)) return;
    assert_true(batches_fits(x->keys[key], words, batch));
    batches_add(x->keys[key], words, batch);
    assert_true(batches_has(x->keys[key], words, batch));
    x->count[key][batch]++;
}

static void hear(struct world *x, int w, const struct wire_header *h) {
    struct walker *v = &x->w[w];
    if (!v->asked || h->step != v->step) return;  // an answer that comes again
    assert_int_equal(h->kind, WIRE_TAKEN);
    v->asked = false;
    v->told = (h->flags & WIRE_FINAL) != 0;
    v->batch = v->told ? -1 : h->batch;
}

static void say(struct world *x, int w, int64_t step) {
    struct wire_header h = {.kind = WIRE_TAKE, .step = step}, out;
    bool lost = draw(x, 5) == 0;  // then it asks again
    if (budget_take(x->b, w, &h, &out) && !lost) hear(x, w, &out);
}

static void turn(struct world *x) {
    int w = (int)draw(x, WORKERS);
    struct walker *v = &x->w[w];
    if (v->flying >= 0 && draw(x, 2)) {
        bring(x, 1, v->flying);
        v->flying = -1;
    } else if (v->batch >= 0 && v->flying < 0) {
        bring(x, 0, v->batch);
        v->flying = v->batch;
        v->batch = -1;
        v->step++;
        v->asked = true;
        say(x, w, v->step);
    } else if (!v->told && v->batch < 0) {
        v->asked = true;
        say(x, w, v->step);
        if (v->step > 0 && draw(x, 4) == 0) say(x, w, v->step - 1);  // an old one comes late
    }
}

static bool over(const struct world *x) {
    for (int w = 0; w < WORKERS; w++)
        if (!x->w[w].told || x->w[w].flying >= 0) return false;
    return true;
}

static struct world open(uint64_t seed) {
    struct world x = {.seed = seed, .draws = seed * 77};
    x.b = budget_create(&(struct budget_options){.workers = WORKERS, .total = TOTAL});
    for (int w = 0; w < WORKERS; w++) x.w[w].batch = x.w[w].flying = -1;
    for (int key = 0; key < 2; key++) batches_clear(x.keys[key], WORDS);
    return x;
}

static void test_every_batch_once(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct world x = open(seed);
        for (int i = 0; !over(&x); i++) {
            if (i > 200000) fail_msg("seed %d hangs", (int)seed);
            turn(&x);
        }
        for (int key = 0; key < 2; key++)
            for (int batch = 0; batch < TOTAL; batch++)
                if (x.count[key][batch] != 1)
                    fail_msg("seed %d: batch %d is %d times in key %d", (int)seed, batch, x.count[key][batch],
                             key);
        assert_int_equal(budget_taken(x.b), TOTAL);
        budget_destroy(&x.b);
    }
}

static int64_t next_of(struct budget *b, int worker, const struct wire_header *h) {
    struct wire_header out;
    assert_true(budget_take(b, worker, h, &out));
    return out.flags & WIRE_FINAL ? -1 : out.batch;
}

// After a checkpoint the batches that some key lacks are first, then the rest; a batch far beyond is computed
// again.
static void test_goes_on(void **state) {
    (void)state;
    struct budget *b = budget_create(&(struct budget_options){.workers = 2, .total = 8000});
    struct wire_header h = {.kind = WIRE_TAKE, .step = 3}, later = {.kind = WIRE_TAKE, .step = 9};
    budget_write_done(&h, 10);
    static const int64_t done[] = {11, 12, 14, 62, 120, 1673, 7000};
    for (int i = 0; i < 7; i++) budget_set_done(&h, done[i]);
    assert_int_equal(h.count, WIRE_VALUES_MAX);
    for (int64_t batch = 10; batch < 1700; batch++) {
        bool is_done = false;
        for (int i = 0; i < 7; i++) is_done = is_done || done[i] == batch;
        if (is_done) continue;
        bool first = batch == 10;
        assert_int_equal(next_of(b, first ? 0 : 1, first ? &h : &later), batch);
        later.step++;
        if (batch == 10) assert_int_equal(next_of(b, 0, &h), 10);  // it asks again
    }
    struct wire_header out;
    budget_stop(b);
    assert_true(budget_take(b, 1, &later, &out));
    assert_true(out.flags & WIRE_FINAL);
    assert_int_equal(out.batch, 1700);  // not all of them
    budget_destroy(&b);
}

// One worker takes them in order: as a local run.
static void test_alone(void **state) {
    (void)state;
    struct budget *b = budget_create(&(struct budget_options){.workers = 1, .total = 5});
    for (int64_t step = 0; step < 5; step++) {
        struct wire_header h = {.kind = WIRE_TAKE, .step = step};
        assert_int_equal(next_of(b, 0, &h), step);
    }
    struct wire_header end = {.kind = WIRE_TAKE, .step = 5};
    assert_int_equal(next_of(b, 0, &end), -1);
    budget_destroy(&b);
}

static int64_t recorded(void *ctx, int worker, int64_t step) {
    (void)ctx;
    return step < 3 ? 3 * worker + step : -1;
}

static void test_recorded(void **state) {
    (void)state;
    struct budget *b =
        budget_create(&(struct budget_options){.workers = 2, .total = 6, .recorded = recorded});
    for (int i = 0; i < 8; i++) {
        struct wire_header h = {.kind = WIRE_TAKE, .step = i / 2};
        assert_int_equal(next_of(b, i % 2, &h), i / 2 < 3 ? 3 * (i % 2) + i / 2 : -1);
        struct wire_header out;
        assert_true(i / 2 < 3 || (budget_take(b, i % 2, &h, &out) && out.batch == 6));
    }
    budget_destroy(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_batch_once),
        cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
