// The partition map: every element has one owner, boundaries are block boundaries, loads are even.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/exact_sum.h"
#include "ps/job/shard_map.h"
#include "ps/job/shard_sizes.h"
#include "test_ps_toy.h"

// Elements of the fullest shard over the mean; 1 is perfect.
static double imbalance(const struct shard_map *m) {
    int64_t most = 0, total = 0;
    for (int g = 0; g < m->shards; g++) {
        total += m->shard_elements[g];
        if (m->shard_elements[g] > most) most = m->shard_elements[g];
    }
    return total ? (double)most * m->shards / (double)total : 1.0;
}

static void check_cover(const struct layout *l, const struct shard_map *m, int64_t max_bytes, size_t size) {
    int key = 0;
    int64_t *loads = xcalloc((unsigned long)m->shards, sizeof *loads);
    for (int u = 0; u < l->count; u++) {
        int64_t at = 0;
        assert_int_equal(m->first[u], key);
        for (; key < m->first[u + 1]; key++) {
            const struct partition *p = &m->parts[key];
            assert_int_equal(p->unit, u);
            assert_int_equal(p->begin, at);
            assert_true(p->end > p->begin);
            assert_int_equal(p->end % SUMSQ_BLOCK, 0);
            assert_true((p->end - p->begin) * (int64_t)size <= max_bytes);
            assert_in_range(p->shard, 0, m->shards - 1);
            loads[p->shard] += p->end - p->begin;
            at = p->end;
        }
        assert_int_equal(at, l->units[u].n_pad);
    }
    assert_int_equal(key, m->count);
    for (int g = 0; g < m->shards; g++) assert_int_equal(loads[g], m->shard_elements[g]);
    free(loads);
}

static struct config config_of(const struct layout *l, enum dtype dtype, int64_t partition, int servers,
                               int threads) {
    return (struct config){.workers = l->world,
                           .dtype = dtype,
                           .ps = {.partition_bytes = partition, .servers = servers, .threads = threads}};
}

static void test_cover_and_balance(void **state) {
    (void)state;
    for (int servers = 1; servers <= 5; servers++)
        for (int threads = 1; threads <= 3; threads++)
            for (int64_t partition = 16384; partition <= 1 << 20; partition *= 4) {
                struct layout *l = toy_layout(3, 30000);  // 2M elements
                struct config o = config_of(l, DT_BF16, partition, servers, threads);
                struct shard_map *m = shard_map_of(&o, l);
                assert_non_null(m);
                check_cover(l, m, partition, 2);
                assert_true(imbalance(m) < 1.05);
                int64_t total = 0;
                for (int s = 0; s < servers; s++) total += shard_map_server_elements(m, s);
                assert_int_equal(total, l->padded);
                shard_map_destroy(&m);
                assert_null(m);
                layout_destroy(&l);
            }
}

static void test_tiny(void **state) {
    (void)state;
    struct layout *l = toy_layout(2, 3);
    struct config o = config_of(l, DT_F32, 1, 8, 1);  // fewer blocks than one might wish, one a partition
    struct shard_map *m = shard_map_of(&o, l);
    check_cover(l, m, SUMSQ_BLOCK * 4, 4);
    shard_map_destroy(&m);
    layout_destroy(&l);
}

static void test_hash_and_refusals(void **state) {
    (void)state;
    struct layout *l = toy_layout(2, 5000);
    struct config a = config_of(l, DT_BF16, 65536, 2, 1), b = config_of(l, DT_BF16, 65536, 2, 2),
                  c = config_of(l, DT_BF16, 8192, 2, 1);
    struct shard_map *ma = shard_map_of(&a, l), *mb = shard_map_of(&b, l), *mc = shard_map_of(&c, l);
    struct shard_map *again = shard_map_of(&a, l);
    assert_int_equal(shard_map_hash(ma), shard_map_hash(again));
    assert_int_not_equal(shard_map_hash(ma), shard_map_hash(mb));
    assert_int_not_equal(shard_map_hash(ma), shard_map_hash(mc));
    error_quiet(1);
    a.ps.servers = 0;
    assert_null(shard_map_of(&a, l));
    a.ps.servers = 1;
    a.ps.partition_bytes = 0;
    assert_null(shard_map_of(&a, l));
    assert_non_null(strstr(error_last(), "partition_bytes"));
    a.ps.partition_bytes = 4096;
    l->units[1].n_pad += 1;
    assert_null(shard_map_of(&a, l));
    assert_non_null(strstr(error_last(), "block.0"));
    error_quiet(0);
    shard_map_destroy(&ma);
    shard_map_destroy(&mb);
    shard_map_destroy(&mc);
    shard_map_destroy(&again);
    layout_destroy(&l);
}

static void test_predictions(void **state) {
    (void)state;
    struct toy_case t = {.dtype = DT_BF16, .workers = 3, .servers = 2, .threads = 2, .consistency = "sync"};
    struct layout *l = toy_layout(3, 2000);
    struct config c = toy_config(&t);
    struct topology_memory mem;
    struct wire_prediction wire;
    assert_int_equal(ps_worker_predict(&c, l, 0, &mem, &wire), 0);
    assert_int_equal(wire.sent_per_step, l->padded * 2);
    assert_int_equal(mem.formula_bytes, l->params * 4);
    assert_int_equal(mem.predicted_bytes[MEM_PARAMETER] + mem.predicted_bytes[MEM_GRADIENT], l->padded * 4);
    uint64_t sent = 0;
    size_t master = 0;
    for (int s = 0; s < 2; s++) {
        assert_int_equal(ps_server_predict(&c, l, s, &mem, &wire), 0);
        sent += wire.sent_per_step;
        master += mem.predicted_bytes[MEM_MASTER];
        assert_int_equal(mem.predicted_bytes[MEM_OPTIMIZER], 2 * mem.predicted_bytes[MEM_MASTER]);
        assert_int_equal(mem.formula_bytes, l->params * 12 / 2);
    }
    assert_int_equal(sent, 3 * l->padded * 2);
    assert_int_equal(master, l->padded * 4);
    layout_destroy(&l);
}

