// The launcher and children that the others may do without: the job is asked what becomes of it.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/launch.h"

struct team {
    enum verdict_kind fate;  // what is decided
    const char *reason;
    struct launcher *l;
    struct rendezvous *meet;
    int restarts, again, died, said;
    int64_t step;
};

static int64_t step_of_team(void *ctx) { return ((struct team *)ctx)->step; }
static void decide(struct team *t, const struct death *d) {
    struct verdict v = {
        .kind = t->fate, .pid = d->pid, .again = t->restarts > 0, .left = t->restarts - 1, .of = t->restarts};
    assert_true(d->pid > 0 && strstr(d->why, "worker 1 (pid") && !strcmp(d->name, "worker 1"));
    t->died++;
    memcpy(v.name, d->name, sizeof v.name);
    if (t->reason) snprintf(v.reason, sizeof v.reason, "%s", t->reason);
    verdict_send(t->meet, &t->said, &v);
}

static const char *look_outside(void *ctx, const char *ends) {
    struct team *t = ctx;
    struct death d;
    (void)ends;
    for (struct member_news n; rendezvous_news(t->meet, &n); free(n.data))
        if (verdict_death(&n, &d)) decide(t, &d);
    return NULL;
}

// A meeting of the launcher alone: this process decides about its children.
static struct launch_options options_of(struct team *t) {
    t->meet = rendezvous_open(&(struct rendezvous_options){
        .host = "127.0.0.1", .size = 1, .roles = {{"worker", 2}}, .deadline_s = 1e9, .no_key = true});
    assert_non_null(t->meet);
    return (struct launch_options){.grace_s = 0.2,
                                   .last_step = step_of_team,
                                   .poll = look_outside,
                                   .meet = t->meet,
                                   .decided = 1,
                                   .ctx = t};
}

static int launch(struct team *t, int rank, const char *script) {
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};
    return launcher_start(
        t->l, &(struct launch_child){
                  .role = "worker", .rank = rank, .program = "/bin/sh", .argv = argv, .orderly = 1});
}

// How often it has been started: a byte in its file for each time.
static int starts_of(const char *path, int worker) {
    char *starts = xasprintf("%s.%d", path, worker);
    struct stat s;
    int count = stat(starts, &s) ? 0 : (int)s.st_size;
    unlink(starts);
    free(starts);
    return count;
}

// Worker 0 stays so many tenths of a second, or until it is asked to leave. The victim does nothing before it is there. A worker that
// is started again fails: that is its own.
// The launcher's messages are collected in `said`.
static int status_of_team(struct team *t, int restarts, int tenths, const char *victim, char said[4096]) {
    struct launch_options o = options_of(t);
    o.grace_s = 5;  // children obey, as soon as they have a core
    char path[] = "/tmp/starring-said-XXXXXX";
    int file = mkstemp(path), before = dup(STDERR_FILENO);
    assert_true(file >= 0 && before >= 0 && !unlink(path));
    t->restarts = restarts;
    t->l = launcher_create(&o);
    dup2(file, STDERR_FILENO);
    char *stay = xasprintf(
        "f=%s; [ -e $f.0 ] && again=1; printf x >> $f.0; i=0; "
        "while [ $again ] && [ -e $f.ended ] && [ $(wc -c < $f.1) -lt 2 ] && [ $i -lt 100 ]; do sleep 0.05; i=$((i + 1)); done; "
        "[ $again ] && exit 1; trap 'exit 0' TERM; : > $f; i=0; "
        "while [ $i -lt %d ]; do sleep 0.1; i=$((i + 1)); done; : > $f.ended",
        path, tenths);
    // Where one had ended well, each fails only when both have been started again: a failure ends the other.
    char *dies = xasprintf(
        "f=%s; [ -e $f.1 ] && again=1; printf x >> $f.1; i=0; "
        "while [ $again ] && [ -e $f.ended ] && [ $(wc -c < $f.0) -lt 2 ] && [ $i -lt 100 ]; do sleep 0.05; i=$((i + 1)); done; "
        "[ $again ] && exit 1; until [ -e $f ]; do sleep 0.01; done; %s",
        path, victim);
    int rc = launch(t, 0, stay);
    rc |= launch(t, 1, dies);
    int status = launcher_wait(t->l);
    launcher_destroy(&t->l);
    rendezvous_close(&t->meet);
    dup2(before, STDERR_FILENO);
    close(before);
    ssize_t got = pread(file, said, 4095, 0);
    said[got > 0 ? got : 0] = 0;
    close(file);
    unlink(path);
    t->again = starts_of(path, 0) + starts_of(path, 1) - 2;
    char *ended = xasprintf("%s.ended", path);
    unlink(ended);
    free(ended);
    free(stay);
    free(dies);
    assert_int_equal(rc, 0);
    return status;
}

