// The lives of a star's job, as its scheduler's state machine has them: a death begins an epoch, what was sent in an
// earlier one counts nowhere, and nobody is replaced by a ghost.
#include "tests/ps/test_ps_log.h"

#include "kernels/exact_sum.h"
#include "ps/net/rejoin.h"

#define RESTARTS 3

enum { W0, W1, SERVER, SHARD, MEMBERS };

struct process {
    enum ps_role role;
    int rank;
    uint64_t incarnation, was;
    int pid;
    uint64_t job;  // that it has been welcomed to; 0: none
};

struct fixture {
    struct sim *sim;
    struct log log;
    struct scheduler_core *core;
    struct process p[MEMBERS];
    uint64_t drawn;  // numbers of jobs and processes
    int starts, lost_pid;
    char why[WIRE_TEXT_MAX];
    int64_t step;  // where the next epoch begins
};

static uint64_t draw(void *ctx) { return 1000 + ((struct fixture *)ctx)->drawn++; }
static void lost(void *ctx, int pid, const char *name) {
    assert_true(strlen(name) > 0);
    ((struct fixture *)ctx)->lost_pid = pid;
}

static int starts(void *ctx, const struct epochs *e, struct epoch_start *out, char error[WIRE_TEXT_MAX]) {
    struct fixture *f = ctx;
    f->starts++;
    snprintf(f->why, sizeof f->why, "%s", e->why);
    error[0] = 0;
    out->step = f->step;
    snprintf(out->checkpoint, sizeof out->checkpoint, f->step ? "/run/step-%lld" : "", (long long)f->step);
    return 0;
}

static struct fixture *fixture_create(int restarts) {
    struct toy_case t = {.dtype = DT_F16,
                         .consistency = "sync",
                         .workers = 2,
                         .servers = 1,
                         .threads = 1,
                         .steps = 1,
                         .overflow_step = -1};
    struct fixture *f = xcalloc(1, sizeof *f);
    f->sim = sim_create(&t);
    f->sim->c.ps.deadline_ms = 4000;
    struct scheduler_options o = {.config = &f->sim->c,
                                  .map = f->sim->map,
                                  .manifest = {.hash = 5, .text = "ours"},
                                  .job = draw(f),
                                  .starts = starts,
                                  .starts_ctx = f,
                                  .epochs = {.restarts = restarts, .ctx = f, .job = draw, .lost = lost},
                                  .port = {&f->log, log_send}};
    f->core = scheduler_core_create(&o);
    for (int i = 0; i < MEMBERS; i++) {
        static const enum ps_role roles[] = {PS_WORKER, PS_WORKER, PS_SERVER, PS_SHARD};
        f->p[i] = (struct process){.role = roles[i], .rank = i == W1, .incarnation = draw(f), .pid = 70 + i};
    }
    f->p[SHARD].incarnation = f->p[SERVER].incarnation;
    return f;
}

static void fixture_destroy(struct fixture *f) {
    scheduler_core_destroy(&f->core);
    sim_destroy(f->sim);
    free(f);
}

static uint64_t job_of(const struct fixture *f) { return scheduler_core_epochs(f->core)->job; }
static unsigned epoch_of(const struct fixture *f) { return scheduler_core_epochs(f->core)->epoch; }

// One message of a process as it stands; the log holds what it led to.
static int say(struct fixture *f, const struct process *p, struct wire_header h, double now) {
    struct ps_frame *frame = NULL;
    if (h.kind == WIRE_HELLO && p->role == PS_SERVER) frame = sim_frame(f->sim, xcalloc(12, 1), 11);
    if (h.kind == WIRE_HELLO && p->role != PS_SERVER) frame = sim_frame(f->sim, xstrdup(""), 1);
    if (frame && p->role == PS_SERVER) memcpy((char *)frame->data, "\0tcp://y:1\n", 11);
    h.role = p->role;
    h.rank = p->rank;
    h.incarnation = p->incarnation;
    h.job = p->job;
    if (h.kind == WIRE_HELLO) h.manifest = 5, h.key = p->pid, h.seq = p->was;
    f->log.count = 0;
    int member = scheduler_core_message(f->core, &h, frame, now);
    scheduler_core_tick(f->core, now);
    return member;
}

