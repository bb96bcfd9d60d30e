// What is sent again, and when: the round-trip timeout, questions before payloads, and how few messages it takes to wait
// for somebody slow or to use a slow link.
#include "ps/net/rto.h"
#include "tests/ps/test_ps_log.h"

// ---------------------------------------------------------------- RFC 6298
static void test_arithmetic(void **state) {
    (void)state;
    struct rto r = {0};
    assert_true(rto_s(&r) == RTO_FIRST_S);
    rto_sample(&r, -1);
    assert_int_equal(r.samples, 0);
    rto_sample(&r, 0.5);
    assert_true(r.srtt_s == 0.5 && r.rttvar_s == 0.25 && rto_s(&r) == 1.5);
    rto_sample(&r, 0.9);  // RTTVAR = 3/4 * 0.25 + 1/4 * |0.5 - 0.9|, then SRTT = 7/8 * 0.5 + 1/8 * 0.9
    assert_true(fabs(r.rttvar_s - 0.2875) < 1e-12 && fabs(r.srtt_s - 0.55) < 1e-12);
    assert_true(fabs(rto_s(&r) - (0.55 + 4 * 0.2875)) < 1e-12);
    for (int i = 0; i < 200; i++) rto_sample(&r, 1e-4);
    assert_true(rto_s(&r) == RTO_LEAST_S);
    for (int i = 0; i < 3; i++) rto_sample(&r, 100);
    assert_true(rto_s(&r) == RTO_MOST_S);
    assert_true(rto_backoff(0.05, 0, 2) == 0.05 && rto_backoff(0.05, 3, 2) == 0.4);
    assert_true(rto_backoff(0.05, 6, 2) == 2 && rto_backoff(0.05, 1 << 30, 2) == 2 &&
                rto_backoff(3, 0, 2) == 2);
}

// ---------------------------------------------------------------- one worker, one key
struct alone {
    struct toy_case t;
    struct sim *sim;
    struct log log;
    struct worker_core *core;
    double now;
};

static void alone_open_with(struct alone *a, int64_t credit_bytes) {
    *a = (struct alone){.t = {.dtype = DT_BF16,
                              .consistency = "sync",
                              .workers = 2,
                              .servers = 1,
                              .threads = 1,
                              .steps = 1,
                              .overflow_step = -1}};
    a->sim = sim_create(&a->t);
    struct worker_core_options o = {.layout = a->sim->l,
                                    .map = a->sim->map,
                                    .dtype = DT_BF16,
                                    .weights = a->sim->workers[0].weights,
                                    .grads = (const void *const *)a->sim->workers[0].grads,
                                    .credit_bytes = credit_bytes,
                                    .repeat_most_s = 2,
                                    .peers_s = 0.25,
                                    .heartbeat_s = 1e6,
                                    .lost_s = 1e6,
                                    .port = {&a->log, log_send}};
    a->core = worker_core_create(&o);
}

static void alone_push(struct alone *a, int u) {
    worker_core_push_unit(a->core, u, &(struct push_info){.step = 0, .lr = 0.1f, .grad_scale = 1.0f});
}

static void alone_open(struct alone *a) {
    alone_open_with(a, 1);  // one key at a time
    alone_push(a, 0);
    worker_core_tick(a->core, 0);
    assert_int_equal(logged(&a->log, 0, WIRE_PUSH), 1);
}

static void alone_close(struct alone *a) {
    worker_core_destroy(&a->core);
    sim_destroy(a->sim);
}

// Ticks in milliseconds up to `end`; when the messages of that kind went, in milliseconds, 0 at the end.
static void pass(struct alone *a, double end, enum wire_kind kind, int at[32]) {
    int n = 0;
    while (a->now < end) {
        a->now += 0.001;
        a->log.count = 0;
        assert_int_equal(worker_core_tick(a->core, a->now), 0);
        if (logged(&a->log, 0, kind) && n < 31) at[n++] = (int)(a->now * 1000 + 0.5);
    }
    at[n] = 0;
}

static uint32_t last_ask(const struct alone *a) { return a->log.sent[a->log.count - 1].h.ask; }

static void answer(struct alone *a, enum wire_kind kind, uint32_t flags, uint32_t ask) {
    struct wire_header h = {.kind = kind, .key = 0, .flags = flags, .ask = ask, .seq = 1};
    h.step = kind == WIRE_PULL_SENT;
    a->log.count = 0;
    assert_int_equal(worker_core_message(a->core, 0, &h, NULL, a->now), 0);
}

static bool about(int at, int ms) { return at >= ms && at <= ms + 3; }

