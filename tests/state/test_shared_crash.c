// Complete or absent, whatever dies when: a checkpoint whose process ends at each of its calls, whose disk fails at each
// of them, once or for good, and what a power cut could take.
#include <signal.h>
#include <sys/resource.h>

#include "tests/state/faulty_disk.h"

// The thread sanitizer takes its time for every process: not each call then.
#ifdef __SANITIZE_THREAD__
#define STRIDE 9
#else
#define STRIDE 1
#endif

// A checkpoint of two participants beside an older one, the older one rotated away; then the same step anew, of one.
static int story(const char *run, char **error) {
    if (toy_checkpoint(run, 2, 8, error)) return -1;
    checkpoint_rotate(run, 1, 0);
    return toy_checkpoint(run, 1, 8, error);
}

// Every step-N that is there reads back, and there is one.
static void nothing_torn(const char *run, int call) {
    char *path = checkpoint_latest(run);
    if (!path) fail_msg("call %d: no checkpoint is left", call);
    for (int64_t step = 0; step < 20; step++)
        if (has_step(run, step) && toy_read_step(run, 3, step))
            fail_msg("call %d: step-%d is torn: %s", call, (int)step, error_last());
    if (toy_read(path, 1, checkpoint_latest_step(run))) fail_msg("call %d: %s", call, error_last());
    free(path);
}

// The actions of the next life.
static void goes_on(const char *run, int call) {
    checkpoint_sweep(run, CHECKPOINT_ALL, 1);
    nothing_torn(run, call);
    char *dir = xasprintf("%s/checkpoints", run);
    DIR *d = opendir(dir);
    for (const struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, "step-", 5) != 0 &&
            e->d_name[e->d_name[0] == '.' ? 1 + (e->d_name[1] == '.') : 0])
            fail_msg("call %d: %s is left behind", call, e->d_name);
    closedir(d);
    free(dir);
    must_checkpoint(run, 2, 8);
    checkpoint_rotate(run, 1, 0);
    nothing_torn(run, call);
    assert_int_equal(names_in(run), 1);
}

