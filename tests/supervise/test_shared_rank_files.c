// The run directory of ranks that are processes of their own and meet at a real rendezvous. Rank 0 names the folder A, ranks 1 and 2
// name B, which is another one or, by a link, the same.
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/device/device_choice.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/joined.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"
#include "tests/topologies.h"

#define RANKS      3
#define DEADLINE_S 40
#define SHORT_S    5  // where a disk stands still for longer
#define REFUSED    5
#define BIG        ((size_t)5 << 19)  // bytes of a long file: two slices and a half

struct place {
    char dir[64], *of[RANKS];
    int port;
    double deadline_s;
    _Atomic int *ready;  // counts calls of wait_for_all; in memory that all share
};
struct rank {
    const struct place *place;
    struct run run;
    int rank;
};
typedef int body(struct rank *r);
// Other values for the ranks: a key and its value; NULL: nothing.
struct words {
    const char *key, *value;
};

static int open_place(void **state) {
    struct place *p = xcalloc(1, sizeof *p);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *state = p;
    snprintf(p->dir, sizeof p->dir, "/tmp/starring-files-XXXXXX");
    if (!mkdtemp(p->dir) || bind(fd, (struct sockaddr *)&a, sizeof a) ||
        getsockname(fd, (struct sockaddr *)&a, &size))
        return -1;
    close(fd);
    p->port = ntohs(a.sin_port);
    p->deadline_s = DEADLINE_S;
    p->ready = mmap(NULL, sizeof *p->ready, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p->ready != MAP_FAILED);
    for (int i = 0; i < RANKS; i++) p->of[i] = xasprintf("%s/%s", p->dir, i ? "b/run" : "a/run");
    return 0;
}

static int close_place(void **state) {
    struct place *p = *state;
    char *command = xasprintf("rm -rf %s", p->dir);
    int rc = system(command);
    free(command);
    for (int i = 0; i < RANKS; i++) free(p->of[i]);
    munmap(p->ready, sizeof *p->ready);
    free(p);
    return rc;
}

// ---------------------------------------------------------------- ranks
static void wait_for_all(const struct place *p) {
    int all = (atomic_fetch_add(p->ready, 1) / RANKS + 1) * RANKS;
    while (atomic_load(p->ready) < all) usleep(1000);
}

static int live(const struct place *p, int rank, struct words words, body *does) {
    const struct config_override set[] = {{"topology", "zero:1", "test"}, {"workers", "3", "test"},
                                          {"model", "tiny", "test"},      {"data", "demo", "test"},
                                          {"data.seq_len", "32", "test"}, {"steps", "40", "test"},
                                          {"out", p->of[rank], "test"},   {"quiet", "true", "test"},
                                          {"device", "cpu", "test"},      {words.key, words.value, "test"}};
    struct rank r = {.place = p, .rank = rank};
    r.run.config = config_load(&topologies, NULL, set, words.key ? 10 : 9);
    if (!r.run.config) return 2;
    device_resolve(r.run.config);
    r.run.env = (struct rank_env){.kind = RANK_ENV_TORCHRUN, .rank = rank, .size = RANKS};
    if (job_open(&r.run.job, r.run.config, false)) return 3;
    // All ranks begin to meet at one time: the deadline may be short.
    wait_for_all(p);
    r.run.meet = rendezvous_open(&(struct rendezvous_options){.host = "127.0.0.1",
                                                              .port = p->port,
                                                              .rank = rank,
                                                              .size = RANKS,
                                                              .identity = "{}",
                                                              .deadline_s = p->deadline_s});
    if (!r.run.meet) return 4;
    int rc = run_begin_together(&r.run) ? REFUSED : 0;
    if (!rc) rc = does(&r);
    if (rc != REFUSED) rank_files_end(&r.run, rc);
    if (!rank && rc != REFUSED) run_state_end(p->of[0], RUN_INTERRUPTED, NULL);
    rendezvous_close(&r.run.meet);
    job_close(&r.run.job);
    config_destroy(&r.run.config);
    return rc;
}

// The ranks' statuses; 0 where all are.
static int live_all(const struct place *p, struct words words, body *does) {
    pid_t pids[RANKS];
    int bad = 0;
    fflush(NULL);
    for (int i = 0; i < RANKS; i++)
        if (!(pids[i] = fork())) {
            alarm(50);
            _exit(live(p, i, words, does));
        }
    for (int i = 0; i < RANKS; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        if (status) bad = bad * 10 + (WIFEXITED(status) ? WEXITSTATUS(status) : 9);
    }
    return bad;
}

