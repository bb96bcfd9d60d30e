// Replicas: bit for bit what their primaries are, whatever the network does; and at any moment, whichever server dies,
// all others and the replica of the dead one reach the very step that the scheduler has decided last.
#include "tests/ps/test_ps_log.h"

static struct toy_case case_of(uint64_t seed) {
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32};
    struct toy_case t = {.dtype = types[seed % 3],
                         .consistency = "sync",
                         .workers = 1 + (int)(seed / 2 % 3),
                         .servers = 2 + (int)(seed / 3 % 3),
                         .threads = 1 + (int)(seed / 5 % 2),
                         .steps = 5,
                         .clip = seed % 2 ? 0.5f : 0.0f,
                         .overflow_step = -1,
                         .seed = seed,
                         .replicate = true};
    static const enum toy_share shares[] = {SHARE_NOTHING, SHARE_WRITTEN, SHARE_IN_PLACE, SHARE_MIXED};
    t.share = shares[seed / 2 % 4];
    if (t.dtype == DT_F16 || t.clip > 0) t.overflow_step = 1 + (int64_t)(seed % 3);
    return t;
}

static struct sim *troubled(const struct toy_case *t) {
    struct sim *s = sim_create(t);
    bool quiet = t->seed % 7 == 0;
    s->drop_percent = quiet ? 0 : (int)(t->seed % 4) * 7;
    s->repeat_percent = quiet ? 0 : (int)(t->seed % 5) * 6;
    s->in_order = quiet;
    return s;
}

static struct toy_ref trained(const struct sim *s, int64_t steps) {
    struct toy_ref r = toy_ref_start(&s->t, s->l);
    for (int64_t step = 0; step < steps; step++) toy_ref_step(&s->t, s->l, &s->c, &r, step);
    return r;
}

static void check_key(const struct sim *s, const struct toy_ref *r, int k, const float *master,
                      float *const *state) {
    const struct partition *p = &s->map->parts[k];
    size_t n = (size_t)(p->end - p->begin) * sizeof(float);
    assert_memory_equal(master, r->master[p->unit] + p->begin, n);
    assert_memory_equal(state[0], r->m[p->unit] + p->begin, n);
    assert_memory_equal(state[1], r->v[p->unit] + p->begin, n);
}

static void check_replica(const struct sim *s, const struct toy_ref *r, int k) {
    int holder = replica_holder_shard(s->map, s->map->parts[k].shard);
    check_key(s, r, k, s->replica_buffers[k].master, s->replica_buffers[k].state);
    assert_int_equal(replica_version(s->replicas[holder], k), r->updates);
}

static void test_replicas_follow(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct toy_case t = case_of(seed);
        struct sim *s = troubled(&t);
        sim_run(s);
        struct toy_ref r = trained(s, t.steps);
        for (int g = 0; g < s->map->shards; g++)
            assert_int_equal(replica_reach(s->replicas[g], t.steps, &r.scalars), 0);
        for (int k = 0; k < s->map->count; k++) {
            check_key(s, &r, k, s->buffers[k].master, s->buffers[k].state);
            check_replica(s, &r, k);
        }
        for (int w = 0; w < t.workers; w++) assert_true(s->workers[w].last.loss == r.last.loss);
        toy_ref_free(&r);
        sim_destroy(s);
    }
}

// Any server dies at any moment: nothing of what it held or had received exists any more.
static void test_any_death_at_any_moment(void **state) {
    (void)state;
    int64_t rescued = 0, deepest = 0;
    for (uint64_t seed = 1; seed <= 240; seed++) {
        struct toy_case t = case_of(seed);
        struct sim *s = troubled(&t);
        int dead = (int)sim_draw(s, (uint64_t)t.servers);
        sim_run_for(s, 200 + (int64_t)sim_draw(s, 6000));
        const struct wire_header *last = scheduler_core_decision(s->scheduler);
        const struct update_scalars scalars = {.grad_scale = last->grad_scale,
                                               .skip = (last->flags & WIRE_SKIP) != 0};
        int64_t steps = last->kind ? last->step + 1 : 0;
        struct toy_ref r = trained(s, steps);
        for (int g = 0; g < s->map->shards && steps; g++) {
            bool lost = g / t.threads == dead, holds = replica_primary_shard(s->map, g) / t.threads == dead;
            if (!lost) assert_int_equal(server_core_reach(s->shards[g], steps, &scalars), 0);
            if (holds && replica_reach(s->replicas[g], steps, &scalars) != 0)
                fail_msg("seed %d, server %d: %s", (int)seed, dead, replica_error(s->replicas[g]));
        }
        for (int k = 0; k < s->map->count && steps; k++) {
            int g = s->map->parts[k].shard;
            if (g / t.threads == dead)
                check_replica(s, &r, k);
            else
                check_key(s, &r, k, s->buffers[k].master, s->buffers[k].state);
            if (g / t.threads != dead) assert_int_equal(server_core_version(s->shards[g], k), r.updates);
        }
        rescued += steps > 0;
        deepest = steps > deepest ? steps : deepest;
        toy_ref_free(&r);
        sim_destroy(s);
    }
    assert_true(rescued > 100 && deepest == 5);
}

