// Workers of a group that add their gradients before one of them pushes: the state machines together, over a network
// that loses, repeats and shuffles what they say; the same bits as the plain trainer that adds in groups.
#include "ps/sum/host_group.h"
#include "tests/ps/test_ps_sim.h"

struct boards {
    struct host_group host_group[SIM_WORKERS];
    struct host_group_member members[SIM_WORKERS];
    struct wire_count wire[SIM_WORKERS];
};

static void boards_open(struct boards *b, struct sim *s) {
    *b = (struct boards){0};
    for (int w = 0; w < s->t.workers; w++) {
        struct sim_worker *x = &s->workers[w];
        struct host_group_member *m = &b->members[w];
        m->units = xcalloc((unsigned long)s->l->count, sizeof *m->units);
        m->keys = xcalloc((unsigned long)s->map->count, sizeof *m->keys);
        m->base = x->segment;
        for (int u = 0; u < s->l->count; u++) m->units[u].grad_at = x->grad_at[u];
    }
    for (int w = 0; w < s->t.workers; w++) {
        int first = w - w % s->t.group;
        b->host_group[w] = (struct host_group){.size = s->t.group,
                                               .self = w - first,
                                               .first_rank = first,
                                               .members = b->members + first,
                                               .wire = &b->wire[w],
                                               .map = s->map,
                                               .dtype = s->t.dtype,
                                               .grads = xcalloc((unsigned long)s->t.group, sizeof(void *))};
        worker_core_host_group(s->workers[w].core, &b->host_group[w]);
    }
}

static void boards_close(struct boards *b) {
    for (int w = 0; w < SIM_WORKERS; w++) {
        free(b->members[w].units);
        free(b->members[w].keys);
        free(b->host_group[w].grads);
    }
}

static struct toy_case base_case(void) {
    return (struct toy_case){.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 4,
                             .servers = 2,
                             .threads = 1,
                             .steps = 4,
                             .overflow_step = -1,
                             .group = 2,
                             .seed = 1};
}

static void check_weights(const struct sim *s, const struct toy_ref *r) {
    for (int u = 0; u < s->l->count; u++) {
        size_t bytes = (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype);
        for (int w = 0; w < s->t.workers; w++)
            assert_memory_equal(s->workers[w].weights[u], r->weight[u], bytes);
        for (int k = s->map->first[u]; k < s->map->first[u + 1]; k++) {
            const struct partition *p = &s->map->parts[k];
            size_t n = (size_t)(p->end - p->begin) * sizeof(float);
            assert_memory_equal(s->buffers[k].master, r->master[u] + p->begin, n);
            assert_int_equal(server_core_version(s->shards[p->shard], k), r->updates);
        }
    }
}

// Each group's gradient of each key came once, whatever was repeated: N/g pushes, and no worker is owed anything.
static void check_pushes(const struct sim *s) {
    for (int g = 0; g < s->map->shards; g++) {
        struct server_totals totals;
        server_core_totals(s->shards[g], &totals);
        int groups = s->t.workers / s->t.group;
        assert_int_equal(totals.pushes, (uint64_t)(s->map->shard_keys[g] * groups * s->t.steps));
        assert_int_equal(totals.refused, 0);
        assert_int_equal(totals.held_bytes, 0);
    }
    for (int w = 0; w < s->t.workers; w++) assert_false(worker_core_transferring(s->workers[w].core));
}

static void compare(const struct toy_case *t, int drop, int repeat, bool in_order) {
    struct sim *s = sim_create(t);
    struct boards b;
    boards_open(&b, s);
    s->drop_percent = drop;
    s->repeat_percent = repeat;
    s->in_order = in_order;
    sim_run(s);
    struct toy_ref r = toy_ref_start(t, s->l);
    for (int64_t step = 0; step < t->steps; step++) toy_ref_step(t, s->l, &s->c, &r, step);
    check_weights(s, &r);
    check_pushes(s);
    for (int w = 0; w < t->workers; w++) {
        assert_true(s->workers[w].last.grad_norm == r.last.grad_norm);
        assert_int_equal(s->workers[w].updates, r.updates);
    }
    toy_ref_free(&r);
    sim_destroy(s);
    boards_close(&b);
}