static bool answered(const struct fixture *f, enum wire_kind kind) {
    return logged(&f->log, PEER_SENDER, kind) > 0;
}

static int hello(struct fixture *f, int who, double now) {
    struct process *p = &f->p[who];
    if (p->role == PS_SHARD) p->job = job_of(f);
    int member = say(f, p, (struct wire_header){.kind = WIRE_HELLO}, now);
    if (member >= 0) p->job = job_of(f);
    return member;
}

static void login_all(struct fixture *f, double now) {
    int before = f->starts;
    for (int i = 0; i < MEMBERS; i++) assert_int_equal(hello(f, i, now), i);
    assert_int_equal(f->starts, before + 1);
}

// As ps/net/rejoin.c has it: the same process, another incarnation.
static void begin_anew(struct fixture *f, int who) {
    struct process *p = &f->p[who];
    p->was = p->incarnation;
    p->incarnation = draw(f);
    p->job = 0;
    if (who == SERVER) f->p[SHARD].incarnation = p->incarnation, f->p[SHARD].job = 0;
}

static struct process another(struct fixture *f, int who) {
    return (struct process){
        .role = f->p[who].role, .rank = f->p[who].rank, .incarnation = draw(f), .pid = 170 + who};
}

static const struct wire_header beat = {.kind = WIRE_HEARTBEAT};
static struct wire_header report(int64_t step) {
    return (struct wire_header){
        .kind = WIRE_REPORT, .step = step, .loss = 0.5, .lr = 0.5f, .loss_scale = 1, .clip = 1};
}