// A push without a word: questions at the timeout, twice that, .. The payload is not among them.
static void test_questions_back_off(void **state) {
    (void)state;
    struct alone a;
    int at[32];
    alone_open(&a);
    pass(&a, 4.0, WIRE_PULL, at);
    for (int i = 0, ms = 100; i < 5; i++, ms += 100 << i) assert_true(about(at[i], ms));
    assert_true(at[5] == 0);
    pass(&a, 10.0, WIRE_PULL, at);
    assert_in_range(at[1] - at[0], 2000, 2002);  // at most
    assert_int_equal(worker_core_status(a.core)->resent, 0);
    alone_close(&a);
}

// The shard misses it: once more. An older word of that kind crossed the second copy.
static void test_missing_push(void **state) {
    (void)state;
    struct alone a;
    int at[32];
    alone_open(&a);
    uint32_t first = last_ask(&a);
    pass(&a, 0.31, WIRE_PULL, at);
    assert_true(at[1] > 0 && !at[2]);
    answer(&a, WIRE_PUSH_ACK, WIRE_MISSING, first);  // about the push itself: it says nothing
    assert_int_equal(a.log.count, 0);
    answer(&a, WIRE_PUSH_ACK, WIRE_MISSING, first + 1);
    assert_int_equal(logged(&a.log, 0, WIRE_PUSH), 1);
    assert_true(a.log.sent[0].bytes > 0 && a.log.sent[0].h.flags & WIRE_AGAIN);
    assert_false(wire_is_payload(&a.log.sent[0].h));
    answer(&a, WIRE_PUSH_ACK, WIRE_MISSING, first + 2);  // said before the copy came
    assert_int_equal(a.log.count, 0);
    assert_int_equal(worker_core_status(a.core)->resent, 1);
    // Arrived: what comes next waits for worker 1, and is asked for rarely.
    answer(&a, WIRE_PUSH_ACK, WIRE_HELD, first + 3);
    pass(&a, 10.31, WIRE_PULL, at);
    assert_true(about(at[0], 310 + 250) && about(at[1], 310 + 250 + 500));
    int count = 0;
    while (at[count]) count++;
    assert_in_range(count, 3, 8);
    alone_close(&a);
}

// A gradient that the transport has not sent yet is not asked about: the question would lie behind it.
static void test_not_left_yet(void **state) {
    (void)state;
    struct alone a;
    int at[32];
    alone_open(&a);
    uint32_t first = last_ask(&a);
    atomic_fetch_add(a.log.inflight, 1);
    pass(&a, 5.0, WIRE_PULL, at);
    assert_int_equal(at[0], 0);
    answer(&a, WIRE_PUSH_ACK, WIRE_MISSING, first + 1);
    assert_int_equal(a.log.count, 0);
    atomic_fetch_sub(a.log.inflight, 1);
    pass(&a, 6.0, WIRE_PULL, at);
    assert_true(about(at[0], 5100));
    alone_close(&a);
}

static void test_lost_answer(void **state) {
    (void)state;
    struct alone a;
    int at[32];
    alone_open(&a);
    uint32_t first = last_ask(&a);
    pass(&a, 0.35, WIRE_PULL, at);
    answer(&a, WIRE_PULL_SENT, 0, first + 1);
    assert_int_equal(a.log.sent[0].h.flags, WIRE_AGAIN | WIRE_MISSING);
    assert_int_equal(a.log.sent[0].h.ask, first + 3);
    answer(&a, WIRE_PULL_SENT, 0, first + 2);  // before the shard heard that
    assert_int_equal(a.log.count, 0);
    answer(&a, WIRE_PULL_SENT, 0, first + 4);  // the second copy is lost as well
    assert_int_equal(a.log.count, 1);
    alone_close(&a);
}

// Karn's rule: the number tells which of two messages an answer is about.
static void test_samples(void **state) {
    (void)state;
    struct alone a;
    int at[32];
    alone_open(&a);
    uint32_t first = last_ask(&a);
    pass(&a, 1.0, WIRE_PULL, at);  // questions at 0.1, 0.3, 0.7
    answer(&a, WIRE_PUSH_ACK, WIRE_HELD, first);
    struct wire_header done = {.kind = WIRE_PUSH_ACK, .key = 0, .ask = first + 3};
    worker_core_message(a.core, 0, &done, NULL, a.now);
    // A round trip of 1 s (the push), then one of 0.3 s (the last question): SRTT 0.9125 s, RTTVAR 0.55 s. More than the
    // most that is waited, from key 1 on, which goes now: one question is about both keys.
    pass(&a, 4.9, WIRE_PULL, at);
    assert_true(about(at[0], 3000) && !at[1]);
    alone_close(&a);
}

