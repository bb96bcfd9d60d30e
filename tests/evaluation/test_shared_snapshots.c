// The files of snapshots: the same for any number of ranks, whole or named.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/evaluation/snapshots.h"
#include "shared/hf/presets.h"
#include "shared/model/layout.h"
#include "tests/fixture.h"

static const struct snapshot_info taken = {.step = 40, .samples = 320, .updates = 39, .seconds = 1.5};

struct rig {
    char dir[64], path[80];
    struct layout *one;
    struct model_spec spec;
};

static int open_rig(void **state) {
    struct rig *r = xcalloc(1, sizeof *r);
    if (fixture_folder(r->dir, "snapshots") || model_spec_load("tiny", &r->spec)) return -1;
    snprintf(r->path, sizeof r->path, "%s/step-40", r->dir);
    r->one = model_layout_create(&r->spec, 1);
    *state = r;
    return 0;
}

static int close_rig(void **state) {
    struct rig *r = *state;
    unlink(r->path);
    layout_destroy(&r->one);
    int rc = rmdir(r->dir);
    free(r);
    return rc;
}

static uint16_t value_at(int u, int64_t i) { return (uint16_t)(31 * u + 7 * i + 1); }

// A rank of `ranks` writes its shard of every unit: what lies behind the last tensor is another padding's.
static void write_part(const struct rig *r, int rank, int ranks, bool finish) {
    struct layout *l = model_layout_create(&r->spec, ranks);
    struct snapshot_place place = {.path = r->path, .layout = l, .dtype = DT_BF16};
    char *why = NULL;
    struct snapshot_file *f = snapshot_file_create(&place, rank, ranks, &why);
    assert_non_null(f);
    for (int u = 0; u < l->count; u++) {
        int64_t shard = unit_shard(l, u), begin = shard * rank;
        uint16_t *values = xcalloc((unsigned long)shard, sizeof *values);
        for (int64_t i = 0; i < shard; i++)
            values[i] = begin + i < l->units[u].n ? value_at(u, begin + i) : 0xffff;
        assert_int_equal(snapshot_file_write(f, u, begin, begin + shard, values), 0);
        free(values);
    }
    if (finish) assert_int_equal(snapshot_file_finish(f, rank == 0 ? &taken : NULL), 0);
    snapshot_file_close(&f);
    layout_destroy(&l);
}

static void refused(const struct rig *r, enum dtype dt, const char *reason) {
    struct snapshot_place place = {.path = r->path, .layout = r->one, .dtype = dt};
    struct snapshot_info found;
    char *why = NULL;
    assert_null(snapshot_file_open(&place, &found, &why));
    assert_non_null(strstr(why, r->path));
    if (!strstr(why, reason)) fail_msg("%s: not said: %s", why, reason);
    free(why);
}

static void any_number_of_ranks_writes_the_same(void **state) {
    const struct rig *r = *state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        unlink(r->path);
        for (int rank = ranks - 1; rank >= 0; rank--) write_part(r, rank, ranks, true);
        struct snapshot_place place = {.path = r->path, .layout = r->one, .dtype = DT_BF16};
        struct snapshot_info found;
        char *why = NULL;
        struct snapshot_file *f = snapshot_file_open(&place, &found, &why);
        if (!f) fail_msg("%s", why);
        assert_true(found.step == 40 && found.samples == 320 && found.updates == 39 && found.seconds == 1.5);
        for (int u = 0; u < r->one->count; u++) {
            const struct unit *unit = &r->one->units[u];
            uint16_t *values = xcalloc((unsigned long)unit->n_pad, sizeof *values);
            memset(values, 0xee, (size_t)unit->n_pad * sizeof *values);
            assert_int_equal(snapshot_file_read(f, u, values), 0);
            for (int64_t i = 0; i < unit->n_pad; i++)
                assert_int_equal(values[i], i < unit->n ? value_at(u, i) : 0);
            free(values);
        }
        snapshot_file_close(&f);
    }
}