static int leave(const char *dir, const char *name, char fill, size_t bytes) {
    char *text = xcalloc(1, bytes + 1);
    memset(text, fill, bytes);
    int rc = run_file_write(dir, name, text);
    free(text);
    return rc;
}

static bool holds(const char *dir, const char *name, char fill, size_t bytes) {
    char *text = run_file_read(dir, name, true), all[2] = {fill, 0};
    bool good = text && strlen(text) == bytes && strspn(text, all) == bytes;
    free(text);
    return good;
}

// The files that a rank and its server leave where the run tells them, and files that belong to no role.
static int leave_files(struct rank *r) {
    const char *dir = r->run.job.dir;
    char *report = xasprintf("ranks/worker-%d.json", r->rank),
         *trace = xasprintf("ranks/trace-worker-%d.json", r->rank),
         *arrivals = xasprintf("arrivals.%d", r->rank);
    if (r->rank == 1) usleep(700000);  // those behind it are there first
    int rc = leave(dir, report, (char)('0' + r->rank), 10) || leave(dir, trace, (char)('a' + r->rank), BIG) ||
             leave(dir, arrivals, 'x', 0) || leave(dir, "other.txt", 'x', 7);
    free(arrivals);
    free(report);
    free(trace);
    return rc;
}

static bool all_came(const char *a) {
    return holds(a, "ranks/worker-0.json", '0', 10) && holds(a, "ranks/worker-1.json", '1', 10) &&
           holds(a, "ranks/worker-2.json", '2', 10) && holds(a, "ranks/trace-worker-1.json", 'b', BIG) &&
           holds(a, "ranks/trace-worker-2.json", 'c', BIG) && has_file(a, "arrivals.1") &&
           has_file(a, "arrivals.2") && has_file(a, "config.json");
}

// No name that begins so.
static bool none(const char *dir, const char *begins) {
    char *command = xasprintf("! ls -A %s | grep -q '^%s'", dir, begins);
    int rc = system(command);
    free(command);
    return rc == 0;
}

static void test_what_is_small_comes_to_rank_0(void **state) {
    const struct place *p = *state;
    assert_int_equal(live_all(p, (struct words){0}, leave_files), 0);
    assert_true(all_came(p->of[0]));
    assert_true(none(p->of[0], "\\.seen"));
    assert_int_not_equal(access(p->of[1], F_OK), 0);  // nothing is left there
}

static void test_a_folder_of_theirs_stays_as_it_was(void **state) {
    const struct place *p = *state;
    char *command = xasprintf("mkdir -p %s/ranks && echo 1 >%s/ranks/worker-1.json", p->of[1], p->of[1]);
    assert_int_equal(system(command), 0);
    free(command);
    assert_int_equal(live_all(p, (struct words){0}, leave_files), 0);
    assert_true(all_came(p->of[0]));
    char *text = run_file_read(p->of[1], "ranks/worker-1.json", false);
    assert_string_equal(text, "1\n");
    free(text);
    assert_true(none(p->of[1], "\\.rank"));
}

static void test_one_folder_is_one(void **state) {
    const struct place *p = *state;
    char *command = xasprintf("mkdir -p %s/a/run && ln -s a %s/b", p->dir, p->dir);
    assert_int_equal(system(command), 0);
    free(command);
    // Parts of checkpoints are written there by all.
    assert_int_equal(live_all(p, (struct words){"recovery.checkpoint_every", "10"}, leave_files), 0);
    assert_true(all_came(p->of[0]));  // rank 0 has waited for them
    assert_true(has_file(p->of[0], "other.txt"));
    assert_true(none(p->of[0], "\\."));
}

// The text of all that is said while the ranks live.
static char *saying(const struct place *p, struct words words, body *does, int expected) {
    char *said = xasprintf("%s/said", p->dir);
    int err = dup(2);
    assert_non_null(freopen(said, "w", stderr));
    int status = live_all(p, words, does);
    dup2(err, 2);
    close(err);
    assert_int_equal(status, expected);
    free(said);
    return run_file_read(p->dir, "said", false);
}

// A disk that stands still for longer than the deadline.
static int stands_still(struct rank *r) {
    if (r->rank == 2) sleep(SHORT_S + 7);
    return leave_files(r);
}

static void test_a_slow_disk_is_waited_for_in_words(void **state) {
    struct place *p = *state;
    p->deadline_s = SHORT_S;
    char *text = saying(p, (struct words){0}, stands_still, 0);
    assert_true(all_came(p->of[0]));
    assert_non_null(strstr(text, "waiting for rank 2 on "));
    assert_non_null(strstr(text, " to end, and hand over its files: 1"));
    free(text);
}

