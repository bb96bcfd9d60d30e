// The lives of a star's job, as its scheduler's state machine has them: a death begins an epoch, what was sent in an
// earlier one counts nowhere, and nobody is replaced by a ghost.
#include "tests/recovery/epochs_fixture.h"

// ---------------------------------------------------------------- what begins an epoch
static void test_replacement_is_news(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    come_all(f, 0);
    uint64_t first = job_of(f);
    f->p[W1] = another(f, W1);
    f->step = 7;
    hello(f, W1, 1);
    assert_int_equal(epoch_of(f), 2);
    assert_true(job_of(f) != first);
    assert_int_equal(f->met.overs, 1);
    assert_string_equal(f->met.why, "worker 1 was started again");
    assert_int_equal(f->met.epoch, 2);
    // The others do not belong to it until they have begun anew.
    assert_int_equal(say(f, &f->p[W0], beat, 1), -1);
    assert_int_equal(f->log.count, 0);
    begin_anew(f, W0);
    begin_anew(f, SERVER);
    hello(f, W0, 2);
    assert_int_equal(f->starts, 1);
    hello(f, SERVER, 2);
    assert_int_equal(f->starts, 2);
    assert_string_equal(f->why, "worker 1 was started again");
    assert_string_equal(f->met.start.from.checkpoint, "/run/step-7");
    assert_int_equal(f->met.starts, 4);  // for workers and for servers
    assert_null(strstr(f->met.roster[0], "worker "));
    assert_non_null(strstr(f->met.roster[1], "worker "));
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

static void test_launcher_is_news(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    come_all(f, 0);
    assert_false(tell_dead(f->core, "server 9", 4711, "a process that nobody knows", 1).again);
    // On another machine, where a process had the server's number: the server is here.
    tell_dead(f->core, "worker 1", f->p[SERVER].pid, "worker 1 (pid 72) was killed by signal 9 (Killed)", 1);
    assert_int_equal(epoch_of(f), 1);
    tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 (pid 72) was killed by signal 9 (Killed)", 1);
    assert_int_equal(epoch_of(f), 2);
    assert_int_equal(f->met.overs, 1);
    // Said again, also by the registry, or of one that is not ready yet: nothing.
    tell_dead(f->core, "server 0", f->p[SERVER].pid, "again", 1);
    is_lost(f, SERVER, "gone", 1);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "at the same moment", 1);
    assert_int_equal(epoch_of(f), 2);
    begin_anew(f, W0);
    f->p[W1] = another(f, W1);
    f->p[SERVER] = another(f, SERVER);
    come_all(f, 1);
    assert_string_equal(f->why, "server 0 (pid 72) was killed by signal 9 (Killed)");
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

// The registry's news of a process whose death a launcher has already reported is late: it concerns no member.
static void test_the_dead_do_not_come(void **state) {
    (void)state;
    struct fixture *f = fixture_with(RESTARTS, 0, true);
    hello(f, W0, 0);
    hello(f, SERVER, 0);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 1);
    hello(f, W1, 1);
    assert_int_equal(f->starts, 0);
    f->p[W1] = another(f, W1);
    hello(f, W1, 2);
    assert_int_equal(f->starts, 1);
    assert_int_equal(epoch_of(f), 1);
    assert_int_equal(scheduler_core_epochs(f->core)->restarts.used, 1);
    fixture_destroy(f);
}

