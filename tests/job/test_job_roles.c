// The star's roles started by hand say what they wait for, and the last to leave prints the table.
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "ps/job/timing.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/report/run_state.h"
#include "tests/job/job.h"

#define SHARED                                                                                         \
    "--model gpt2.json --data data.txt --topology ps:sync --workers 1 --servers 1 --steps 2 --seq 16 " \
    "--batch 1 --threads 1 --set eval_batches=1"

static void await(const struct job_place *p, pid_t pid, const char *text, char line[160]) {
    double until = now_seconds() + 60;
    for (;;) {
        char *err = job_printed(p, pid, "stderr"), *at = strstr(err, text);
        if (at && strchr(at, '\n')) {
            snprintf(line, 160, "%.*s", (int)strcspn(at, "\n"), at);
            free(err);
            return;
        }
        if (now_seconds() > until) fail_msg("not \"%s\" within 60 s:\n%s", text, err);
        free(err);
        usleep(5000);
    }
}

static bool has_ipv6(void) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&six, sizeof six) == 0;
    if (fd >= 0) close(fd);
    return has;
}

static void assert_done(const struct job_place *p, pid_t pid, const char *who) {
    struct job_output o = job_wait(p, pid, 60);
    if (o.status) fail_msg("%s: status %d\n%s", who, o.status, o.err);
    job_output_free(&o);
}

static void who_is_waited_for(void **state) {
    const struct job_place *p = *state;
    char line[160], expected[320];
    const char *hosts[] = {"127.0.0.1", "[::1]"};
    for (int i = 0; i < 1 + has_ipv6(); i++) {
        pid_t scheduler = job_start(p, "scheduler " SHARED " --bind tcp://%s:*", hosts[i]);
        snprintf(expected, sizeof expected, "listening on tcp://%s:", hosts[i]);
        await(p, scheduler, expected, line);
        snprintf(expected, sizeof expected,
                 "waiting for 1 of 1 workers and 1 of 1 servers at tcp://%s:", hosts[i]);
        await(p, scheduler, expected, line);
        char *address = xstrdup(strstr(line, "tcp://"));
        pid_t worker = job_start(p, "worker " SHARED " --rank 0 --no-weights --scheduler %s", address);
        snprintf(expected, sizeof expected, "waiting for the scheduler at %s", address);
        await(p, worker, expected, line);
        await(p, worker, "waiting for the other workers and the servers of the job at ", line);
        snprintf(expected, sizeof expected, "waiting for 0 of 1 workers and 1 of 1 servers at %s", address);
        await(p, scheduler, expected, line);
        pid_t server =
            job_start(p, "server " SHARED " --rank 0 --scheduler %s --set parameter_server.bind=tcp://%s:*",
                      address, hosts[i]);
        snprintf(expected, sizeof expected, "waiting for the scheduler at %s", address);
        await(p, server, expected, line);
        assert_done(p, worker, "worker");
        assert_done(p, server, "server");
        assert_done(p, scheduler, "scheduler");
        free(address);
    }
}

