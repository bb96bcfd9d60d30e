// Snapshots that a star's worker 0 collects while training continues: the weights of exactly the wanted version, to the
// last bit, and nobody stopped for them.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/state/checkpoint_read.h"
#include "tests/fixture.h"
#include "tests/ps/test_ps_star.h"

// The disk of this test stands still for so long at its first write.
static _Atomic int stands_ms;

static ssize_t slow_write(int fd, const void *data, size_t bytes) {
    int ms = atomic_exchange(&stands_ms, 0);
    if (ms) usleep((useconds_t)ms * 1000);
    return write(fd, data, bytes);
}

static char *make_dir(void) {
    char *dir = xcalloc(64, 1);
    assert_int_equal(fixture_folder(dir, "collected"), 0);
    return dir;
}

static void remove_dir(char *dir) {
    assert_int_equal(fixture_remove(dir), 0);
    free(dir);
}

static void same_weights(const struct toy_case *t, const struct layout *l, struct checkpoint *c,
                         const struct toy_ref *ref, int64_t step) {
    for (int u = 0; u < l->count; u++) {
        size_t size = dtype_size(t->dtype);
        void *found = xcalloc((unsigned long)l->units[u].n_pad, size);
        assert_int_equal(checkpoint_weights(c, l, u, found), 0);
        if (memcmp(found, ref->weight[u], (size_t)l->units[u].n * size) != 0)
            fail_msg("step %d: unit %d is not the plain trainer's", (int)step, u);
        free(found);
    }
}

// NULL: there is none.
static struct checkpoint *open_step(const char *dir, int64_t step) {
    char *path = checkpoint_path_of(dir, CHECKPOINT_WEIGHTS, step);
    error_quiet(QUIET_ALL);
    struct checkpoint *c = checkpoint_open(path);
    error_quiet(QUIET_NOT);
    free(path);
    return c;
}

static void sync_snapshots(struct toy_case t, int64_t deadline_ms) {
    char *dir = make_dir();
    t.snapshots = dir;
    t.every = 1;
    struct job *j = job_create(&t);
    if (deadline_ms) j->c.ps.deadline_ms = deadline_ms;
    struct toy_ref ref = toy_ref_start(&t, j->l);
    job_run(j, NULL, t.workers);
    check_all_done(j);
    check_honest(j);  // what is collected is no payload
    for (int64_t step = 0; step + 1 < t.steps; step++) {
        toy_ref_step(&t, j->l, &j->c, &ref, step);
        struct checkpoint *c = open_step(dir, step + 1);
        if (!c) fail_msg("no snapshot of step %d", (int)step + 1);
        const struct train_state *at = checkpoint_train(c);
        assert_true(at->step == step + 1 && at->updates == ref.updates);
        assert_int_equal(at->samples, ref.updates * t.workers);
        same_weights(&t, j->l, c, &ref, step + 1);
        checkpoint_close(&c);
    }
    toy_ref_free(&ref);
    job_destroy(j);
    remove_dir(dir);
}

static void every_step_of_synchronous_workers(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct toy_case t = base_case();
        t.dtype = i == 3 ? DT_F16 : i == 1 ? DT_F32 : DT_BF16;
        t.clip = i == 1 ? 0.5f : 0.0f;
        t.servers = 1 + i % 2;
        t.overflow_step = i == 3 ? 2 : -1;  // the snapshot after a skipped step is the one before again
        t.far = i == 2;
        sync_snapshots(t, 0);
    }
}

// Each of many keys comes while the disk stands still for longer than the deadline: nobody is lost, the bits are the plain
// trainer's, and the next snapshot waits.
static void a_disk_that_stands_still(void **state) {
    (void)state;
    struct toy_case t = base_case();
    t.rows = 6000;  // more keys than a stream has places
    t.partition_bytes = 1;
    t.steps = 4;
    atomic_store(&stands_ms, 3000);
    struct disk_ops slow = disk_system;
    slow.write = slow_write;
    disk_replace(&slow);
    sync_snapshots(t, 1000);
    disk_replace(&disk_system);
    assert_int_equal(atomic_load(&stands_ms), 0);
}