// ---------------------------------------------------------------- sizes without keys
static void compare_server(const struct shard_map *m, const struct shard_sizes *s, int rank) {
    int64_t *keys = xcalloc((unsigned long)s->classes, sizeof *keys);
    assert_int_equal(shard_sizes_of_server(s, rank, keys), shard_map_server_elements(m, rank));
    for (int i = 0; i < s->classes; i++)
        for (int k = 0; k < m->count; k++)
            keys[i] -= m->parts[k].shard / m->threads == rank &&
                       m->parts[k].end - m->parts[k].begin == s->class[i].elements;
    for (int i = 0; i < s->classes; i++) assert_int_equal(keys[i], 0);
    free(keys);
}

// The servers that are said to own the same do.
static void check_alike(const struct shard_map *m, const struct shard_sizes *s) {
    for (int r = 0, n; r < m->servers; r += n) {
        n = shard_sizes_same(s, r);
        assert_in_range(n, 1, m->servers - r);
        for (int i = 1; i < n; i++)
            assert_int_equal(shard_map_server_elements(m, r + i), shard_map_server_elements(m, r));
    }
}

static void test_sizes_are_those_of_the_map(void **state) {
    (void)state;
    srand(7);
    for (int i = 0; i < 400; i++) {
        struct layout *l = toy_layout(1 + rand() % 5, 1 + rand() % 40000);
        int servers = 1 + rand() % (i % 4 ? 12 : 700);
        struct config o =
            config_of(l, i % 2 ? DT_BF16 : DT_F32, 1024 << rand() % 12, servers, 1 + rand() % 4);
        o.ps.whole_units = i % 10 == 0;
        struct shard_map *m = shard_map_of(&o, l);
        struct shard_sizes *s = shard_sizes_of(&o, l);
        assert_non_null(m);
        assert_non_null(s);
        assert_int_equal(s->cut.keys, m->count);
        assert_int_equal(s->cut.pages, m->pages);
        for (int r = 0; r < servers; r++) compare_server(m, s, r);
        check_alike(m, s);
        shard_map_destroy(&m);
        shard_sizes_destroy(&s);
        layout_destroy(&l);
    }
}

// Frozen units, which resident units pull, follow the trained ones with keys of their own: each as if it were alone.
static void test_frozen_keys_follow(void **state) {
    (void)state;
    struct layout *l = toy_layout(4, 900), *rest = toy_layout(4, 30000), *alone = toy_layout(4, 30000);
    l->units = xrealloc(l->units, (size_t)(l->count + rest->count) * sizeof *l->units);
    memcpy(l->units + l->count, rest->units, (size_t)rest->count * sizeof *l->units);
    free(rest->units);
    rest->units = l->units + l->count;
    l->rest = rest;
    struct config c = config_of(l, DT_BF16, 65536, 3, 2);
    struct shard_map *trained = shard_map_of(&c, l), *frozen = shard_map_of(&c, alone);
    assert_int_equal(trained->count, trained->trained);
    c.ps.resident = PS_RESIDENT_UNITS;
    struct shard_map *m = shard_map_of(&c, l);
    assert_int_equal(m->trained, trained->count);
    assert_int_equal(m->count, trained->count + frozen->count);
    assert_int_equal(m->units, l->count + rest->count);
    assert_int_equal(m->first[m->units], m->count);
    assert_memory_equal(m->parts, trained->parts, (size_t)trained->count * sizeof *m->parts);
    assert_memory_equal(m->shard_elements, trained->shard_elements, (size_t)m->shards * sizeof(int64_t));
    for (int k = 0; k < frozen->count; k++) {
        const struct partition *p = &m->parts[m->trained + k], *q = &frozen->parts[k];
        assert_int_equal(p->unit, l->count + q->unit);
        assert_true(p->begin == q->begin && p->end == q->end && p->shard == q->shard);
        assert_in_range(m->trained + k, m->first[p->unit], m->first[p->unit + 1] - 1);
    }
    shard_map_destroy(&m);
    shard_map_destroy(&trained);
    shard_map_destroy(&frozen);
    layout_destroy(&alone);
    layout_destroy(&l);
}

// 10^15 parameters in thousands of millions of keys: predicted at once; a map of them is refused.
static void test_enormous(void **state) {
    (void)state;
    struct layout *l = toy_layout(3, 2000);
    for (int u = 0; u < l->count; u++) l->units[u].n_pad = (int64_t)200000 << 30;
    l->padded = l->params = l->count * l->units[0].n_pad;
    struct config o = config_of(l, DT_F32, 1 << 20, 4096, 1);
    clock_t begin = clock();
    int64_t total = 0;
    for (int r = 0; r < 4096; r++) {
        struct shard_sizes *s = shard_sizes_of(&o, l);
        total += shard_sizes_of_server(s, r, NULL);
        shard_sizes_destroy(&s);
    }
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 3);
    assert_int_equal(total, l->padded);
    error_quiet(1);
    assert_null(shard_map_of(&o, l));
    assert_non_null(strstr(error_last(), "keys, at most 4194304"));
    error_quiet(0);
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cover_and_balance),  cmocka_unit_test(test_sizes_are_those_of_the_map),
        cmocka_unit_test(test_enormous),           cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_hash_and_refusals),  cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_frozen_keys_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
