// What a job took and did, all roles added up.
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
    behind.scheduler = (struct helper_figures){true, 0.25, 1000, 500, 50};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_DISK(the_job_is_added_up),
        ON_DISK(threads_share_a_process),
        ON_DISK(two_machines_have_two_clocks),
    };
    return cmocka_run_group_tests_name("totals", tests, NULL, NULL);
}