// ---------------------------------------------------------------- one worker, many keys
// All of them pushed to one shard at 0 s.
static int many_open(struct alone *a) {
    alone_open_with(a, 1 << 30);
    for (int u = 0; u < a->sim->l->count; u++) alone_push(a, u);
    worker_core_tick(a->core, 0);
    int keys = a->sim->map->count;
    assert_int_equal(logged(&a->log, 0, WIRE_PUSH), keys);
    assert_true(keys > 5);
    return keys;
}

// The shard's word about a question, as its counts are.
static void word(struct alone *a, enum wire_kind kind, uint32_t flags, const struct wire_header *question,
                 uint64_t heard, uint64_t said) {
    struct wire_header h = {.kind = kind,
                            .key = question->key,
                            .ask = question->ask,
                            .seq = question->seq,
                            .step = kind == WIRE_PULL_SENT,
                            .flags = flags,
                            .heard = heard,
                            .said = said};
    a->log.count = 0;
    assert_int_equal(worker_core_message(a->core, 0, &h, NULL, a->now), 0);
}

// One question is about all keys. Its answer counts: nothing is lost, and all of them wait for others.
static void test_one_question_for_all(void **state) {
    (void)state;
    struct alone a;
    int at[32], keys = many_open(&a), questions = 0;
    pass(&a, 0.1015, WIRE_PULL, at);
    assert_true(about(at[0], 100) && !at[1]);
    assert_int_equal(worker_core_status(a.core)->questions, 1);
    word(&a, WIRE_PUSH_ACK, WIRE_HELD, &a.log.sent[0].h, (uint64_t)keys + 1, 1);
    assert_int_equal(a.log.count, 0);
    // A minute of waiting for others: a question at 1/4 s, 1/2 s, 1 s, each 2 s, each about another key; the third and every
    // eighth of them are about each key.
    bool asked[64] = {false};
    int others = 0, each = 0;
    uint64_t sent = (uint64_t)keys + 1;
    for (int i = 0; a.now < 60; i++) {
        a.now += 0.001;
        a.log.count = 0;
        worker_core_tick(a.core, a.now);
        if (!logged(&a.log, 0, WIRE_PULL)) continue;
        struct wire_header question = a.log.sent[0].h;
        bool all = questions == 2 || questions % 8 == 7;
        assert_int_equal(a.log.count, all ? keys : 1);
        others += !asked[question.key];
        asked[question.key] = true;
        questions++;
        each += all;
        word(&a, WIRE_PUSH_ACK, WIRE_HELD, &question, sent + 1, 1 + (uint64_t)questions);
        sent += all ? (uint64_t)keys : 1;
        assert_int_equal(a.log.count, 0);
    }
    assert_in_range(questions, 20, 4 + 60 / 2);
    assert_in_range(others, keys / 2, keys);
    assert_in_range(each, 3, 5);
    alone_close(&a);
}

// A message to the shard, or of it, has not come: each key is asked about at once, and the one that is missing goes again.
static void test_counts_tell_a_loss(void **state) {
    (void)state;
    for (int down = 0; down < 2; down++) {
        struct alone a;
        int at[32], keys = many_open(&a);
        pass(&a, 0.1015, WIRE_PULL, at);
        word(&a, WIRE_PUSH_ACK, WIRE_HELD, &a.log.sent[0].h, (uint64_t)(keys + 1 - !down),
             1 + (uint64_t)down);
        assert_int_equal(logged(&a.log, 0, WIRE_PULL), keys - 1);
        struct wire_header question = a.log.sent[3].h;
        word(&a, down ? WIRE_PULL_SENT : WIRE_PUSH_ACK, down ? 0 : WIRE_MISSING, &question, 0, 0);
        assert_int_equal(logged(&a.log, 0, down ? WIRE_PULL : WIRE_PUSH), 1);
        assert_int_equal(a.log.sent[0].h.key, question.key);
        assert_true(a.log.sent[0].h.flags & WIRE_AGAIN);
        // The next question finds the same one lost, and no other: nobody is asked anew.
        pass(&a, 1.0, WIRE_PULL, at);
        assert_true(at[0] > 0);
        alone_close(&a);
        keys = many_open(&a);
        pass(&a, 0.1015, WIRE_PULL, at);
        struct wire_header first = a.log.sent[0].h;
        word(&a, WIRE_PUSH_ACK, WIRE_HELD, &first, (uint64_t)(keys + 1 - !down), 1 + (uint64_t)down);
        uint64_t sent = 2 * (uint64_t)keys;
        for (uint64_t said = 2; said <= (uint64_t)keys; said++) {
            struct wire_header x = {.key = (int32_t)said - 1};
            word(&a, WIRE_PUSH_ACK, WIRE_HELD, &x, 0, 0);
        }
        while (!logged(&a.log, 0, WIRE_PULL)) a.log.count = 0, worker_core_tick(a.core, a.now += 0.001);
        word(&a, WIRE_PUSH_ACK, WIRE_HELD, &a.log.sent[0].h, sent + 1 - !down,
             (uint64_t)keys + 1 + (uint64_t)down);
        assert_int_equal(a.log.count, 0);
        alone_close(&a);
    }
}