// A process that dies again before all are ready costs no step: the decision belongs to the epoch that had begun.
static void test_reached_is_of_who_had_begun(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    f->step = 7;
    assert_int_equal(scheduler_core_epochs(f->core)->reached, -1);
    come_all(f, 0);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "once", 1);
    assert_int_equal(epoch_of(f), 2);
    char news[WIRE_TEXT_MAX];
    assert_true(scheduler_core_next_news_line(f->core, news));  // no launcher: a person is told what to do
    assert_non_null(strstr(news, "once: the job restarts"));
    assert_non_null(strstr(news, "within 4 s"));
    assert_false(scheduler_core_next_news_line(f->core, news));
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
    static const char *const how[] = {"silent", "gone"};
    static const char *const why[] = {
        "worker 1 was lost at step 0: silent for 2.5 s (process 71 on host h)" PS_LOST_KEY,
        "worker 1 was lost at step 0: its connection has closed (process 71 on host h)"};
    for (int i = 0; i < 2; i++) {
        struct fixture *f = fixture_create(RESTARTS);
        come_all(f, 0);
        is_lost(f, W1, how[i], 1);
        assert_int_equal(epoch_of(f), 2);
        assert_int_equal(f->lost_pid, f->p[W1].pid);
        assert_string_equal(f->met.why, why[i]);
        assert_string_equal(scheduler_core_error(f->core), "");
        fixture_destroy(f);
    }
}

static void fails(struct fixture *f, int who, bool lost, const char *why) {
    struct notice_failed x = {.epoch = epoch_of(f), .lost = lost};
    snprintf(x.why, sizeof x.why, "%s", why);
    book_says(f, met_failed(who, f->p[who].incarnation, &x), 1);
}

static void test_a_missed_peer_is_news(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    come_all(f, 0);
    fails(f, W1, true, "weights have not landed");
    assert_int_equal(epoch_of(f), 2);
    fails(f, W1, false, "of the epoch before");  // it is not of this one yet
    assert_string_equal(scheduler_core_error(f->core), "");
    begin_anew(f, W1);  // its own error ends the job, whatever restarts there are
    hello(f, W1, 1);
    fails(f, W1, false, "weights have not landed");
    assert_int_equal(epoch_of(f), 2);
    assert_string_equal(scheduler_core_error(f->core), "worker 1: weights have not landed");
    assert_int_equal(f->met.ends, 1);
    fixture_destroy(f);
}

// ---------------------------------------------------------------- what was sent in an earlier epoch
// A step is closed by reports of this epoch alone: what survivors still send of the last one does not count.
static void test_late_messages_count_nowhere(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    struct wire_header sum = {.kind = WIRE_SHARD_SUM, .has_sum = true}, gather = {.kind = WIRE_GATHER};
    come_all(f, 0);
    const struct process old[] = {f->p[W0], f->p[W1], f->p[SHARD]};
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 0);
    begin_anew(f, W0);
    begin_anew(f, SERVER);
    f->p[W1] = another(f, W1);
    come_all(f, 0);
    for (int i = 0; i < 6; i++) {
        say(f, &old[i % 2], report(0), 0);
        assert_int_equal(f->log.count, 0);
        say(f, &old[2], sum, 0);
        say(f, &old[i % 2], gather, 0);
        assert_int_equal(f->log.count, 0);
    }
    say(f, &f->p[W0], report(0), 0);
    say(f, &f->p[SHARD], sum, 0);
    assert_int_equal(logged(&f->log, W0, WIRE_STEP_DONE), 0);
    say(f, &f->p[W1], report(0), 0);
    assert_int_equal(logged(&f->log, W0, WIRE_STEP_DONE), 1);
    assert_int_equal(epoch_of(f), 2);
    fixture_destroy(f);
}

// Nor does what the registry says of a process that has gone, or what one says of an epoch that is over.
static void test_past_lives_count_nowhere(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    come_all(f, 0);
    const struct process old[] = {f->p[W0], f->p[W1], f->p[SERVER]};
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 0);
    struct notice_ready late = {.epoch = 1, .manifest = 5, .endpoints = "tcp://x:1\n"};
    struct notice_failed why = {.epoch = 1, .why = "diverged"};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++) {
            book_says(f, met_ready(k, old[k].incarnation, &late), 0);
            book_says(f, met_failed(k, old[k].incarnation, &why), 0);
            if (i) book_says(f, met_left(k, old[k].incarnation), 0);
            if (i) book_says(f, met_lost(k, old[k].incarnation, "silent", 3), 0);
        }
        begin_anew(f, W0);
        begin_anew(f, SERVER);
        f->p[W1] = another(f, W1);
        if (!i) come_all(f, 0);
    }
    assert_int_equal(logged(&f->log, SERVER, WIRE_SHUTDOWN), 0);
    assert_string_equal(scheduler_core_error(f->core), "");
    assert_int_equal(epoch_of(f), 2);
    assert_int_equal(f->starts, 2);
    fixture_destroy(f);
}