static void others_go_on(void **state) {
    (void)state;
    static const char *const dies = "kill -9 $$";
    static const struct {
        enum verdict_kind fate;
        const char *reason;
        int restarts, status, died, again;
        const char *says;
    } rows[] = {
        {VERDICT_WITHOUT, "", 0, 0, 1, 0, "before the first step was done: the others continue without it\n"},
        {VERDICT_WITHOUT, "", 2, 0, 1, 1,
         "the others continue; starting it again; 1 of 2 restarts is left\n"},
        // Started again with the job, it fails by itself: as any other.
        {VERDICT_ANEW, "", 2, EXIT_RUN_FAILED, 1, 1, "done: starting it again; 1 of 2 restarts is left\n"},
        {VERDICT_ENDS, "", 0, EXIT_RUN_FAILED, 1, 0, "done: ending the other processes of the job\n"},
        {VERDICT_ENDS, "fewer than 2 are left", 2, EXIT_RUN_FAILED, 1, 0,
         "done: fewer than 2 are left: ending the other processes of the job\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct team t = {.fate = rows[i].fate, .reason = rows[i].reason};
        char said[4096];
        int status = status_of_team(&t, rows[i].restarts, rows[i].status ? 300 : 4, dies, said);
        if (status != rows[i].status || t.died != rows[i].died || t.again != rows[i].again ||
            !strstr(said, rows[i].says))
            fail_msg("row %zu: status %d, died %d, again %d: %s", i, status, t.died, t.again, said);
    }
}

// Where all begin anew, a child that had ended well is needed as well.
static void who_has_ended_well_is_needed_again(void **state) {
    (void)state;
    struct team t = {.fate = VERDICT_ANEW};
    char said[4096];
    const char *dies = "until [ -e $f.ended ]; do sleep 0.01; done; kill -9 $$";
    assert_int_equal(status_of_team(&t, 2, 0, dies, said), EXIT_RUN_FAILED);
    assert_int_equal(t.died, 1);
    assert_int_equal(t.again, 2);
}

// Ctrl-C, and in the same moment, or while it is told to leave, a child is killed that the others can do without: they
// end in order. For another child it is the end.
static void interrupted_without_it(void **state) {
    (void)state;
    static const struct {
        const char *victim;
        enum verdict_kind fate;
        const char *reason;
        int status;
        const char *says;
    } rows[] = {
        {"trap '' TERM; kill -INT $PPID; kill -9 $$", VERDICT_WITHOUT, "", 0, "the others end without it\n"},
        {"trap 'kill -9 $$' TERM; kill -INT $PPID; while :; do sleep 0.02; done", VERDICT_WITHOUT, "", 0,
         "the others end without it\n"},
        {"trap 'exit 143' TERM; kill -INT $PPID; while :; do sleep 0.02; done", VERDICT_WITHOUT, "", 0, ""},
        {"trap '' TERM; kill -INT $PPID; kill -9 $$", VERDICT_ENDS, "", 130,
         "ending the other processes of the job\n"},
        {"trap '' TERM; kill -INT $PPID; kill -9 $$", VERDICT_ENDS, "x", 130,
         "x: ending the other processes of the job\n"},
        {"trap 'exit 143' TERM; kill -INT $PPID; while :; do sleep 0.02; done", VERDICT_ENDS, "", 130, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct team t = {.fate = rows[i].fate, .reason = rows[i].reason, .step = 5};
        char said[4096];
        int status = status_of_team(&t, 3, 300, rows[i].victim, said);
        if (status != rows[i].status || t.died != 1 || t.again || !strstr(said, rows[i].says) ||
            (!*rows[i].says && *said))
            fail_msg("row %zu: status %d, died %d, again %d: %s", i, status, t.died, t.again, said);
    }
}

// ---------------------------------------------------------------- children that live and die together
static int begin_anew(void *ctx) {
    struct team *t = ctx;
    assert_int_equal(++t->again, t->died);
    for (int rank = 0; rank < 2; rank++)
        if (launch(t, rank, "exit 0")) return -1;
    return 0;
}

static void one_death_ends_all(void **state) {
    (void)state;
    static const char *const dies = "kill -9 $$", *const waits = "trap '' TERM; while :; do sleep 0.02; done";
    static const struct {
        const char *victim;
        int restarts, for_others, status;
        const char *says;
    } rows[] = {
        {dies, 0, 0, EXIT_RUN_FAILED, "was killed by signal 9 (Killed)"},
        {dies, 1, 0, 0, "starting it again; 0 of 1 restarts are left\n"},
        {"exit 3", 1, 0, 0, "gave up a rank and ended"},  // EXIT_RUN_LOST
        {"exit 3", 0, 0, EXIT_RUN_FAILED, "gave up a rank and ended"},
        {"exit 137", 1, 0, EXIT_RUN_FAILED, "ended with exit status 137"},
        {"exit 137", 1, 1, 0, "a rank of worker 1"},
        {"exit 1", 1, 0, EXIT_RUN_FAILED, "ended with exit status 1"},
        {"kill -STOP $$", 0, 0, EXIT_RUN_FAILED, "gave no sign of life for the deadline and was killed"},
        {"kill -STOP $$", 1, 0, 0, "gave no sign of life for the deadline and was killed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct team t = {
            .fate = rows[i].restarts ? VERDICT_ANEW : VERDICT_ENDS, .restarts = rows[i].restarts, .step = 3};
        struct launch_options o = options_of(&t);
        o.stopped_s = 0.5;
        o.together = 1;
        o.speaks_for_others = rows[i].for_others;
        o.start = begin_anew;
        char path[] = "/tmp/starring-said-XXXXXX", said[4096];
        int file = mkstemp(path), before = dup(STDERR_FILENO);
        t.l = launcher_create(&o);
        dup2(file, STDERR_FILENO);
        int rc = launch(&t, 0, waits) | launch(&t, 1, rows[i].victim), status = launcher_wait(t.l);
        launcher_destroy(&t.l);
        rendezvous_close(&t.meet);
        dup2(before, STDERR_FILENO);
        close(before);
        ssize_t got = pread(file, said, sizeof said - 1, 0);
        said[got > 0 ? got : 0] = 0;
        close(file);
        unlink(path);
        assert_int_equal(rc, 0);
        if (status != rows[i].status || t.again != !status || !strstr(said, rows[i].says) ||
            !strstr(said, "after step 3"))
            fail_msg("row %zu: status %d, again %d: %s", i, status, t.again, said);
    }
}

// Ctrl-C comes before worker 1 hears signals. Worker 0, which lives with it and would wait for it, is not given its grace.
static void interrupted_before_it_began(void **state) {
    (void)state;
    struct team t = {0};
    struct launch_options o = {.grace_s = 1e6, .together = 1, .ctx = &t};
    char path[] = "/tmp/starring-begun-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0 && !close(file) && !unlink(path));
    char *waits = xasprintf("trap '' TERM; : > %s; exec sleep 1000000", path);
    char *begins =
        xasprintf("until [ -e %s ]; do sleep 0.01; done; kill -TERM $PPID; exec sleep 1000000", path);
    t.l = launcher_create(&o);
    int rc = launch(&t, 0, waits) | launch(&t, 1, begins);
    int status = launcher_wait(t.l);
    launcher_destroy(&t.l);
    unlink(path);
    free(waits);
    free(begins);
    assert_int_equal(rc, 0);
    assert_int_equal(status, 128 + SIGTERM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_death_ends_all),
        cmocka_unit_test(others_go_on),
        cmocka_unit_test(who_has_ended_well_is_needed_again),
        cmocka_unit_test(interrupted_without_it),
        cmocka_unit_test(interrupted_before_it_began),
    };
    return cmocka_run_group_tests_name("launch_team", tests, NULL, NULL);
}
