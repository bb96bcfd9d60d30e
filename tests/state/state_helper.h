// A toy model's state, written as checkpoints by any number of participants in layouts of any padding.
#ifndef STARRING_TESTS_STATE_STATE_HELPER_H
#define STARRING_TESTS_STATE_STATE_HELPER_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/state/checkpoint_read.h"

#define STATES 2
#define LIFE   0x5f0c9a1d2b3e4f60ULL

// A unit with a gap and reserved elements, one with a vector, one of a single tensor.
static struct layout *toy_layout(int world) {
    static const struct tensor tensors[3][3] = {
        {{.name = "embedding.wte", .shape = {10, 30}, .dims = 2, .reserved = 256}},
        {{.name = "block.0.norm1", .shape = {30}, .dims = 1},
         {.name = "block.0.wqkv", .shape = {90, 30}, .dims = 2},
         {.name = "block.0.bqkv", .shape = {90}, .dims = 1}},
        {{.name = "head.norm", .shape = {30}, .dims = 1},
         {.name = "head.lm_head", .shape = {10, 30}, .dims = 2}}};
    static const int counts[3] = {1, 3, 2};
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = 3;
    l->units = xcalloc(3, sizeof *l->units);
    for (int u = 0; u < 3; u++) {
        snprintf(l->units[u].name, sizeof l->units[u].name, "unit%d", u);
        l->units[u].count = counts[u];
        memcpy(l->units[u].tensors, tensors[u], sizeof tensors[u]);
    }
    layout_finish(l, world);
    return l;
}

// The value of element i of a unit: zero outside of tensors.
static inline float toy_value(const struct layout *l, int u, int kind, int64_t i, int64_t step) {
    for (int k = 0; k < l->units[u].count; k++) {
        const struct tensor *t = &l->units[u].tensors[k];
        if (i >= t->offset && i < t->offset + t->numel)
            return (float)(t->logical_start + i - t->offset) + 0.25f * (float)kind + 1e5f * (float)step;
    }
    return 0;
}

static inline float *toy_values(const struct layout *l, int u, int kind, int64_t step) {
    float *x = xcalloc((unsigned long)l->units[u].n_pad, sizeof *x);
    for (int64_t i = 0; i < l->units[u].n_pad; i++) x[i] = toy_value(l, u, kind, i, step);
    return x;
}

