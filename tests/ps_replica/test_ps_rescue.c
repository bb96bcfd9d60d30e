// The scheduler when somebody dies in a job whose servers replicate: who is told what, when the next epoch begins, and what
// is rescued. And worker 0's line of a step that it has not heard of any more.
#include <sys/stat.h>
#include <unistd.h>

#include "ps/job/timing.h"
#include "shared/report/metrics.h"
#include "shared/state/checkpoint.h"
#include "tests/ps/test_ps_log.h"

struct fixture {
    struct sim *sim;  // lends layout and map
    struct log log;
    struct scheduler_core *core;
    uint64_t jobs;
    // The process's half:
    int reads, begun, given_up;
    bool refuses;  // there is such a checkpoint already
    struct rescue_job job;
    enum rescue_state state;
    const char *why;  // NULL: a full disk
};

static uint64_t next_job(void *ctx) { return 9000 + ++((struct fixture *)ctx)->jobs; }

static int read_train(void *ctx, const char *checkpoint, struct train_state *out) {
    ((struct fixture *)ctx)->reads++;
    *out = (struct train_state){.scaler.scale = checkpoint[0] ? 2 : 1024};
    return 0;
}
static int begin(void *ctx, const struct rescue_job *job) {
    struct fixture *f = ctx;
    f->begun++;
    f->job = *job;
    return f->refuses ? -1 : 0;
}
static enum rescue_state state_of(void *ctx, char why[WIRE_TEXT_MAX]) {
    const struct fixture *f = ctx;
    snprintf(why, WIRE_TEXT_MAX, "%s", f->why ? f->why : "the disk is full");
    return f->state;
}
static void give_up(void *ctx) { ((struct fixture *)ctx)->given_up++; }

static int tell(struct fixture *f, enum ps_role role, int rank, struct wire_header h, double now) {
    struct ps_frame *frame =
        h.kind == WIRE_HELLO && role == PS_SERVER ? sim_frame(f->sim, xstrdup("tcp://y:1\n"), 10) : NULL;
    h.role = role;
    h.rank = rank;
    h.manifest = 5;
    if (!h.incarnation) h.incarnation = 50 + (uint64_t)(role * 10 + rank);
    if (h.kind == WIRE_HELLO) h.key = 100 + (int)role * 10 + rank;  // its process
    if (h.kind != WIRE_HELLO) h.job = SIM_JOB;
    f->log.count = 0;
    int member = scheduler_core_message(f->core, &h, frame, now);
    scheduler_core_tick(f->core, now);
    return member;
}

static void fixture_open(struct fixture *f, int servers) {
    struct toy_case t = {.dtype = DT_F16,
                         .consistency = "sync",
                         .workers = 2,
                         .servers = servers,
                         .threads = 1,
                         .steps = 1,
                         .overflow_step = -1,
                         .replicate = true};
    const struct wire_header hello = {.kind = WIRE_HELLO};
    *f = (struct fixture){.sim = sim_create(&t)};
    f->sim->c.scaler =
        (struct scaler_config){.enabled = true, .window = 1000, .hysteresis = 1, .min_scale = 1};
    struct scheduler_options o = {.config = &f->sim->c,
                                  .map = f->sim->map,
                                  .manifest = {.hash = 5},
                                  .job = SIM_JOB,
                                  .port = {&f->log, log_send},
                                  .epochs = {.restarts = 3, .ctx = f, .job = next_job},
                                  .rescue = {f, read_train, begin, state_of, give_up}};
    f->core = scheduler_core_create(&o);
    for (int w = 0; w < 2; w++) tell(f, PS_WORKER, w, hello, 0);
    for (int s = 0; s < servers; s++) tell(f, PS_SERVER, s, hello, 0);
    for (int s = 0; s < servers; s++) tell(f, PS_SHARD, s, hello, 0);
    assert_int_equal(f->reads, 1);
}

static void fixture_close(struct fixture *f) {
    scheduler_core_destroy(&f->core);
    sim_destroy(f->sim);
}