// ---------------------------------------------------------------- bounds
static void test_restarts_are_used_up(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    come_all(f, 0);
    for (int i = 0; i < RESTARTS; i++) {
        f->p[W0] = another(f, W0);
        hello(f, W0, 0);
        assert_int_equal(epoch_of(f), 2 + i);
    }
    f->p[W0] = another(f, W0);
    hello(f, W0, 0);
    assert_string_equal(scheduler_core_error(f->core),
                        "worker 0 was started again; all restarts are used up (--restart 3)");
    fixture_destroy(f);
}

// Deaths while all are coming to an epoch that a death has begun: one restart, one cause. A process that dies again
// takes another restart.
static void test_a_start_takes_one_restart(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    char news[WIRE_TEXT_MAX];
    come_all(f, 0);
    tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 was killed", 1);
    assert_int_equal(scheduler_core_epochs(f->core)->restarts.used, 1);
    for (int i = 0; i < SHARD; i++) f->p[i] = another(f, i);
    hello(f, W1, 1);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed in its turn", 2);
    assert_int_equal(epoch_of(f), 3);
    assert_int_equal(scheduler_core_epochs(f->core)->restarts.used, 1);
    assert_true(scheduler_core_next_news_line(f->core, news));
    f->p[W1] = another(f, W1);
    hello(f, W1, 2);
    tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed once more", 3);
    assert_int_equal(epoch_of(f), 4);
    assert_int_equal(scheduler_core_epochs(f->core)->restarts.used, 2);
    for (int i = 0; i < SHARD; i++) f->p[i] = another(f, i);
    come_all(f, 3);
    assert_string_equal(f->why, "server 0 was killed");
    // Once all have begun the next one is the next again.
    tell_dead(f->core, "worker 0", f->p[W0].pid, "worker 0 was killed", 4);
    assert_int_equal(scheduler_core_epochs(f->core)->restarts.used, 3);
    fixture_destroy(f);
}

static int used(const struct fixture *f) { return scheduler_core_epochs(f->core)->restarts.used; }

static void assert_told(struct verdict v, enum verdict_kind kind, bool again, int left) {
    assert_int_equal(v.kind, kind);
    assert_int_equal(v.again, again);
    assert_int_equal(v.left, left);
}