static void test_groups(void **state) {
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    static const int shapes[][2] = {{2, 2}, {3, 3}, {4, 2}, {4, 4}};
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 4; i++)
            for (int share = SHARE_NOTHING; share <= SHARE_MIXED; share++) {
                struct toy_case t = base_case();
                t.dtype = types[d];
                t.workers = shapes[i][0];
                t.group = shapes[i][1];
                t.share = (enum toy_share)share;
                t.overflow_step = types[d] == DT_F16 ? 2 : -1;
                compare(&t, 0, 0, true);
            }
}

static void test_chaos(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct toy_case t = base_case();
        t.seed = seed;
        t.share = (enum toy_share)(seed % 4);
        t.dtype = seed % 3 == 0 ? DT_F16 : seed % 3 == 1 ? DT_BF16 : DT_F32;
        t.clip = seed % 2 ? 0.5f : 0.0f;
        t.servers = 1 + (int)(seed % 3);
        t.threads = 1 + (int)(seed / 3 % 2);
        t.group = seed % 5 == 0 ? 4 : 2;
        t.workers = seed % 7 == 0 ? t.group : 4;
        t.overflow_step = t.dtype == DT_F16 ? 1 : -1;
        compare(&t, (int)(seed / 4 % 4) * 8, (int)(seed % 5) * 6, seed % 11 == 0);
    }
}

// One that neither computes nor speaks for a while is waited for, by its own group and by the others.
static void test_late_member(void **state) {
    (void)state;
    for (int w = 0; w < 4; w++) {
        struct toy_case t = base_case();
        struct sim *s = sim_create(&t);
        struct boards b;
        boards_open(&b, s);
        s->asleep = w;
        s->wake = 40;
        sim_run(s);
        assert_true(s->now >= 40);
        struct toy_ref r = toy_ref_start(&t, s->l);
        for (int64_t step = 0; step < t.steps; step++) toy_ref_step(&t, s->l, &s->c, &r, step);
        check_weights(s, &r);
        check_pushes(s);
        toy_ref_free(&r);
        sim_destroy(s);
        boards_close(&b);
    }
}

// Roles that were told different things say so: a worker that pushes for itself, a server that expects it to.
static void test_roles_disagree(void **state) {
    (void)state;
    for (int host_groups = 0; host_groups < 2; host_groups++) {
        struct toy_case t = base_case(), told = t;
        if (host_groups) told.group = 0;
        struct sim *s = sim_create(&told);
        struct boards b = {0};
        s->t.group = t.group;
        if (host_groups) boards_open(&b, s);
        const char *said = "";
        for (int u = 0; u < s->l->count; u++)
            worker_core_init_unit(s->workers[0].core, u, s->workers[0].init[u], 1);
        for (int i = 0; i < 100000 && !*said; i++) {
            s->now += 0.001;
            if (s->count > 0) sim_deliver(s);
            struct sim_worker *x = &s->workers[sim_draw(s, (uint64_t)s->t.workers)];
            sim_work(s, x);
            worker_core_tick(x->core, s->now);
            for (int g = 0; g < s->map->shards; g++) server_core_tick(s->shards[g], s->now);
            scheduler_core_tick(s->scheduler, s->now);
            for (int w = 0; w < t.workers && !*said; w++) said = worker_core_error(s->workers[w].core);
        }
        assert_non_null(
            strstr(said, host_groups ? "expects each worker's own" : "expects the sums of groups"));
        assert_non_null(strstr(said, "--medium"));
        sim_destroy(s);
        boards_close(&b);
    }
}

