// Single messages to a shard and to a worker: what is refused, what is said when something does not
// come, and the order of pulls, commits and versions.
#include "ps/worker/worker_core_state.h"
#include "test_ps_log.h"

// ---------------------------------------------------------------- one shard, two workers, one key
struct fixture {
    struct toy_case t;
    struct sim *sim;  // lends layout, map and buffers
    struct log log;
    struct server_core *core;
    size_t bytes;          // of key 0
    uint32_t life;         // of the workers
    int64_t acknowledged;  // the version that key 0 had when its last gradient was acknowledged
};

static struct fixture fixture_create(const char *consistency) {
    struct fixture b = {.t = {.dtype = DT_BF16,
                              .consistency = consistency,
                              .workers = 2,
                              .servers = 1,
                              .threads = 1,
                              .steps = 1,
                              .overflow_step = -1}};
    b.sim = sim_create(&b.t);
    b.bytes = (size_t)(b.sim->map->parts[0].end - b.sim->map->parts[0].begin) * 2;
    return b;
}

static void fixture_send(void *ctx, int peer, const struct ps_message *m) {
    struct fixture *b = ctx;
    bool taken = m->header.kind == WIRE_PUSH_ACK && !(m->header.flags & WIRE_HELD);
    if (taken) b->acknowledged = server_core_version(b->core, 0);
    log_send(&b->log, peer, m);
}

static void fixture_open_ahead(struct fixture *b, bool round, int lead) {
    b->sim->c.clip = round ? 1.0f : 0.0f;
    b->sim->c.steps = 4;
    struct consistency_rule rule = consistency_of(&b->sim->c);
    if (lead) rule.delay = rule.lead = lead;
    struct server_core_options o = {.config = &b->sim->c,
                                    .rule = &rule,
                                    .layout = b->sim->l,
                                    .map = b->sim->map,
                                    .shard = 0,
                                    .buffers = b->sim->buffers,
                                    .job = SIM_JOB,
                                    .port = {b, fixture_send}};
    b->core = server_core_create(&o);
    for (int w = 0; w < b->t.workers; w++) server_core_member(b->core, w, 100 + (uint64_t)w, b->life);
}

static void fixture_open(struct fixture *b, bool round) { fixture_open_ahead(b, round, 0); }

static void fixture_close(struct fixture *b) {
    server_core_destroy(&b->core);
    sim_destroy(b->sim);
}

static struct wire_header from(int worker, enum wire_kind kind, int key, int64_t step) {
    return (struct wire_header){.kind = kind,
                                .role = PS_WORKER,
                                .rank = worker,
                                .job = SIM_JOB,
                                .incarnation = 100 + (uint64_t)worker,
                                .key = key,
                                .step = step,
                                .lr = 0.1f,
                                .grad_scale = 1.0f,
                                .seq = (uint64_t)(step + 1)};
}

static int give(struct fixture *b, struct wire_header h, size_t bytes, double now) {
    b->log.count = 0;
    h.process_no = b->life;
    return server_core_message(b->core, &h, sim_frame(b->sim, bytes ? xcalloc(bytes, 1) : NULL, bytes), now);
}

static size_t bytes_of(const struct fixture *b, int key) {
    return (size_t)(b->sim->map->parts[key].end - b->sim->map->parts[key].begin) * 2;
}

static void fixture_load(struct fixture *b) {
    for (int k = 0; k < b->sim->map->count; k++) {
        assert_int_equal(give(b, from(0, WIRE_INIT, k, 0), bytes_of(b, k) * 2, 0), 0);
        assert_int_equal(logged(&b->log, 0, WIRE_INIT_ACK), 1);
    }
}

static void test_order_of_pulls(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    fixture_open(&b, false);
    fixture_load(&b);
    // Worker 1 comes first: held. Its pull waits, and so does worker 0's, sent before its push.
    assert_int_equal(give(&b, from(1, WIRE_PUSH, 0, 0), b.bytes, 0), 0);
    assert_int_equal(b.log.sent[0].h.flags, WIRE_HELD);
    give(&b, from(1, WIRE_PULL, 0, 1), 0, 0);
    give(&b, from(0, WIRE_PULL, 0, 1), 0, 0);
    assert_int_equal(b.log.count, 0);
    struct server_totals totals;
    server_core_totals(b.core, &totals);
    assert_int_equal(totals.held_bytes, b.bytes);
    // Worker 0 arrives: both are summed in order, committed, acknowledged, and both pulls answered.
    assert_int_equal(give(&b, from(0, WIRE_PUSH, 0, 0), b.bytes, 0), 0);
    assert_int_equal(logged(&b.log, 0, WIRE_PUSH_ACK) + logged(&b.log, 1, WIRE_PUSH_ACK), 2);
    assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY) + logged(&b.log, 1, WIRE_PULL_REPLY), 2);
    assert_int_equal(server_core_version(b.core, 0), 1);
    assert_int_equal(b.acknowledged, 0);  // the update, which takes longer, comes behind
    server_core_totals(b.core, &totals);
    assert_int_equal(totals.held_bytes, 0);
    assert_int_equal(totals.held_peak_bytes, b.bytes);
    // The link may have to say an answer again: as it was, until the worker has asked for the next one.
    struct ps_message lost = {
        .header = {.kind = WIRE_PULL_REPLY, .key = 0, .seq = from(0, WIRE_PULL, 0, 1).seq}};
    assert_true(server_core_renew(b.core, 0, &lost));
    assert_true(lost.bytes == b.bytes && lost.payload == b.sim->buffers[0].weight && lost.inflight);
    assert_true(lost.header.step == 1 && lost.header.version == 1);
    // A push that was taken before, as another life of the worker may bring it, changes nothing and is answered.
    give(&b, from(0, WIRE_PUSH, 0, 0), b.bytes, 0);
    assert_int_equal(logged(&b.log, 0, WIRE_PUSH_ACK), 1);
    assert_int_equal(server_core_version(b.core, 0), 1);
    struct wire_header h = from(0, WIRE_PULL, 0, 1);
    give(&b, h, 0, 0.1);
    assert_int_equal(b.log.count, 0);
    h.seq++;
    give(&b, h, 0, 0.1);
    assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY), 1);
    assert_false(server_core_renew(b.core, 0, &lost));
    fixture_close(&b);
}