// ---------------------------------------------------------------- what begins an epoch
static void test_replacement_is_news(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    login_all(f, 0);
    uint64_t first = job_of(f);
    f->p[W1] = another(f, W1);
    f->step = 7;
    assert_int_equal(hello(f, W1, 1), W1);
    assert_int_equal(epoch_of(f), 2);
    assert_true(job_of(f) != first);
    for (int i = 0; i < MEMBERS; i++) assert_int_equal(logged(&f->log, i, WIRE_ROLLBACK), 1);
    // The others do not belong to it until they have begun anew.
    assert_int_equal(say(f, &f->p[W0], beat, 1), -1);
    assert_true(answered(f, WIRE_ROLLBACK));
    assert_int_equal(f->log.sent[0].h.epoch, 2);
    assert_true(
        rejoin_asked(first, &(struct wire_header){.kind = WIRE_ROLLBACK, .role = PS_SCHEDULER, .job = 9}));
    assert_false(
        rejoin_asked(9, &(struct wire_header){.kind = WIRE_ROLLBACK, .role = PS_SCHEDULER, .job = 9}));
    begin_anew(f, W0);
    begin_anew(f, SERVER);
    assert_int_equal(hello(f, W0, 2), W0);
    assert_int_equal(hello(f, SERVER, 2), SERVER);
    assert_int_equal(hello(f, SHARD, 2), SHARD);
    assert_int_equal(f->starts, 2);
    assert_string_equal(f->why, "worker 1 was started again");
    assert_int_equal(logged(&f->log, W0, WIRE_START), 1);
    for (int i = 0; i < f->log.count; i++) {
        if (f->log.sent[i].h.kind != WIRE_START) continue;
        assert_string_equal(f->log.sent[i].h.text, "/run/step-7");
        assert_int_equal(f->log.sent[i].h.epoch, 2);
    }
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

static void test_launcher_is_news(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    login_all(f, 0);
    f->log.count = 0;
    scheduler_core_dead(f->core, 4711, "a process that nobody knows", 1);
    assert_int_equal(epoch_of(f), 1);
    scheduler_core_dead(f->core, f->p[SERVER].pid, "server 0 (pid 72) was killed by signal 9 (Killed)", 1);
    assert_int_equal(epoch_of(f), 2);
    assert_int_equal(logged(&f->log, W0, WIRE_ROLLBACK), 1);
    // Said again, or of one that has not come yet: nothing.
    scheduler_core_dead(f->core, f->p[SERVER].pid, "again", 1);
    scheduler_core_dead(f->core, f->p[W1].pid, "at the same moment", 1);
    assert_int_equal(epoch_of(f), 2);
    begin_anew(f, W0);
    f->p[W1] = another(f, W1);
    f->p[SERVER] = another(f, SERVER);
    f->p[SHARD].incarnation = f->p[SERVER].incarnation;
    login_all(f, 1);
    assert_string_equal(f->why, "server 0 (pid 72) was killed by signal 9 (Killed)");
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

// Who dies again before all are there costs no step: what was decided is of the epoch that had begun.
static void test_reached_is_of_who_had_begun(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    f->step = 7;
    assert_int_equal(scheduler_core_epochs(f->core)->reached, -1);
    login_all(f, 0);
    scheduler_core_dead(f->core, f->p[W1].pid, "once", 1);
    assert_int_equal(epoch_of(f), 2);
    char news[WIRE_TEXT_MAX];
    assert_true(scheduler_core_news(f->core, news));  // no launcher: a person is told what to do
    assert_non_null(strstr(news, "once: the job begins anew"));
    assert_non_null(strstr(news, "within 4 s"));
    assert_false(scheduler_core_news(f->core, news));
    assert_int_equal(scheduler_core_epochs(f->core)->reached, 7);
    f->p[W1] = another(f, W1);
    hello(f, W1, 1);
    scheduler_core_dead(f->core, f->p[W1].pid, "and again", 2);
    assert_int_equal(epoch_of(f), 3);
    assert_int_equal(scheduler_core_epochs(f->core)->reached, 7);
    fixture_destroy(f);
}

static void test_silence_is_news(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    login_all(f, 0);
    for (double now = 0.5; now < 8 && epoch_of(f) == 1; now += 0.5) {
        say(f, &f->p[W0], beat, now);
        if (epoch_of(f) == 1) say(f, &f->p[SERVER], beat, now);
    }
    assert_int_equal(epoch_of(f), 2);
    assert_int_equal(f->lost_pid, f->p[W1].pid);
    assert_string_equal(scheduler_core_error(f->core), "");
    fixture_destroy(f);
}

static void test_a_missed_peer_is_news(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    login_all(f, 0);
    struct wire_header misses = {.kind = WIRE_ABORT, .flags = WIRE_LOST, .text = "weights have not landed"};
    say(f, &f->p[W1], misses, 1);
    assert_int_equal(epoch_of(f), 2);
    misses.flags = 0;  // its own error ends the job, whatever restarts there are
    begin_anew(f, W1);
    hello(f, W1, 1);
    say(f, &f->p[W1], misses, 1);
    assert_int_equal(epoch_of(f), 2);
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 1: weights have not landed"));
    fixture_destroy(f);
}

// ---------------------------------------------------------------- what was sent in an earlier epoch
// A step is closed by reports of this epoch alone: what survivors still send of the last one does not count.
static void test_late_messages_count_nowhere(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true}, gather = {.kind = WIRE_GATHER};
    login_all(f, 0);
    const struct process old[] = {f->p[W0], f->p[W1], f->p[SHARD]};
    scheduler_core_dead(f->core, f->p[W1].pid, "worker 1 was killed", 0);
    begin_anew(f, W0);
    begin_anew(f, SERVER);
    f->p[W1] = another(f, W1);
    login_all(f, 0);
    for (int i = 0; i < 6; i++) {
        say(f, &old[i % 2], report(0), 0);
        assert_int_equal(logged(&f->log, W0, WIRE_STEP_DONE) + logged(&f->log, SHARD, WIRE_DECISION), 0);
        say(f, &old[2], sum, 0);
        say(f, &old[i % 2], gather, 0);
        assert_int_equal(f->log.count, 1);
        assert_true(answered(f, WIRE_ROLLBACK));
    }
    say(f, &f->p[W0], report(0), 0);
    say(f, &f->p[SHARD], sum, 0);
    assert_int_equal(logged(&f->log, W0, WIRE_STEP_DONE), 0);
    say(f, &f->p[W1], report(0), 0);
    assert_int_equal(logged(&f->log, W0, WIRE_STEP_DONE), 1);
    // Goodbyes of the last epoch do not end this one.
    say(f, &old[0], (struct wire_header){.kind = WIRE_GOODBYE}, 0);
    say(f, &old[1], (struct wire_header){.kind = WIRE_GOODBYE}, 0);
    assert_int_equal(logged(&f->log, SERVER, WIRE_SHUTDOWN), 0);
    // An error of the last epoch does not either.
    say(f, &old[1], (struct wire_header){.kind = WIRE_ABORT, .text = "diverged"}, 0);
    assert_string_equal(scheduler_core_error(f->core), "");
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

// Logins repeat, and those of a process that has begun anew meanwhile arrive behind its next ones.
static void test_ghosts_do_not_join(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    login_all(f, 0);
    struct process ghosts[MEMBERS];
    memcpy(ghosts, f->p, sizeof ghosts);
    for (int i = 0; i < MEMBERS - 1; i++) ghosts[i].job = 0;
    scheduler_core_dead(f->core, f->p[W1].pid, "worker 1 was killed", 0);
    for (int i = 0; i < MEMBERS; i++) {
        assert_int_equal(say(f, &ghosts[i], (struct wire_header){.kind = WIRE_HELLO}, 0), -1);
        assert_true(answered(f, WIRE_ROLLBACK));
    }
    begin_anew(f, W0);
    assert_int_equal(hello(f, W0, 0), W0);
    assert_int_equal(say(f, &ghosts[W0], (struct wire_header){.kind = WIRE_HELLO}, 0), -1);
    assert_int_equal(epoch_of(f), 2);
    // To a scheduler that knows nothing of it: the ghost is taken for the process, until that comes itself.
    struct fixture *g = fixture_create(RESTARTS);
    memcpy(g->p, f->p, sizeof g->p);
    g->p[W0].job = 0;
    assert_int_equal(say(g, &ghosts[W0], (struct wire_header){.kind = WIRE_HELLO}, 0), W0);
    assert_int_equal(hello(g, W0, 0), W0);
    assert_int_equal(epoch_of(g), 1);
    assert_int_equal(say(g, &ghosts[W0], (struct wire_header){.kind = WIRE_HELLO}, 0), -1);
    assert_int_equal(epoch_of(g), 1);
    fixture_destroy(g);
    fixture_destroy(f);
}

// A frozen worker wakes when another has its place: it is sent away, and the job goes on.
static void test_the_replaced_is_sent_away(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    login_all(f, 0);
    struct process frozen = f->p[W1];
    f->p[W1] = another(f, W1);
    hello(f, W1, 1);
    assert_int_equal(say(f, &frozen, report(0), 2), -1);
    assert_true(answered(f, WIRE_ROLLBACK));
    frozen.was = frozen.incarnation;
    frozen.incarnation = draw(f);
    frozen.job = 0;
    assert_int_equal(say(f, &frozen, (struct wire_header){.kind = WIRE_HELLO}, 2), -1);
    assert_true(answered(f, WIRE_REFUSED));
    assert_non_null(strstr(f->log.sent[0].h.text, "worker 1 has been replaced"));
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

// ---------------------------------------------------------------- bounds
static void test_restarts_are_used_up(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    login_all(f, 0);
    for (int i = 0; i < RESTARTS; i++) {
        f->p[W0] = another(f, W0);
        assert_int_equal(hello(f, W0, 0), W0);
        assert_int_equal(epoch_of(f), 2 + i);
    }
    f->p[W0] = another(f, W0);
    hello(f, W0, 0);
    assert_string_equal(scheduler_core_error(f->core),
                        "worker 0 was started again; all restarts are used up (--restart 3)");
    fixture_destroy(f);
}

static void test_without_restarts_nothing_changes(void **state) {
    (void)state;
    struct fixture *f = fixture_create(0);
    login_all(f, 0);
    struct process other = another(f, W0), old = f->p[W0];
    assert_int_equal(say(f, &other, (struct wire_header){.kind = WIRE_HELLO}, 0), -1);
    assert_true(answered(f, WIRE_REFUSED));
    assert_non_null(strstr(f->log.sent[0].h.text, "already here"));
    old.job++;
    assert_int_equal(say(f, &old, beat, 0), -1);
    assert_int_equal(f->log.count, 0);
    assert_int_equal(scheduler_core_tick(f->core, 3), -1);
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 0 was lost"));
    fixture_destroy(f);
}

// Deaths at random moments, survivors and replacements in any order, with late and repeated messages between them: each
// epoch starts once, with all of its own, and no step of it is closed by anybody else.
static void shuffled(uint64_t seed) {
    struct fixture *f = fixture_create(1000);
    struct process old[64];
    int olds = 0;
    f->sim->t.seed = seed;
    login_all(f, 0);
    for (int round = 0; round < 40; round++) {
        int dead = (int)sim_draw(f->sim, 3), left = 0;
        unsigned epoch = epoch_of(f);
        bool waits[MEMBERS] = {true, true, true, true};
        for (int i = 0; i < MEMBERS; i++) old[olds++ % 64] = f->p[i];
        if (sim_draw(f->sim, 2)) scheduler_core_dead(f->core, f->p[dead].pid, "killed", 0);
        for (int i = 0; i < SHARD; i++) {
            if (i != dead) begin_anew(f, i);
            if (i == dead) f->p[i] = another(f, i), f->p[i].pid += round;
        }
        f->p[SHARD].incarnation = f->p[SERVER].incarnation;
        if (epoch_of(f) == epoch) hello(f, dead, 0), waits[dead] = false;
        assert_int_equal(epoch_of(f), epoch + 1);
        for (int i = 0; i < MEMBERS; i++) left += waits[i];
        int starts_before = f->starts;
        while (left) {
            int i = (int)sim_draw(f->sim, MEMBERS);
            const struct process *late = &old[sim_draw(f->sim, (uint64_t)(olds < 64 ? olds : 64))];
            struct wire_header h = sim_draw(f->sim, 2) ? report(0) : (struct wire_header){.kind = WIRE_HELLO};
            struct process p = *late;
            if (h.kind == WIRE_HELLO && p.role != PS_SHARD) p.job = 0;
            assert_int_equal(say(f, &p, h, 0), -1);
            if (i == SHARD && waits[SERVER]) continue;
            bool again = !waits[i];
            assert_int_equal(hello(f, i, 0), i);
            left -= !again;
            waits[i] = false;
        }
        assert_int_equal(f->starts, starts_before + 1);
        assert_int_equal(epoch_of(f), epoch + 1);
        for (int i = 0; i < 10; i++) {
            say(f, &old[sim_draw(f->sim, (uint64_t)(olds < 64 ? olds : 64))], report(0), 0);
            assert_int_equal(logged(&f->log, W0, WIRE_STEP_DONE), 0);
        }
    }
    assert_string_equal(scheduler_core_error(f->core), "");
    fixture_destroy(f);
}

static void test_shuffled(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) shuffled(seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replacement_is_news),
        cmocka_unit_test(test_launcher_is_news),
        cmocka_unit_test(test_reached_is_of_who_had_begun),
        cmocka_unit_test(test_silence_is_news),
        cmocka_unit_test(test_a_missed_peer_is_news),
        cmocka_unit_test(test_late_messages_count_nowhere),
        cmocka_unit_test(test_ghosts_do_not_join),
        cmocka_unit_test(test_the_replaced_is_sent_away),
        cmocka_unit_test(test_restarts_are_used_up),
        cmocka_unit_test(test_without_restarts_nothing_changes),
        cmocka_unit_test(test_shuffled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