// Roles that train started leave speaking to it.
static void train_does_not_wait_aloud(void **state) {
    struct job_output o = job_run(*state, "train " SHARED " --no-weights --out run");
    if (o.status || strstr(o.err, "waiting for")) fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

static void lines_keep_their_distance(void **state) {
    (void)state;
    struct waiting w = {.said_s = 0};
    assert_true(waiting_due(&w, "a", 100));
    assert_false(waiting_due(&w, "a", 109.9));
    assert_true(waiting_due(&w, "a", 110));
    assert_false(waiting_due(&w, "b", 110.9));
    assert_true(waiting_due(&w, "b", 111));
    assert_false(waiting_due(&w, "b", 120));
}

// ---------------------------------------------------------------- the last to leave prints the table
#define STAR                                                                                           \
    "--model gpt2.json --data data.txt --topology ps:sync --workers 2 --servers 2 --seq 16 --batch 1 " \
    "--threads 1 --set eval_batches=1"
#define ROLES 4  // worker 0, worker 1, server 0, server 1; their scheduler is pid[ROLES]

struct star {
    const struct job_place *p;
    const char *dir;
    pid_t pid[ROLES + 1];
    struct job_output out[ROLES + 1];
};

static void name_role(int i, char name[16]) {
    snprintf(name, 16, i < ROLES ? "%s-%d" : "scheduler", i < 2 ? "worker" : "server", i % 2);
}

// dirs: each role's --out, or NULL: all have s->dir.
static void start_star(struct star *s, const char *options, const char *of_workers, const char *const *dirs) {
    char line[160];
    s->pid[ROLES] = job_start(s->p, "scheduler " STAR " %s", options);
    await(s->p, s->pid[ROLES], "listening on tcp://", line);
    for (int i = 0; i < ROLES; i++)
        s->pid[i] = job_start(s->p, "%s " STAR " --rank %d --scheduler %s --out %s %s %s",
                              i < 2 ? "worker" : "server", i % 2, strstr(line, "tcp://"),
                              dirs ? dirs[i] : s->dir, options, i < 2 ? of_workers : "");
}

static void leave(struct star *s, int i) {
    if (s->pid[i]) s->out[i] = job_wait(s->p, s->pid[i], 60);
    s->pid[i] = 0;
}

static void all_leave(struct star *s) {
    for (int i = 0; i <= ROLES; i++) leave(s, i);
}

static void forget(struct star *s) {
    for (int i = 0; i <= ROLES; i++) job_output_free(&s->out[i]);
}

static void assert_all_done(const struct star *s) {
    char name[16];
    for (int i = 0; i <= ROLES; i++) {
        name_role(i, name);
        if (s->out[i].status) fail_msg("%s: status %d\n%s", name, s->out[i].status, s->out[i].err);
    }
}

// How many processes printed text on standard output; *who is the last of them.
static int printed(const struct star *s, const char *text, int *who) {
    int count = 0;
    for (int i = 0; i <= ROLES; i++) {
        if (!s->out[i].out || !strstr(s->out[i].out, text)) continue;
        count++;
        *who = i;
    }
    return count;
}

// One role printed the table, of all ranks; the other ranks said where their reports are.
static void assert_one_table(const struct star *s, int steps) {
    char name[16], says[128];
    int who = -1;
    assert_all_done(s);
    if (printed(s, "weights     hash ", &who) != 1) fail_msg("%s: not one table", s->dir);
    assert_true(who < ROLES);
    for (int i = 0; i < ROLES; i++) {
        name_role(i, name);
        snprintf(says, sizeof says, "its report is %s/ranks/%s.json; the last", s->dir, name);
        if (i != who && !strstr(s->out[i].err, says)) fail_msg("%s does not say \"%s\"", name, says);
    }
    if (strstr(s->out[who].err, "its report is")) fail_msg("%s", s->out[who].err);
    cJSON *summary = job_summary(s->p, s->dir);
    assert_null(cJSON_GetObjectItem(summary, "missing_reports"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(summary, "memory")), ROLES);
    assert_int_equal(cJSON_GetObjectItem(summary, "steps")->valueint, steps);
    assert_string_equal(cJSON_GetObjectItem(summary, "state")->valuestring, "complete");
    const cJSON *kernel = cJSON_GetObjectItem(summary, "cpu_kernel");
    assert_string_equal(cJSON_GetObjectItem(kernel, "name")->valuestring, "fma");  // fp32
    cJSON_Delete(summary);
}

static void assert_state(const struct star *s, enum run_phase phase) {
    char *dir = xasprintf("%s/%s", s->p->dir, s->dir);
    struct run_state found;
    run_state_read(dir, &found);
    assert_string_equal(run_phase_word(found.phase), run_phase_word(phase));
    free(dir);
}

static char *report_of(const struct star *s, int i) {
    char role[16];
    name_role(i, role);
    char *name = xasprintf("%s/ranks/%s.json", s->dir, role), *text = run_file_read(s->p->dir, name, true);
    free(name);
    return text;
}

static void one_table(void **state) {
    struct star s = {.p = *state, .dir = "fresh"};
    start_star(&s, "--steps 2", "--no-weights", NULL);
    all_leave(&s);
    assert_one_table(&s, 2);
    assert_state(&s, RUN_COMPLETE);
    forget(&s);
}

// An earlier run is kept unless worker 0 has --force. The refusal comes before anybody is waited for.
static void an_earlier_run(void **state) {
    struct star s = {.p = *state, .dir = "again"};
    start_star(&s, "--steps 2", "--no-weights", NULL);
    all_leave(&s);
    assert_one_table(&s, 2);
    forget(&s);
    struct job_output o =
        job_run(s.p, "worker " STAR " --steps 3 --out again --rank 0 --scheduler tcp://127.0.0.1:9");
    if (o.status != 2 || !strstr(o.err, "2 steps of an earlier run (complete)") || !strstr(o.err, "--force"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
    cJSON *summary = job_summary(s.p, s.dir);
    assert_int_equal(cJSON_GetObjectItem(summary, "steps")->valueint, 2);
    cJSON_Delete(summary);
    start_star(&s, "--steps 3", "--no-weights --force", NULL);
    all_leave(&s);
    assert_one_table(&s, 3);
    assert_state(&s, RUN_COMPLETE);
    forget(&s);
}

// Reports of an earlier job: of worker 0, and of the server that is late.
struct earlier {
    char *worker, *server;
};

// Server `late` stands still from the first report to the end of all others, and an earlier job's report lies
// where its own belongs.
static void leave_late(struct star *s, int late, const struct earlier *earlier) {
    char role[16], *first = NULL;
    int who;
    name_role(late, role);
    double until = now_seconds() + 60;
    while ((!first || !strcmp(first, earlier->worker)) && now_seconds() < until) {
        free(first);
        usleep(500);
        first = report_of(s, 0);
    }
    kill(s->pid[late], SIGSTOP);
    assert_true(first && strcmp(first, earlier->worker));
    char *name = xasprintf("%s/ranks/%s.json", s->dir, role), *there = report_of(s, late);
    if (!there) assert_int_equal(run_file_write(s->p->dir, name, earlier->server), 0);
    for (int i = 0; i < ROLES; i++)
        if (i != late) leave(s, i);
    if (!there) assert_int_equal(printed(s, "weights     hash ", &who), 0);
    kill(s->pid[late], SIGCONT);
    all_leave(s);
    free(name);
    free(first);
    free(there);
}

static void in_any_order(void **state) {
    struct star s = {.p = *state, .dir = "order"};
    for (int late = 1; late < ROLES; late++) {  // in the first round nobody
        struct earlier earlier = {report_of(&s, 0), report_of(&s, late)};
        start_star(&s, "--steps 2", "--no-weights --force", NULL);
        if (earlier.worker) leave_late(&s, late, &earlier);
        all_leave(&s);
        assert_one_table(&s, 2);
        assert_state(&s, RUN_COMPLETE);
        forget(&s);
        free(earlier.worker);
        free(earlier.server);
    }
}

// Machines that share no directory: nobody prints, and the reports can be put together. That their processors multiply bf16
// in ways of their own is no difference either, and the bits are those of one machine.
static void directories_of_their_own(void **state) {
    static const char *const dirs[] = {"a --set cpu.kernel=fma", "b", "c", "d"};
    struct star s = {.p = *state, .dir = "a"};
    int who;
    start_star(&s, "--steps 2 --dtype bf16", "--no-weights", dirs);
    all_leave(&s);
    assert_all_done(&s);
    assert_int_equal(printed(&s, "weights     hash ", &who), 0);
    for (int i = 0; i < ROLES; i++)
        if (!strstr(s.out[i].err, "its report is ")) fail_msg("%d does not say where: %s", i, s.out[i].err);
    char *command = xasprintf("cd %s && cp b/ranks/* c/ranks/* d/ranks/* a/ranks", s.p->dir);
    assert_int_equal(system(command), 0);
    free(command);
    struct job_output o = job_run(s.p, "summary a");
    if (o.status || !strstr(o.out, "weights     hash ") || *o.err) fail_msg("%s%s", o.out, o.err);
    job_output_free(&o);
    o = job_run(s.p, "train " STAR " --steps 2 --dtype bf16 --no-weights --out one");
    job_output_free(&o);
    cJSON *apart = job_summary(s.p, "a"), *one = job_summary(s.p, "one");
    assert_string_equal(job_text(apart, "weights_hash"), job_text(one, "weights_hash"));
    assert_string_equal(job_text(job_item(apart, "cpu_kernel"), "name"), "fma");
    cJSON_Delete(apart);
    cJSON_Delete(one);
    forget(&s);
}

// A worker alone has --out: who has none says at its start what that means, and the worker whose report is wanted.
static void out_at_the_worker_alone(void **state) {
    const struct job_place *p = *state;
    char line[320], said[160];
    pid_t scheduler = job_start(p, "scheduler " SHARED);
    await(p, scheduler, "listening on tcp://", said);
    char *address = xstrdup(strstr(said, "tcp://"));
    pid_t server = job_start(p, "server " SHARED " --rank 0 --scheduler %s", address);
    await(p, server, "no --out: this server writes no report, ", said);
    pid_t worker =
        job_start(p, "worker " SHARED " --rank 0 --no-weights --scheduler %s --out alone", address);
    struct job_output o = job_wait(p, worker, 60);
    snprintf(line, sizeof line,
             "alone/ranks/worker-0.json; the last rank to leave prints the table, which still needs the "
             "report of server 0");
    if (o.status || !strstr(o.err, line) || strstr(o.err, "no --out"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
    assert_done(p, server, "server");
    o = job_wait(p, scheduler, 60);
    if (o.status || strstr(o.err, "no --out")) fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
    assert_null(run_file_read(p->dir, "alone/summary.json", true));
    free(address);
}

static void quiet_and_json(void **state) {
    struct star s = {.p = *state, .dir = "quiet"};
    int who = -1;
    start_star(&s, "--steps 2 --quiet", "--no-weights", NULL);
    all_leave(&s);
    assert_all_done(&s);
    for (int i = 0; i <= ROLES; i++)
        if (*s.out[i].out || strstr(s.out[i].err, "its report")) fail_msg("%s%s", s.out[i].out, s.out[i].err);
    cJSON_Delete(job_summary(s.p, s.dir));
    forget(&s);
    s.dir = "json";
    start_star(&s, "--steps 2 --trace --set json=true", "--no-weights", NULL);
    all_leave(&s);
    assert_all_done(&s);
    assert_int_equal(printed(&s, "{", &who), 1);
    cJSON *doc = cJSON_Parse(s.out[who].out), *written = job_summary(s.p, s.dir);
    assert_true(cJSON_Compare(doc, written, 1));
    cJSON_Delete(doc);
    cJSON_Delete(written);
    char *trace = run_file_read(s.p->dir, "json/trace.json", false);
    assert_non_null(trace);
    free(trace);
    forget(&s);
}

// Signal `number` to role i once steps are done.
static void end_early(struct star *s, const char *options, int i) {
    double until = now_seconds() + 60;
    start_star(s, options, "--no-weights", NULL);
    while (job_lines(s->p, s->dir) < 2 && now_seconds() < until) usleep(1000);
    kill(s->pid[i], SIGTERM);
    all_leave(s);
}

static void early_ends(void **state) {
    struct star s = {.p = *state, .dir = "left"};
    int who = -1;
    end_early(&s, "--steps 100000", 1);  // a worker ends the job in order
    assert_int_equal(s.out[1].status, 128 + SIGTERM);
    assert_int_equal(printed(&s, "weights     hash ", &who), 1);
    assert_non_null(strstr(s.out[who].out, "state       interrupted after step "));
    assert_state(&s, RUN_INTERRUPTED);
    forget(&s);
    s.dir = "failed";
    end_early(&s, "--steps 100000", 3);  // a server does not
    assert_int_equal(s.out[0].status, 1);
    assert_int_equal(printed(&s, "weights     hash ", &who), 0);
    for (int i = 0; i < ROLES; i++) assert_null(strstr(s.out[i].err, "its report is"));
    assert_state(&s, RUN_FAILED);
    forget(&s);
    s.dir = "headless";
    end_early(&s, "--steps 100000", ROLES);  // nor does the scheduler
    for (int i = 0; i < ROLES; i++)
        if (!strstr(s.out[i].err, "the scheduler was interrupted")) fail_msg("%s", s.out[i].err);
    forget(&s);
}

// Another port than the one asked for would be waited at by nobody.
static void ports_beyond_the_last(void **state) {
    static const char *const roles[] = {"scheduler " SHARED " --bind tcp://127.0.0.1:99999",
                                        "worker " SHARED " --rank 0 --scheduler tcp://127.0.0.1:70000",
                                        "server " SHARED " --rank 0 --scheduler tcp://127.0.0.1:80x"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        struct job_output o = job_run(*state, "%s", roles[i]);
        assert_int_not_equal(o.status, 0);
        if (!strstr(o.err, "a port is a number from 1 to 65535")) fail_msg("%s:\n%s", roles[i], o.err);
        assert_null(strstr(o.err, "waiting for"));
        job_output_free(&o);
    }
}

// One role too many is refused in words, and so is one that does not say its rank.
static void one_too_many(void **state) {
    struct star s = {.p = *state, .dir = "run"};
    start_star(&s, "--steps 100000", "--no-weights", NULL);
    char line[160];
    await(s.p, s.pid[ROLES], "listening on tcp://", line);
    double until = now_seconds() + 60;
    while (job_lines(s.p, s.dir) < 2 && now_seconds() < until) usleep(1000);
    struct job_output o =
        job_run(s.p, "server " STAR " --steps 100000 --rank 1 --scheduler %s", strstr(line, "tcp://"));
    assert_int_equal(o.status, 1);
    if (!strstr(o.err, "server 1 has joined already")) fail_msg("%s", o.err);
    job_output_free(&o);
    o = job_run(s.p, "server " STAR " --steps 100000 --scheduler %s", strstr(line, "tcp://"));
    assert_int_equal(o.status, EXIT_USAGE);
    if (!strstr(o.err, "starring server needs --rank R, its number in the job: 0 to 1"))
        fail_msg("%s", o.err);
    job_output_free(&o);
    kill(s.pid[1], SIGTERM);
    all_leave(&s);
    forget(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_is_waited_for, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(train_does_not_wait_aloud, job_setup, job_teardown),
        cmocka_unit_test(lines_keep_their_distance),
        cmocka_unit_test_setup_teardown(one_table, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(an_earlier_run, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(in_any_order, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(directories_of_their_own, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(out_at_the_worker_alone, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(quiet_and_json, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(early_ends, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(ports_beyond_the_last, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(one_too_many, job_setup, job_teardown),
    };
    return cmocka_run_group_tests_name("roles by hand", tests, NULL, NULL);
}