// A reply still in the transport keeps its buffer still: the next commit waits for it.
static void test_commit_waits_for_transport(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    fixture_open(&b, false);
    fixture_load(&b);
    for (int k = b.sim->map->count - 1; k >= 0; k--)
        for (int w = 0; w < 2; w++) give(&b, from(w, WIRE_PUSH, k, 0), bytes_of(&b, k), 0);
    give(&b, from(0, WIRE_PULL, 0, 1), 0, 0);
    assert_non_null(b.log.inflight);
    atomic_fetch_add(b.log.inflight, 1);
    struct wire_header h = from(0, WIRE_PUSH, 0, 1);
    h.version = 1;
    give(&b, h, b.bytes, 0);
    h.rank = 1;
    h.incarnation = 101;
    give(&b, h, b.bytes, 0);
    assert_int_equal(server_core_version(b.core, 0), 1);
    assert_true(server_core_is_urgent(b.core));
    assert_int_equal(server_core_tick(b.core, 0.1), 0);
    assert_int_equal(server_core_version(b.core, 0), 1);
    atomic_fetch_sub(b.log.inflight, 1);
    assert_int_equal(server_core_tick(b.core, 0.1), 0);
    assert_int_equal(server_core_version(b.core, 0), 2);
    assert_false(server_core_is_urgent(b.core));
    fixture_close(&b);
}

// With a commit round nothing moves until the decision; a skip ends the step but counts no update.
static void test_round_and_skip(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    struct server_totals totals;
    double now = 0;
    fixture_open(&b, true);
    fixture_load(&b);
    for (int step = 0; step < 2; step++) {
        int sums = 0;
        for (int k = 0; k < b.sim->map->count; k++)
            for (int w = 0; w < 2; w++) {
                give(&b, from(w, WIRE_PUSH, k, step), bytes_of(&b, k), now);
                sums += logged(&b.log, PEER_SCHEDULER, WIRE_SHARD_SUM);
            }
        assert_int_equal(sums, 1);
        give(&b, from(0, WIRE_PULL, 0, step + 1), 0, now);
        b.log.count = 0;
        for (double end = now + 0.9; now < end; now += 0.1)
            assert_int_equal(server_core_tick(b.core, now), 0);
        assert_int_equal(b.log.count, 0);
        struct wire_header d = {.kind = WIRE_DECISION, .step = step, .flags = WIRE_SKIP};
        assert_int_equal(server_core_decision(b.core, &d, now), 0);
        assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY), 1);
        assert_int_equal(server_core_version(b.core, 0), 0);
        server_core_totals(b.core, &totals);
        assert_int_equal(totals.steps, step + 1);
    }
    fixture_close(&b);
}

// A key that is only pulled: pulls of any step wait until it is loaded, which is done once; it takes no push.
static void test_frozen_key(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    int key = b.sim->map->count - 1;
    b.sim->c.ps.resident = PS_RESIDENT_UNITS;
    b.sim->map->trained = key;
    fixture_open(&b, false);
    give(&b, from(1, WIRE_PULL, key, 3), 0, 0);
    assert_int_equal(b.log.count, 0);
    for (int again = 0; again < 2; again++) {
        uint16_t *weight = b.sim->buffers[key].weight;
        weight[0] = f32_to_bf16(7);
        struct wire_header h = from(0, WIRE_INIT, key, 0);
        h.seq += (uint64_t)again;
        give(&b, h, bytes_of(&b, key) * 2, 0);
        assert_int_equal(logged(&b.log, 0, WIRE_INIT_ACK), 1);
        assert_int_equal(logged(&b.log, 1, WIRE_PULL_REPLY), !again);
        assert_int_equal(weight[0], again ? f32_to_bf16(7) : 0);
    }
    give(&b, from(0, WIRE_PULL, key, 1), 0, 0);
    assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY), 1);
    assert_int_equal(give(&b, from(0, WIRE_PUSH, key, 1), bytes_of(&b, key), 0), 0);
    assert_int_equal(logged(&b.log, 0, WIRE_REFUSED), 1);
    assert_int_equal(b.sim->frames, 0);
    assert_int_equal(server_core_version(b.core, key), 0);
    fixture_close(&b);
}

