// The memory, bytes and time of a job, all roles added up.
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/core/json.h"
#include "shared/core/system.h"
#include "shared/report/job_resident.h"
#include "shared/time/stall_report.h"
#include "tests/run/summary_helper.h"

static void change(const char *dir, const char *role, int rank, const char *key, const char *member,
                   cJSON *value) {
    char *name = xasprintf("ranks/%s-%d.json", role, rank), *text = run_file_read(dir, name, false);
    cJSON *o = cJSON_Parse(text);
    assert_true(cJSON_ReplaceItemInObject(cJSON_GetObjectItem(o, key), member, value));
    free(text);
    text = cJSON_Print(o);
    assert_int_equal(run_file_write(dir, name, text), 0);
    cJSON_Delete(o);
    free(text);
    free(name);
}

// Tokens of all workers, by what the servers applied, over the clock from the first worker's first step to the last
// worker's last one.
static void the_job_is_added_up(void **state) {
    const char *dir = *state;
    write_run(dir, "ps:async");
    // Server 1 has one update less on some key: only what all keys have counts.
    struct rank_report behind = report("server", 1);
    behind.updates = 39;
    behind.peak_bytes[MEM_HOST] = 512;
    behind.scheduler = (struct scheduler_figures){true, 0.25, 1000, 500, 50};
    assert_int_equal(summary_write_rank(dir, &behind, NULL), 0);
    for (int r = 0; r < 2; r++) {
        change(dir, "worker", r, "process", "pid", cJSON_CreateNumber(10 + r));
        change(dir, "server", r, "process", "pid", cJSON_CreateNumber(20 + r));
    }
    cJSON *s = summary_merge(&topologies, dir);
    assert_true(number(s, "updates_applied", NULL) == 39 && number(s, "samples_applied", NULL) == 39 * 8);
    assert_true(number(s, "tokens_applied", NULL) == 39 * 8 * 32);
    assert_true(number(s, "seconds", NULL) == 4.5);
    assert_true(number(s, "tokens_per_second", NULL) == 39 * 8 * 32 / 4.5);
    assert_true(number(s, "totals", "memory_bytes") == 4 * 2048);
    assert_true(number(s, "busiest", "memory_bytes") == 2048);
    assert_true(number(s, "totals", "pinned_bytes") == 512);
    assert_true(number(s, "totals", "transport_bytes") == 400);
    assert_true(number(s, "totals", "rss_bytes") == 4 * 12345 + 1000);
    assert_true(number(s, "totals", "sent_per_step") == 4000);
    assert_true(number(s, "busiest", "sent_per_step") == 1000);
    assert_true(fabs(number(s, "totals", "cpu_seconds") - (4 * 0.2 + 0.25)) < 1e-9);
    assert_true(fabs(number(s, "busiest", "cpu_seconds") - 0.2) < 1e-9);
    assert_true(number(s, "totals", "control_sent_per_step") == 500 / number(s, "steps", NULL));
    assert_true(number(s, "machine", "cores") == (double)sysconf(_SC_NPROCESSORS_ONLN));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(s, "revision")));  // nobody said one
    cJSON_Delete(s);
}

// Ranks that are threads: the process's resident bytes once, and its CPU time from the first to begin to the last to
// end. Without a server the loop's own count says what was applied.
static void threads_share_a_process(void **state) {
    const char *dir = *state;
    write_run(dir, "zero:2");
    struct rank_report w = report("worker", 1);
    w.rss_bytes = 20000;
    w.span.cpu_begin_ns = 50000000LL;
    w.updates = 99;  // every loop counts the same: one is asked
    assert_int_equal(summary_write_rank(dir, &w, NULL), 0);
    cJSON *s = summary_merge(&topologies, dir);
    assert_true(number(s, "totals", "rss_bytes") == 20000 && number(s, "busiest", "rss_bytes") == 20000);
    assert_true(fabs(number(s, "totals", "cpu_seconds") - 0.25) < 1e-9);
    assert_true(number(s, "updates_applied", NULL) == 40);
    assert_true(number(s, "totals", "memory_bytes") == 2 * 2048);
    cJSON_Delete(s);
}