// A message came twice, and another not at all: the counts are as they should be, and the key that is asked about is there.
// A wait of two seconds finds the one that is not.
static void test_counts_that_hide_a_loss(void **state) {
    (void)state;
    for (int lost = 1; lost < 6; lost++) {  // the first is asked about
        struct alone a;
        int at[32], keys = many_open(&a), pushes = 0;
        uint64_t sent = (uint64_t)keys + 1, said = 1;
        pass(&a, 0.1015, WIRE_PULL, at);
        word(&a, WIRE_PUSH_ACK, WIRE_HELD, &a.log.sent[0].h, sent, said);
        while (!pushes && a.now < 60) {
            struct log asked;
            a.log.count = 0;
            worker_core_tick(a.core, a.now += 0.001);
            asked = a.log;
            for (int i = 0; i < asked.count; i++) {
                bool missing = asked.sent[i].h.key == lost;
                word(&a, WIRE_PUSH_ACK, missing ? WIRE_MISSING : WIRE_HELD, &asked.sent[i].h, ++sent, ++said);
                pushes += logged(&a.log, 0, WIRE_PUSH);
            }
        }
        assert_true(pushes == 1 && a.now < 2.5);
        alone_close(&a);
    }
}

// A message came twice, and another not at all: the counts are as they should be, but the key that is asked about is missing.
static void test_a_missing_key_tells_as_well(void **state) {
    (void)state;
    struct alone a;
    int at[32], keys = many_open(&a);
    pass(&a, 0.1015, WIRE_PULL, at);
    struct wire_header question = a.log.sent[0].h;
    word(&a, WIRE_PUSH_ACK, WIRE_MISSING, &question, (uint64_t)keys + 1, 1);
    assert_int_equal(logged(&a.log, 0, WIRE_PUSH), 1);
    assert_int_equal(logged(&a.log, 0, WIRE_PULL), keys - 1);
    alone_close(&a);
}

// A shard that takes a second to answer, whatever it is asked, and loses nothing: the timer learns that. Silent for good, it is
// asked as often as a share of the time in which it counts as lost allows, of however many keys.
static void test_slow_and_silent_shards(void **state) {
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        struct alone a;
        int keys = many_open(&a), questions = 0;
        struct wire_header waiting[64];
        double due[64] = {0};
        uint64_t said = 0;
        int first = 0;
        while (a.now < 30) {
            a.now += 0.001;
            a.log.count = 0;
            worker_core_tick(a.core, a.now);
            for (int i = 0; i < a.log.count; i++) {
                assert_in_range(questions, 0, 63);
                waiting[questions] = a.log.sent[i].h;
                due[questions++] = a.now + 1;
            }
            if (silent || first == questions || due[first] > a.now) continue;
            word(&a, WIRE_PUSH_ACK, WIRE_HELD, &waiting[first], (uint64_t)(keys + first + 1), ++said);
            assert_int_equal(a.log.count, 0);
            first++;
        }
        // A wait for others of half a minute asks about each key three times beside that.
        assert_in_range(questions, silent ? 15 : 10, 4 + 30 / 2 + (silent ? 0 : 3 * keys));
        alone_close(&a);
    }
}

// ---------------------------------------------------------------- whole stars
static struct toy_case star_case(void) {
    return (struct toy_case){.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 3,
                             .servers = 2,
                             .threads = 1,
                             .steps = 4,
                             .overflow_step = -1,
                             .seed = 1};
}