// ---------------------------------------------------------------- steps that are open at once
#define AHEAD_STEPS 9

// A gradient that depends on no weights. In a worker's segment each slot of a key has a place.
static int push_ahead(struct fixture *b, const struct server_segment *s, struct wire_header h, int lead) {
    int keys = b->sim->map->count;
    size_t at = 64, bytes = bytes_of(b, h.key);
    for (int k = 0; k < h.key + keys * (int)(h.step % (1 + lead)); k++) at += bytes_of(b, k % keys);
    uint16_t *x = s->base ? (uint16_t *)(s->base + at) : xcalloc(bytes, 1);
    for (size_t i = 0; i < bytes / 2; i++)
        x[i] = f32_to_bf16(toy_noise((uint64_t)(h.rank + 2 * h.key + 1000 * h.step), i));
    h.version = server_core_version(b->core, h.key);
    if (s->base) h.data_offset = at, h.data_bytes = bytes;
    b->log.count = 0;
    return server_core_message(b->core, &h, s->base ? NULL : sim_frame(b->sim, x, bytes), 0);
}

// Pushes in a random order, each worker's of a key in that of their steps, and of no step of which it could not have weights.
// shared: worker 1's gradients lie in its segment. The masters of all keys, one behind the other, go to out.
static void run_ahead(bool round, int lead, bool shared, uint64_t seed, float *out) {
    struct fixture b = fixture_create("sync");
    int keys = b.sim->map->count, sums = 0, ahead = 0;
    int64_t done[2][64] = {{0}}, over = 0, decided = round ? 0 : AHEAD_STEPS;
    struct server_segment own[2] = {{0}};
    struct server_totals totals;
    fixture_open_ahead(&b, round, lead);
    fixture_load(&b);
    assert_true(keys <= 64);
    b.sim->t.seed = seed;
    for (int k = 0; k < keys; k++) own[1].bytes += (size_t)(1 + lead) * bytes_of(&b, k);
    own[1].bytes += 64;
    own[1].base = shared ? xcalloc(own[1].bytes, 1) : NULL;
    if (shared) server_core_attach(b.core, 1, &own[1]);
    for (int turns = 0; over < AHEAD_STEPS; turns++) {
        assert_true(turns < 1000000);
        int w = (int)sim_draw(b.sim, 2), key = (int)sim_draw(b.sim, (uint64_t)keys);
        if (done[w][key] < AHEAD_STEPS && done[w][key] <= over + lead) {
            ahead = done[w][key] - over > ahead ? (int)(done[w][key] - over) : ahead;
            assert_int_equal(push_ahead(&b, &own[w], from(w, WIRE_PUSH, key, done[w][key]++), lead), 0);
            assert_int_equal(logged(&b.log, w, WIRE_REFUSED), 0);
        } else if (decided < sums) {
            struct wire_header d = {.kind = WIRE_DECISION, .step = decided, .grad_scale = 0.5f};
            if (decided++ == 1) d.flags = WIRE_SKIP;
            b.log.count = 0;
            assert_int_equal(server_core_decision(b.core, &d, 0), 0);
        }
        for (int i = 0; i < b.log.count; i++)
            if (b.log.sent[i].h.kind == WIRE_SHARD_SUM) assert_int_equal(b.log.sent[i].h.step, sums++);
        b.log.count = 0;
        over = decided;
        for (int i = 0; i < 2 * keys; i++) over = done[i % 2][i / 2] < over ? done[i % 2][i / 2] : over;
    }
    assert_int_equal(sums, AHEAD_STEPS);
    assert_int_equal(ahead, lead);
    server_core_totals(b.core, &totals);
    assert_int_equal(totals.steps, AHEAD_STEPS);
    assert_int_equal(totals.held_bytes, 0);
    assert_false(server_core_has_open(b.core));
    for (int k = 0; k < keys; out += bytes_of(&b, k++) / 2) {
        assert_int_equal(server_core_version(b.core, k), AHEAD_STEPS - round);
        memcpy(out, b.sim->buffers[k].master, bytes_of(&b, k) * 2);
    }
    free(own[1].base);
    fixture_close(&b);
}

// Steps that are open at once end with the bits of steps that follow each other.
static void test_ahead(void **state) {
    (void)state;
    float one[8192] = {0}, other[8192] = {0};
    for (uint64_t seed = 1; seed <= 24; seed++) {
        bool round = seed % 2, shared = seed / 2 % 2;
        run_ahead(round, 0, false, seed, one);
        run_ahead(round, 1 + (int)(seed % 3), shared, seed + 100, other);
        assert_memory_equal(one, other, sizeof one);
        assert_true(one[0] != 0);
    }
}

