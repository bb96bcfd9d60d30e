// What a server leaves of itself and of its neighbour where somebody has died: what is whole is not touched again, a
// disk without room is told of, and nobody who comes late spoils a file.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ps/server/rescue_part.h"
#include "shared/core/disk.h"
#include "shared/state/checkpoint.h"
#include "tests/ps/test_ps_log.h"

enum { STEPS = 7, RESCUE = 9001, WAIT_MS = 20000 };

struct fixture {
    struct sim *sim;  // lends config, layout and map
    char *run, *dir;  // dir: of the checkpoint
    struct server_buffers *own, *twins;
    struct rescue_part_options o;
    struct rescue_part *part;
    const char *trouble;  // of the replica: why it cannot be brought to the step
    _Atomic int settled;
};

static char *make_dir(void) {
    char dir[] = "/tmp/starring-part-XXXXXX";
    assert_non_null(mkdtemp(dir));
    return xstrdup(dir);
}

static void remove_dir(char *dir) {
    char *command = xasprintf("rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
    free(command);
    free(dir);
}

// A disk with room for directories alone.
static int full_open(const char *path, int flags, mode_t mode) {
    if (!(flags & O_CREAT)) return disk_system.open(path, flags, mode);
    errno = ENOSPC;
    return -1;
}

static int settle(void *ctx, bool replica, int64_t steps, const struct update_scalars *last,
                  char why[WIRE_TEXT_MAX]) {
    struct fixture *f = ctx;
    f->settled++;
    assert_true(steps == STEPS && last->skip && last->grad_scale == 2);
    if (!replica || !f->trouble) return 0;
    snprintf(why, WIRE_TEXT_MAX, "%s", f->trouble);
    return -1;
}

static struct server_buffers *buffers(const struct fixture *f, float x) {
    struct server_buffers *b = xcalloc((unsigned long)f->sim->map->count, sizeof *b);
    for (int key = 0; key < f->sim->map->count; key++) {
        const struct partition *p = &f->sim->map->parts[key];
        int64_t n = p->end - p->begin;
        for (int kind = 0; kind <= f->sim->c.optimizer.row->states; kind++) {
            float *values = xcalloc((unsigned long)n, sizeof *values);
            for (int64_t i = 0; i < n; i++) values[i] = x + (float)(1000 * key + 100 * kind + i);
            if (kind == 0)
                b[key].master = values;
            else
                b[key].state[kind - 1] = values;
        }
    }
    return b;
}

static void free_buffers(const struct fixture *f, struct server_buffers *b) {
    for (int key = 0; key < f->sim->map->count; key++) {
        free(b[key].master);
        for (int i = 0; i < f->sim->c.optimizer.row->states; i++) free(b[key].state[i]);
    }
    free(b);
}

static void fixture_open(struct fixture *f) {
    struct toy_case t = {.consistency = "sync",
                         .workers = 1,
                         .servers = 2,
                         .threads = 1,
                         .steps = 1,
                         .overflow_step = -1,
                         .replicate = true};
    *f = (struct fixture){.sim = sim_create(&t), .run = make_dir()};
    f->dir = checkpoint_partial(f->run, CHECKPOINT_ALL, STEPS, RESCUE);
    f->own = buffers(f, 0);
    f->twins = buffers(f, 0.5f);
    f->o = (struct rescue_part_options){.config = &f->sim->c,
                                        .layout = f->sim->l,
                                        .map = f->sim->map,
                                        .run_dir = f->run,
                                        .own = f->own,
                                        .replica = f->twins,
                                        .ctx = f,
                                        .settle = settle};
}

static void fixture_close(struct fixture *f) {
    rescue_part_destroy(&f->part);
    free_buffers(f, f->own);
    free_buffers(f, f->twins);
    sim_destroy(f->sim);
    free(f->dir);
    remove_dir(f->run);
}

static void ask(struct fixture *f, bool replica) {
    const struct wire_header h = {.kind = WIRE_RESCUE,
                                  .step = STEPS,
                                  .seq = RESCUE,
                                  .grad_scale = 2,
                                  .flags = WIRE_SKIP,
                                  .count = 1,
                                  .values = {replica}};
    rescue_part_asked(&f->part, &f->o, &h);
}

// Both parts have been left, or refused: a thread is not begun again for them.
static void await(const struct fixture *f, int settled, const char *sidecar) {
    struct wire_header answer;
    for (int ms = 0;; ms++) {
        bool there = part_file_is_there(f->dir, sidecar);
        if (f->settled >= settled && (there || rescue_part_failed(f->part, &answer))) return;
        assert_true(ms < WAIT_MS);
        usleep(1000);
    }
}

static struct stat file_of(const struct fixture *f, int server) {
    struct stat st;
    char *path = xasprintf("%s/server-%d.safetensors", f->dir, server);
    assert_int_equal(stat(path, &st), 0);
    free(path);
    return st;
}

// Server 1's part, as it wrote that itself.
static void server_1_leaves(const struct fixture *f) {
    const struct state_file_options so = {.config = f->o.config,
                                          .layout = f->o.layout,
                                          .map = f->o.map,
                                          .rank = 1,
                                          .run_dir = f->run,
                                          .step = STEPS,
                                          .life = RESCUE};
    char *error = NULL;
    struct state_file *file = state_file_create(&so, &error);
    int count, *keys = state_file_keys(f->o.map, 1, &count);
    assert_true(count > 0);
    for (int i = 0; i < count; i++)
        state_file_write(file, &(struct key_counts){.key = keys[i]}, &f->twins[keys[i]], NULL);
    assert_int_equal(state_file_finish(&file, &error), 0);
    free(keys);
}

static void test_both_parts(void **state) {
    (void)state;
    struct fixture f;
    struct wire_header answer;
    fixture_open(&f);
    ask(&f, false);
    await(&f, 1, "server-0");
    assert_false(part_file_is_there(f.dir, "server-1"));
    ask(&f, true);
    await(&f, 2, "server-1");
    assert_false(rescue_part_failed(f.part, &answer));
    struct stat by_neighbour = file_of(&f, 1), again;
    ask(&f, true);  // repeated: nothing is written again
    usleep(20000);
    again = file_of(&f, 1);
    assert_true(again.st_ino == by_neighbour.st_ino && again.st_size == by_neighbour.st_size &&
                f.settled == 2);
    fixture_close(&f);
}

// The server has left its part, and then died: the scheduler may complete the checkpoint at any moment, and nobody may
// write to a file of it any more.
static void test_what_is_whole_stays(void **state) {
    (void)state;
    struct fixture f;
    struct wire_header answer;
    fixture_open(&f);
    server_1_leaves(&f);
    f.trouble = "nobody asks for the replica";
    struct stat own = file_of(&f, 1);
    ask(&f, true);
    await(&f, 1, "server-0");
    usleep(20000);
    assert_false(rescue_part_failed(f.part, &answer));
    rescue_part_destroy(&f.part);
    struct stat later = file_of(&f, 1);
    assert_true(own.st_ino == later.st_ino && own.st_mtim.tv_nsec == later.st_mtim.tv_nsec &&
                own.st_mtim.tv_sec == later.st_mtim.tv_sec);
    fixture_close(&f);
}

// It died, or stands still, in the middle of its file: the replica's is another file, whatever is written to that one.
static void test_half_a_file(void **state) {
    (void)state;
    struct fixture f, g;
    fixture_open(&f);
    fixture_open(&g);
    server_1_leaves(&g);
    char *path = xasprintf("%s/server-1.safetensors", f.dir), *above = xasprintf("%s/checkpoints", f.run);
    assert_int_equal(mkdir(above, 0777), 0);
    assert_int_equal(mkdir(f.dir, 0777), 0);
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    assert_int_equal(write(fd, "half", 4), 4);
    ask(&f, true);
    await(&f, 2, "server-1");
    assert_int_equal(pwrite(fd, "late", 4, 8), 4);
    close(fd);
    char *whole = xasprintf("%s/server-1.safetensors", g.dir), *same = xasprintf("cmp -s %s %s", path, whole);
    assert_int_equal(system(same), 0);
    free(same);
    free(whole);
    free(path);
    free(above);
    fixture_close(&g);
    fixture_close(&f);
}

// No room for the reason either: it is told.
static void test_disk_full(void **state) {
    (void)state;
    struct fixture f;
    struct wire_header answer;
    fixture_open(&f);
    struct disk_ops full = disk_system;
    full.open = full_open;
    disk_replace(&full);
    ask(&f, false);
    await(&f, 1, "server-0");
    rescue_part_failed(f.part, &answer);
    assert_true(answer.kind == WIRE_RESCUE && answer.seq == RESCUE);
    assert_ptr_equal(strstr(answer.text, "checkpoints/.step-7."), answer.text);
    assert_non_null(strstr(answer.text, strerror(ENOSPC)));
    rescue_part_destroy(&f.part);
    disk_replace(&disk_system);
    assert_false(part_file_is_there(f.dir, "server-0"));
    fixture_close(&f);
}

static void test_a_replica_that_is_none(void **state) {
    (void)state;
    struct fixture f;
    struct wire_header answer;
    fixture_open(&f);
    f.trouble = "it is at step 3";
    ask(&f, true);
    await(&f, 2, "server-1");
    assert_true(rescue_part_failed(f.part, &answer));
    assert_string_equal(answer.text, "it is at step 3");
    assert_true(part_file_is_there(f.dir, "server-0"));
    assert_false(part_file_is_there(f.dir, "server-1"));
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_parts),
        cmocka_unit_test(test_what_is_whole_stays),
        cmocka_unit_test(test_half_a_file),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_a_replica_that_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