// Versions pass while a snapshot is collected: some are left out, and what is there says which version it is of.
static void versions_that_pass_quickly(void **state) {
    (void)state;
    struct toy_case t = async_of(0.0f, DT_BF16);
    int count = 0;
    char *dir = make_dir();
    t.snapshots = dir;
    t.every = 1;
    t.workers = 1;
    t.servers = 2;
    t.steps = 40;
    struct job *j = job_create(&t);
    job_run(j, NULL, 1);
    check_all_done(j);
    check_honest(j);
    for (int64_t step = 0; step < t.steps; step++) {
        struct checkpoint *c = open_step(dir, step + 1);
        if (!c) continue;
        count++;
        assert_true(checkpoint_train(c)->updates >= step + 1 &&
                    checkpoint_train(c)->samples == checkpoint_train(c)->updates);
        checkpoint_close(&c);
    }
    assert_true(count >= 1);  // how many pass by meanwhile is the machine's
    job_destroy(j);
    remove_dir(dir);
}

static _Atomic int steps_of_0, steps_of_1;

// Worker 1 is far ahead when worker 0 takes its second step: the servers have kept what was asked for before. It does not
// run ahead until they have heard what is asked, which comes to them before worker 0's first gradients.
static int worker_1_runs_ahead(void *ctx, int rank, int64_t step) {
    (void)ctx;
    atomic_store(rank ? &steps_of_1 : &steps_of_0, (int)step);
    while (rank == 0 && step == 1 && atomic_load(&steps_of_1) < 9) usleep(1000);
    while (rank == 1 && step == 2 && atomic_load(&steps_of_0) < 1) usleep(1000);
    return 0;
}

static void asked_for_ahead_of_time(void **state) {
    (void)state;
    struct toy_case t = async_of(0.5f, DT_F32);
    char *dir = make_dir();
    t.snapshots = dir;
    t.every = 3;
    t.workers = 2;
    t.servers = 1;
    t.steps = 10;
    atomic_store(&steps_of_0, 0);
    atomic_store(&steps_of_1, 0);
    struct job *j = job_create(&t);
    j->on_step = worker_1_runs_ahead;
    job_run(j, NULL, 2);
    check_all_done(j);
    check_honest(j);
    // Three steps are six updates. Each key was answered by its sixth, while worker 0 slept.
    struct checkpoint *c = open_step(dir, 3);
    assert_non_null(c);
    assert_int_equal(checkpoint_train(c)->updates, 6);
    assert_int_equal(checkpoint_train(c)->samples, 6);
    checkpoint_close(&c);
    job_destroy(j);
    remove_dir(dir);
}

// A snapshot's answers are copies over tcp: counted, and within the limits of the check of memory.
static void answers_are_copies(void **state) {
    (void)state;
    char *dir = make_dir();
    struct toy_case t = base_case();
    t.workers = 1;  // no frame waits for its turn
    t.servers = 2;
    t.medium = MEDIUM_TCP;
    t.snapshots = dir;
    t.every = 1;
    struct job *j = job_create(&t);
    job_run(j, NULL, t.workers);
    check_all_done(j);
    for (int s = 0; s < t.servers; s++) {
        struct config c = j->c;
        struct prediction p = {0};
        c.eval_every = c.eval_batches = 1;
        assert_int_equal(topology_star.predict(&c, j->l, "server", s, &p), 0);
        double weights = (double)p.wire.sent_per_step, most = (double)j->report[s].transport_peak_bytes;
        p.wire.received_per_step = 0;
        assert_true(topology_star.allowance(&c, "server", &p).frame_bytes == weights);
        assert_true(most > 0 && most <= weights);
    }
    job_destroy(j);
    remove_dir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step_of_synchronous_workers),
        cmocka_unit_test(a_disk_that_stands_still),
        cmocka_unit_test(versions_that_pass_quickly),
        cmocka_unit_test(asked_for_ahead_of_time),
        cmocka_unit_test(answers_are_copies),
    };
    return cmocka_run_group_tests_name("collected snapshots", tests, NULL, NULL);
}