static char *printed(const char *dir, const cJSON *s) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    summary_print(f, dir, s);
    fclose(f);
    char *kept = xstrdup(text);
    free(text);
    return kept;
}

// Worker 0 sees all processes of the machine that the job has; where it saw fewer than the ranks are, its figure is not the
// job's.
static void the_whole_job_is_resident(void **state) {
    const char *dir = *state;
    write_run(dir, "zero:2");
    struct rank_report w = report("worker", 0);
    for (int processes = 1; processes <= 3; processes++) {
        w.resident = (struct job_resident){5000, processes};
        assert_int_equal(summary_write_rank(dir, &w, NULL), 0);
        change(dir, "worker", 0, "process", "pid", cJSON_CreateNumber(10));
        cJSON *s = summary_merge(&topologies, dir);
        if (processes == 1) assert_true(cJSON_IsNull(json_item(json_item(s, "totals"), "pss_bytes")));
        if (processes > 1) assert_true(number(s, "totals", "pss_bytes") == 5000);
        // For one process there is no such figure: its peak, which may be more, is in the table of ranks.
        char *text = printed(dir, s);
        const char *busiest = strstr(text, "\n  busiest ");
        assert_non_null(busiest);
        char *line = xasprintf("%.*s", (int)strcspn(busiest + 1, "\n"), busiest + 1);
        assert_int_equal(strstr(line, "0.01 MiB") != NULL, processes == 1);
        free(line);
        free(text);
        cJSON_Delete(s);
    }
    change(dir, "worker", 1, "clock", "boot_id", cJSON_CreateString("another"));
    cJSON *s = summary_merge(&topologies, dir);
    assert_true(cJSON_IsNull(json_item(json_item(s, "totals"), "pss_bytes")));
    cJSON_Delete(s);
}

// A page that two processes have touched counts once; what a child of this program holds counts, another program's not.
static void a_shared_page_counts_once(void **state) {
    (void)state;
    const size_t bytes = 64 << 20, slack = 4 << 20;
    struct job_resident before, one, two, ended;
    int ready[2], go[2];
    char byte = 0;
    assert_int_equal(job_resident_read(&before), 0);
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED && !pipe(ready) && !pipe(go));
    memset(shared, 1, bytes);
    assert_int_equal(job_resident_read(&one), 0);
    assert_true(one.pss_bytes > before.pss_bytes + bytes - slack &&
                one.pss_bytes < before.pss_bytes + bytes + slack);
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < bytes; i += 4096) byte += shared[i];
        _exit(write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1);
    }
    pid_t other = fork();
    if (other == 0) {
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct proc_look look;
    while (!proc_look(other, &look) && strcmp(look.name, "sleep")) usleep(1000);
    assert_int_equal(job_resident_read(&two), 0);
    assert_int_equal(two.processes, one.processes + 1);
    assert_true(two.pss_bytes > one.pss_bytes - slack && two.pss_bytes < one.pss_bytes + slack);
    assert_int_equal(write(go[1], &byte, 1), 1);
    kill(other, SIGKILL);
    assert_true(waitpid(child, NULL, 0) == child && waitpid(other, NULL, 0) == other);
    assert_int_equal(job_resident_read(&ended), 0);
    assert_int_equal(ended.processes, one.processes);
    munmap(shared, bytes);
    for (int i = 0; i < 2; i++) close(ready[i]), close(go[i]);
}

// A run that went on when all of its steps were done has times of none.
static void no_step_is_divided_by(void **state) {
    write_run(*state, "ps:async");
    cJSON *s = summary_merge(&topologies, *state);
    cJSON_ReplaceItemInObject(s, "resumed_from", cJSON_CreateNumber(5));
    char *text = printed(*state, s);
    if (strstr(text, "nan") || strstr(text, "inf ") || strstr(text, "inf,")) fail_msg("%s", text);
    free(text);
    cJSON_Delete(s);
}