// Processes that die before they have come: a first one takes a restart, others none with it; one that does so again and again
// uses up all, and that is the end.
static void test_deaths_before_the_first_start(void **state) {
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

// A member that was lost by silence is killed by its launcher, which tells of it: that is one death, also where the process has come
// anew meanwhile.
static void test_silence_and_its_end_are_one_death(void **state) {
    (void)state;
    for (int wakes = 0; wakes < 2; wakes++) {
        struct fixture *f = fixture_with(RESTARTS, 0, true);
        double now = 1;
        come_all(f, 0);
        is_lost(f, W1, "silent", now);
        assert_int_equal(used(f), 1);
        begin_anew(f, W1);
        if (wakes) hello(f, W1, now);
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
    hello(f, W0, 0);
    for (double now = 0; epoch_of(f) == 1; now += 0.5) scheduler_core_tick(f->core, now);
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
    come_all(f, 0);
    assert_told(tell_dead(f->core, "worker 1", f->p[W1].pid, "worker 1 was killed", 1), VERDICT_WITHOUT, true,
                1);
    assert_told(tell_dead(f->core, "worker 1", 93, "worker 1 was killed", 1), VERDICT_WITHOUT, true, 0);
    assert_told(tell_dead(f->core, "worker 1", 94, "worker 1 was killed", 1), VERDICT_WITHOUT, false, 0);
    assert_int_equal(epoch_of(f), 1);
    assert_told(tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 was killed", 1), VERDICT_ENDS,
                false, 0);
    fixture_destroy(f);
}

// After Ctrl-C nothing begins anew, and no process is started again.
static void test_a_death_while_all_end(void **state) {
    (void)state;
    for (int server = 0; server < 2; server++) {
        struct fixture *f = fixture_with(RESTARTS, 1, true);
        come_all(f, 0);
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

// A start's deadline counts from whoever came last, names its key, and its words are whole.
static void test_a_start_lasts_while_somebody_comes(void **state) {
    (void)state;
    struct fixture *f = fixture_create(RESTARTS);
    char why[WIRE_TEXT_MAX] = "";
    while (strlen(why) < 300) strcat(why, "a-cause ");
    come_all(f, 0);
    tell_dead(f->core, "server 0", f->p[SERVER].pid, why, 0);
    for (int i = 0; i < SHARD; i++) begin_anew(f, i);
    double now = 0;
    for (int i = 0; i < SHARD - 1; i++) {
        for (double begin = now; now < begin + 3.5; now += 0.5) scheduler_core_tick(f->core, now);
        hello(f, i, now);
    }
    assert_true(now >= 7);
    double last = now;
    for (; !scheduler_core_error(f->core)[0]; now += 0.5) {
        assert_true(now < last + 5);
        scheduler_core_tick(f->core, now);
    }
    assert_true(now > last + 4);
    const char *said = scheduler_core_error(f->core);
    assert_non_null(
        strstr(said, "the start: server 0 did not join within 4000 ms (parameter_server.deadline_ms)"));
    assert_non_null(strstr(said, "; before, a-cause "));
    assert_non_null(strstr(said, "a-cause .."));
    fixture_destroy(f);
}

// A member that is here and reads its files is waited for, however long, and named once. One that is gone again is late by itself.
static void test_a_start_waits_for_who_is_on_the_way(void **state) {
    (void)state;
    char text[WIRE_TEXT_MAX];
    struct fixture *f = fixture_create(RESTARTS);
    double now = 0;
    int named = 0;
    hello(f, W0, now);
    comes(f, W1, now);
    comes(f, SERVER, now);
    for (; now < 20; now += 0.5) {
        scheduler_core_tick(f->core, now);
        if (!scheduler_core_next_slow_line(f->core, now, text)) continue;
        named++;
        assert_true(now > 3);
        assert_non_null(strstr(text, "waiting for worker 1, server 0 to be ready"));
    }
    assert_int_equal(named, 1);
    is_lost(f, SERVER, "silent", now);
    double last = now;
    for (; !scheduler_core_error(f->core)[0]; now += 0.5) {
        assert_true(now < last + 5);
        scheduler_core_tick(f->core, now);
    }
    assert_true(now > last + 4);
    assert_non_null(strstr(scheduler_core_error(f->core), "the start: server 0 did not join within"));
    fixture_destroy(f);
}

// A launcher ends those alone; and who does not come again is not told of twice.
static void test_who_is_on_the_way_is_not_ended(void **state) {
    (void)state;
    char news[WIRE_TEXT_MAX] = "";
    struct fixture *f = fixture_with(RESTARTS, 0, true);
    hello(f, W0, 0);
    comes(f, W1, 0);
    for (double now = 0; now < 11; now += 0.5) {
        scheduler_core_tick(f->core, now);
        if (epoch_of(f) == 2 && f->missed[0]) {
            assert_string_equal(f->missed, "server 0;");
            f->missed[0] = 0;
        }
    }
    assert_int_equal(epoch_of(f), 3);
    assert_string_equal(f->missed, "worker 0;server 0;");
    assert_true(scheduler_core_next_news_line(f->core, news));
    assert_non_null(strstr(news, "the start: worker 0, server 0 did not join"));
    assert_null(strstr(news, "; before, the start:"));
    fixture_destroy(f);
}

static void test_without_restarts_nothing_changes(void **state) {
    (void)state;
    struct fixture *f = fixture_create(0);
    come_all(f, 0);
    struct process old = f->p[W0];
    leaves(f, W0, 0);
    f->p[W0] = another(f, W0);  // to the place of one that has left
    comes(f, W0, 0);
    assert_int_equal(f->met.out[W0], f->p[W0].incarnation);
    assert_string_equal(f->met.why, "worker 0 has joined already; every rank joins once");
    old.job++;
    assert_int_equal(say(f, &old, beat, 0), -1);
    assert_int_equal(f->log.count, 0);
    is_lost(f, W1, "silent", 3);
    assert_non_null(strstr(scheduler_core_error(f->core), "worker 1 was lost"));
    assert_int_equal(f->met.ends, 1);
    fixture_destroy(f);
}

// A role that has ended in order before another one dies is needed again. It may come before it is called.
static void test_who_has_left_comes_again(void **state) {
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct fixture *f = fixture_create(RESTARTS);
        come_all(f, 0);
        leaves(f, W1, 1);
        if (!early) tell_dead(f->core, "server 0", f->p[SERVER].pid, "server 0 was killed", 1);
        f->p[W1] = another(f, W1);
        hello(f, W1, 1);
        assert_int_equal(epoch_of(f), 2);
        assert_string_equal(f->met.why, early ? "worker 1 was started again" : "server 0 was killed");
        begin_anew(f, W0);
        f->p[SERVER] = another(f, SERVER);
        hello(f, W0, 2);
        hello(f, SERVER, 2);
        assert_int_equal(f->starts, 2);
        fixture_destroy(f);
    }
}

// ---------------------------------------------------------------- any history
// Processes that die, freeze, are killed as lost, die again before they are ready, and begin anew at any moment; what the registry and
// the launcher say of them comes late, in order of each member. Each epoch begins once, with processes that are there; once no more
// faults come the last one begins, with all; and no fault takes more than one restart.
struct actor {
    bool runs, frozen, told;  // told: the launcher has told of its death
    unsigned epoch;           // that it is ready for; 0: it reads
    double until_s;           // then it goes on
};

static void deliver(struct fixture *f) {
    struct sim *s = f->sim;
    for (int i = 0; i < s->news_count;) {
        struct sim_news x = s->news[i];
        if (x.due > s->now) {
            i++;
            continue;
        }
        memmove(&s->news[i], &s->news[i + 1], (size_t)(--s->news_count - i) * sizeof *s->news);
        met_tell(f->core, x.n, s->now);
    }
    assert_int_equal(scheduler_core_tick(f->core, s->now), 0);
}

static void appears(struct fixture *f, struct actor *a, int i) {
    struct process *p = &f->p[i];
    if (f->book[i] && f->met.out[i] != f->book[i]) sim_news(f->sim, met_lost(i, f->book[i], "replaced", 0));
    f->book[i] = p->incarnation;
    sim_news(f->sim, met_came(i, p->incarnation, p->pid));
    *a = (struct actor){.runs = true, .until_s = f->sim->now + 0.001 * (double)sim_draw(f->sim, 300)};
}

static void goes_on(struct fixture *f, struct actor *a, int i) {
    static const char *const names[] = {"worker 0", "worker 1", "server 0"};
    struct process *p = &f->p[i];
    double now = f->sim->now, soon = now + 0.001 * (double)sim_draw(f->sim, 300);
    if (!a->runs && now > a->until_s) {
        struct verdict v = {.kind = VERDICT_ANEW, .again = 1};
        if (!a->told) v = tell_dead(f->core, names[i], p->pid, "it was killed", now);
        a->told = true;
        a->until_s = soon;
        assert_int_equal(v.kind, VERDICT_ANEW);
        if (sim_draw(f->sim, 2)) return;
        *p = another(f, i);
        appears(f, a, i);
        return;
    }
    if (!a->runs || a->frozen || now < a->until_s) return;
    if (!a->epoch) {
        char *lines = met_endpoints(i == SERVER);
        struct notice_ready r = {.epoch = f->met.epoch, .manifest = 5, .endpoints = lines};
        sim_news(f->sim, met_ready(i, p->incarnation, &r));
        free(lines);
        a->epoch = f->met.epoch;
    } else if (a->epoch != f->met.epoch) {
        begin_anew(f, i);
        appears(f, a, i);
    }
}

static void dies(struct fixture *f, struct actor *a) {
    a->runs = a->frozen = a->told = false;
    a->until_s = f->sim->now + 0.001 * (double)sim_draw(f->sim, 100);
}

static void any_history(uint64_t seed) {
    struct fixture *f = fixture_with(1000, 0, true);
    struct actor a[SHARD] = {0};
    int faults = 0;
    f->sim->t.seed = seed;
    for (int i = 0; i < SHARD; i++) appears(f, &a[i], i);
    for (int turn = 0; turn < 30000; turn++) {
        int i = turn < 20000 ? (int)sim_draw(f->sim, SHARD) : turn % SHARD;
        uint64_t dice = turn < 20000 ? sim_draw(f->sim, 1000) : 999;
        f->sim->now += 0.001;
        if (a[i].runs && dice == 0) dies(f, &a[i]), faults++;
        if (a[i].runs && dice == 1) a[i].frozen = true, faults++;
        // Half a deadline later the registry has lost it; the launcher hears of it, and kills it.
        if (a[i].frozen && ((dice > 1 && dice < 5) || turn > 20000)) {
            if (f->book[i] == f->p[i].incarnation)
                sim_news(f->sim, met_lost(i, f->p[i].incarnation, "silent", 2.5));
            f->book[i] = 0;
            dies(f, &a[i]);
            a[i].until_s += 0.1;
        }
        if (dice == 6) a[i].frozen = false;
        if (!a[i].runs && dice == 5 && f->book[i] == f->p[i].incarnation) {
            sim_news(f->sim, met_lost(i, f->book[i], "gone", 3));
            f->book[i] = 0;
        }
        goes_on(f, &a[i], i);
        deliver(f);
        assert_true(f->met.starts == 2 * f->starts);
    }
    int workers, servers;
    assert_false(scheduler_core_waits(f->core, &workers, &servers));
    assert_int_equal(f->met.opens, f->met.overs + 1);
    for (int i = 0; i < SHARD; i++) {
        assert_int_equal(a[i].epoch, epoch_of(f));
        char line[64];
        snprintf(line, sizeof line, i == SERVER ? "shard %llx " : "worker %llx 1\n",
                 (unsigned long long)f->p[i].incarnation);
        assert_non_null(strstr(f->met.roster[1], line));
    }
    assert_true(f->starts > 3);
    if (used(f) > faults) fail_msg("%d faults took %d restarts", faults, used(f));
    fixture_destroy(f);
}

static void test_any_history(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) any_history(seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replacement_is_news),
        cmocka_unit_test(test_launcher_is_news),
        cmocka_unit_test(test_reached_is_of_who_had_begun),
        cmocka_unit_test(test_silence_is_news),
        cmocka_unit_test(test_a_missed_peer_is_news),
        cmocka_unit_test(test_late_messages_count_nowhere),
        cmocka_unit_test(test_past_lives_count_nowhere),
        cmocka_unit_test(test_the_dead_do_not_come),
        cmocka_unit_test(test_restarts_are_used_up),
        cmocka_unit_test(test_a_start_takes_one_restart),
        cmocka_unit_test(test_deaths_before_the_first_start),
        cmocka_unit_test(test_silence_and_its_end_are_one_death),
        cmocka_unit_test(test_who_did_not_come_takes_one_restart),
        cmocka_unit_test(test_one_budget),
        cmocka_unit_test(test_a_death_while_all_end),
        cmocka_unit_test(test_a_start_lasts_while_somebody_comes),
        cmocka_unit_test(test_a_start_waits_for_who_is_on_the_way),
        cmocka_unit_test(test_who_is_on_the_way_is_not_ended),
        cmocka_unit_test(test_without_restarts_nothing_changes),
        cmocka_unit_test(test_who_has_left_comes_again),
        cmocka_unit_test(test_any_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
