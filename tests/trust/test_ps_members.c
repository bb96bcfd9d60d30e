// Who is heard inside of a job: those whom the scheduler has named, and nobody because he spoke first. And what of a
// scheduler is believed.
#include "ps/net/login.h"
#include "ps/net/net.h"
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
    char *text = roster_text(r, &bytes);
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
        assert_false(server_core_knows(core, &forged));
    }
    assert_int_equal(log.count, 0);
    assert_false(server_core_knows(core, &real));  // the scheduler has named nobody
    server_core_member(core, 0, 100, 0);
    server_core_member(core, -1, 5, 0);
    server_core_member(core, 2, 5, 0);
    server_core_member(core, 1, 0, 0);
    assert_true(server_core_knows(core, &real));
    forged.rank = 0;
    assert_false(server_core_knows(core, &forged));
    server_core_member(core, 0, 666,
                       0);  // where nobody comes and goes the first word of the scheduler stands
    assert_false(server_core_knows(core, &forged));
    forged.rank = 1;
    forged.incarnation = 0;
    assert_false(server_core_knows(core, &forged));
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
        .kind = WIRE_PULL, .role = PS_WORKER, .rank = 1, .job = JOB, .incarnation = 8, .life = 9};
    assert_false(server_core_knows(core, &h));
    struct wire_header news = {.kind = WIRE_MEMBER, .key = 1, .seq = 7, .life = 1};
    assert_int_equal(server_core_decision(core, &news, 0), 0);
    assert_false(server_core_knows(core, &h));
    h.incarnation = 7;
    assert_false(server_core_knows(core, &h));
    h.life = 1;
    assert_true(server_core_knows(core, &h));
    news.seq = 8;
    news.life = 2;
    assert_int_equal(server_core_decision(core, &news, 0), 0);
    assert_false(server_core_knows(core, &h));
    h.incarnation = 8;
    h.life = 2;
    assert_true(server_core_knows(core, &h));
    news.seq = 7;
    news.life = 1;  // overtaken
    assert_int_equal(server_core_decision(core, &news, 0), 0);
    assert_true(server_core_knows(core, &h));
    for (int key = -2; key < 5; key += 3) {
        news.key = key;
        assert_int_equal(server_core_decision(core, &news, 0), 0);
    }
    server_core_destroy(&core);
    sim_destroy(s);
}

// ---------------------------------------------------------------- a hostile scheduler, and a refusal
struct hostile {
    struct net *net;
    struct net_socket *socket;
    int64_t rank;  // that it gives
    _Atomic int quit;
};

static void *hostile_main(void *arg) {
    struct hostile *h = arg;
    while (!atomic_load(&h->quit)) {
        struct net_poll_item item = {.socket = h->socket};
        struct net_message m;
        if (net_poll(&item, 1, 5) != 0) break;
        while (item.ready && net_recv(h->socket, &m) == 1) {
            struct ps_message welcome = {
                .header = {.kind = WIRE_WELCOME, .role = PS_SCHEDULER, .job = JOB, .step = h->rank}};
            ps_frame_release(m.frame);
            net_send(h->socket, &m.from, &welcome);
        }
    }
    return NULL;
}

static int login_at(const struct job *j, int64_t given, enum ps_role role, int asked) {
    struct wire_count wire = {0};
    char bound[NET_ADDRESS_MAX];
    struct hostile h = {.rank = given};
    pthread_t thread;
    h.net = net_create(&(struct net_options){.wire = &wire, .queue_messages = 100, .key = key_of_test()});
    h.socket = net_router(h.net, "tcp://127.0.0.1:*", bound);
    assert_non_null(h.socket);
    pthread_create(&thread, NULL, hostile_main, &h);
    struct net *net =
        net_create(&(struct net_options){.wire = &wire, .queue_messages = 100, .key = key_of_test()});
    struct ps_role_options o = {.config = &j->c, .layout = j->l, .scheduler = bound, .key = key_of_test()};
    struct manifest manifest = {.identity = (char *)"{}"};
    struct ps_login l = {.socket = net_dealer(net, &(struct net_peer){.address = bound}),
                         .role = &o,
                         .manifest = &manifest,
                         .shards = 1};
    struct ps_identity id = {.role = role, .rank = asked, .incarnation = 3};
    assert_non_null(l.socket);
    int rc = ps_login(&l, &id);
    atomic_store(&h.quit, 1);
    pthread_join(thread, NULL);
    net_destroy(&net, 0);
    net_destroy(&h.net, 0);
    return rc;
}

// A server counted on the rank of WELCOME, and read behind the end of what it had.
static void test_ranks_that_cannot_be(void **state) {
    (void)state;
    struct toy_case t = base_case();
    struct job *j = job_create(&t);
    j->c.ps.deadline_ms = 20000;
    // The wire carries none below 0 or beyond the third of these.
    const int64_t wrong[] = {j->c.ps.servers, 1 << 20, INT64_MAX >> 2, (int64_t)1 << 32};
    error_quiet(1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(login_at(j, wrong[i], PS_SERVER, -1), -1);
        assert_non_null(strstr(error_last(), "is not of this job"));
    }
    assert_int_equal(login_at(j, 1, PS_WORKER, 2), -1);  // another than was asked for
    assert_int_equal(login_at(j, 0, PS_WORKER, -1), 0);
    error_quiet(0);
    job_destroy(j);
}

// ---------------------------------------------------------------- a refusal
struct told {
    struct wire_header last;
};

static void hear_answer(void *ctx, int peer, const struct ps_message *m) {
    (void)peer;
    ((struct told *)ctx)->last = m->header;
}

// Whoever is refused learns neither how many there are nor which job it is (scheduler.c leaves out its number).
static void test_refusals_say_nothing(void **state) {
    (void)state;
    struct toy_case t = two_workers();
    struct sim *s = sim_create(&t);
    struct told told = {.last = {0}};
    struct scheduler_options o = {
        .config = &s->c, .map = s->map, .manifest = {.hash = 5}, .job = JOB, .port = {&told, hear_answer}};
    struct scheduler_core *core = scheduler_core_create(&o);
    for (int rank = 0; rank < 4; rank++) {
        struct wire_header h = {.kind = WIRE_HELLO,
                                .role = PS_WORKER,
                                .rank = rank,
                                .incarnation = 50 + (uint64_t)rank,
                                .manifest = 5};
        int member = scheduler_core_message(core, &h, NULL, 0);
        assert_int_equal(member, rank < 2 ? rank : -1);
        if (member >= 0) continue;
        assert_int_equal(told.last.kind, WIRE_REFUSED);
        assert_null(strpbrk(strstr(told.last.text, "job has") ? strstr(told.last.text, "job has") : "",
                            "0123456789"));
    }
    struct wire_header any = {
        .kind = WIRE_HELLO, .role = PS_WORKER, .rank = -1, .incarnation = 90, .manifest = 5};
    assert_int_equal(scheduler_core_message(core, &any, NULL, 0), -1);
    assert_int_equal(told.last.kind, WIRE_REFUSED);
    assert_null(strpbrk(told.last.text, "0123456789"));
    scheduler_core_destroy(&core);
    sim_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roster),
        cmocka_unit_test(test_shards_of_a_server),
        cmocka_unit_test(test_first_word),
        cmocka_unit_test(test_lives),
        cmocka_unit_test(test_ranks_that_cannot_be),
        cmocka_unit_test(test_refusals_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