// A push of a step for which there is no slot is refused, and so is one that its worker lacks weights for: of another key.
static void test_too_far_ahead(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    const struct server_segment none = {0};
    fixture_open_ahead(&b, false, 2);
    fixture_load(&b);
    for (int step = 0; step < 4; step++) push_ahead(&b, &none, from(0, WIRE_PUSH, 0, step), 2);
    assert_int_equal(logged(&b.log, 0, WIRE_REFUSED), 1);
    assert_non_null(strstr(b.log.sent[0].h.text, "earlier step is not over"));
    for (int step = 0; step < 3; step++) push_ahead(&b, &none, from(1, WIRE_PUSH, 0, step), 2);
    assert_int_equal(server_core_version(b.core, 0), 3);
    push_ahead(&b, &none, from(0, WIRE_PUSH, 0, 3), 2);
    assert_int_equal(logged(&b.log, 0, WIRE_REFUSED), 1);
    // A pull is answered by weights that are two steps old, and says which pushes they lack.
    give(&b, from(0, WIRE_PUSH, 1, 0), bytes_of(&b, 1), 0);
    give(&b, from(0, WIRE_PUSH, 1, 1), bytes_of(&b, 1), 0);
    give(&b, from(0, WIRE_PULL, 1, 2), 0, 0);
    assert_int_equal(b.log.sent[0].h.kind, WIRE_PULL_REPLY);
    assert_int_equal(b.log.sent[0].h.version, 0);
    assert_int_equal(b.log.sent[0].h.pending_pushes, 1);  // the first one is in the sum
    give(&b, from(0, WIRE_PUSH, 1, 2), bytes_of(&b, 1), 0);
    give(&b, from(0, WIRE_PULL, 1, 3), 0, 0);
    assert_int_equal(b.log.count, 0);
    give(&b, from(1, WIRE_PUSH, 1, 0), bytes_of(&b, 1), 0);
    assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY), 1);
    fixture_close(&b);
}

// Each open step has a set of its own, which may be fixed before the one of the step before.
static void test_sets_ahead(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    b.sim->c.recovery = (struct recovery_config){.elastic_min = 1, .elastic_max = 2};
    b.life = 1;
    fixture_open_ahead(&b, false, 1);
    fixture_load(&b);
    for (int step = 0; step < 2; step++)
        for (int k = 0; k < b.sim->map->count; k++)
            for (int w = 0; w < 2; w++) {
                struct wire_header h = from(w, WIRE_PUSH, k, step);
                assert_int_equal(give(&b, h, bytes_of(&b, k), 0), 0);
                assert_int_equal(logged(&b.log, w, WIRE_PUSH_ACK), 1);
            }
    assert_int_equal(logged(&b.log, PEER_SCHEDULER, WIRE_ARRIVED), 1);
    struct wire_header set = {.kind = WIRE_SET, .step = 1, .mask = 1};
    assert_int_equal(server_core_decision(b.core, &set, 0), 0);
    assert_int_equal(server_core_version(b.core, 0), 0);
    set = (struct wire_header){.kind = WIRE_SET, .step = 0, .mask = 3};
    b.log.count = 0;
    assert_int_equal(server_core_decision(b.core, &set, 0), 0);
    assert_int_equal(logged(&b.log, PEER_SCHEDULER, WIRE_SHARD_SUM), 2);
    for (int k = 0; k < b.sim->map->count; k++) assert_int_equal(server_core_version(b.core, k), 2);
    struct server_totals totals;
    server_core_totals(b.core, &totals);
    assert_true(totals.steps == 2 && totals.held_bytes == 0 && !server_core_has_open(b.core));
    fixture_close(&b);
}

static void expect_refused(struct fixture *b, struct wire_header h, size_t bytes, const char *words) {
    assert_int_equal(give(b, h, bytes, 0), 0);
    assert_int_equal(logged(&b->log, h.rank, WIRE_REFUSED), 1);
    assert_non_null(strstr(b->log.sent[0].h.text, words));
}

static void test_refusals(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    fixture_open(&b, false);
    expect_refused(&b, from(0, WIRE_PUSH, 0, 0), b.bytes, "not been loaded");
    expect_refused(&b, from(0, WIRE_PULL, 0, 0), 0, "not been loaded");
    expect_refused(&b, from(1, WIRE_INIT, 0, 0), b.bytes * 2, "only worker 0");
    expect_refused(&b, from(0, WIRE_INIT, 0, 0), b.bytes, "size");
    fixture_load(&b);
    expect_refused(&b, from(0, WIRE_PUSH, 0, 0), b.bytes - 2, "size");
    expect_refused(&b, from(0, WIRE_PUSH, 0, 1), b.bytes, "earlier step");
    expect_refused(&b, from(0, WIRE_PUSH, b.sim->map->count, 0), b.bytes, "does not own");
    expect_refused(&b, from(0, WIRE_PUSH, INT32_MAX, 0), b.bytes, "does not own");
    expect_refused(&b, from(0, WIRE_HEARTBEAT, 0, 0), 0, "no such message");
    struct wire_header h = from(0, WIRE_PUSH, 0, 0);
    h.version = 3;
    expect_refused(&b, h, b.bytes, "version");
    // Not of this job, not this process, not a worker: not even an answer.
    struct wire_header strangers[4] = {from(0, WIRE_PULL, 0, 0), from(0, WIRE_PULL, 0, 0),
                                       from(2, WIRE_PULL, 0, 0), from(0, WIRE_PULL, 0, 0)};
    strangers[0].job = 1;
    strangers[1].incarnation = 5;
    strangers[3].role = PS_SERVER;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(give(&b, strangers[i], 0, 0), 0);
        assert_int_equal(b.log.count, 0);
    }
    assert_int_equal(server_core_version(b.core, 0), 0);
    fixture_close(&b);
}

