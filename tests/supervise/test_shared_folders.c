// Ranks with folders of their own: each is a process, and meets the others at a real rendezvous. The folders are A, rank 0's,
// and B, that ranks 1 and 2 share.
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/core/run_file.h"
#include "shared/device/device_choice.h"
#include "shared/launch/folders.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"
#include "shared/state/manifest.h"
#include "shared/state/part_file.h"
#include "tests/topologies.h"

#define RANKS      3
#define DEADLINE_S 5
#define LIFE       0x0123456789abcdefULL
#define BIG        ((size_t)5 << 19)  // bytes of a long file: two slices and a half

struct place {
    char dir[64], *of[RANKS];
    int port;
};
struct rank {
    const struct place *place;
    struct run run;
    struct rendezvous *meeting;
    struct folders *folders;
    int rank;
};
typedef int body(struct rank *r);

static int open_place(void **state) {
    struct place *p = xcalloc(1, sizeof *p);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *state = p;
    snprintf(p->dir, sizeof p->dir, "/tmp/starring-folders-XXXXXX");
    if (!mkdtemp(p->dir) || bind(fd, (struct sockaddr *)&a, sizeof a) ||
        getsockname(fd, (struct sockaddr *)&a, &size))
        return -1;
    close(fd);
    p->port = ntohs(a.sin_port);
    for (int i = 0; i < RANKS; i++) p->of[i] = xasprintf("%s/%s", p->dir, i ? "b/run" : "a/run");
    return 0;
}

static int close_place(void **state) {
    struct place *p = *state;
    char *command = xasprintf("rm -rf %s", p->dir);
    int rc = system(command);
    free(command);
    for (int i = 0; i < RANKS; i++) free(p->of[i]);
    free(p);
    return rc;
}

// ---------------------------------------------------------------- ranks
static int live(const struct place *p, int rank, const char *resume, body *does) {
    const struct config_override set[] = {
        {"topology", "zero:1", "test"},     {"workers", "3", "test"},       {"model", "tiny", "test"},
        {"data", "demo", "test"},           {"data.seq_len", "32", "test"}, {"steps", "40", "test"},
        {"out", p->of[rank], "test"},       {"quiet", "true", "test"},      {"device", "cpu", "test"},
        {"recovery.resume", resume, "test"}};
    struct rank r = {.place = p, .rank = rank};
    r.run.config = config_load(&topologies, NULL, set, resume ? 10 : 9);
    if (!r.run.config) return 2;
    device_resolve(r.run.config);
    r.run.env = (struct rank_env){.kind = RANK_ENV_TORCHRUN, .rank = rank, .size = RANKS};
    if (job_open(&r.run.job, r.run.config, false)) return 3;
    r.meeting = rendezvous_open(&(struct rendezvous_options){.host = "127.0.0.1",
                                                             .port = p->port,
                                                             .rank = rank,
                                                             .size = RANKS,
                                                             .identity = "{}",
                                                             .deadline_s = DEADLINE_S});
    if (!r.meeting) return 4;
    r.folders = folders_begin(&r.run, r.meeting);
    int rc = r.folders ? does(&r) : 5;
    if (r.folders) folders_end(&r.folders, rc);
    if (!rank) run_state_end(p->of[0], RUN_INTERRUPTED, NULL);
    rendezvous_close(&r.meeting);
    job_close(&r.run.job);
    config_destroy(&r.run.config);
    return rc;
}