// If workers share a budget each one reports its skipped steps: the lines are worker 0's.
static void skipped_batches_are_of_all_workers(void **state) {
    write_run(*state, "ps:async");
    for (int r = 1; r >= 0; r--) {
        struct rank_report w = report("worker", r);
        w.independent = true;
        w.batches = 5;
        w.skipped = 1 + 2 * r;
        assert_int_equal(summary_write_rank(*state, &w, NULL), 0);
    }
    cJSON *s = summary_merge(&topologies, *state);
    assert_true(number(s, "skipped", NULL) == 4);
    char *text = printed(*state, s);
    assert_non_null(strstr(text, " in 5 steps, 4 batches skipped\n"));
    free(text);
    cJSON_Delete(s);
}

// As experiments/comparison has it: the first step is left out, and fewer than five say nothing.
static void the_spread_leaves_the_first_step_out(void **state) {
    write_run(*state, "zero:2");
    for (int steps = 5; steps <= 7; steps++) {
        struct metrics *m = metrics_create(*state, 0, &(double){0});
        for (int i = 0; i < steps; i++) {
            struct step_record r = record(i + 1, 5, i == 0 ? 9 : i == 1 ? 1.5 : 1);
            metrics_step(m, &r);
        }
        assert_int_equal(metrics_destroy(&m), 0);
        cJSON *s = summary_merge(&topologies, *state);
        const cJSON *spread = json_item(json_item(s, "step_seconds"), "spread");
        assert_true(steps == 5 ? cJSON_IsNull(spread) : spread->valuedouble == 0.5);
        assert_true(number(s, "step_seconds", "p95") == 9);
        cJSON_Delete(s);
    }
}

// Clocks of two machines do not compare: the longest training of a worker stands for the job's.
static void two_machines_have_two_clocks(void **state) {
    const char *dir = *state;
    write_run(dir, "zero:2");
    change(dir, "worker", 1, "clock", "boot_id", cJSON_CreateString("another"));
    change(dir, "worker", 1, "clock", "end_ns", cJSON_CreateNumber(9e9));
    cJSON *s = summary_merge(&topologies, dir);
    assert_true(number(s, "seconds", NULL) == 6.5);
    cJSON_Delete(s);
}

// The lines that a run ends with; the caller frees. They are told to be `lines`.
static char *ending(const char *dir, const cJSON *s, int lines) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    summary_print_brief(f, dir, s);
    fclose(f);
    int count = 0;
    for (const char *p = text + 1; *p; p++) count += *p == '\n';
    if (*text != '\n' || count != lines) fail_msg("%d lines instead of %d:\n%s", count, lines, text);
    return text;
}

static void assert_says(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("not \"%s\" in\n%s", words, text);
}

static void a_run_ends_with_a_few_lines(void **state) {
    const char *dir = *state;
    write_run(dir, "ps:async");
    struct rank_report server = report("server", 0);
    server.memory.predicted_bytes[MEM_PARAMETER] = 1024;
    assert_int_equal(summary_write_rank(dir, &server, NULL), 0);
    cJSON *s = summary_merge(&topologies, dir);
    cJSON_SetNumberValue(cJSON_GetObjectItem(s, "steps_planned"), 5);
    cJSON_ReplaceItemInObject(s, "state", cJSON_CreateString("complete"));
    char *text = ending(dir, s, 7);
    assert_says(text,
                "\nrun         ps:async, 2 workers, 2 servers, bf16, tiny (1,000 parameters), a text\n");
    assert_says(text, "\nloss        5.0000 -> 1.0000 in 5 steps, 1 of them skipped\n");
    assert_says(text,
                "\nmemory      2048 B = per worker, 2048 B (predicted 1024 B) per server   (=: predicted");
    assert_says(text, "\neach step   a worker sends 1000 B = and receives 0 B =, a server sends");
    assert_says(text,
                "\nspeed       2,275 tokens/s; step 750.0 ms median; staleness mean 0.50, max 2 updates\n");
    assert_says(text, "\nweights     hash 0123456789abcdef\n");
    assert_says(text, "test_shared_totals summary ");  // this program's name, as it was typed
    free(text);
    cJSON *most = cJSON_GetObjectItem(cJSON_GetObjectItem(s, "staleness"), "max");
    cJSON_SetNumberValue(cJSON_GetObjectItem(s, "steps"), 1);
    cJSON_SetNumberValue(most, 1);
    text = ending(dir, s, 7);
    assert_says(text, " in 1 step, ");
    assert_says(text, ", max 1 update\n");
    free(text);
    cJSON_SetNumberValue(most, 0);
    text = ending(dir, s, 7);
    assert_says(text, " ms median\n");
    free(text);
    // Steps of which the slow ones take twice as long leave the speed uncertain.
    cJSON_SetNumberValue(cJSON_GetObjectItem(s, "steps"), 6);
    cJSON_ReplaceItemInObject(cJSON_GetObjectItem(s, "step_seconds"), "spread", cJSON_CreateNumber(0.26));
    text = ending(dir, s, 7);
    assert_says(text, " ~ tokens/s; step ");
    assert_says(text, ", spread over 26% of it: experiments/compare.py compares such runs in turns\n");
    free(text);
    cJSON_ReplaceItemInObject(s, "weights_hash", cJSON_CreateNull());
    cJSON_ReplaceItemInObject(s, "state", cJSON_CreateString("interrupted"));
    text = ending(dir, s, 8);
    assert_says(text, "\nstate       interrupted after step 6 of ");
    assert_says(text, "\nweights     hash -\n");
    free(text);
    cJSON_ReplaceItemInObject(s, "state", cJSON_CreateString(STATE_UNKEPT));
    text = ending(dir, s, 8);
    assert_says(text, "\nstate       unkept: all 6 steps are done, and no checkpoint could be kept: ");
    free(text);
    cJSON_Delete(s);
}