static void test_different_lr(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    fixture_open(&b, false);
    fixture_load(&b);
    give(&b, from(0, WIRE_PUSH, 0, 0), b.bytes, 0);
    struct wire_header h = from(1, WIRE_PUSH, 0, 0);
    h.lr = 0.25f;
    assert_int_equal(give(&b, h, b.bytes, 0), -1);
    assert_non_null(strstr(server_core_error(b.core), "worker 1 pushed with learning rate 0.25"));
    assert_non_null(strstr(server_core_error(b.core), "worker 0 with 0.1"));
    fixture_close(&b);
}

// A key waits for a slow worker.
static void test_slow_worker(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    fixture_open(&b, false);
    fixture_load(&b);
    give(&b, from(0, WIRE_PUSH, 1, 0), b.bytes, 10.0);
    struct wire_header pull = from(0, WIRE_PULL, 1, 1);
    give(&b, pull, 0, 10.0);
    assert_int_equal(b.log.count, 0);
    for (int i = 1; i <= 20; i++) {
        assert_int_equal(server_core_tick(b.core, 10.0 + 100.0 * i), 0);
        assert_int_equal(b.log.count, 0);
    }
    give(&b, from(1, WIRE_PUSH, 1, 0), b.bytes, 3000.0);
    assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY), 1);
    assert_string_equal(server_core_error(b.core), "");
    fixture_close(&b);
}

// Worker 1 computes on version 0 while worker 0 pushes twice: tau 0, 0, then 2.
static void test_staleness(void **state) {
    (void)state;
    struct fixture b = fixture_create("async");
    fixture_open(&b, false);
    fixture_load(&b);
    struct wire_header h = from(0, WIRE_PUSH, 0, 0);
    give(&b, h, b.bytes, 0);
    h = from(0, WIRE_PUSH, 0, 1);
    h.version = h.batch = 1;
    give(&b, h, b.bytes, 0);
    h = from(1, WIRE_PUSH, 0, 0);
    h.batch = 3;
    give(&b, h, b.bytes, 0);
    assert_int_equal(b.log.sent[0].h.staleness, 2);
    give(&b, h, b.bytes, 0);  // repeated: not applied, the same answer
    assert_int_equal(b.log.sent[0].h.staleness, 2);
    h = from(1, WIRE_PUSH, 0, 1);
    h.version = 3;
    h.batch = 2;
    h.flags = WIRE_SKIP;
    give(&b, h, b.bytes, 0);
    assert_int_equal(server_core_version(b.core, 0), 3);  // a skipped push is no update
    struct server_totals totals;
    server_core_totals(b.core, &totals);
    assert_true(b.log.sent[0].h.flags & WIRE_UNUSED);
    assert_int_equal(totals.staleness.count[0], 2);
    assert_int_equal(totals.staleness.count[2], 1);
    assert_int_equal(totals.staleness.max, 2);
    assert_true(fabs(totals.staleness.mean - 2.0 / 3) < 1e-12);
    // A pull that overtakes its push waits for it: a worker reads what it wrote.
    give(&b, from(0, WIRE_PULL, 0, 3), 0, 0);
    assert_int_equal(b.log.count, 0);
    h = from(0, WIRE_PUSH, 0, 2);
    h.version = 3;
    h.batch = 4;
    give(&b, h, b.bytes, 0);
    assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY), 1);
    assert_null(b.log.inflight);  // asynchronous replies are copies
    fixture_close(&b);
}

// A batch is in a key once, whoever brings it: of a worker that died another one does. Its sender hears what it waits for.
static void test_batches(void **state) {
    (void)state;
    struct fixture b = fixture_create("async");
    fixture_open(&b, false);
    fixture_load(&b);
    struct wire_header h = from(0, WIRE_PUSH, 0, 0);
    h.batch = 1;
    give(&b, h, b.bytes, 0);
    assert_int_equal(server_core_version(b.core, 0), 1);
    h = from(1, WIRE_PUSH, 0, 0);
    h.batch = 1;
    h.flags = WIRE_PULLS;
    give(&b, h, b.bytes, 0);
    assert_int_equal(server_core_version(b.core, 0), 1);
    assert_int_equal(logged(&b.log, 1, WIRE_PULL_REPLY), 1);
    h = from(1, WIRE_PUSH, 0, 1);  // the one before, which was open
    give(&b, h, b.bytes, 0);
    assert_int_equal(server_core_version(b.core, 0), 2);
    h = from(0, WIRE_PUSH, 0, 1);
    h.batch = 8;
    expect_refused(&b, h, b.bytes, "none that the job has handed out");
    struct server_totals totals;
    server_core_totals(b.core, &totals);
    assert_int_equal(totals.pushes, 2);
    assert_int_equal(totals.duplicates, 1);
    fixture_close(&b);
}