// All report step `step`; overflow: with an infinity. The last answer is in the log.
static void make_step(struct fixture *f, int64_t step, bool overflow) {
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .step = step, .has_sum = true};
    const struct wire_header report = {
        .kind = WIRE_REPORT, .step = step, .lr = 0.5f, .loss_scale = 1024, .loss = 0.25};
    sum.sum.nonfinite = overflow;
    for (int s = 0; s < f->sim->t.servers; s++) tell(f, PS_SHARD, s, sum, 1);
    for (int w = 0; w < 2; w++) tell(f, PS_WORKER, w, report, 1);
    assert_int_equal(logged(&f->log, 0, WIRE_STEP_DONE), 1);
}

enum { MEMBER_SERVER = 2 };  // behind two workers

static void die(struct fixture *f, enum ps_role role, int rank, double now) {
    f->log.count = 0;
    scheduler_core_dead(f->core, 100 + (int)role * 10 + rank, "it was killed", now);
}

static const struct wire_header *rescue_to(const struct fixture *f, int server) {
    for (int i = 0; i < f->log.count; i++)
        if (f->log.sent[i].peer == MEMBER_SERVER + server && f->log.sent[i].h.kind == WIRE_RESCUE)
            return &f->log.sent[i].h;
    return NULL;
}

static int said(const struct fixture *f, enum wire_kind kind) {
    int n = 0;
    for (int i = 0; i < f->log.count; i++) n += f->log.sent[i].h.kind == kind;
    return n;
}

static void tick(struct fixture *f, double now) {
    f->log.count = 0;
    assert_int_equal(scheduler_core_tick(f->core, now), 0);
}

static void test_a_server_dies(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 3);
    make_step(&f, 0, false);
    make_step(&f, 1, true);
    die(&f, PS_SERVER, 1, 2);
    // The others are told the step, and how it was decided; the neighbour that it is to leave the replica as well.
    assert_null(rescue_to(&f, 1));
    for (int s = 0; s < 3; s += 2) {
        const struct wire_header *h = rescue_to(&f, s);
        assert_non_null(h);
        assert_true(h->step == 2 && h->flags == WIRE_SKIP && h->seq == 9001 && h->count == 1);
        assert_true(h->values[0] == (s == 2));
    }
    assert_int_equal(said(&f, WIRE_ROLLBACK), 0);
    const struct train_state *t = &f.job.train;
    assert_true(t->step == 2 && t->updates == 1 && t->samples == 2 && t->dealt == 4);
    assert_true(t->skipped_in_a_row == 1 && t->scaler.scale == 512 && f.job.life == 9001);
    assert_true(f.job.last.loss == 0.5 && f.job.last.lr == 0.5 && f.job.last.skipped);
    // Nothing is decided any more, nobody joins, and those who are there hear that the scheduler lives.
    const struct wire_header sum = {.kind = WIRE_SHARD_SUM, .step = 2, .has_sum = true},
                             report = {.kind = WIRE_REPORT, .step = 2, .lr = 0.5f, .loss_scale = 512};
    for (int s = 0; s < 3; s++) tell(&f, PS_SHARD, s, sum, 2.1);
    for (int w = 0; w < 2; w++) tell(&f, PS_WORKER, w, report, 2.1);
    assert_int_equal(f.log.count, 0);
    const struct wire_header hello = {.kind = WIRE_HELLO, .incarnation = 777},
                             beat = {.kind = WIRE_HEARTBEAT};
    assert_int_equal(tell(&f, PS_SERVER, 1, hello, 2.2), -1);
    assert_true(f.log.count == 1 && f.log.sent[0].h.kind == WIRE_HEARTBEAT_ACK);
    tell(&f, PS_WORKER, 0, beat, 2.2);
    assert_int_equal(logged(&f.log, 0, WIRE_HEARTBEAT_ACK), 1);
    tick(&f, 9);
    assert_int_equal(f.log.count, 0);  // RESCUE has been said
    // The files are there: the next epoch.
    f.state = RESCUE_DONE;
    tick(&f, 10);
    assert_int_equal(logged(&f.log, 0, WIRE_ROLLBACK), 1);
    assert_int_equal(logged(&f.log, MEMBER_SERVER, WIRE_ROLLBACK), 1);
    assert_int_equal(scheduler_core_epochs(f.core)->epoch, 2);
    assert_int_equal(scheduler_core_epochs(f.core)->reached, 2);
    assert_string_equal(scheduler_core_epochs(f.core)->why, "it was killed");
    assert_true(tell(&f, PS_SERVER, 1, hello, 10) >= 0);
    fixture_close(&f);
}

