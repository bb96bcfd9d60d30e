// Checkpoints that were written come back, whoever reads them; which one is taken, which are removed.
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "tests/state/state_helper.h"

static void test_any_padding(void **state) {
    (void)state;
    char *run = make_dir();
    for (int world = 1; world <= 4; world++) must_checkpoint(run, world, world);
    for (int world = 1; world <= 4; world++)
        for (int reader = 1; reader <= 5; reader++) assert_int_equal(toy_read_step(run, reader, world), 0);
    assert_int_equal(names_in(run), 4);
    remove_dir(run);
}

// Any range of a unit, also one that begins and ends inside of tensors, gaps and pads.
static void test_any_range(void **state) {
    (void)state;
    char *run = make_dir();
    must_checkpoint(run, 3, 5);
    char *path = step_path(run, 5);
    struct checkpoint *c = checkpoint_open(path);
    struct layout *l = toy_layout(2);
    assert_non_null(c);
    float out[4096], *expected = toy_values(l, 1, 2, 5);
    for (int64_t begin = 0; begin <= l->units[1].n_pad; begin += 61)
        for (int64_t end = begin; end <= l->units[1].n_pad; end += 127) {
            memset(out, 0x7f, sizeof out);
            assert_int_equal(checkpoint_read(c, l, 1, 2, begin, end, out), 0);
            assert_memory_equal(out, expected + begin, (size_t)(end - begin) * sizeof *out);
        }
    error_quiet(1);
    assert_int_equal(checkpoint_read(c, l, 1, 3, 0, 10, out), -1);
    error_quiet(0);
    assert_non_null(strstr(error_last(), "has 2 optimizer states"));
    free(expected);
    layout_destroy(&l);
    checkpoint_close(&c);
    free(path);
    remove_dir(run);
}

static void test_what_is_no_tensor(void **state) {
    (void)state;
    char *run = make_dir();
    must_checkpoint(run, 2, 9);
    char *path = step_path(run, 9);
    struct checkpoint *c = checkpoint_open(path);
    assert_non_null(c);
    struct train_state s = toy_train(9);
    const struct train_state *t = checkpoint_train(c);
    assert_true(t->step == 9 && t->updates == 8 && t->samples == 72 && t->handed_out == 81);
    assert_true(t->skipped_in_a_row == 1 && t->scaler.scale == s.scaler.scale && t->scaler.iter == 9);
    assert_true(t->scaler.last_overflow == -1 && t->scaler.hysteresis_left == 2);
    assert_string_equal(checkpoint_identity(c, "seed"), "42");
    assert_null(checkpoint_identity(c, "steps"));
    assert_string_equal(checkpoint_dtype(c), "bf16");
    assert_string_equal(checkpoint_optimizer(c), "AdamW");
    assert_int_equal(checkpoint_states(c), STATES);
    int64_t v[3];
    for (int r = 0; r < 2; r++) {
        assert_int_equal(checkpoint_extra(c, r ? "worker-1" : "worker-0", "version/keys", v, 3), 0);
        for (int i = 0; i < 3; i++) assert_true(v[i] == 100 * r + i - (1LL << 60));
    }
    assert_int_equal(checkpoint_extra(c, NULL, "version/keys", v, 3), 0);
    assert_int_equal(checkpoint_extra(c, NULL, "version/others", v, 3), 1);
    assert_int_equal(checkpoint_extra(c, "worker-7", "version/keys", v, 3), 1);
    error_quiet(1);
    assert_int_equal(checkpoint_extra(c, NULL, "version/keys", v, 2), -1);
    error_quiet(0);
    checkpoint_close(&c);
    free(path);
    remove_dir(run);
}

// Sizes and hashes of the manifest are those of the files; no byte for gaps and padding.
static void test_files_are_what_is_said(void **state) {
    (void)state;
    char *run = make_dir();
    must_checkpoint(run, 2, 3);
    int64_t floats = 0;
    for (int r = 0; r < 2; r++) {
        char *path = xasprintf("%s/checkpoints/step-3/worker-%d.safetensors", run, r), hash[20];
        char *manifest = xasprintf("%s/checkpoints/step-3/manifest.json", run);
        size_t bytes, n;
        char *data = read_whole(path, &bytes), *text = read_whole(manifest, &n);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH64(data, bytes, 0));
        assert_non_null(strstr(text, hash));
        uint64_t header;
        memcpy(&header, data, 8);
        floats += ((int64_t)bytes - 8 - (int64_t)header - 3 * 8) / 4;
        free(text);
        free(data);
        free(manifest);
        free(path);
    }
    struct layout *l = toy_layout(1);
    assert_int_equal(floats, l->params * (1 + STATES));
    layout_destroy(&l);
    char *side = xasprintf("%s/checkpoints/step-3/worker-0.json", run);
    assert_int_not_equal(access(side, F_OK), 0);
    free(side);
    remove_dir(run);
}