// ---------------------------------------------------------------- single messages
struct bench {
    struct toy_case t;
    struct sim *sim;  // lends layout, map and buffers
    struct log log;
    struct server_core *core;  // shard 0
    struct replica *replica;   // of shard 0
    int key, keys;             // its first key
    size_t elements;           // of that
    const void *expected;      // what must be kept when an acknowledgement leaves; NULL: nothing is compared
    size_t expected_bytes;
    const void *kept;
    int acks;
};

static void compare_and_log(void *ctx, int peer, const struct ps_message *m) {
    struct bench *b = ctx;
    if (m->header.kind == WIRE_REPLICATE_ACK) b->acks++;
    if (m->header.kind == WIRE_REPLICATE_ACK && b->expected)
        assert_memory_equal(b->kept, b->expected, b->expected_bytes);
    log_send(&b->log, peer, m);
}

static void bench_open(struct bench *b, int threads) {
    *b = (struct bench){.t = {.dtype = DT_BF16,
                              .consistency = "sync",
                              .workers = 1,
                              .servers = 2,
                              .threads = threads,
                              .steps = 1,
                              .overflow_step = -1,
                              .replicate = true}};
    b->sim = sim_create(&b->t);
    b->key = -1;
    for (int k = 0; k < b->sim->map->count; k++)
        if (b->sim->map->parts[k].shard == 0) {
            if (b->key < 0) b->key = k;
            b->keys++;
        }
    b->elements = (size_t)(b->sim->map->parts[b->key].end - b->sim->map->parts[b->key].begin);
    struct replica_options ro = {.layout = b->sim->l,
                                 .map = b->sim->map,
                                 .buffers = b->sim->replica_buffers,
                                 .optimizer = b->sim->c.optimizer,
                                 .dtype = DT_BF16,
                                 .job = SIM_JOB,
                                 .port = {b, compare_and_log}};
    b->replica = replica_create(&ro);
    replica_set_primary(b->replica, 7);
    b->sim->c.ps.replicate = true;
    struct server_core_options o = {.config = &b->sim->c,
                                    .layout = b->sim->l,
                                    .map = b->sim->map,
                                    .buffers = b->sim->buffers,
                                    .job = SIM_JOB,
                                    .port = {b, compare_and_log}};
    b->core = server_core_create(&o);
    server_core_member(b->core, 0, 100, 0);
}

static void bench_close(struct bench *b) {
    server_core_destroy(&b->core);
    replica_destroy(&b->replica);
    sim_destroy(b->sim);
}

static struct wire_header sum_of(const struct bench *b, int64_t step, int64_t version) {
    return (struct wire_header){.kind = WIRE_REPLICATE,
                                .role = PS_SHARD,
                                .job = SIM_JOB,
                                .incarnation = 7,
                                .key = b->key,
                                .step = step,
                                .version = version,
                                .lr = 0.1f,
                                .grad_scale = 1.0f};
}

static int keep(struct bench *b, const struct wire_header *h, const void *payload, size_t bytes) {
    void *copy = xcalloc(bytes, 1);
    memcpy(copy, payload, bytes);
    b->log.count = 0;
    return replica_message(b->replica, h, sim_frame(b->sim, copy, bytes));
}