static void what_is_not_whole_is_named(void **state) {
    const struct rig *r = *state;
    refused(r, DT_BF16, "No such file");
    write_part(r, 1, 3, true);
    refused(r, DT_BF16, "its first part is missing");
    write_part(r, 0, 3, true);
    refused(r, DT_BF16, "rank 2's part of 3 is missing");
    write_part(r, 2, 3, false);
    refused(r, DT_BF16, "rank 2's part of 3 is missing");
    write_part(r, 2, 3, true);
    refused(r, DT_F16, "another dtype");
    struct snapshot_place place = {.path = r->path, .layout = r->one, .dtype = DT_BF16};
    struct snapshot_info found;
    char *why = NULL;
    struct snapshot_file *f = snapshot_file_open(&place, &found, &why);
    assert_non_null(f);
    snapshot_file_close(&f);
    assert_int_equal(truncate(r->path, 5000), 0);
    refused(r, DT_BF16, "is cut short");
    assert_int_equal(truncate(r->path, 20), 0);
    refused(r, DT_BF16, "is cut short");
    FILE *other = fopen(r->path, "w");
    for (int i = 0; i < 5000; i++) fputs("words ", other);
    fclose(other);
    refused(r, DT_BF16, "no snapshot of this version");
}

// A full disk: the file's own reason, and no mark.
static void a_full_disk_is_an_error_of_the_file(void **state) {
    const struct rig *r = *state;
    struct snapshot_place place = {.path = "/dev/full", .layout = r->one, .dtype = DT_BF16};
    char *why = NULL;
    static const uint16_t values[64];
    struct snapshot_file *f = snapshot_file_create(&place, 0, 1, &why);
    assert_non_null(f);
    assert_int_equal(snapshot_file_write(f, 0, 0, 64, values), -1);
    assert_string_equal(snapshot_file_error(f), "/dev/full: No space left on device");
    assert_int_equal(snapshot_file_finish(f, &taken), -1);
    snapshot_file_close(&f);
    place.path = "/nowhere/step-1";
    assert_null(snapshot_file_create(&place, 0, 1, &why));
    assert_string_equal(why, "/nowhere/step-1: No such file or directory");
    free(why);
}

// ---------------------------------------------------------------- while training goes on
#define BIG (32 << 20)  // elements: they take much longer to write than the next update needs to begin

struct big {
    struct topology t;  // first: the hook casts
    uint16_t *weights;
};

static void big_part(struct topology *t, int u, struct weights_part *out) {
    *out = (struct weights_part){.weights = ((struct big *)t)->weights, .end = t->layout->units[u].n_pad};
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
    const struct topology_ops ops = {.name = "big", .part = big_part};
    const struct config c = {.eval_every = 1, .eval_batches = EVAL_ALL, .steps = 9};
    layout_finish(&l, 1);
    assert_int_equal(dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 1}, &dev), 0);
    struct big b = {.t = {.ops = &ops, .layout = &l, .dev = dev, .dtype = DT_BF16, .size = 1}};
    b.t.compute = stream_create(dev, "compute");
    b.weights = xcalloc((unsigned long)unit.n_pad, sizeof *b.weights);
    for (int64_t i = 0; i < BIG; i++) b.weights[i] = 1;
    struct snapshots *s =
        snapshots_create(&(struct snapshots_options){.config = &c, .dir = r->dir, .topology = &b.t});
    assert_non_null(s);
    snapshots_begin(s, 0);
    snapshots_step(s, &taken, false);  // after its last step a run has other ways
    struct snapshot_info first = {.step = 1, .samples = 4, .updates = 1};
    snapshots_step(s, &first, false);
    snapshots_hold(s);
    stream_host(b.t.compute, "update", next_update, b.weights);
    assert_int_equal(stream_sync(b.t.compute), 0);
    assert_int_equal(b.weights[BIG - 1], 2);
    snapshots_end(s);
    snapshots_destroy(&s);
    char *path = xasprintf("%s/snapshots/step-1", r->dir), *dir = xasprintf("%s/snapshots", r->dir);
    struct snapshot_place place = {.path = path, .layout = &l, .dtype = DT_BF16};
    struct snapshot_info found;
    char *error = NULL;
    struct snapshot_file *f = snapshot_file_open(&place, &found, &error);
    if (!f) fail_msg("%s", error);
    assert_int_equal(snapshot_file_read(f, 0, b.weights), 0);
    for (int64_t i = 0; i < BIG; i += 511) assert_int_equal(b.weights[i], 1);
    snapshot_file_close(&f);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);  // nothing of the last step
    free(path);
    free(dir);
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
