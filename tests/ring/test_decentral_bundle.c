// Which units travel together: a pure table, up for weights and down for gradients.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "decentral/zero/zero_policy.h"

#define RANKS 2

// Units of these padded elements, for RANKS ranks.
static struct layout layout_of(struct unit *units, const int64_t *n, int count) {
    for (int u = 0; u < count; u++) units[u].n_pad = n[u];
    return (struct layout){.count = count, .units = units, .world = RANKS};
}

// With every bucket each unit is in one bundle, bundles are neighbours in order, shards are contiguous, and several
// units are together only within the bucket.
static void is_sound(const struct layout *l, int64_t bucket, enum zero_order way) {
    struct zero_bundles b;
    zero_bundles_open(&b, l, bucket, way);
    int at = way == ZERO_ASCENDING ? 0 : l->count;
    for (int i = 0; i < b.count; i++) {
        const struct zero_bundle *x = &b.list[i];
        int64_t elements = 0, place = 0;
        if (way == ZERO_DESCENDING) at -= x->count;
        assert_int_equal(x->first, at);
        if (way == ZERO_ASCENDING) at += x->count;
        for (int k = 0; k < x->count; k++) {
            int u = way == ZERO_ASCENDING ? x->first + k : x->first + x->count - 1 - k;
            assert_ptr_equal(zero_bundle_of(&b, u), x);
            assert_int_equal(b.at[u], place);
            place += unit_shard(l, u);
            elements += l->units[u].n_pad;
        }
        assert_int_equal(x->shard, place);
        assert_true(x->count == 1 || elements <= bucket);
    }
    assert_int_equal(at, way == ZERO_ASCENDING ? l->count : 0);
    zero_bundles_close(&b);
}

static void test_every_bucket(void **unused) {
    (void)unused;
    static const int64_t n[] = {512, 2048, 1024, 1024, 512, 4096, 512};
    enum { COUNT = sizeof n / sizeof *n };
    struct unit units[COUNT] = {0};
    struct layout l = layout_of(units, n, COUNT);
    for (int64_t bucket = 0; bucket < 12000; bucket += 256)
        for (int way = 0; way < 2; way++) is_sound(&l, bucket, (enum zero_order)way);
}

static void counts(const struct layout *l, int64_t bucket, enum zero_order way, const int *want,
                   int bundles) {
    struct zero_bundles b;
    zero_bundles_open(&b, l, bucket, way);
    assert_int_equal(b.count, bundles);
    for (int i = 0; i < bundles; i++) assert_int_equal(b.list[i].count, want[i]);
    zero_bundles_close(&b);
}

// A unit that reaches the bucket to the element still joins; one that is larger goes alone; 0 bundles nothing.
static void test_edges(void **unused) {
    (void)unused;
    static const int64_t n[] = {1024, 1024, 4096, 1024, 512};
    struct unit units[5] = {0};
    struct layout l = layout_of(units, n, 5);
    counts(&l, 0, ZERO_ASCENDING, (const int[]){1, 1, 1, 1, 1}, 5);
    counts(&l, 2048, ZERO_ASCENDING, (const int[]){2, 1, 2}, 3);
    counts(&l, 2047, ZERO_ASCENDING, (const int[]){1, 1, 1, 2}, 4);
    counts(&l, 2048, ZERO_DESCENDING, (const int[]){2, 1, 2}, 3);
    counts(&l, 7680, ZERO_DESCENDING, (const int[]){5}, 1);
    counts(&l, 7679, ZERO_DESCENDING, (const int[]){4, 1}, 2);
    struct zero_bundles b;
    zero_bundles_open(&b, &l, 2048, ZERO_ASCENDING);
    assert_int_equal(zero_bundles_largest(&b), 4096 / RANKS);  // alone: no buffer for it
    assert_int_equal(zero_bundles_packed(&b), 2048 / RANKS);
    zero_bundles_close(&b);
    l.world = 1;  // nobody to send to
    counts(&l, 7680, ZERO_ASCENDING, (const int[]){1, 1, 1, 1, 1}, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bucket),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