static void load(struct bench *b, const float *masters) {
    struct wire_header h = sum_of(b, 0, 0);
    h.seq = 1;
    b->expected = masters;
    b->expected_bytes = b->elements * 4;
    b->kept = b->sim->replica_buffers[b->key].master;
    assert_int_equal(keep(b, &h, masters, b->elements * 4), 0);
    assert_int_equal(logged(&b->log, PEER_PRIMARY, WIRE_REPLICATE_ACK), 1);
}

// When an acknowledgement leaves, its payload is where it survives the primary.
static void test_kept_before_acknowledged(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, 1);
    float *masters = xcalloc(b.elements, 4);
    uint16_t *sum = xcalloc(b.elements, 2), *later = xcalloc(b.elements, 2);
    for (size_t i = 0; i < b.elements; i++) {
        masters[i] = (float)i + 1;
        dtype_store(DT_BF16, sum, i, 0.5f + (float)(i % 7));
        dtype_store(DT_BF16, later, i, 0.25f);
    }
    // Before it is loaded nothing is acknowledged.
    struct wire_header h = sum_of(&b, 0, 0);
    assert_int_equal(keep(&b, &h, sum, b.elements * 2), 0);
    assert_int_equal(b.log.count, 0);
    load(&b, masters);
    b.expected = sum;
    b.expected_bytes = b.elements * 2;
    b.kept = b.sim->replica_buffers[b.key].acc;
    assert_int_equal(keep(&b, &h, sum, b.elements * 2), 0);
    assert_int_equal(logged(&b.log, PEER_PRIMARY, WIRE_REPLICATE_ACK), 1);
    // Again, with other values: acknowledged, dropped.
    assert_int_equal(keep(&b, &h, later, b.elements * 2), 0);
    assert_int_equal(logged(&b.log, PEER_PRIMARY, WIRE_REPLICATE_ACK), 1);
    assert_int_equal(replica_version(b.replica, b.key), 0);
    // The next one brings the decision of this one with it: applied first, then kept.
    h = sum_of(&b, 1, 1);
    b.expected = later;
    assert_int_equal(keep(&b, &h, later, b.elements * 2), 0);
    assert_int_equal(replica_version(b.replica, b.key), 1);
    assert_true(b.sim->replica_buffers[b.key].master[0] < masters[0]);
    // The decision of an older step changes nothing, the one of this step does; a skip counts no update.
    struct wire_header d = {.kind = WIRE_DECISION, .step = 0, .grad_scale = 1};
    assert_int_equal(replica_decision(b.replica, &d), 0);
    assert_int_equal(replica_version(b.replica, b.key), 1);
    d.step = 1;
    d.flags = WIRE_SKIP;
    assert_int_equal(replica_decision(b.replica, &d), 0);
    assert_int_equal(replica_version(b.replica, b.key), 1);
    assert_int_equal(b.acks, 4);
    // A primary that is elsewhere: said, and the replica is finished.
    h = sum_of(&b, 4, 1);
    assert_int_equal(keep(&b, &h, sum, b.elements * 2), -1);
    assert_non_null(
        strstr(replica_error(b.replica), "step 4, version 1, came, while the replica is at step 2"));
    h = sum_of(&b, 2, 1);
    assert_int_equal(keep(&b, &h, sum, b.elements * 2), -1);
    assert_int_equal(b.log.count, 0);
    free(masters);
    free(sum);
    free(later);
    bench_close(&b);
}

static void test_strangers(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, 2);
    float *masters = xcalloc(b.elements, 4);
    load(&b, masters);
    struct wire_header good = sum_of(&b, 0, 0), h[6] = {good, good, good, good, good, good};
    h[0].job = 1;
    h[1].role = PS_WORKER;
    h[2].rank = 1;
    h[3].thread = 1;
    h[4].incarnation = 8;
    h[5].key = b.sim->map->count;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(keep(&b, &h[i], masters, b.elements * 2), 0);
        assert_int_equal(b.log.count, 0);
    }
    assert_int_equal(keep(&b, &good, masters, b.elements * 2 - 2), -1);
    assert_non_null(strstr(replica_error(b.replica), "bytes"));
    free(masters);
    bench_close(&b);
}

