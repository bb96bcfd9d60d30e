// Accepted senders inside of a job: those that the scheduler has named, and none because it was first. And what of a
// scheduler is believed.
#include "ps/net/net.h"
#include "ps/net/notices.h"
#include "tests/ps/test_ps_log.h"
#include "tests/ps/test_ps_star.h"

#define JOB 77

// ---------------------------------------------------------------- the roster
static void test_roster(void **state) {
    (void)state;
    struct roster *r = roster_create(2, 3);
    snprintf(r->shard[0].address, sizeof r->shard[0].address, "tcp://127.0.0.1:1");
    snprintf(r->shard[1].address, sizeof r->shard[1].address, "tcp://[::1]:2");
    snprintf(r->shard[1].token, sizeof r->shard[1].token, "a$#token");
    r->shard[0].incarnation = 5;
    r->shard[1].incarnation = UINT64_MAX;
    r->worker[2] = (struct roster_worker){9, 2};
    size_t bytes;
    char *text = roster_text(r);
    bytes = strlen(text);
    struct roster *back = roster_read(text, bytes, 2, 3);
    assert_non_null(back);
    assert_memory_equal(back->shard, r->shard, 2 * sizeof *r->shard);
    assert_memory_equal(back->worker, r->worker, 3 * sizeof *r->worker);
    assert_null(roster_read(text, bytes, 2, 2));
    assert_null(roster_read(text, bytes, 3, 3));
    for (size_t cut = 0; cut < bytes; cut++) assert_null(roster_read(text, cut, 2, 3));
    // Flipped bits: refused, or a roster all the same; read by the sanitizers.
    for (size_t i = 0; i < 8 * bytes; i++) {
        char *copy = xcalloc(bytes, 1);
        memcpy(copy, text, bytes);
        copy[i / 8] ^= (char)(1 << i % 8);
        struct roster *odd = roster_read(copy, bytes, 2, 3);
        roster_destroy(&odd);
        free(copy);
    }
    struct wire_header h = {.role = PS_SHARD, .rank = 1, .thread = 0, .incarnation = UINT64_MAX};
    assert_true(roster_is_shard(back, 1, 1, &h));
    assert_false(roster_is_shard(back, 0, 1, &h));
    h.incarnation = 5;
    assert_false(roster_is_shard(back, 1, 1, &h));
    roster_destroy(&back);
    roster_destroy(&r);
    free(text);
}

static void test_shards_of_a_server(void **state) {
    (void)state;
    static const char *const wrong[] = {"",
                                        "tcp://a:1\n",
                                        "tcp://a:1\ntcp://a:2\ntcp://a:3\n",
                                        "tcp://a:1\n\n",
                                        "tcp://a:1\ntcp://a:2",
                                        "tcp://a:1 t t\ntcp://a:2\n"};
    const char *good = "tcp://a:1 token\ntcp://a:2 -\n";
    struct roster_shard *s = roster_read_shards(good, strlen(good), 2);
    assert_non_null(s);
    assert_string_equal(s[0].address, "tcp://a:1");
    assert_string_equal(s[0].token, "token");
    assert_string_equal(s[1].token, "");
    free(s);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_null(roster_read_shards(wrong[i], strlen(wrong[i]), 2));
}

// ---------------------------------------------------------------- shards
static struct toy_case two_workers(void) {
    return (struct toy_case){.dtype = DT_BF16,
                             .consistency = "sync",
                             .workers = 2,
                             .servers = 2,
                             .threads = 1,
                             .steps = 1,
                             .overflow_step = -1};
}

// A stranger who knows the job's number speaks to a shard before the worker does: nothing of it counts, and the worker
// that the scheduler names is heard. Before, the first word took the worker's place, and the job died of it.
static void test_first_word(void **state) {
    (void)state;
    struct toy_case t = two_workers();
    struct sim *s = sim_create(&t);
    struct log log = {.count = 0};
    struct server_core_options o = {.config = &s->c,
                                    .layout = s->l,
                                    .map = s->map,
                                    .buffers = s->buffers,
                                    .job = JOB,
                                    .port = {&log, log_send}};
    struct server_core *core = server_core_create(&o);
    struct wire_header forged = {.kind = WIRE_PULL, .role = PS_WORKER, .job = JOB, .incarnation = 666};
    struct wire_header real = forged;
    real.incarnation = 100;
    for (int rank = -1; rank < 4; rank++) {
        forged.rank = rank;
        assert_int_equal(server_core_message(core, &forged, NULL, 0), 0);
        assert_false(server_core_accepts_sender(core, &forged));
    }
    assert_int_equal(log.count, 0);
    assert_false(server_core_accepts_sender(core, &real));  // the scheduler has named nobody
    server_core_member(core, 0, 100, 0);
    server_core_member(core, -1, 5, 0);
    server_core_member(core, 2, 5, 0);
    server_core_member(core, 1, 0, 0);
    assert_true(server_core_accepts_sender(core, &real));
    forged.rank = 0;
    assert_false(server_core_accepts_sender(core, &forged));
    server_core_member(core, 0, 666,
                       0);  // where nobody comes and goes the first word of the scheduler stands
    assert_false(server_core_accepts_sender(core, &forged));
    forged.rank = 1;
    forged.incarnation = 0;
    assert_false(server_core_accepts_sender(core, &forged));
    server_core_destroy(&core);
    sim_destroy(s);
}

