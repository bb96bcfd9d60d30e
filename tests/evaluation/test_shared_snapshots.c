// Snapshots, checkpoints of the weights alone: the same for any number of ranks, whole or named.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/hf/presets.h"
#include "shared/model/layout.h"
#include "shared/state/checkpoint_read.h"
#include "shared/train/saver.h"
#include "tests/fixture.h"

#define LIFE 7
static const struct train_state taken = {.step = 40, .updates = 39, .samples = 320};

struct rig {
    char dir[64];
    struct layout *one;
    struct model_spec spec;
};

static int open_rig(void **state) {
    struct rig *r = xcalloc(1, sizeof *r);
    if (fixture_folder(r->dir, "snapshots") || model_spec_load("tiny", &r->spec)) return -1;
    r->one = model_layout_create(&r->spec, 1);
    *state = r;
    return 0;
}

static int close_rig(void **state) {
    struct rig *r = *state;
    layout_destroy(&r->one);
    int rc = fixture_remove(r->dir);
    free(r);
    return rc;
}

static uint16_t value_at(int u, int64_t i) { return (uint16_t)(31 * u + 7 * i + 1); }

// A rank of `ranks` writes its shard of every unit: what lies behind the last tensor is another padding's.
static int write_part(const struct rig *r, int rank, int ranks, char **why) {
    struct layout *l = model_layout_create(&r->spec, ranks);
    char *dir = checkpoint_partial(r->dir, CHECKPOINT_WEIGHTS, taken.step, LIFE), name[32];
    struct state_range *shards = xcalloc((unsigned long)l->count, sizeof *shards);
    snprintf(name, sizeof name, "worker-%d", rank);
    for (int u = 0; u < l->count; u++)
        shards[u] = (struct state_range){.unit = u,
                                         .kind = STATE_WEIGHTS,
                                         .begin = unit_shard(l, u) * rank,
                                         .end = unit_shard(l, u) * (rank + 1)};
    struct part_file *f = part_file_create(&(struct part_options){.dir = dir,
                                                                  .participant = name,
                                                                  .layout = l,
                                                                  .dtype = DT_BF16,
                                                                  .ranges = shards,
                                                                  .count = l->count},
                                           why);
    for (int u = 0; f && u < l->count; u++) {
        int64_t begin = shards[u].begin, n = shards[u].end - begin;
        uint16_t *values = xcalloc((unsigned long)n, sizeof *values);
        for (int64_t i = 0; i < n; i++)
            values[i] = begin + i < l->units[u].n ? value_at(u, begin + i) : 0xffff;
        part_file_write(f, u, begin, begin + n, values);
        free(values);
    }
    int rc = f ? part_file_finish(&f, why) : -1;
    free(shards);
    free(dir);
    layout_destroy(&l);
    return rc;
}

static int commit(const struct rig *r, int ranks, char **why) {
    static const char *const names[] = {"worker-0", "worker-1", "worker-2"};
    return checkpoint_complete(&(struct checkpoint_commit){.run_dir = r->dir,
                                                           .kind = CHECKPOINT_WEIGHTS,
                                                           .seconds = 1.5,
                                                           .start_number = LIFE,
                                                           .participants = names,
                                                           .count = ranks,
                                                           .train = &taken,
                                                           .dtype = "bf16",
                                                           .optimizer = "AdamW",
                                                           .stall_seconds = 0.05},
                               NULL, why);
}

static struct checkpoint *open_it(const struct rig *r) {
    char *path = checkpoint_path_of(r->dir, CHECKPOINT_WEIGHTS, taken.step);
    struct checkpoint *c = checkpoint_open(path);
    free(path);
    return c;
}

static void write_all(const struct rig *r, int ranks) {
    char *why = NULL;
    for (int rank = ranks - 1; rank >= 0; rank--)
        if (write_part(r, rank, ranks, &why)) fail_msg("%s", why);
    if (commit(r, ranks, &why)) fail_msg("%s", why);
}