// What is read of other members and what they may read is counted where it happens, to the byte.
static void test_bytes(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.group = 4;
    struct sim *s = sim_create(&t);
    struct boards b;
    boards_open(&b, s);
    sim_run(s);
    for (int w = 0; w < 4; w++) {
        uint64_t led = 0, all = 0;
        for (int k = 0; k < s->map->count; k++) {
            uint64_t bytes = (uint64_t)(s->map->parts[k].end - s->map->parts[k].begin) * 2;
            all += bytes;
            if (k % 4 == w) led += bytes;
        }
        assert_int_equal(b.wire[w].payload_sent, (all - led) * (uint64_t)t.steps);
        assert_int_equal(b.wire[w].payload_received, 3 * led * (uint64_t)t.steps);
    }
    sim_destroy(s);
    boards_close(&b);
}

// ---------------------------------------------------------------- memory that is really shared
struct mate {
    struct segment grads;
    uint64_t grad_at[TOY_UNITS];
    struct host_group_place place;
    struct wire_count wire;
};

static void member_open(struct mate *m, struct config *c, struct layout *l, const struct shard_map *map,
                        int rank, double *numbers) {
    uint64_t at = SEGMENT_HEAD;
    for (int u = 0; u < l->count; u++) {
        m->grad_at[u] = at;
        at += (uint64_t)l->units[u].n_pad * dtype_size(c->dtype);
    }
    assert_int_equal(segment_create(&m->grads, (size_t)at), 0);
    const struct host_group_options o = {c, l, map, &m->grads, m->grad_at, &m->wire, rank};
    assert_int_equal(host_group_open(&m->place, &o, numbers + rank * HOST_GROUP_NUMBERS), 0);
}

static void fill(const struct toy_case *t, const struct layout *l, struct mate *m, int rank, void **out) {
    void *zero[TOY_UNITS];
    for (int u = 0; u < l->count; u++) {
        zero[u] = xcalloc((unsigned long)l->units[u].n_pad, dtype_size(t->dtype));
        void *grad = m->grads.base + m->grad_at[u];
        toy_grad(t, l, u, rank, 0, zero[u], grad);
        out[u] = xcalloc((unsigned long)l->units[u].n_pad, dtype_size(t->dtype));
        memcpy(out[u], grad, (size_t)l->units[u].n_pad * dtype_size(t->dtype));
        free(zero[u]);
    }
}