// 300 ms were exposed: for the first 100 rank 1 stood still, for the last 100 the rank itself. The parts add up as before.
static void what_was_exposed_is_the_one_s_who_stood_still(void **state) {
    const char *dir = *state;
    write_run(dir, "zero:2");
    struct span exposed = {.begin = 1000000000, .end = 1300000000},
                own = {.begin = 1200000000, .end = 1400000000},
                other = {.begin = 900000000, .end = 1100000000};
    double waited[2] = {0, 0.1};
    struct rank_report w = report("worker", 0);
    w.time.wait = 0.1;
    w.time.comm_exposed = 0.4;
    w.time.total += 0.5;
    w.stall_report = &(struct stall_report){.exposed = {.ring = &exposed, .room = 1, .next = 1},
                                            .stalls = {{.ring = &own, .room = 1, .next = 1}},
                                            .waited = waited,
                                            .ranks = 2};
    assert_int_equal(summary_write_rank(dir, &w, NULL), 0);
    w = report("worker", 1);
    w.stall_report = &(struct stall_report){.exposed = {.ring = &exposed, .room = 1},
                                            .stalls = {{.ring = &other, .room = 1, .next = 1}},
                                            .waited = waited,
                                            .ranks = 2};
    assert_int_equal(summary_write_rank(dir, &w, NULL), 0);
    cJSON *s = summary_merge(&topologies, dir),
          *time = cJSON_GetArrayItem(cJSON_GetObjectItem(s, "time_per_rank"), 0);
    const cJSON *peers = cJSON_GetObjectItem(time, "waited_for");
    assert_true(fabs(number(time, "wait", NULL) - 0.2) < 1e-9);
    assert_true(fabs(number(time, "comm_exposed", NULL) - 0.2) < 1e-9);
    assert_true(fabs(number(time, "host", NULL) - 0.6) < 1e-9);
    assert_int_equal(cJSON_GetArraySize(peers), 1);
    assert_true(number(cJSON_GetArrayItem(peers, 0), "rank", NULL) == 1);
    assert_true(fabs(number(cJSON_GetArrayItem(peers, 0), "seconds", NULL) - 0.2) < 1e-9);
    cJSON_Delete(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_DISK(the_job_is_added_up),
        ON_DISK(threads_share_a_process),
        ON_DISK(two_machines_have_two_clocks),
        ON_DISK(a_run_ends_with_a_few_lines),
        ON_DISK(the_whole_job_is_resident),
        cmocka_unit_test(a_shared_page_counts_once),
        ON_DISK(what_was_exposed_is_the_one_s_who_stood_still),
        ON_DISK(no_step_is_divided_by),
        ON_DISK(skipped_batches_are_of_all_workers),
        ON_DISK(the_spread_leaves_the_first_step_out),
    };
    return cmocka_run_group_tests_name("totals", tests, NULL, NULL);
}