// The ranks' statuses; 0 where all are.
static int live_all(const struct place *p, const char *resume, body *does) {
    pid_t pids[RANKS];
    int bad = 0;
    fflush(NULL);
    for (int i = 0; i < RANKS; i++)
        if (!(pids[i] = fork())) {
            alarm(50);
            _exit(live(p, i, resume, does));
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

static int leave_files(struct rank *r) {
    char *report = xasprintf("ranks/worker-%d.json", r->rank),
         *trace = xasprintf("ranks/trace-worker-%d.json", r->rank);
    // The last to end is no leader: whose folder it is waits for it.
    if (r->rank == 2) usleep(700000);
    int rc = leave(r->place->of[r->rank], report, (char)('0' + r->rank), 10) ||
             leave(r->place->of[r->rank], trace, (char)('a' + r->rank), BIG) ||
             (r->rank == 1 && leave(r->place->of[1], "arrivals.server-1.0", 'x', 0)) ||
             (r->rank == 1 && leave(r->place->of[1], "other.txt", 'x', 7));
    free(report);
    free(trace);
    return rc;
}

static void test_what_is_small_comes_to_rank_0(void **state) {
    const struct place *p = *state;
    assert_int_equal(live_all(p, NULL, leave_files), 0);
    const char *a = p->of[0];
    assert_true(holds(a, "ranks/worker-0.json", '0', 10));
    assert_true(holds(a, "ranks/worker-1.json", '1', 10));
    assert_true(holds(a, "ranks/worker-2.json", '2', 10));
    assert_true(holds(a, "ranks/trace-worker-1.json", 'b', BIG));
    assert_true(holds(a, "ranks/trace-worker-2.json", 'c', BIG));
    assert_true(holds(a, "arrivals.server-1.0", 'x', 0));
    assert_false(has_file(a, "other.txt"));
    assert_false(has_file(p->of[1], "ranks/worker-0.json"));
    assert_true(has_file(p->of[1], "config.json"));
    struct run_state s;
    run_state_read(p->of[1], &s);
    assert_int_equal(s.phase, RUN_COMPLETE);
}

// A disk that stands still for longer than the deadline.
static int stands_still(struct rank *r) {
    if (r->rank == 2) sleep(DEADLINE_S + 7);
    return leave_files(r);
}

static void test_a_slow_disk_is_waited_for_in_words(void **state) {
    const struct place *p = *state;
    char *said = xasprintf("%s/said", p->dir);
    int err = dup(2);
    assert_non_null(freopen(said, "w", stderr));
    int status = live_all(p, NULL, stands_still);
    dup2(err, 2);
    close(err);
    assert_int_equal(status, 0);
    assert_true(holds(p->of[0], "ranks/worker-2.json", '2', 10));
    char *text = run_file_read(p->dir, "said", false);
    assert_non_null(strstr(text, "waiting for the files of rank 1 on "));
    assert_non_null(strstr(text, "waiting for rank 2 on "));
    free(text);
    free(said);
}

// A note as folders.c has it, with a name that leads out of the run directory.
static int writes_elsewhere(struct rank *r) {
    struct {
        int32_t kind;
        uint32_t bytes;
        int64_t offset, size;
        char path[240];
        char data[4];
    } note = {.bytes = 4, .size = 4, .path = "ranks/../../evil", .data = "evil"};
    if (r->rank == 1)
        rendezvous_put(r->meeting, "note/1/0", &note, offsetof(typeof(note), data) + sizeof note.data);
    return 0;
}

static void test_a_name_that_leads_elsewhere_is_refused(void **state) {
    const struct place *p = *state;
    live_all(p, NULL, writes_elsewhere);
    char *a = xasprintf("%s/a", p->dir);
    assert_false(has_file(a, "evil"));
    free(a);
}

static int shares(struct rank *r) { return folders_one(r->folders) ? leave_files(r) : 7; }

static void test_one_folder_is_one(void **state) {
    struct place *p = *state;
    char *command = xasprintf("mkdir -p %s/a/run && ln -s a %s/b", p->dir, p->dir);
    assert_int_equal(system(command), 0);
    free(command);
    assert_int_equal(live_all(p, NULL, shares), 0);
    assert_true(holds(p->of[0], "ranks/worker-2.json", '2', 10));  // rank 0 has waited for it
}

static void test_a_folder_of_an_earlier_run_is_refused(void **state) {
    const struct place *p = *state;
    assert_int_equal(live_all(p, NULL, leave_files), 0);
    char *command = xasprintf("rm -r %s/a; echo '{\"step\":1}' > %s/metrics.jsonl", p->dir, p->of[1]);
    assert_int_equal(system(command), 0);
    free(command);
    assert_true(live_all(p, NULL, leave_files) != 0);
}

// ---------------------------------------------------------------- checkpoints
// Rank r has every third unit.
static int write_part(struct rank *r, enum checkpoint_kind kind, int64_t step) {
    const struct layout *l = r->run.job.layout;
    int states = r->run.config->optimizer.row->states, count = 0, rc = 0;
    char *dir = checkpoint_partial(r->place->of[r->rank], kind, step, LIFE), who[32], *why = NULL;
    struct state_range ranges[256];
    bool all = kind == CHECKPOINT_ALL;
    snprintf(who, sizeof who, "worker-%d", r->rank);
    for (int u = r->rank; u < l->count; u += RANKS)
        for (int k = all ? STATE_MASTER : STATE_WEIGHTS; k <= (all ? states : STATE_WEIGHTS); k++)
            ranges[count++] = (struct state_range){.unit = u, .kind = k, .end = l->units[u].n_pad};
    struct part_file *f = part_file_create(
        &(struct part_options){
            .dir = dir, .participant = who, .layout = l, .dtype = DT_F32, .ranges = ranges, .count = count},
        &why);
    for (int i = 0; i < count && f && !rc; i++) {
        float *values = xcalloc((unsigned long)ranges[i].end, sizeof *values);
        for (int64_t k = 0; k < ranges[i].end; k++)
            values[k] = (float)(k + 1000 * ranges[i].unit + ranges[i].kind);
        rc = part_file_write(f, i, 0, ranges[i].end, values);
        free(values);
        if (r->rank == 1) usleep(300000 / (unsigned)count);
    }
    if (!f || part_file_finish(&f, &why)) rc = (fail)("%s", why ? why : "?");
    free(why);
    free(dir);
    return rc;
}

static int commit(struct rank *r, enum checkpoint_kind kind, int64_t step) {
    static const char *const who[] = {"worker-0", "worker-1", "worker-2"};
    const struct config *c = r->run.config;
    struct identity_source source = job_identity(&r->run.job);
    struct identity *identity = identity_make(&source);
    cJSON *json = identity_json(identity);
    struct train_state train = {
        .step = step, .updates = step, .samples = step, .dealt = step, .scaler = {.scale = 1}};
    bool all = kind == CHECKPOINT_ALL;
    char *why = NULL;
    int rc = checkpoint_complete(&(struct checkpoint_commit){.run_dir = r->place->of[0],
                                                             .kind = kind,
                                                             .life = LIFE,
                                                             .participants = who,
                                                             .count = RANKS,
                                                             .train = &train,
                                                             .identity = json,
                                                             .dtype = "fp32",
                                                             .optimizer = all ? c->optimizer.row->name : "",
                                                             .states = all ? c->optimizer.row->states : 0,
                                                             .stall_seconds = 10},
                                 NULL, &why);
    if (rc) (fail)("%s", why);
    if (!rc && all) checkpoint_rotate(r->place->of[0], 2, 0);
    free(why);
    cJSON_Delete(json);
    identity_destroy(&identity);
    return rc;
}

static int keep(struct rank *r) {
    int rc = 0;
    for (int64_t step = 10; step <= 30 && !rc; step += 10)
        rc = write_part(r, CHECKPOINT_ALL, step) || (r->rank == 0 && commit(r, CHECKPOINT_ALL, step));
    return rc;
}

static bool has(const struct place *p, int rank, const char *name) { return has_file(p->of[rank], name); }

static void test_parts_stay_and_are_known(void **state) {
    const struct place *p = *state;
    struct manifest m;
    char host[64] = "", *path = xasprintf("%s/checkpoints/step-30", p->of[0]);
    assert_int_equal(live_all(p, NULL, keep), 0);
    for (int rank = 0; rank < 2; rank++) {
        assert_false(has(p, rank, "checkpoints/step-10"));  // rotated in both
        assert_true(has(p, rank, "checkpoints/step-20/manifest.json"));
        assert_true(has(p, rank, "checkpoints/step-30/manifest.json"));
        assert_true(has(p, rank, "checkpoints/step-30/worker-0.safetensors") == (rank == 0));
        assert_true(has(p, rank, "checkpoints/step-30/worker-1.safetensors") == (rank == 1));
        assert_true(has(p, rank, "checkpoints/step-30/worker-2.safetensors") == (rank == 1));
        assert_false(has(p, rank, "checkpoints/step-30/worker-2.json"));
    }
    gethostname(host, sizeof host - 1);
    assert_int_equal(manifest_read(path, &m), 0);
    assert_string_equal(m.files[0].host, "");
    assert_string_equal(m.files[2].host, host);
    manifest_free(&m);
    free(path);
}

// Every rank reads all of it in its own folder.
static int read_all(struct rank *r) {
    if (!r->run.job.resume || checkpoint_named(r->run.job.resume) != 30) return 6;
    if (!resume_is_own(r->run.job.resume, r->place->of[r->rank])) return 7;
    struct checkpoint *c = checkpoint_open(r->run.job.resume);
    int rc = !c || checkpoint_verify(c) || checkpoint_fits(c, r->run.job.layout) ? 8 : 0;
    checkpoint_close(&c);
    return rc;
}

// As a death between worker 0's commit and the word of it leaves the other folder: parts and sidecars, or those of an earlier life.
static void unsettle(const struct place *p, bool stale) {
    struct manifest m;
    char *from = xasprintf("%s/checkpoints/step-30", p->of[1]),
         *to = checkpoint_partial(p->of[1], CHECKPOINT_ALL, 30, LIFE + 1),
         *manifest = xasprintf("%s/manifest.json", from);
    assert_int_equal(manifest_read(from, &m), 0);
    assert_int_equal(unlink(manifest), 0);
    for (int i = 1; i < m.count; i++) {
        char *text = xasprintf("{\"file\":\"%s\",\"bytes\":%lld,\"xxh64\":\"%016llx\"}", m.files[i].name,
                               (long long)m.files[i].bytes, (unsigned long long)m.files[i].xxh64 + stale);
        char *name = xasprintf("worker-%d.json", i);
        assert_int_equal(run_file_write(from, name, text), 0);
        free(name);
        free(text);
    }
    assert_int_equal(rename(from, to), 0);
    manifest_free(&m);
    free(manifest);
    free(from);
    free(to);
}

static void test_parts_of_another_life_are_not_taken(void **state) {
    const struct place *p = *state;
    assert_int_equal(live_all(p, NULL, keep), 0);
    unsettle(p, true);
    assert_int_equal(live_all(p, "latest", read_all), 555);
}

static void test_a_run_goes_on_from_parts_of_all(void **state) {
    const struct place *p = *state;
    assert_int_equal(live_all(p, NULL, keep), 0);
    unsettle(p, false);
    assert_int_equal(live_all(p, "latest", read_all), 0);
    assert_true(has(p, 0, "checkpoints/step-30/worker-2.safetensors"));
    assert_true(has(p, 1, "checkpoints/step-30/worker-0.safetensors"));
    // It is there already: nothing is brought.
    assert_int_equal(live_all(p, "latest", read_all), 0);
}

static void test_a_part_that_nobody_has_is_named(void **state) {
    const struct place *p = *state;
    assert_int_equal(live_all(p, NULL, keep), 0);
    char *part = xasprintf("%s/checkpoints/step-30/worker-2.safetensors", p->of[1]);
    assert_int_equal(unlink(part), 0);
    free(part);
    assert_int_equal(live_all(p, "latest", read_all), 555);
}

static int snap(struct rank *r) {
    return write_part(r, CHECKPOINT_WEIGHTS, 10) || (r->rank == 0 && commit(r, CHECKPOINT_WEIGHTS, 10));
}

static void test_snapshots_are_whole_on_rank_0(void **state) {
    const struct place *p = *state;
    char *path = xasprintf("%s/snapshots/step-10", p->of[0]);
    assert_int_equal(live_all(p, NULL, snap), 0);
    struct checkpoint *c = checkpoint_open(path);
    assert_non_null(c);
    assert_int_equal(checkpoint_verify(c), 0);
    checkpoint_close(&c);
    free(path);
    path = xasprintf("ls -A %s/snapshots | grep -q .", p->of[1]);
    assert_true(system(path) != 0);
    free(path);
}

// ---------------------------------------------------------------- who goes
static int leader_dies(struct rank *r) {
    if (r->rank == 1) _exit(usleep(1000000) ? 8 : 9);
    return leave_files(r);
}

static void test_a_leader_that_is_lost_is_not_waited_for(void **state) {
    const struct place *p = *state;
    double start_s = now_seconds();
    assert_int_equal(live_all(p, NULL, leader_dies), 9);
    assert_true(now_seconds() - start_s < 30);
    assert_true(has(p, 0, "ranks/worker-0.json"));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_place, close_place)
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_small_comes_to_rank_0),          TEST(test_a_slow_disk_is_waited_for_in_words),
        TEST(test_a_name_that_leads_elsewhere_is_refused), TEST(test_one_folder_is_one),
        TEST(test_a_folder_of_an_earlier_run_is_refused),  TEST(test_parts_stay_and_are_known),
        TEST(test_a_run_goes_on_from_parts_of_all),        TEST(test_parts_of_another_life_are_not_taken),
        TEST(test_a_part_that_nobody_has_is_named),        TEST(test_snapshots_are_whole_on_rank_0),
        TEST(test_a_leader_that_is_lost_is_not_waited_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