struct late {
    const char *run;
    int rc;
};
static void *late_writer(void *at) {
    struct late *x = at;
    char *error = NULL;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    x->rc = toy_write_part(x->run, 1, 2, 4, &error);
    free(error);
    return NULL;
}

static void test_waits_for_all(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL;
    struct late x = {.run = run};
    pthread_t thread;
    assert_int_equal(toy_write_part(run, 0, 2, 4, &error), 0);
    pthread_create(&thread, NULL, late_writer, &x);
    assert_int_equal(toy_complete(run, 2, 4, &error), 0);
    pthread_join(thread, NULL);
    assert_int_equal(x.rc, 0);
    assert_int_equal(toy_read_step(run, 2, 4), 0);
    remove_dir(run);
}

static ssize_t no_room(int fd, const void *data, size_t bytes) {
    (void)fd, (void)data, (void)bytes;
    errno = ENOSPC;
    return -1;
}

// The end of the run, a participant that stands still or says no, also where the disk has no room for its words.
static void test_gives_up(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL;
    must_checkpoint(run, 2, 4);
    struct train_state train = toy_train(6);
    struct checkpoint_commit c = toy_commit(run, 2, &train);
    _Atomic int quit = 1;
    assert_int_equal(toy_write_part(run, 0, 2, 6, &error), 0);
    assert_int_equal(checkpoint_complete(&c, &quit, &error), -1);
    assert_non_null(strstr(error, "step 6 was given up: the run ended while worker-1 had not"));
    assert_non_null(strstr(error, "step-4 is kept"));
    free(error);
    error = NULL;
    c.stall_seconds = 0.05;
    assert_int_equal(checkpoint_complete(&c, NULL, &error), -1);
    assert_non_null(strstr(
        error,
        "timeout: no file grew while worker-0, worker-1 had not written all of it: none of their files is in "));
    assert_non_null(
        strstr(error, "/checkpoints, which must be one directory, shared by all hosts; step-4 is kept"));
    free(error);
    error = NULL;
    char *dir = checkpoint_partial(run, CHECKPOINT_ALL, 6, LIFE);
    part_file_refuse(dir, "worker-1", "is still busy");
    assert_int_equal(checkpoint_complete(&c, NULL, &error), -1);
    assert_non_null(strstr(error, "worker-1: is still busy; step-4 is kept"));
    free(error);
    error = NULL;
    struct disk_ops full = disk_system;
    full.write = no_room;
    disk_replace(&full);
    part_file_refuse(dir, "worker-1", "is still busy");
    disk_replace(&disk_system);
    assert_int_equal(checkpoint_complete(&c, NULL, &error), -1);
    assert_non_null(strstr(error, "worker-1: could not write it, nor the reason; step-4 is kept"));
    free(error);
    free(dir);
    assert_int_equal(names_in(run), 1);
    remove_dir(run);
}

static void test_out_of_order(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL, *dir = checkpoint_partial(run, CHECKPOINT_ALL, 1, LIFE);
    struct layout *l = toy_layout(1);
    const struct state_range ranges[2] = {{.unit = 0, .end = 300}, {.unit = 2, .begin = 10, .end = 20}};
    struct part_options o = {
        .dir = dir, .participant = "worker-0", .layout = l, .ranges = ranges, .count = 2};
    const float x[300] = {0};
    static const struct {
        int range;
        int64_t begin, end;
    } wrong[] = {{0, 5, 10}, {1, 10, 20}, {0, 0, 301}, {2, 0, 1}};
    for (int i = 0; i < 4; i++) {
        struct part_file *f = part_file_create(&o, &error);
        assert_int_equal(part_file_write(f, wrong[i].range, wrong[i].begin, wrong[i].end, x), -1);
        assert_int_equal(part_file_finish(&f, &error), -1);
        assert_non_null(strstr(error, "out of order"));
        free(error);
        error = NULL;
    }
    struct part_file *f = part_file_create(&o, &error);
    assert_int_equal(part_file_write(f, 0, 0, 300, x), 0);
    assert_int_equal(part_file_finish(&f, &error), -1);
    assert_non_null(strstr(error, "range 1 ends at element 10, not at 20"));
    free(error);
    layout_destroy(&l);
    free(dir);
    remove_dir(run);
}

// ---------------------------------------------------------------- which one
static void resolves(const char *text, const char *run, const char *expected, const char *why) {
    char *error = NULL, *path = checkpoint_resolve(text, run, &error);
    if (expected && (!path || !ends_with(path, expected) || path[0] != '/'))
        fail_msg("%s: %s (%s)", text, path ? path : "nothing", error ? error : "");
    if (!expected) assert_null(path);
    if (!expected && why && (!error || !strstr(error, why)))
        fail_msg("%s: %s", text, error ? error : "no reason");
    if (!why) assert_null(error);
    free(error);
    free(path);
}

