// Micro-batches added in fp32 and rounded once, where 16 bits would lose each of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/model/grad_buffers.h"
#include "shared/model/layout.h"

static struct layout *layout_for(int world) {
    struct model_spec s = {.name = "small",
                           .vocab = 29,
                           .channels = 24,
                           .layers = 1,
                           .heads = 3,
                           .kv_heads = 3,
                           .head_size = 8,
                           .ffn = 40,
                           .max_positions = 16};
    return model_layout_create(&s, world);
}

// In bf16 256 + 1 is 256: four ones would be lost one by one.
static void ones_are_not_lost(void **state) {
    (void)state;
    const char *why;
    struct device *dev;
    struct arena a;
    struct grad_sums g = {0};
    struct layout *l = layout_for(2);
    assert_int_equal(
        dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 1, .label = "t"}, &dev), 0);
    struct stream *s = stream_create(dev, "compute");
    arena_init(&a, dev);
    grad_sums_carve(&g, &a, l, GRAD_SHARD);
    int64_t n = unit_shard(l, 1);
    uint16_t *grad = arena_take(&a, MEM_GRADIENT, (size_t)n * 2);
    for (int step = 0; step < 2; step++) {  // a step begins anew
        for (int micro = 0; micro < 5; micro++) {
            for (int64_t i = 0; i < n; i++) dtype_store(DT_BF16, grad, (size_t)i, micro ? 1 : 256);
            grad_sums_add(&g, s, &(struct grad_micro){1, micro, 5, grad, n, DT_BF16});
            assert_int_equal(stream_sync(s), 0);
        }
        for (int64_t i = 0; i < n; i++) assert_true(dtype_load(DT_BF16, grad, (size_t)i) == 260);
    }
    grad_sums_free(&g);
    arena_release(&a);
    stream_destroy(&s);
    dev_close(&dev);
    layout_destroy(&l);
}

static void the_bytes_are_four_an_element(void **state) {
    (void)state;
    struct layout *l = layout_for(2);
    for (int shard = 0; shard < 2; shard++) {
        struct arena a;
        struct grad_sums g = {0};
        size_t all = 0, most = 0;
        for (int u = 0; u < l->count; u++) {
            size_t bytes = dev_round((size_t)l->units[u].n_pad / (shard ? 2 : 1) * 4);
            all += bytes;
            if (bytes > most) most = bytes;
        }
        arena_init(&a, NULL);
        grad_sums_carve(&g, &a, l, shard ? GRAD_SHARD : GRAD_WHOLE);
        assert_int_equal(a.bytes[MEM_GRADIENT], all);
        assert_int_equal(a.bytes[MEM_WORKSPACE], most);
        grad_sums_free(&g);
    }
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ones_are_not_lost),
        cmocka_unit_test(the_bytes_are_four_an_element),
    };
    return cmocka_run_group_tests_name("sums of micro-batches", tests, NULL, NULL);
}