static void any_number_of_ranks_writes_the_same(void **state) {
    const struct rig *r = *state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        write_all(r, ranks);
        struct checkpoint *c = open_it(r);
        assert_non_null(c);
        const struct train_state *found = checkpoint_train(c);
        assert_true(found->step == 40 && found->samples == 320 && found->updates == 39);
        assert_true(checkpoint_is_weights(c) && checkpoint_seconds(c) == 1.5);
        for (int u = 0; u < r->one->count; u++) {
            const struct unit *unit = &r->one->units[u];
            uint16_t *values = xcalloc((unsigned long)unit->n_pad, sizeof *values);
            memset(values, 0xee, (size_t)unit->n_pad * sizeof *values);
            assert_int_equal(checkpoint_weights(c, r->one, u, values), 0);
            for (int k = 0; k < unit->count; k++) {
                const struct tensor *t = &unit->tensors[k];
                for (int64_t i = t->offset; i < t->offset + t->numel; i++)
                    assert_int_equal(values[i], value_at(u, i));
            }
            for (int64_t i = unit->n; i < unit->n_pad; i++) assert_int_equal(values[i], 0);
            free(values);
        }
        checkpoint_close(&c);
    }
    int count;
    int64_t *steps = checkpoint_steps(r->dir, CHECKPOINT_WEIGHTS, &count);
    assert_true(count == 1 && steps[0] == 40);
    free(steps);
    assert_int_equal(checkpoint_latest_step(r->dir), -1);  // nothing goes on from it
    checkpoint_drop(r->dir, CHECKPOINT_WEIGHTS, 40);
    assert_false(has_file(r->dir, "snapshots"));
}

static void refused(const struct rig *r, const char *reason) {
    float value;
    error_quiet(QUIET_ALL);
    struct checkpoint *c = open_it(r);
    int rc = c ? checkpoint_verify(c) : -1;
    if (rc == 0) rc = checkpoint_fits(c, r->one);
    if (rc == 0) rc = checkpoint_read(c, r->one, 0, STATE_MASTER, 0, 1, &value);
    error_quiet(QUIET_NOT);
    assert_int_equal(rc, -1);
    assert_non_null(strstr(error_last(), r->dir));
    if (!strstr(error_last(), reason)) fail_msg("%s: not said: %s", error_last(), reason);
    checkpoint_close(&c);
}

static void what_is_not_whole_is_named(void **state) {
    const struct rig *r = *state;
    char *why = NULL, *path = xasprintf("%s/snapshots/step-40/worker-1.safetensors", r->dir);
    refused(r, "no complete checkpoint");
    assert_int_equal(write_part(r, 1, 3, &why), 0);
    assert_int_equal(commit(r, 3, &why), -1);
    assert_non_null(strstr(why, "the snapshot of step 40 was given up"));
    assert_non_null(strstr(why, "worker-0, worker-2 had not written all of it"));
    free(why);
    write_all(r, 3);
    refused(r, "is a snapshot of the weights: it has neither masters nor optimizer states");
    FILE *f = fopen(path, "r+");
    fseek(f, -1, SEEK_END);
    fputc('x', f);
    fclose(f);
    refused(r, "is damaged");
    assert_int_equal(truncate(path, 500), 0);
    refused(r, "it is cut short or another file");
    assert_int_equal(unlink(path), 0);
    refused(r, "No such file");
    free(path);
}

// A full disk: the file's own reason, and the snapshot is given up.
static ssize_t full(int fd, const void *data, size_t bytes) {
    (void)fd, (void)data, (void)bytes;
    errno = ENOSPC;
    return -1;
}