static void check_bits(const struct sim *s) {
    struct toy_ref r = toy_ref_start(&s->t, s->l);
    for (int64_t step = 0; step < s->t.steps; step++) toy_ref_step(&s->t, s->l, &s->c, &r, step);
    for (int u = 0; u < s->l->count; u++)
        for (int w = 0; w < s->t.workers; w++)
            assert_memory_equal(s->workers[w].weights[u], r.weight[u],
                                (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
    toy_ref_free(&r);
}

// Payloads that were sent and not lost: each once.
static void check_payloads(const struct sim *s) {
    uint64_t keys = (uint64_t)s->map->count, all = keys * (uint64_t)(s->t.workers * s->t.steps);
    const struct sim_payloads *x = s->payloads;
    assert_int_equal(x[WIRE_PUSH].sent - x[WIRE_PUSH].lost, all);
    assert_int_equal(x[WIRE_PULL_REPLY].sent - x[WIRE_PULL_REPLY].lost, all);
    assert_int_equal(x[WIRE_INIT].sent - x[WIRE_INIT].lost, keys);
    for (int g = 0; g < s->map->shards; g++) {
        struct server_totals totals;
        server_core_totals(s->shards[g], &totals);
        assert_int_equal(totals.duplicates, 0);
    }
}

// A network that loses, and keeps the order of what it does not: no payload travels in vain, however long the timeouts.
static void test_nothing_in_vain(void **state) {
    (void)state;
    uint64_t lost = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct toy_case t = star_case();
        t.seed = seed;
        t.clip = seed % 2 ? 0.5f : 0.0f;
        t.dtype = seed % 3 ? DT_BF16 : DT_F32;
        struct sim *s = sim_create(&t);
        s->in_order = true;
        s->drop_percent = (int)(seed % 4) * 10;
        sim_run(s);
        check_bits(s);
        check_payloads(s);
        lost += s->payloads[WIRE_PUSH].lost;
        sim_destroy(s);
    }
    assert_true(lost > 50);
}

static uint64_t questions(const struct sim *s) {
    uint64_t n = 0;
    for (int w = 0; w < s->t.workers; w++) n += worker_core_status(s->workers[w].core)->questions;
    return n;
}

// A worker that is a minute late costs the others few messages: the pauses between their questions grow.
static void test_straggler_costs_little(void **state) {
    (void)state;
    for (int share = 0; share < 2; share++) {
        struct toy_case t = star_case();
        t.repeat_s = 2;
        t.share = share ? SHARE_IN_PLACE : SHARE_NOTHING;
        struct sim *s = sim_create(&t);
        s->in_order = true;
        s->asleep = 1;
        s->wake = 60;
        sim_run(s);
        check_bits(s);
        if (!share) check_payloads(s);
        assert_true(s->now > 60 && s->now < 64);
        // Per shard (of many keys) and waiting worker one at the timeout, then at 1/4 s, 1/2 s, 1 s, each 2 s; as many of
        // the steps' reports; and five times about each key.
        double most = s->map->shards * 2.0 * (12 + 60 / t.repeat_s) + 2 * (5 + 60 / t.repeat_s) +
                      2.0 * 5 * s->map->count,
               least = s->map->shards * 2.0 * 10;
        if ((double)questions(s) > most)
            fail_msg("%llu questions, not %g", (unsigned long long)questions(s), most);
        assert_true((double)questions(s) > least);
        sim_destroy(s);
    }
}

// A slow link, on which a key takes 0.7 s and the last of a step arrives after half a minute: questions, not copies.
static void test_slow_link(void **state) {
    (void)state;
    struct toy_case t = star_case();
    t.steps = 2;
    t.repeat_s = 2;
    struct sim *s = sim_create(&t);
    s->rate = 3000;
    sim_run(s);
    check_bits(s);
    check_payloads(s);
    // Without the measured round trips there would be one for each key, worker and `repeat_s` of these minutes.
    double messages = (double)s->map->count * t.workers * t.steps;
    assert_true(s->now > 10);
    if ((double)questions(s) > 6 * messages)
        fail_msg("%llu questions for %.0f keys", (unsigned long long)questions(s), messages);
    sim_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_questions_back_off),
        cmocka_unit_test(test_missing_push),
        cmocka_unit_test(test_not_left_yet),
        cmocka_unit_test(test_lost_answer),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_nothing_in_vain),
        cmocka_unit_test(test_straggler_costs_little),
        cmocka_unit_test(test_slow_link),
        cmocka_unit_test(test_one_question_for_all),
        cmocka_unit_test(test_counts_that_hide_a_loss),
        cmocka_unit_test(test_a_missing_key_tells_as_well),
        cmocka_unit_test(test_counts_tell_a_loss),
        cmocka_unit_test(test_slow_and_silent_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
