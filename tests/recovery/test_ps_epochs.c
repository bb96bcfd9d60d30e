// The lives of a star's job, as its scheduler's state machine has them: a death begins an epoch, what was sent in an
// earlier one counts nowhere, and nobody is replaced by a ghost.
#include "tests/recovery/epochs_fixture.h"

#include "ps/net/rejoin.h"

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
    assert_false(tell_dead(f->core, "server 9", 4711, "a process that nobody knows", 1).again);
    // Of another machine, where a process had the server's number: the server is here.
    tell_dead(f->core, "worker 1", f->p[SERVER].pid, "worker 1 (pid 72) was killed by signal 9 (Killed)", 1);
    assert_int_equal(epoch_of(f), 1);
    tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 (pid 72) was killed by signal 9 (Killed)", 1);
    assert_int_equal(epoch_of(f), 2);
    assert_int_equal(logged(&f->log, W0, WIRE_ROLLBACK), 1);
    // Said again, or of one that has not come yet: nothing.
    tell_dead(f->core, "server 0", f->p[SERVER].pid, "again", 1);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "at the same moment", 1);
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
    tell_dead(f->core, "worker 1", f->p[W1].pid, "once", 1);
    assert_int_equal(epoch_of(f), 2);
    char news[WIRE_TEXT_MAX];
    assert_true(scheduler_core_news(f->core, news));  // no launcher: a person is told what to do
    assert_non_null(strstr(news, "once: the job begins anew"));
    assert_non_null(strstr(news, "within 4 s"));
    assert_false(scheduler_core_news(f->core, news));
    assert_int_equal(scheduler_core_epochs(f->core)->reached, 7);
    f->p[W1] = another(f, W1);
    hello(f, W1, 1);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "and again", 2);
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
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 0);
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
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 0);
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

// Deaths while all are coming to an epoch that a death has begun: one restart, one cause. Who dies again takes another.
static void test_a_login_takes_one_restart(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    char news[WIRE_TEXT_MAX];
    login_all(f, 0);
    tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 was killed", 1);
    assert_int_equal(scheduler_core_epochs(f->core)->used, 1);
    for (int i = 0; i < SHARD; i++) f->p[i] = another(f, i);
    f->p[SHARD].incarnation = f->p[SERVER].incarnation;
    hello(f, W1, 1);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed in its turn", 2);
    assert_int_equal(epoch_of(f), 3);
    assert_int_equal(scheduler_core_epochs(f->core)->used, 1);
    assert_true(scheduler_core_news(f->core, news));
    f->p[W1] = another(f, W1);
    hello(f, W1, 2);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed once more", 3);
    assert_int_equal(epoch_of(f), 4);
    assert_int_equal(scheduler_core_epochs(f->core)->used, 2);
    for (int i = 0; i < SHARD; i++) f->p[i] = another(f, i);
    f->p[SHARD].incarnation = f->p[SERVER].incarnation;
    login_all(f, 3);
    assert_string_equal(f->why, "server 0 was killed");
    // Behind a START the next one is the next again.
    tell_dead(f->core, "worker 0", f->p[W0].pid, "worker 0 was killed", 4);
    assert_int_equal(scheduler_core_epochs(f->core)->used, 3);
    fixture_destroy(f);
}

static int used(const struct fixture *f) { return scheduler_core_epochs(f->core)->used; }

static void assert_told(struct verdict v, enum verdict_kind kind, bool again, int left) {
    assert_int_equal(v.kind, kind);
    assert_int_equal(v.again, again);
    assert_int_equal(v.left, left);
}

// Processes that die before they have logged in: a first one takes a restart, others none with it; one that does so again and again
// uses up all, and that is the end.
static void test_deaths_before_the_first_login(void **state) {
    (void)state;
    struct fixture *f = fixture_with(2, 0, true);
    assert_told(tell_dead(f->core, "server 0", 81, "server 0 (pid 81) was killed", 0), VERDICT_ANEW, true, 1);
    assert_told(tell_dead(f->core, "worker 1", 82, "worker 1 (pid 82) was killed", 0), VERDICT_ANEW, true, 1);
    assert_int_equal(epoch_of(f), 1);
    assert_told(tell_dead(f->core, "server 0", 83, "server 0 (pid 83) was killed", 1), VERDICT_ANEW, true, 0);
    struct verdict v = tell_dead(f->core, "server 0", 84, "server 0 (pid 84) was killed", 2);
    assert_told(v, VERDICT_ENDS, false, 0);
    assert_string_equal(v.reason, "all restarts are used up (--restart 2)");
    fixture_destroy(f);
}