// Two members meet by their numbers. Each adds what it leads, in place, when both have handed it over; the other sees it.
static void test_members_meet(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.workers = t.group = 2;
    struct config c = toy_config(&t);
    struct layout *l = toy_layout(2, 80);
    struct shard_map *map = shard_map_of(&c, l);
    struct mate m[2] = {0};
    double numbers[2 * HOST_GROUP_NUMBERS];
    void *grads[2][TOY_UNITS];
    char error[200];
    for (int i = 0; i < 2; i++) member_open(&m[i], &c, l, map, i, numbers);
    for (int i = 0; i < 2; i++) assert_int_equal(host_group_meet(&m[i].place, numbers), 0);
    for (int i = 0; i < 2; i++) fill(&t, l, &m[i], i, grads[i]);
    struct host_group *a = &m[0].place.host_group, *b = &m[1].place.host_group;
    for (int u = 0; u < l->count; u++)
        host_group_hand(a, u, &(struct host_group_info){.ready_ns = 7, .lr = 0.5f, .keep = true});
    for (int key = 0; key < map->count; key++) {
        assert_int_equal(host_group_lacks(a, key, 0), 1);
        assert_int_equal(host_group_lacks(b, key, 0), 1);
    }
    for (int u = 0; u < l->count; u++)
        host_group_hand(b, u, &(struct host_group_info){.ready_ns = 9, .lr = 0.5f});
    for (int key = 0; key < map->count; key++) {
        const struct partition *p = &map->parts[key];
        struct host_group *leader = key % 2 ? b : a, *other = key % 2 ? a : b;
        struct host_group_info info = {.step = 0};
        int64_t ready_ns = 0;
        size_t n = (size_t)(p->end - p->begin);
        assert_int_equal(host_group_lacks(leader, key, 0), -1);
        assert_int_equal(host_group_lacks(leader, key, 1), 0);
        assert_false(host_group_added(other, key, 0, &ready_ns));
        assert_int_equal(host_group_add(leader, key, &info, error, sizeof error), 0);
        assert_true(info.keep && info.ready_ns == 9 && info.lr == 0.5f);
        assert_true(host_group_added(other, key, 0, &ready_ns) && ready_ns == 9);
        assert_false(host_group_added(other, key, 1, &ready_ns));
        const void *in[2];
        for (int i = 0; i < 2; i++) in[i] = (char *)grads[i][p->unit] + (size_t)p->begin * 2;
        void *sum = xcalloc(n, 2);
        const char *why = "";
        struct reduce_args r = {sum, in, 2, (int64_t)n, DT_BF16, REDUCTION_SUM};
        cpu_ops[OP_REDUCE](1, &r, &why);
        for (int i = 0; i < 2; i++) {  // the leader's place has the sum, the other's is as it was
            const void *at = m[i].grads.base + m[i].grad_at[p->unit] + (size_t)p->begin * 2;
            assert_memory_equal(at, i == key % 2 ? sum : in[i], n * 2);
        }
        free(sum);
    }
    // Roles that schedule differently would push a sum that nobody could use.
    host_group_hand(b, 0, &(struct host_group_info){.step = 1, .lr = 0.25f});
    struct host_group_info info = {.step = 1};
    assert_int_equal(host_group_add(a, 0, &info, error, sizeof error), -1);
    assert_non_null(strstr(error, "worker 1 has the learning rate 0.25, worker 0 of its group 0.5"));
    for (int i = 0; i < 2; i++) {
        host_group_close(&m[i].place);
        segment_close(&m[i].grads);
        for (int u = 0; u < l->count; u++) free(grads[i][u]);
    }
    shard_map_destroy(&map);
    layout_destroy(&l);
}

// Who cannot be reached is named, and what to do.
static void test_members_apart(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.workers = t.group = 2;
    struct config c = toy_config(&t);
    struct layout *l = toy_layout(2, 80);
    struct shard_map *map = shard_map_of(&c, l);
    struct mate m[2] = {0};
    double numbers[2 * HOST_GROUP_NUMBERS];
    for (int i = 0; i < 2; i++) member_open(&m[i], &c, l, map, i, numbers);
    numbers[HOST_GROUP_NUMBERS + 5] += 1;  // of another machine
    error_quiet(1);
    assert_int_equal(host_group_meet(&m[0].place, numbers), -1);
    assert_non_null(
        strstr(error_last(),
               "reduce_group 2: workers 0 and 1 are of one group and share no memory: they run on "
               "different machines"));
    numbers[HOST_GROUP_NUMBERS + 5] -= 1;
    m[1].place.host_group.members[1].units[2].grad_at = m[1].grads.bytes;
    assert_int_equal(host_group_meet(&m[0].place, numbers), -1);
    assert_non_null(strstr(error_last(), "unit block.1 lies outside"));
    struct segment none = {.fd = -1};
    struct host_group_place place = {0};
    const struct host_group_options o = {&c, l, map, &none, m[0].grad_at, &m[0].wire, 0};
    assert_int_equal(host_group_open(&place, &o, numbers), -1);
    assert_non_null(strstr(error_last(), "give --medium tcp"));
    error_quiet(0);
    for (int i = 0; i < 2; i++) {
        host_group_close(&m[i].place);
        segment_close(&m[i].grads);
    }
    shard_map_destroy(&map);
    layout_destroy(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_late_member),   cmocka_unit_test(test_roles_disagree),
        cmocka_unit_test(test_bytes),         cmocka_unit_test(test_members_meet),
        cmocka_unit_test(test_members_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