static void test_resolve(void **state) {
    (void)state;
    char *run = make_dir(), *other = xasprintf("%s/checkpoints/step-9", run), *error = NULL;
    resolves("latest", run, NULL, NULL);
    assert_null(checkpoint_latest(run));
    resolves("/nonexistent/x", run, NULL, "/nonexistent/x: No such file");
    resolves(run, "x", NULL, "neither a checkpoint (it has no manifest.json) nor a run's directory");
    assert_int_equal(toy_write_part(run, 0, 1, 7, &error), 0);
    resolves(run, "x", NULL, "only unfinished checkpoints (.step-7.");
    resolves("latest", run, NULL, NULL);
    assert_int_equal(toy_complete(run, 1, 7, &error), 0);
    must_checkpoint(run, 1, 20);
    must_checkpoint(run, 1, 9);
    resolves("latest", run, "/checkpoints/step-20", NULL);
    resolves(run, "x", "/checkpoints/step-20", NULL);
    resolves(other, "x", "/checkpoints/step-9", NULL);
    assert_int_equal(checkpoint_latest_step(run), 20);
    char *below = xasprintf("%s/checkpoints", run), *file = xasprintf("%s/step-9/manifest.json", below);
    resolves(below, "x", "/checkpoints/step-20", NULL);
    resolves(file, "x", NULL, "is no directory");
    // A directory that was not committed does not count, whatever its name.
    char *torn = xasprintf("%s/step-30", below);
    assert_int_equal(mkdir(torn, 0777), 0);
    resolves("latest", run, "/checkpoints/step-20", NULL);
    free(torn);
    free(below);
    free(file);
    free(other);
    remove_dir(run);
}

static void has_only(const char *run, const char *steps) {
    char found[200] = "";
    for (int s = 0; s < 100; s++)
        if (has_step(run, s)) sprintf(found + strlen(found), "%d ", s);
    assert_string_equal(found, steps);
}

static void test_rotation(void **state) {
    (void)state;
    char *run = make_dir();
    for (int s = 1; s <= 9; s++) must_checkpoint(run, 1, s);
    checkpoint_rotate(run, 0, 4);
    has_only(run, "1 2 3 4 5 6 7 8 9 ");
    checkpoint_rotate(run, 2, 4);
    has_only(run, "4 8 9 ");
    must_checkpoint(run, 1, 10);
    checkpoint_rotate(run, 2, 4);
    has_only(run, "4 8 9 10 ");
    checkpoint_rotate(run, 1, 0);
    has_only(run, "10 ");
    assert_int_equal(names_in(run), 1);
    for (int s = 11; s < 14; s++) must_checkpoint(run, 1, s);
    checkpoint_drop_later(run, CHECKPOINT_ALL, 11);
    has_only(run, "10 11 ");
    assert_int_equal(names_in(run), 2);
    remove_dir(run);
}

static void test_sweep(void **state) {
    (void)state;
    char *run = make_dir(), *error = NULL;
    must_checkpoint(run, 1, 2);
    assert_int_equal(toy_write_part(run, 0, 2, 8, &error), 0);
    char *foreign = checkpoint_partial(run, CHECKPOINT_ALL, 8, 77),
         *gone = xasprintf("%s/checkpoints/.step-1.0.gone", run);
    assert_int_equal(mkdir(foreign, 0777), 0);
    assert_int_equal(mkdir(gone, 0777), 0);
    assert_int_equal(names_in(run), 4);
    checkpoint_sweep(run, CHECKPOINT_ALL, LIFE);
    assert_int_equal(names_in(run), 2);
    assert_int_equal(toy_write_part(run, 1, 2, 8, &error), 0);
    assert_int_equal(toy_complete(run, 2, 8, &error), 0);
    assert_int_equal(toy_read_step(run, 1, 8), 0);
    // A participant that was still at a step which had been given up.
    assert_int_equal(toy_write_part(run, 0, 2, 5, &error), 0);
    must_checkpoint(run, 2, 9);
    assert_int_equal(names_in(run), 3);
    assert_int_equal(toy_write_part(run, 0, 2, 12, &error), 0);
    checkpoint_sweep(run, CHECKPOINT_ALL, 0);
    assert_int_equal(names_in(run), 3);
    free(gone);
    free(foreign);
    remove_dir(run);
    // Another rank of this life may be about to write where nothing is yet; behind all lives an empty folder goes.
    run = make_dir();
    char *all = xasprintf("%s/checkpoints", run);
    assert_int_equal(mkdir(all, 0777), 0);
    checkpoint_sweep(run, CHECKPOINT_ALL, LIFE);
    assert_int_equal(access(all, F_OK), 0);
    checkpoint_sweep(run, CHECKPOINT_ALL, 0);
    assert_int_not_equal(access(all, F_OK), 0);
    free(all);
    remove_dir(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_padding),       cmocka_unit_test(test_any_range),
        cmocka_unit_test(test_what_is_no_tensor), cmocka_unit_test(test_files_are_what_is_said),
        cmocka_unit_test(test_waits_for_all),     cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_out_of_order),      cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_rotation),          cmocka_unit_test(test_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