static struct wire_header from_worker(enum wire_kind kind, int key, int64_t step) {
    return (struct wire_header){.kind = kind,
                                .role = PS_WORKER,
                                .job = SIM_JOB,
                                .incarnation = 100,
                                .key = key,
                                .step = step,
                                .lr = 0.1f,
                                .grad_scale = 1.0f,
                                .seq = (uint64_t)(step + 1)};
}

static void give(struct bench *b, const struct wire_header *h, size_t bytes, double now) {
    b->log.count = 0;
    assert_int_equal(server_core_message(b->core, h, sim_frame(b->sim, xcalloc(bytes, 1), bytes), now), 0);
}

static void acknowledge(struct bench *b, int key, int64_t step, uint64_t seq) {
    const struct wire_header h = {
        .kind = WIRE_REPLICATE_ACK, .role = PS_SHARD, .job = SIM_JOB, .key = key, .step = step, .seq = seq};
    b->log.count = 0;
    assert_int_equal(server_core_replicated(b->core, &h, 10), 0);
}

static size_t elements_of(const struct bench *b, int k) {
    return (size_t)(b->sim->map->parts[k].end - b->sim->map->parts[k].begin);
}

// The worker hears that weights are loaded, and the scheduler the sums of a step, when the neighbour has them all.
static void test_said_behind_the_last_acknowledgement(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, 1);
    int done = 0;
    for (int k = 0; k < b.sim->map->count; k++) {
        if (b.sim->map->parts[k].shard != 0) continue;
        struct wire_header h = from_worker(WIRE_INIT, k, 0);
        give(&b, &h, elements_of(&b, k) * 4, 0);
        assert_int_equal(logged(&b.log, 0, WIRE_INIT_ACK), 0);
        assert_int_equal(logged(&b.log, PEER_NEIGHBOUR, WIRE_REPLICATE), 1);
        acknowledge(&b, k, 0, 1);
        assert_int_equal(logged(&b.log, 0, WIRE_INIT_ACK), 1);
        give(&b, &h, elements_of(&b, k) * 4, 0);
        assert_int_equal(logged(&b.log, 0, WIRE_INIT_ACK), 1);
    }
    for (int k = 0; k < b.sim->map->count; k++) {
        if (b.sim->map->parts[k].shard != 0) continue;
        struct wire_header h = from_worker(WIRE_PUSH, k, 0);
        give(&b, &h, elements_of(&b, k) * 2, 10);
        assert_int_equal(logged(&b.log, PEER_NEIGHBOUR, WIRE_REPLICATE), 1);
        assert_int_equal(logged(&b.log, PEER_SCHEDULER, WIRE_SHARD_SUM), 0);
    }
    for (int k = 0; k < b.sim->map->count; k++) {
        if (b.sim->map->parts[k].shard != 0) continue;
        acknowledge(&b, k, 1, 0);  // of a step that is not
        acknowledge(&b, k, 0, 0);
        assert_int_equal(logged(&b.log, PEER_SCHEDULER, WIRE_SHARD_SUM), ++done == b.keys);
        acknowledge(&b, k, 0, 0);
        assert_int_equal(logged(&b.log, PEER_SCHEDULER, WIRE_SHARD_SUM), 0);
    }
    assert_int_equal(server_core_version(b.core, b.key), 0);
    struct wire_header d = {.kind = WIRE_DECISION, .grad_scale = 0.25f, .flags = WIRE_SKIP};
    assert_int_equal(server_core_decision(b.core, &d, 0), 0);
    assert_int_equal(server_core_version(b.core, b.key), 0);
    // The next sum repeats that decision.
    struct wire_header h = from_worker(WIRE_PUSH, b.key, 1);
    give(&b, &h, b.elements * 2, 20);
    assert_int_equal(logged(&b.log, PEER_NEIGHBOUR, WIRE_REPLICATE), 1);
    for (int i = 0; i < b.log.count; i++) {
        const struct wire_header *sent = &b.log.sent[i].h;
        if (sent->kind != WIRE_REPLICATE) continue;
        assert_true(sent->step == 1 && sent->version == 0 && sent->lr == 0.1f);
        assert_true(sent->grad_scale == 0.25f && sent->flags == WIRE_SKIP);
    }
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_before_acknowledged),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_said_behind_the_last_acknowledgement),
        cmocka_unit_test(test_replicas_follow),
        cmocka_unit_test(test_any_death_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