static inline char *make_dir(void) {
    char *dir = xstrdup("/tmp/starring-state-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static inline void remove_dir(char *dir) {
    char *command = xasprintf("rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    free(command);
    free(dir);
}

static inline struct train_state toy_train(int64_t step) {
    return (struct train_state){
        .step = step,
        .updates = step - 1,
        .samples = 8 * step,
        .handed_out = 9 * step,
        .skipped_in_a_row = 1,
        .scaler = {.scale = 65536.0 / 3, .iter = step, .last_overflow = -1, .hysteresis_left = 2}};
}

// Rank r's shards of all units and kinds, each range in slices of an odd length. 0, or -1 with the text in *error.
static inline int toy_write_part(const char *run, int rank, int world, int64_t step, char **error) {
    struct layout *l = toy_layout(world);
    struct state_range ranges[3 * (1 + STATES)];
    int n = 0;
    for (int u = 0; u < l->count; u++)
        for (int kind = 0; kind <= STATES; kind++, n++)
            ranges[n] = (struct state_range){.unit = u,
                                             .kind = kind,
                                             .begin = rank * unit_shard(l, u),
                                             .end = (rank + 1) * unit_shard(l, u)};
    int64_t versions[3] = {0, 0, 0};
    const struct part_extra extra = {.name = "version/keys", .values = versions, .count = 3};
    char *dir = checkpoint_partial(run, CHECKPOINT_ALL, step, LIFE), *name = xasprintf("worker-%d", rank);
    const struct part_options o = {.dir = dir,
                                   .participant = name,
                                   .layout = l,
                                   .ranges = ranges,
                                   .count = n,
                                   .extra = &extra,
                                   .extras = 1};
    struct part_file *f = part_file_create(&o, error);
    for (int i = 0; f && i < n; i++) {
        float *x = toy_values(l, ranges[i].unit, ranges[i].kind, step);
        for (int64_t at = ranges[i].begin, end; at < ranges[i].end; at = end) {
            end = at + 333 < ranges[i].end ? at + 333 : ranges[i].end;
            if (part_file_write(f, i, at, end, x + at)) break;
        }
        free(x);
    }
    for (int i = 0; i < 3; i++) versions[i] = 100 * rank + i - (1LL << 60);  // known only now
    int rc = f ? part_file_finish(&f, error) : -1;
    free(name);
    free(dir);
    layout_destroy(&l);
    return rc;
}

static inline struct checkpoint_commit toy_commit(const char *run, int world,
                                                  const struct train_state *train) {
    static const char *const names[] = {"worker-0", "worker-1", "worker-2", "worker-3"};
    return (struct checkpoint_commit){.run_dir = run,
                                      .start_number = LIFE,
                                      .participants = names,
                                      .count = world,
                                      .train = train,
                                      .dtype = "bf16",
                                      .optimizer = "AdamW",
                                      .states = STATES,
                                      .stall_seconds = 20};
}

static inline int toy_complete(const char *run, int world, int64_t step, char **error) {
    struct train_state train = toy_train(step);
    struct checkpoint_commit c = toy_commit(run, world, &train);
    cJSON *identity = cJSON_CreateObject();
    cJSON_AddStringToObject(identity, "seed", "42");
    cJSON_AddStringToObject(identity, "model.layers", "1");
    c.identity = identity;
    int rc = checkpoint_complete(&c, NULL, error);
    cJSON_Delete(identity);
    return rc;
}

// All of it; 0, or -1 with the text.
static inline int toy_checkpoint(const char *run, int world, int64_t step, char **error) {
    for (int r = 0; r < world; r++)
        if (toy_write_part(run, r, world, step, error)) return -1;
    return toy_complete(run, world, step, error);
}

static inline void must_checkpoint(const char *run, int world, int64_t step) {
    char *error = NULL;
    if (toy_checkpoint(run, world, step, &error)) fail_msg("%s", error);
}

// Reads everything of a checkpoint into a layout padded for `world`. 0: each value is that of `step`; -1: refused, the
// text is error_last's. Another value fails the test.
static inline int toy_read(const char *path, int world, int64_t step) {
    struct checkpoint *c = checkpoint_open(path);
    if (!c) return -1;
    struct layout *l = toy_layout(world);
    int rc = checkpoint_train(c)->step == step ? 0 : -1;
    for (int u = 0; rc == 0 && u < l->count; u++)
        for (int kind = 0; rc == 0 && kind <= STATES; kind++) {
            float *expected = toy_values(l, u, kind, step), *x = toy_values(l, u, kind, 77);
            rc = checkpoint_read(c, l, u, kind, 0, l->units[u].n_pad, x);
            if (rc == 0 && memcmp(x, expected, (size_t)l->units[u].n_pad * sizeof *x) != 0)
                fail_msg("%s: unit %d, kind %d: other values than were written", path, u, kind);
            free(x);
            free(expected);
        }
    layout_destroy(&l);
    checkpoint_close(&c);
    return rc;
}

static inline char *step_path(const char *run, int64_t step) {
    return xasprintf("%s/checkpoints/step-%lld", run, (long long)step);
}

static inline int toy_read_step(const char *run, int world, int64_t step) {
    char *path = step_path(run, step);
    int rc = toy_read(path, world, step);
    free(path);
    return rc;
}

static inline bool has_step(const char *run, int64_t step) {
    char *path = step_path(run, step);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

// How many names lie in run/checkpoints.
static inline int names_in(const char *run) {
    char *dir = xasprintf("%s/checkpoints", run);
    DIR *d = opendir(dir);
    free(dir);
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    if (d) closedir(d);
    return n;
}

static inline char *read_whole(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = xcalloc(1 << 20, 1);
    *bytes = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

// Without emptying the file first: ext4 would bring the new bytes to disk when it is closed.
static inline void write_whole(const char *path, const char *text, size_t bytes) {
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), bytes);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    close(fd);
}

#endif