// A member that was lost by silence is killed by its launcher, which tells of it: that is one death, also where the process has logged in
// anew meanwhile.
static void test_silence_and_its_end_are_one_death(void **state) {
    (void)state;
    for (int wakes = 0; wakes < 2; wakes++) {
        struct fixture *f = fixture_with(RESTARTS, 0, true);
        double now = 0.5;
        login_all(f, 0);
        for (; epoch_of(f) == 1; now += 0.5) {
            say(f, &f->p[W0], beat, now);
            if (epoch_of(f) == 1) say(f, &f->p[SERVER], beat, now);
        }
        assert_int_equal(used(f), 1);
        begin_anew(f, W1);
        if (wakes) assert_int_equal(hello(f, W1, now), W1);
        assert_told(tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", now), VERDICT_ANEW,
                    true, RESTARTS - 1);
        f->p[W1] = another(f, W1);
        assert_told(tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", now), VERDICT_ANEW,
                    true, RESTARTS - 2);
        fixture_destroy(f);
    }
}

// A process that does not come is killed and started again: one restart, for all of them.
static void test_who_did_not_come_takes_one_restart(void **state) {
    (void)state;
    struct fixture *f = fixture_with(RESTARTS, 0, true);
    for (double now = 0; epoch_of(f) == 1; now += 0.5) hello(f, W0, now);
    assert_int_equal(used(f), 1);
    assert_told(tell_dead(f->core, "server 0", 91, "server 0 was killed", 5), VERDICT_ANEW, true,
                RESTARTS - 1);
    assert_told(tell_dead(f->core, "worker 1", 92, "worker 1 was killed", 5), VERDICT_ANEW, true,
                RESTARTS - 1);
    assert_told(tell_dead(f->core, "worker 1", 93, "worker 1 was killed", 5), VERDICT_ANEW, true,
                RESTARTS - 2);
    fixture_destroy(f);
}

// A worker that the others do without has another in its place as long as restarts are left: the same ones that epochs take.
static void test_one_budget(void **state) {
    (void)state;
    struct fixture *f = fixture_with(2, 1, true);
    login_all(f, 0);
    assert_told(tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 1), VERDICT_WITHOUT, true,
                1);
    assert_told(tell_dead(f->core, "worker 1", 93, "worker 1 was killed", 1), VERDICT_WITHOUT, true, 0);
    assert_told(tell_dead(f->core, "worker 1", 94, "worker 1 was killed", 1), VERDICT_WITHOUT, false, 0);
    assert_int_equal(epoch_of(f), 1);
    assert_told(tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 was killed", 1), VERDICT_ENDS,
                false, 0);
    fixture_destroy(f);
}

// Behind Ctrl-C nothing begins anew, and nobody is started again.
static void test_a_death_while_all_end(void **state) {
    (void)state;
    for (int server = 0; server < 2; server++) {
        struct fixture *f = fixture_with(RESTARTS, 1, true);
        login_all(f, 0);
        struct death d = {
            .name = "worker 1", .pid = f->p[W1].pid, .leaving = true, .why = "worker 1 was killed"};
        if (server)
            d = (struct death){
                .name = "server 0", .pid = f->p[SERVER].pid, .leaving = true, .why = "server 0 was killed"};
        assert_told(scheduler_core_dead(f->core, &d, 1), server ? VERDICT_ENDS : VERDICT_WITHOUT, false,
                    RESTARTS);
        assert_int_equal(epoch_of(f), 1);
        fixture_destroy(f);
    }
}

// A login's deadline counts from whoever came last, names its key, and its words are whole.
static void test_a_login_lasts_while_somebody_comes(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    char why[WIRE_TEXT_MAX] = "";
    while (strlen(why) < 300) strcat(why, "a-cause ");
    login_all(f, 0);
    tell_dead(f->core, "server 0", f->p[SERVER].pid, why, 0);
    for (int i = 0; i < SHARD; i++) begin_anew(f, i);
    double now = 0;
    for (int i = 0; i < SHARD; i++) {
        for (double begin = now; now < begin + 3.5; now += 0.5)
            for (int k = 0; k < i; k++) assert_int_equal(hello(f, k, now), k);
        assert_int_equal(hello(f, i, now), i);
    }
    assert_true(now > 10);
    double last = now;
    for (; !scheduler_core_error(f->core)[0]; now += 0.5) {
        assert_true(now < last + 5);
        for (int k = 0; k < SHARD; k++) hello(f, k, now);
    }
    assert_true(now > last + 4);
    const char *said = scheduler_core_error(f->core);
    assert_non_null(
        strstr(said, "login: server 0 shard 0 did not come within 4000 ms (parameter_server.deadline_ms)"));
    assert_non_null(strstr(said, "; before, a-cause "));
    assert_non_null(strstr(said, "a-cause .."));
    fixture_destroy(f);
}