// Segments are read and written only where they should be.
static void test_segment_bounds(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    fixture_open(&b, false);
    fixture_load(&b);
    struct wire_header h = from(0, WIRE_PUSH, 0, 0);
    h.data_offset = 64;
    h.data_bytes = b.bytes;
    expect_refused(&b, h, 0, "outside of what the worker shares");  // it shares nothing
    struct server_segment s = {xcalloc(64 + b.bytes, 1), 64 + b.bytes};
    server_core_attach(b.core, 0, &s);
    h.data_offset = 66;
    expect_refused(&b, h, 0, "outside of what the worker shares");
    h.data_offset = UINT64_MAX;
    expect_refused(&b, h, 0, "outside of what the worker shares");
    h.data_offset = 64;
    h.data_bytes = b.bytes - 2;
    expect_refused(&b, h, 0, "size");
    struct wire_header pull = from(0, WIRE_PULL, 0, 0);
    pull.reply_offset = 66;
    expect_refused(&b, pull, 0, "outside of what it shares");
    pull.reply_offset = UINT64_MAX;
    expect_refused(&b, pull, 0, "outside of what it shares");
    // Worker 0 shares, worker 1 sends frames: worker 0's is added at once, and its pull's answer acknowledges it.
    h.data_bytes = b.bytes;
    h.flags = WIRE_PULLS;
    assert_int_equal(give(&b, h, 0, 0), 0);
    assert_int_equal(b.log.count, 0);
    assert_int_equal(give(&b, from(1, WIRE_PUSH, 0, 0), b.bytes, 0), 0);
    assert_int_equal(logged(&b.log, 0, WIRE_PULL_REPLY), 1);
    assert_int_equal(logged(&b.log, 1, WIRE_PUSH_ACK), 1);
    struct server_totals totals;
    server_core_totals(b.core, &totals);
    assert_int_equal(totals.held_peak_bytes, 0);
    fixture_close(&b);
    free(s.base);
}

// ---------------------------------------------------------------- a worker
// 4096 bytes of credit: a second key goes only when the first was taken, and unit 0 goes first.
static void test_credits_and_urgency(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    struct worker_core_options o = {.rule = consistency_of(&b.sim->c),
                                    .layout = b.sim->l,
                                    .map = b.sim->map,
                                    .dtype = DT_BF16,
                                    .buffers = &b.sim->workers[0].buffers,
                                    .credit_bytes = (int64_t)b.bytes + 1,
                                    .heartbeat_s = 1e6,
                                    .lost_s = 5.0,
                                    .port = {&b.log, log_send}};
    struct worker_core *w = worker_core_create(&o);
    struct push_info p = {.step = 0, .lr = 0.1f, .grad_scale = 1.0f};
    for (int u = TOY_UNITS - 1; u >= 0; u--) worker_core_push_unit(w, u, &p);
    worker_core_tick(w, 0);
    assert_int_equal(b.log.sent[0].h.kind, WIRE_PUSH);
    assert_int_equal(b.log.sent[0].h.key, 0);
    assert_int_equal(b.log.sent[0].h.flags, WIRE_PULLS);  // and asks for what comes after it
    assert_int_equal(b.log.count, 1);
    struct wire_header ack = {.kind = WIRE_PUSH_ACK, .key = 0, .step = 0, .flags = WIRE_HELD};
    worker_core_message(w, 0, &ack, NULL, 0);
    worker_core_tick(w, 0);
    assert_int_equal(b.log.count, 1);  // held frames keep their credits
    ack.flags = 0;
    worker_core_message(w, 0, &ack, NULL, 0);
    worker_core_tick(w, 0);
    assert_int_equal(b.log.sent[1].h.key, 1);
    b.log.count = 0;
    worker_core_tick(w, 1.5);  // unanswered: that is the link's affair
    assert_int_equal(b.log.count, 0);
    assert_true(worker_core_awaits_answer(w, 0));
    // A message that a shard does not answer counts; any message of the shard ends its silence, the link's too.
    assert_true(worker_core_status(w)->silent_s == 1.5);
    const double turn_s = 0.125;  // a longer one would be a stall
    double now = 1.5;
    while (now < 4.0) worker_core_tick(w, now += turn_s);
    assert_true(worker_core_status(w)->silent_s == 4.0);
    while (now < 4.5) worker_core_tick(w, now += turn_s);
    worker_core_message(w, 0, &(struct wire_header){.kind = WIRE_WORD}, NULL, now);
    while (now < 4.75) worker_core_tick(w, now += turn_s);
    assert_true(worker_core_status(w)->silent_s == 0.25);
    worker_core_destroy(&w);
    sim_destroy(b.sim);
}

