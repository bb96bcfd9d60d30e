// Replication over real sockets: whole jobs of threads, the plain trainer's bits, and every byte as predicted.
#include "tests/ps/test_ps_star.h"

static void check_replication(const struct job *j) {
    struct shard_map *map = shard_map_of(&j->c, j->l);
    size_t element = dtype_size(j->t.dtype);
    for (int s = 0; s < j->t.servers; s++) {
        const struct rank_report *r = &j->report[s];
        uint64_t own = (uint64_t)shard_map_server_elements(map, s);
        uint64_t other = (uint64_t)shard_map_server_elements(map, (s + j->t.servers - 1) % j->t.servers);
        assert_int_equal(r->wire.replica_sent_per_step, own * element);
        assert_int_equal(r->wire.replica_received_per_step, other * element);
        assert_true(r->replica_sent_per_step == (double)r->wire.replica_sent_per_step);
        assert_true(r->replica_received_per_step == (double)r->wire.replica_received_per_step);
        // Master, two moments and the sum that waits; each key's arrays are rounded up as the device rounds.
        size_t replica = r->peak_bytes[MEM_SERVER], least = other * (12 + element);
        assert_in_range(replica, least, least + (uint64_t)map->count * 4 * 256);
    }
    shard_map_destroy(&map);
}

static void replicated(const struct toy_case *t) {
    struct job *j = job_create(t);
    job_run(j, NULL, t->workers);
    check_all_done(j);
    check_honest(j);
    check_replication(j);
    struct toy_ref ref = toy_ref_start(t, j->l);
    for (int64_t step = 0; step < t->steps; step++) toy_ref_step(t, j->l, &j->c, &ref, step);
    for (int w = 0; w < t->workers; w++) {
        for (int u = 0; u < TOY_UNITS; u++)
            assert_memory_equal(j->worker[w].weights[u], ref.weight[u],
                                (size_t)j->l->units[u].n_pad * dtype_size(t->dtype));
        assert_true(j->worker[w].last.loss == ref.last.loss);
    }
    toy_ref_free(&ref);
    job_destroy(j);
}

static void test_jobs(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_BF16, DT_F32, DT_F16, DT_BF16};
    for (int i = 0; i < 4; i++) {
        struct toy_case t = base_case();
        t.replicate = true;
        t.dtype = types[i];
        t.servers = 2 + i % 2;
        t.threads = 1 + i / 2;
        t.medium = i % 2 ? MEDIUM_TCP : MEDIUM_AUTO;
        t.clip = i == 3 ? 0.5f : 0;
        t.overflow_step = t.dtype == DT_F16 ? 2 : -1;
        replicated(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_jobs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