// A member that says before its login that it lives, as it reads its files, is waited for and named once. A silent one is late by itself.
static void test_a_login_waits_for_who_is_on_the_way(void **state) {
    (void)state;
    const struct wire_header pulse = {.kind = WIRE_PULSE};
    char text[WIRE_TEXT_MAX];
    struct fixture *f = fixture_create(RESTARTS);
    struct process any = f->p[W1];
    any.rank = -1;
    double now = 0;
    int named = 0;
    for (; now < 20; now += 0.5) {
        assert_int_equal(hello(f, W0, now), W0);
        assert_int_equal(say(f, &f->p[W1], pulse, now), -1);
        assert_int_equal(say(f, &f->p[SERVER], pulse, now), -1);
        if (!scheduler_core_slow(f->core, now, text)) continue;
        named++;
        assert_true(now > 3);
        assert_non_null(strstr(text, "waiting for worker 1, server 0 to log in"));
    }
    assert_int_equal(named, 1);
    // It may not know its rank yet.
    for (; now < 30; now += 0.5) say(f, &any, pulse, now);
    assert_string_equal(scheduler_core_error(f->core), "");
    for (; now < 35; now += 0.5) say(f, &f->p[W1], pulse, now);
    assert_non_null(strstr(scheduler_core_error(f->core),
                           "login: worker 0, server 0, server 0 shard 0 did not come within"));
    fixture_destroy(f);
}

// A launcher ends those alone; and who does not come again is not told of twice.
static void test_who_is_on_the_way_is_not_ended(void **state) {
    (void)state;
    char news[WIRE_TEXT_MAX] = "";
    struct fixture *f = fixture_with(RESTARTS, 0, true);
    for (double now = 0; now < 11; now += 0.5) {
        if (epoch_of(f) == 1) hello(f, W0, now);
        say(f, &f->p[W1], (struct wire_header){.kind = WIRE_PULSE}, now);
        if (epoch_of(f) == 2 && f->missed[0]) {
            assert_string_equal(f->missed, "server 0;");
            f->missed[0] = 0;
        }
    }
    assert_int_equal(epoch_of(f), 3);
    assert_string_equal(f->missed, "worker 0;server 0;");
    assert_true(scheduler_core_news(f->core, news));
    assert_non_null(strstr(news, "login: worker 0, server 0, server 0 shard 0 did not come"));
    assert_null(strstr(news, "; before, login:"));
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
    static const char *const names[] = {"worker 0", "worker 1", "server 0"};
    f->sim->t.seed = seed;
    login_all(f, 0);
    for (int round = 0; round < 40; round++) {
        int died = (int)sim_draw(f->sim, 3), left = 0;
        unsigned epoch = epoch_of(f);
        bool waits[MEMBERS] = {true, true, true, true};
        for (int i = 0; i < MEMBERS; i++) old[olds++ % 64] = f->p[i];
        if (sim_draw(f->sim, 2)) tell_dead(f->core, names[died], f->p[died].pid, "killed", 0);
        for (int i = 0; i < SHARD; i++) {
            if (i != died) begin_anew(f, i);
            if (i == died) f->p[i] = another(f, i), f->p[i].pid += round;
        }
        f->p[SHARD].incarnation = f->p[SERVER].incarnation;
        if (epoch_of(f) == epoch) hello(f, died, 0), waits[died] = false;
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
        cmocka_unit_test(test_a_login_takes_one_restart),
        cmocka_unit_test(test_deaths_before_the_first_login),
        cmocka_unit_test(test_silence_and_its_end_are_one_death),
        cmocka_unit_test(test_who_did_not_come_takes_one_restart),
        cmocka_unit_test(test_one_budget),
        cmocka_unit_test(test_a_death_while_all_end),
        cmocka_unit_test(test_a_login_lasts_while_somebody_comes),
        cmocka_unit_test(test_a_login_waits_for_who_is_on_the_way),
        cmocka_unit_test(test_who_is_on_the_way_is_not_ended),
        cmocka_unit_test(test_without_restarts_nothing_changes),
        cmocka_unit_test(test_shuffled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