// The weights of key 0 land only from the frame that answers the open pull, and only where they belong. A gradient's
// buffer is free when its push has been requested and is acknowledged.
static void test_frames_and_conditions(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    int keys = b.sim->map->first[1];
    void *weights = b.sim->workers[0].weights[0], *data = xcalloc(1, b.bytes);
    struct worker_core_options o = {.rule = consistency_of(&b.sim->c),
                                    .layout = b.sim->l,
                                    .map = b.sim->map,
                                    .dtype = DT_BF16,
                                    .buffers = &b.sim->workers[0].buffers,
                                    .credit_bytes = 1 << 30,
                                    .heartbeat_s = 1e6,
                                    .lost_s = 5.0,
                                    .port = {&b.log, log_send}};
    struct worker_core *w = worker_core_create(&o);
    assert_true(worker_core_has_freed(w, 0, 0, 0) && !worker_core_has_freed(w, 0, 0, 1));
    worker_core_push_unit(w, 0, &(struct push_info){.grad_scale = 1.0f});
    assert_false(worker_core_has_freed(w, 0, 0, 0) || worker_core_has_landed(w, 0, 1, 0));
    worker_core_tick(w, 0);
    for (int key = 0; key < keys; key++) {
        const struct partition *part = &b.sim->map->parts[key];
        struct ps_frame *f = sim_frame(b.sim, xcalloc(1, b.bytes), (size_t)(part->end - part->begin) * 2);
        struct ps_frame less = {data, f->bytes - 1, NULL};
        struct wire_header h = {.kind = WIRE_PULL_REPLY, .key = key, .step = 1, .seq = b.log.sent[key].h.seq},
                           other = h;
        other.seq++;
        assert_null(worker_core_target(w, 0, &other, f));
        assert_null(worker_core_target(w, 0, &h, &less));
        assert_null(worker_core_target(w, PEER_SCHEDULER, &h, f));
        assert_ptr_equal(worker_core_target(w, 0, &h, f), (char *)weights + 2 * part->begin);
        assert_false(worker_core_has_landed(w, 0, 1, 0));
        assert_int_equal(worker_core_message(w, 0, &h, f, 0), 0);
        f = sim_frame(b.sim, xcalloc(1, b.bytes), (size_t)(part->end - part->begin) * 2);
        assert_null(worker_core_target(w, 0, &h, f));  // the pull is answered
        ps_frame_release(f);
    }
    // The weights of step 1 acknowledge the push of step 0.
    assert_true(worker_core_has_freed(w, 0, 0, 1) && worker_core_has_landed(w, 0, 1, 1) &&
                worker_core_has_pulled(w, 0, 0, 0));
    assert_false(worker_core_has_landed(w, 0, 2, 1) || worker_core_has_landed(w, 0, 1, 2));
    free(data);
    worker_core_destroy(&w);
    sim_destroy(b.sim);
}

// The last push that a worker has sent, or -1.
static int last_push(const struct log *l) {
    for (int i = l->count - 1; i >= 0; i--)
        if (l->sent[i].h.kind == WIRE_PUSH) return l->sent[i].h.key;
    return -1;
}

static void tell_pushed(struct worker_core *w, int key, uint32_t flags) {
    struct wire_header ack = {.kind = WIRE_PUSH_ACK, .key = key, .step = 0, .flags = flags};
    worker_core_message(w, 0, &ack, NULL, 0);
    worker_core_tick(w, 0);
}

// A gradient that came too early, and may be held until all else has been pushed, keeps no urgent one back: others wait
// for that one.
static void test_held_keeps_no_urgent_back(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    int last = b.sim->map->count - 1;
    struct worker_core_options o = {.rule = consistency_of(&b.sim->c),
                                    .layout = b.sim->l,
                                    .map = b.sim->map,
                                    .dtype = DT_BF16,
                                    .buffers = &b.sim->workers[0].buffers,
                                    .credit_bytes = 2 * (int64_t)b.bytes - 1,
                                    .heartbeat_s = 1e6,
                                    .lost_s = 1e6,
                                    .port = {&b.log, log_send}};
    struct worker_core *w = worker_core_create(&o);
    struct push_info p = {.step = 0, .lr = 0.1f, .grad_scale = 1.0f};
    worker_core_push_unit(w, TOY_UNITS - 1, &p);
    worker_core_tick(w, 0);
    int early = last_push(&b.log);
    assert_int_equal(early, b.sim->map->first[TOY_UNITS - 1]);
    for (int u = TOY_UNITS - 2; u >= 0; u--) worker_core_push_unit(w, u, &p);
    worker_core_tick(w, 0);
    assert_int_equal(last_push(&b.log), early);  // it is under way
    tell_pushed(w, early, WIRE_HELD);
    for (int key = 0; key < early; key++) {
        assert_int_equal(last_push(&b.log), key);
        tell_pushed(w, key, WIRE_HELD);
        assert_int_equal(last_push(&b.log), key);  // held, and more urgent than the next
        tell_pushed(w, key, 0);
    }
    if (early < last) assert_int_equal(last_push(&b.log), early - 1);  // behind it
    tell_pushed(w, early, 0);
    assert_int_equal(last_push(&b.log), early < last ? early + 1 : early - 1);
    worker_core_destroy(&w);
    sim_destroy(b.sim);
}

#define CREDITS(m, t, h, w, a) \
    (struct credits) { .most = m, .taken = t, .held = h, .window = w, .all = a }