static void test_a_worker_and_two_servers(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 4);
    make_step(&f, 0, false);
    die(&f, PS_WORKER, 0, 2);
    for (int s = 0; s < 4; s++) assert_true(rescue_to(&f, s)->values[0] == 0);
    die(&f, PS_SERVER, 3, 2.1);
    for (int s = 0; s < 3; s++) assert_true(rescue_to(&f, s)->values[0] == (s == 0));
    assert_null(rescue_to(&f, 3));
    die(&f, PS_SERVER, 1, 2.2);
    for (int s = 0; s < 3; s += 2) assert_non_null(rescue_to(&f, s));
    assert_int_equal(f.begun, 1);
    // A third one: its replica died before it. What has begun ends, and then the epoch.
    const struct wire_header hello = {.kind = WIRE_HELLO, .incarnation = 777};
    tell(&f, PS_SERVER, 2, hello, 2.3);  // started again by hand: nobody has said that it died
    assert_int_equal(f.given_up, 1);
    tick(&f, 2.4);
    assert_int_equal(f.log.count, 0);
    f.state = RESCUE_FAILED;
    tick(&f, 2.5);
    assert_int_equal(logged(&f.log, 1, WIRE_ROLLBACK), 1);
    assert_string_equal(scheduler_core_epochs(f.core)->why,
                        "it was killed; server 1 and its neighbour, which kept its replica, have both died");
    fixture_close(&f);
}

// Nothing to rescue: the next epoch begins where this one began, or with the checkpoint that is there.
static void test_the_ordinary_way(void **state) {
    (void)state;
    for (int there = 0; there < 2; there++) {
        struct fixture f;
        fixture_open(&f, 2);
        if (there) make_step(&f, 0, false);
        f.refuses = there;
        die(&f, PS_SERVER, 0, 2);
        assert_int_equal(f.begun, there);
        assert_int_equal(said(&f, WIRE_RESCUE), 0);
        assert_int_equal(logged(&f.log, 0, WIRE_ROLLBACK), 1);
        fixture_close(&f);
    }
    struct fixture f;
    fixture_open(&f, 2);
    make_step(&f, 0, false);
    die(&f, PS_SERVER, 0, 2);
    f.state = RESCUE_FAILED;
    tick(&f, 3);
    assert_non_null(strstr(scheduler_core_epochs(f.core)->why, "could not be kept: the disk is full"));
    fixture_close(&f);
}

// A server that cannot leave its part says so: nobody waits for a file that will not come.
static void test_a_server_cannot_keep_its_state(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 3);
    make_step(&f, 0, false);
    die(&f, PS_SERVER, 1, 2);
    struct wire_header full = {
        .kind = WIRE_RESCUE, .seq = 77, .text = "server-2.safetensors: the disk is full"};
    tell(&f, PS_SERVER, 2, full, 2.1);  // of another rescue
    assert_int_equal(f.given_up, 0);
    full.seq = 9001;
    tell(&f, PS_SERVER, 2, full, 2.1);
    tell(&f, PS_SERVER, 2, full, 2.2);
    assert_int_equal(f.given_up, 1);
    f.state = RESCUE_FAILED;
    tick(&f, 2.3);
    assert_int_equal(logged(&f.log, 0, WIRE_ROLLBACK), 1);
    assert_string_equal(
        scheduler_core_epochs(f.core)->why,
        "it was killed; server 2 could not keep its state: server-2.safetensors: the disk is full");
    fixture_close(&f);
}