// Where workers come and go, a life that the scheduler has not told of is nobody's.
static void test_lives(void **state) {
    (void)state;
    struct toy_case t = two_workers();
    struct sim *s = sim_create(&t);
    struct log log = {.count = 0};
    s->c.recovery = (struct recovery_config){.elastic_min = 1, .elastic_max = s->t.workers};
    struct server_core_options o = {.config = &s->c,
                                    .layout = s->l,
                                    .map = s->map,
                                    .buffers = s->buffers,
                                    .job = JOB,
                                    .port = {&log, log_send}};
    struct server_core *core = server_core_create(&o);
    struct wire_header h = {
        .kind = WIRE_PULL, .role = PS_WORKER, .rank = 1, .job = JOB, .incarnation = 8, .process_no = 9};
    assert_false(server_core_accepts_sender(core, &h));
    struct wire_header news = {.kind = WIRE_MEMBER, .key = 1, .seq = 7, .process_no = 1};
    assert_int_equal(server_core_decision(core, &news, 0), 0);
    assert_false(server_core_accepts_sender(core, &h));
    h.incarnation = 7;
    assert_false(server_core_accepts_sender(core, &h));
    h.process_no = 1;
    assert_true(server_core_accepts_sender(core, &h));
    news.seq = 8;
    news.process_no = 2;
    assert_int_equal(server_core_decision(core, &news, 0), 0);
    assert_false(server_core_accepts_sender(core, &h));
    h.incarnation = 8;
    h.process_no = 2;
    assert_true(server_core_accepts_sender(core, &h));
    news.seq = 7;
    news.process_no = 1;  // overtaken
    assert_int_equal(server_core_decision(core, &news, 0), 0);
    assert_true(server_core_accepts_sender(core, &h));
    for (int key = -2; key < 5; key += 3) {
        news.key = key;
        assert_int_equal(server_core_decision(core, &news, 0), 0);
    }
    server_core_destroy(&core);
    sim_destroy(s);
}

// ---------------------------------------------------------------- what is said at the meeting
// Cut short it is refused or says less; with a flipped bit it is refused, or says something all the same: read by the sanitizers.
static void hurt(const char *text, size_t bytes, void (*reads)(const char *text, size_t bytes)) {
    for (size_t i = 0; i < 9 * bytes; i++) {
        char *copy = xcalloc(bytes + 1, 1);
        memcpy(copy, text, i < bytes ? i : bytes);
        if (i >= bytes) copy[(i - bytes) / 8] ^= (char)(1 << (i - bytes) % 8);
        reads(copy, i < bytes ? i : bytes);
        free(copy);
    }
}

static void read_now(const char *text, size_t bytes) {
    struct notice_now now;
    if (notice_now_read(text, bytes, &now)) assert_true(now.epoch && now.job && now.address[0]);
}
static void read_start(const char *text, size_t bytes) {
    struct notice_start s;
    if (notice_start_read(text, bytes, 1, 1, &s)) roster_destroy(&s.roster);
}
static void read_ready(const char *text, size_t bytes) {
    struct notice_ready r;
    if (notice_ready_read(text, bytes, &r)) free((char *)r.identity);
}
static void read_failed(const char *text, size_t bytes) {
    struct notice_failed f;
    if (notice_failed_read(text, bytes, &f)) assert_true(strlen(f.why) < sizeof f.why);
}

static void test_what_is_said(void **state) {
    (void)state;
    size_t bytes;
    struct notice_now now = {.epoch = 3, .job = UINT64_MAX, .clock = 7, .address = "tcp://[::1]:2"}, now2;
    char *text = notice_now_text(&now);
    bytes = strlen(text);
    assert_true(notice_now_read(text, bytes, &now2));
    assert_true(now2.epoch == now.epoch && now2.job == now.job && now2.clock == now.clock);
    assert_string_equal(now2.address, now.address);
    hurt(text, bytes, read_now);
    free(text);
    struct notice_start start = {
        .from = {"/a b\nc", "0123456789abcdef", 7}, .process_no = 2, .roster = roster_create(1, 1)};
    snprintf(start.roster->shard[0].address, ROSTER_ADDRESS_MAX, "tcp://h:1");
    text = notice_start_text(&start);
    bytes = strlen(text);
    struct notice_start start2;
    assert_true(notice_start_read(text, bytes, 1, 1, &start2));
    assert_string_equal(start2.from.checkpoint, start.from.checkpoint);
    assert_string_equal(start2.from.seal, start.from.seal);
    assert_true(start2.from.step == 7 && start2.process_no == 2);
    assert_string_equal(start2.roster->shard[0].address, "tcp://h:1");
    roster_destroy(&start2.roster);
    assert_false(notice_start_read(text, bytes, 1, 2, &start2));
    hurt(text, bytes, read_start);
    roster_destroy(&start.roster);
    free(text);
    struct notice_ready ready = {.epoch = 9, .manifest = 8, .identity = "{\n}", .endpoints = "tcp://h:1\n"},
                        ready2;
    text = notice_ready_text(&ready);
    bytes = strlen(text);
    assert_true(notice_ready_read(text, bytes, &ready2));
    assert_true(ready2.epoch == 9 && ready2.manifest == 8);
    assert_string_equal(ready2.identity, "{\n}");
    assert_string_equal(ready2.endpoints, "tcp://h:1\n");
    free((char *)ready2.identity);
    hurt(text, bytes, read_ready);
    free(text);
    struct notice_failed failed = {.epoch = 2, .lost = true, .why = "it\nfailed"}, failed2;
    text = notice_failed_text(&failed);
    bytes = strlen(text);
    assert_true(notice_failed_read(text, bytes, &failed2));
    assert_true(failed2.epoch == 2 && failed2.lost);
    assert_string_equal(failed2.why, failed.why);
    hurt(text, bytes, read_failed);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roster),       cmocka_unit_test(test_shards_of_a_server),
        cmocka_unit_test(test_first_word),   cmocka_unit_test(test_lives),
        cmocka_unit_test(test_what_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