static void test_credits(void **state) {
    (void)state;
    assert_true(credits_allow(&CREDITS(100, 0, 0, 1000, false), 500, 0));  // nothing is under way: any size
    assert_true(credits_allow(&CREDITS(100, 100, 100, 1000, false), 500, 0));
    assert_false(credits_allow(&CREDITS(100, 101, 101, 1000, false), 1, 0));  // once
    assert_false(credits_allow(&CREDITS(100, 20, 20, 1000, false), 40,
                               20));  // behind what is held: half of them
    assert_true(credits_allow(&CREDITS(100, 20, 20, 1000, false), 30, 20));
    assert_true(credits_allow(&CREDITS(100, 20, 0, 1000, false), 30, 0));
    assert_false(credits_allow(&CREDITS(100, 20, 0, 1000, false), 31, 0));
    assert_true(credits_allow(&CREDITS(100, 70, 50, 1000, false), 30, 0));
    assert_false(credits_allow(&CREDITS(100, 80, 60, 1000, false), 30, 0));  // all together: all of them
    // The bytes in flight have bounds of their own, and no others if the credits are enough for everything.
    assert_false(credits_allow(&CREDITS(100, 20, 0, 40, false), 21, 0));
    assert_true(credits_allow(&CREDITS(100, 20, 0, 40, true), 20, 500));
    assert_false(credits_allow(&CREDITS(100, 20, 0, 40, true), 21, 0));
    assert_true(credits_allow(&CREDITS(100, 90, 90, 40, true), 500, 90));
}

// The bytes in flight follow the links' rate of delivery, however it bunches, and never fall below two
// partitions.
static void test_window(void **state) {
    (void)state;
    const double rates[] = {1e5, 25e6, 125e6, 1e6, 1e12};  // bytes per second
    struct credits c = {.most = SIZE_MAX, .window = CREDITS_WINDOW_MOST, .all = true, .least = 2 << 10};
    double now = 100;
    for (int r = 0; r < 5; r++) {
        for (int i = 0; i < 400; i++) {
            double sent_s = now;
            c.since_s = now;
            for (int of = 0; of < 1 + i % 3; of++)  // several at once
                credits_arrived(&c, 1024, sent_s, now = sent_s + (1 + i % 3) * 1024 / rates[r]);
        }
        double wanted = rates[r] * (CREDITS_WINDOW_S + 2 * c.answer_s);
        if (wanted < 2 << 10) wanted = 2 << 10;
        if (wanted > CREDITS_WINDOW_MOST) wanted = CREDITS_WINDOW_MOST;
        assert_true((double)c.window > 0.7 * wanted && (double)c.window < 1.5 * wanted);
    }
}

// The worker whose turn is first is slow: all that this one pushes is held, and all of it goes, what is urgent before what became
// ready earlier.
static void test_slow_worker_holds_nothing_back(void **state) {
    (void)state;
    struct fixture b = fixture_create("sync");
    int count = b.sim->map->count, first = b.sim->map->first[TOY_UNITS - 1];
    struct worker_core_options o = {.rank = 1,
                                    .rule = consistency_of(&b.sim->c),
                                    .layout = b.sim->l,
                                    .map = b.sim->map,
                                    .dtype = DT_BF16,
                                    .buffers = &b.sim->workers[0].buffers,
                                    .credit_bytes = 1 << 20,
                                    .heartbeat_s = 1e6,
                                    .lost_s = 1e6,
                                    .port = {&b.log, log_send}};
    struct worker_core *w = worker_core_create(&o);
    struct push_info p = {.step = 0, .lr = 0.1f, .grad_scale = 1.0f};
    assert_true(w->credits.all && w->credits.window > 1 << 20);
    w->credits.window = b.bytes;
    worker_core_push_unit(w, TOY_UNITS - 1, &p);
    worker_core_tick(w, 0);
    assert_int_equal(last_push(&b.log), first);
    for (int u = TOY_UNITS - 2; u >= 0; u--) worker_core_push_unit(w, u, &p);
    tell_pushed(w, first, WIRE_HELD);
    for (int key = 0, at = 1; at < count; key++) {
        if (key == first) continue;
        assert_int_equal(b.log.count, ++at);
        assert_int_equal(last_push(&b.log), key);
        tell_pushed(w, key, WIRE_HELD);
    }
    worker_core_destroy(&w);
    sim_destroy(b.sim);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order_of_pulls),
                                       cmocka_unit_test(test_commit_waits_for_transport),
                                       cmocka_unit_test(test_round_and_skip),
                                       cmocka_unit_test(test_frozen_key),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_different_lr),
                                       cmocka_unit_test(test_slow_worker),
                                       cmocka_unit_test(test_segment_bounds),
                                       cmocka_unit_test(test_staleness),
                                       cmocka_unit_test(test_ahead),
                                       cmocka_unit_test(test_too_far_ahead),
                                       cmocka_unit_test(test_sets_ahead),
                                       cmocka_unit_test(test_batches),
                                       cmocka_unit_test(test_credits_and_urgency),
                                       cmocka_unit_test(test_frames_and_conditions),
                                       cmocka_unit_test(test_credits),
                                       cmocka_unit_test(test_window),
                                       cmocka_unit_test(test_slow_worker_holds_nothing_back),
                                       cmocka_unit_test(test_held_keeps_no_urgent_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