// The files said first that nothing comes of it, without a reason: the server's word is waited for, a moment.
static void test_a_reason_that_no_file_holds(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 3);
    make_step(&f, 0, false);
    die(&f, PS_SERVER, 1, 2);
    f.log.count = 0;
    f.state = RESCUE_FAILED;
    f.why = "server-2: " CHECKPOINT_NO_REASON;
    tick(&f, 2.1);
    tick(&f, 2.15);
    assert_int_equal(said(&f, WIRE_ROLLBACK), 0);
    const struct wire_header full = {.kind = WIRE_RESCUE, .seq = 9001, .text = "the disk is full"};
    tell(&f, PS_SERVER, 2, full, 2.2);
    tick(&f, 2.3);
    assert_string_equal(scheduler_core_epochs(f.core)->why,
                        "it was killed; server 2 could not keep its state: the disk is full");
    fixture_close(&f);
}

// All workers have stopped to speak, one after the other: nobody is sent home while survivors write.
static void test_no_worker_is_left(void **state) {
    (void)state;
    struct fixture f;
    fixture_open(&f, 2);
    make_step(&f, 0, false);
    const struct wire_header beat = {.kind = WIRE_HEARTBEAT};
    double lost_s = ps_lost_s(&f.sim->c), now = 1;
    for (bool asked = false; !asked;) {
        now += lost_s / 4;
        assert_true(now < 1 + 4 * lost_s);
        for (int s = 0; s < 2; s++) {
            tell(&f, PS_SERVER, s, beat, now);
            asked = asked || rescue_to(&f, s);
        }
    }
    for (int i = 0; i < 4; i++) {  // the second worker's silence is noticed
        tick(&f, now);
        assert_int_equal(said(&f, WIRE_SHUTDOWN), 0);
        for (int s = 0; s < 2; s++) {
            tell(&f, PS_SERVER, s, beat, now += 0.01);
            assert_int_equal(said(&f, WIRE_SHUTDOWN), 0);
        }
    }
    assert_false(scheduler_core_done(f.core));
    f.state = RESCUE_DONE;
    tick(&f, now);
    assert_int_equal(logged(&f.log, MEMBER_SERVER, WIRE_ROLLBACK), 1);
    assert_int_equal(scheduler_core_epochs(f.core)->epoch, 2);
    fixture_close(&f);
}

// ---------------------------------------------------------------- metrics.jsonl
static int lines_of(const char *path, char last[512]) {
    FILE *in = fopen(path, "r");
    int n = 0;
    for (; in && fgets(last, 512, in); n++) continue;
    if (in) fclose(in);
    return n;
}

static void test_a_missing_line(void **state) {
    (void)state;
    char dir[] = "/tmp/starring-mend-XXXXXX", last[512];
    assert_non_null(mkdtemp(dir));
    char *path = xasprintf("%s/metrics.jsonl", dir);
    double elapsed;
    struct step_record r = {.step = 1,
                            .loss = 5,
                            .grad_norm = 2,
                            .lr = 0.5,
                            .loss_scale = 4,
                            .tokens = 8,
                            .samples = 2,
                            .seconds = 0.25,
                            .elapsed = 0.25,
                            .memory_bytes = 77};
    metrics_mend(dir, &r);  // no file: nothing is made
    assert_int_equal(access(path, F_OK), -1);
    struct metrics *m = metrics_create(dir, 0, &elapsed);
    metrics_step(m, &r);
    assert_int_equal(metrics_destroy(&m), 0);
    metrics_mend(dir, &r);  // there it is
    r.step = 3;
    metrics_mend(dir, &r);  // more than one is missing: nobody knows of the other
    assert_int_equal(lines_of(path, last), 1);
    r.step = 2;
    r.elapsed = 0;
    r.memory_bytes = 0;
    metrics_mend(dir, &r);
    assert_int_equal(lines_of(path, last), 2);
    assert_non_null(strstr(last, "\"step\":2,\"loss\":5.0,"));
    assert_non_null(strstr(last, "\"elapsed\":0.5,"));
    assert_non_null(strstr(last, "\"memory_bytes\":77}\n"));
    unlink(path);
    rmdir(dir);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_server_dies),
        cmocka_unit_test(test_a_worker_and_two_servers),
        cmocka_unit_test(test_the_ordinary_way),
        cmocka_unit_test(test_a_server_cannot_keep_its_state),
        cmocka_unit_test(test_a_reason_that_no_file_holds),
        cmocka_unit_test(test_no_worker_is_left),
        cmocka_unit_test(test_a_missing_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