static void dies_everywhere(bool no_exchange) {
    int call = 0;
    faulty.no_exchange = no_exchange;
    for (int status = DIED; status == DIED; call += STRIDE) {
        char *run = make_dir();
        faulty_begin(FAULT_NONE, 0, 0);
        must_checkpoint(run, 1, 4);
        pid_t child = fork();
        if (child == 0) {
            char *error = NULL;
            faulty_begin(FAULT_DIE, call, 0);
            _exit(story(run, &error) ? 1 : 0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        status = WEXITSTATUS(status);
        assert_true(status == DIED || status == 0);
        nothing_torn(run, call);
        goes_on(run, call);
        remove_dir(run);
    }
    faulty_end();
    faulty.no_exchange = false;
    if (call < 50) fail_msg("only %d calls", call);
}

static void test_dies_everywhere(void **state) {
    (void)state;
    dies_everywhere(false);
}
static void test_dies_everywhere_without_exchange(void **state) {
    (void)state;
    dies_everywhere(true);
}

// A failure ends the checkpoint: with a text, and with what there was.
static void fails_everywhere(enum fault kind, int code) {
    int told = 0, call = 0;
    for (bool reached = true; reached; call += STRIDE) {
        char *run = make_dir(), *error = NULL;
        struct train_state train = toy_train(8);
        struct checkpoint_commit c = toy_commit(run, 2, &train);
        c.stall_seconds = 0.03;  // who cannot even say that it has failed
        faulty_begin(FAULT_NONE, 0, 0);
        must_checkpoint(run, 1, 4);
        must_checkpoint(run, 1, 8);
        faulty_begin(kind, call, code);
        int rc = toy_write_part(run, 0, 2, 8, &error) | toy_write_part(run, 1, 2, 8, &error);
        if (rc && (!error || !strstr(error, strerror(code)))) fail_msg("call %d: %s", call, error);
        char *given_up = NULL;
        int committed = checkpoint_complete(&c, NULL, &given_up);
        if (rc && !committed) fail_msg("call %d: committed without a participant", call);
        if (committed && (!given_up || !strstr(given_up, "step-8 is kept")))
            fail_msg("call %d: %s", call, given_up);
        reached = faulty.calls > call;
        told += committed != 0;
        faulty_begin(FAULT_NONE, 0, 0);
        free(given_up);
        free(error);
        nothing_torn(run, call);
        goes_on(run, call);
        remove_dir(run);
    }
    faulty_end();
    if (told < 20 / STRIDE) fail_msg("%d of %d failures were told", told, call);
}

static void test_disk_full(void **state) {
    (void)state;
    error_quiet(1);  // warnings of what cannot be removed
    fails_everywhere(FAULT_ONCE, ENOSPC);
    fails_everywhere(FAULT_FROM_THEN_ON, EROFS);
    error_quiet(0);
}

static void test_short_writes(void **state) {
    (void)state;
    char *run = make_dir();
    faulty_begin(FAULT_NONE, 0, 0);
    faulty.most = 1000;
    must_checkpoint(run, 2, 8);
    faulty_end();
    assert_int_equal(toy_read_step(run, 1, 8), 0);
    remove_dir(run);
}

// A file that may not become so large: the system's own answer to a write.
static void test_too_large(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL;
    must_checkpoint(run, 1, 4);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 5000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = toy_write_part(run, 0, 1, 8, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, -1);
    assert_non_null(strstr(error, "worker-0.safetensors: cannot write: File too large"));
    free(error);
    error = NULL;
    assert_int_equal(toy_complete(run, 1, 8, &error), -1);
    assert_non_null(strstr(error, "worker-0: "));
    assert_non_null(strstr(error, "step-4 is kept"));
    free(error);
    assert_int_equal(names_in(run), 1);
    remove_dir(run);
}

// A disk that says so beforehand is not written to.
static void test_no_room(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL;
    faulty_begin(FAULT_ONCE, 7, ENOSPC);  // mkdir twice, unlink four times, open
    assert_int_equal(toy_write_part(run, 0, 1, 8, &error), -1);
    faulty_end();
    assert_non_null(strstr(error, "worker-0.safetensors: no room for its "));
    assert_non_null(strstr(error, strerror(ENOSPC)));
    free(error);
    error = NULL;
    assert_int_equal(toy_complete(run, 1, 8, &error), -1);
    assert_non_null(strstr(error, "worker-0: "));
    assert_non_null(strstr(error, ": no room for its "));
    free(error);
    remove_dir(run);
}

static void test_directory_vanishes(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL, *dir = checkpoint_partial(run, CHECKPOINT_ALL, 8, LIFE);
    struct layout *l = toy_layout(1);
    const struct state_range range = {.unit = 0, .end = 10};
    const struct part_options o = {
        .dir = dir, .participant = "worker-0", .layout = l, .ranges = &range, .count = 1};
    const float x[10] = {0};
    struct part_file *f = part_file_create(&o, &error);
    assert_int_equal(part_file_write(f, 0, 0, 10, x), 0);
    assert_int_equal(disk_remove_dir(dir, &error), 0);
    assert_int_equal(part_file_finish(&f, &error), -1);
    assert_non_null(strstr(error, "worker-0.safetensors: cannot write: No such file"));
    free(error);
    error = NULL;
    char *command = xasprintf("sleep 0.1; rm -r %s", dir);
    pid_t child = fork();
    if (child == 0) _exit(system(command) != 0);
    assert_int_equal(toy_complete(run, 1, 8, &error), -1);
    waitpid(child, NULL, 0);
    assert_non_null(strstr(error, "the directory has vanished; there is no earlier one"));
    free(error);
    error = NULL;
    remove_dir(xstrdup(run));  // and the run's directory is not made anew
    assert_null(part_file_create(&o, &error));
    assert_non_null(strstr(error, "checkpoints: cannot make this directory: No such file"));
    free(error);
    error = NULL;
    assert_int_equal(toy_complete(run, 1, 8, &error), -1);
    free(error);
    assert_int_not_equal(access(run, F_OK), 0);
    layout_destroy(&l);
    free(command);
    free(dir);
    free(run);
}

// Until this process's parent has the directory open.
static void await_parent_in(const char *dir) {
    char *command = xasprintf("ls -l /proc/%d/fd 2>/dev/null | grep -q '%s'", (int)getppid(), dir);
    for (int i = 0; i < 1000 && system(command) != 0; i++) usleep(10000);
    free(command);
}

// The directory is taken away when one participant's part was there, and the other one makes it anew.
static void test_directory_made_anew(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL, *dir = checkpoint_partial(run, CHECKPOINT_ALL, 8, LIFE),
         *away = xasprintf("%s/away", run);
    if (toy_write_part(run, 0, 2, 8, &error)) fail_msg("%s", error);
    pid_t child = fork();
    if (child == 0) {
        await_parent_in(dir);
        usleep(50000);
        _exit(rename(dir, away) != 0 || toy_write_part(run, 1, 2, 8, &error) != 0);
    }
    struct train_state train = toy_train(8);
    struct checkpoint_commit c = toy_commit(run, 2, &train);
    c.stall_seconds = 20;
    assert_int_equal(checkpoint_complete(&c, NULL, &error), -1);
    waitpid(child, NULL, 0);
    assert_non_null(strstr(error, "the directory has vanished"));
    assert_int_equal(checkpoint_latest_step(run), -1);
    free(error);
    free(away);
    free(dir);
    remove_dir(run);
}

// Names are given to what is on disk, and files removed when their directory's name is gone on the disk.
static void test_power_cut(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL, *all = xasprintf("%s/checkpoints", run);
    disk_replace(&power_disk);
    must_checkpoint(run, 2, 4);
    assert_false(is_dirty(all));
    assert_false(is_dirty(run));  // checkpoints/ is new there
    if (story(run, &error)) fail_msg("%s", error);
    power_end();
    assert_int_equal(power.commits, 3);
    assert_true(power.removals >= 5);
    nothing_torn(run, 0);
    free(all);
    remove_dir(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dies_everywhere),    cmocka_unit_test(test_dies_everywhere_without_exchange),
        cmocka_unit_test(test_disk_full),          cmocka_unit_test(test_short_writes),
        cmocka_unit_test(test_too_large),          cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_directory_vanishes), cmocka_unit_test(test_directory_made_anew),
        cmocka_unit_test(test_power_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