static void a_full_disk_is_an_error_of_the_file(void **state) {
    const struct rig *r = *state;
    struct disk_ops ops = disk_system;
    char *why = NULL;
    ops.write = full;
    disk_replace(&ops);
    int rc = write_part(r, 0, 1, &why);
    disk_replace(&disk_system);
    assert_int_equal(rc, -1);
    assert_non_null(strstr(why, "worker-0.safetensors: cannot write: No space left on device"));
    free(why);
    why = NULL;
    assert_int_equal(commit(r, 1, &why), -1);
    assert_non_null(strstr(why, "worker-0: " CHECKPOINT_NO_REASON));
    free(why);
}

// ---------------------------------------------------------------- while training continues
#define BIG (32 << 20)  // elements: they take much longer to write than the next update needs to begin

struct big {
    struct topology t;  // first: the hook casts
    uint16_t *weights;
};

static int big_weights(struct topology *t, int u, struct state_range *out) {
    if (u > 0) return -1;
    *out = (struct state_range){
        .kind = STATE_WEIGHTS, .end = t->layout->units[u].n_pad, .data = ((struct big *)t)->weights};
    return 0;
}

// An update that begins with the last weights, which are written last.
static int next_update(void *arg) {
    uint16_t *weights = arg;
    for (int64_t i = BIG - 1; i >= BIG - 4096; i--) weights[i] = 2;
    return 0;
}

static void the_next_update_waits_for_the_file(void **state) {
    const struct rig *r = *state;
    const char *why = NULL;
    struct device *dev;
    struct unit unit = {.count = 1, .tensors = {{.name = "big", .shape = {BIG, 1}, .dims = 1}}};
    struct layout l = {.count = 1, .units = &unit};
    const struct topology_ops ops = {.name = "big", .weights = big_weights};
    const struct config c = {.eval_every = 1, .eval_batches = EVAL_ALL, .steps = 9};
    layout_finish(&l, 1);
    assert_int_equal(dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 1}, &dev), 0);
    struct big b = {.t = {.ops = &ops, .layout = &l, .dev = dev, .dtype = DT_BF16, .size = 1}};
    b.t.compute = stream_create(dev, "compute");
    b.weights = xcalloc((unsigned long)unit.n_pad, sizeof *b.weights);
    for (int64_t i = 0; i < BIG; i++) b.weights[i] = 1;
    struct saver *s = saver_create(&(struct saver_options){
        .config = &c, .dir = r->dir, .topology = &b.t, .start_number = LIFE, .evaluates = true});
    assert_non_null(s);
    saver_start(s, 0);
    saver_take_snapshot(s, &taken, 1, false);  // after its last step a run has other ways
    saver_take_snapshot(s, &(struct train_state){.step = 1, .samples = 4, .updates = 1}, 1, false);
    saver_delay_updates(s);
    stream_host(b.t.compute, "update", next_update, b.weights);
    assert_int_equal(stream_sync(b.t.compute), 0);
    assert_int_equal(b.weights[BIG - 1], 2);
    saver_destroy(&s);
    char *path = checkpoint_path_of(r->dir, CHECKPOINT_WEIGHTS, 1);
    struct checkpoint *found = checkpoint_open(path);
    assert_non_null(found);
    assert_int_equal(checkpoint_weights(found, &l, 0, b.weights), 0);
    for (int64_t i = 0; i < BIG; i += 511) assert_int_equal(b.weights[i], 1);
    checkpoint_close(&found);
    checkpoint_drop(r->dir, CHECKPOINT_WEIGHTS, 1);
    assert_false(has_file(r->dir, "snapshots"));  // nothing of the last step
    free(path);
    free(b.weights);
    stream_destroy(&b.t.compute);
    dev_close(&dev);
}

#define RIG(f) cmocka_unit_test_setup_teardown(f, open_rig, close_rig)

int main(void) {
    const struct CMUnitTest tests[] = {
        RIG(any_number_of_ranks_writes_the_same),
        RIG(what_is_not_whole_is_named),
        RIG(a_full_disk_is_an_error_of_the_file),
        RIG(the_next_update_waits_for_the_file),
    };
    return cmocka_run_group_tests_name("snapshots", tests, NULL, NULL);
}