// A slice as joined.c has it, with a name that leads out of the run directory, or to what is no rank's.
static const char *evil;
static int writes_elsewhere(struct rank *r) {
    struct {
        int64_t left;
        char path[240];
        char data[4];
    } slice = {.data = "evil"};
    snprintf(slice.path, sizeof slice.path, "%s", evil);
    wait_for_all(r->place);  // what rank 1 sends ends the run, also for a rank that is still beginning it
    if (r->rank != 1) return 0;
    rendezvous_put(r->run.meet, "files/1/0", &slice, offsetof(typeof(slice), data) + sizeof slice.data);
    while (!rendezvous_end_reason(r->run.meet)) usleep(10000);
    return 0;
}

static void test_a_name_that_is_no_ranks_is_refused(void **state) {
    static const char *const names[] = {"ranks/../../evil",       "/tmp/starring-evil", "config.json",
                                        "checkpoints/arrivals.1", "ranks/worker-1/x",   "summary.json"};
    const struct place *p = *state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        evil = names[i];
        char *command = xasprintf("rm -rf %s/a %s/b", p->dir, p->dir), *a = xasprintf("%s/a", p->dir);
        assert_int_equal(system(command), 0);
        char *text = saying(p, (struct words){0}, writes_elsewhere, 0);
        assert_non_null(strstr(text, "has sent a file that does not belong to a run directory"));
        assert_false(has_file(a, "evil"));
        assert_false(holds(p->of[0], evil, 'e', 4));
        char *config = run_file_read(p->of[0], "config.json", false);
        assert_true(config && *config == '{');
        free(config);
        free(text);
        free(command);
        free(a);
    }
    assert_int_not_equal(access("/tmp/starring-evil", F_OK), 0);
}

// ---------------------------------------------------------------- what all write, or read, together
static int begins(struct rank *r) { return r->rank + 6; }

static void test_parts_of_all_want_one_folder(void **state) {
    static const struct words asks[] = {
        {"recovery.checkpoint_every", "10"}, {"eval_every", "10"}, {"eval_every_seconds", "0.5"}};
    const struct place *p = *state;
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        char *text = saying(p, asks[i], begins, 555);
        assert_non_null(strstr(text, ": all ranks write their parts into one folder, and rank 1 on "));
        assert_non_null(strstr(text, ", and 1 more, does not see "));
        assert_non_null(strstr(text, "a/run of rank 0, on "));
        assert_non_null(strstr(text, ": give --out a folder that all of them see"));
        for (int k = 0; k < 2; k++) assert_int_not_equal(access(p->of[k], F_OK), 0);
        free(text);
    }
}

// Nothing of an earlier run goes, on nobody's word.
static void test_an_earlier_run_stays(void **state) {
    const struct place *p = *state;
    char *command =
        xasprintf("mkdir -p %s %s && echo '{\"step\":1}' | tee %s/metrics.jsonl >%s/metrics.jsonl", p->of[0],
                  p->of[1], p->of[0], p->of[1]);
    assert_int_equal(system(command), 0);
    free(command);
    char *text = saying(p, (struct words){0}, begins, 555);
    assert_non_null(strstr(text, "metrics.jsonl is there from an earlier run"));
    for (int k = 0; k < 2; k++) assert_true(has_file(p->of[k], "metrics.jsonl"));
    free(text);
}

// ---------------------------------------------------------------- who goes
static int one_dies(struct rank *r) {
    if (r->rank == 1) _exit(usleep(1000000) ? 8 : 9);
    return leave_files(r);
}

static void test_a_rank_that_is_lost_is_not_waited_for(void **state) {
    const struct place *p = *state;
    char *text = saying(p, (struct words){0}, one_dies, 9);
    assert_non_null(strstr(text, "rank 1 on "));
    assert_true(has_file(p->of[0], "ranks/worker-0.json"));
    assert_true(has_file(p->of[0], "ranks/worker-2.json"));
    free(text);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_place, close_place)
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_small_comes_to_rank_0),
        TEST(test_a_folder_of_theirs_stays_as_it_was),
        TEST(test_one_folder_is_one),
        TEST(test_a_slow_disk_is_waited_for_in_words),
        TEST(test_a_name_that_is_no_ranks_is_refused),
        TEST(test_parts_of_all_want_one_folder),
        TEST(test_an_earlier_run_stays),
        TEST(test_a_rank_that_is_lost_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
