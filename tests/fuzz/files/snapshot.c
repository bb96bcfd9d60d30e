// A snapshot (shared/state/checkpoint.h: the weights alone), written by one to three ranks, with bytes of a rank's file changed
// or cut: what is read is what was written.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/model/layout.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/manifest.h"
#include "tests/fuzz/fuzz.h"

#define FILE_MAX  (64 << 10)
#define PARTS_MAX 3

static struct layout *small_layout(void) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = 2;
    l->units = xcalloc(2, sizeof *l->units);
    for (int u = 0; u < 2; u++) {
        struct unit *unit = &l->units[u];
        snprintf(unit->name, sizeof unit->name, "u%d", u);
        unit->count = 1;
        unit->tensors[0] = (struct tensor){.shape = {100 + u, 1}, .dims = 1};
        snprintf(unit->tensors[0].name, sizeof unit->tensors[0].name, "u%d.t", u);
    }
    layout_finish(l, 2);
    return l;
}

static void write_parts(const struct layout *l, int parts) {
    static const char *const names[PARTS_MAX] = {"worker-0", "worker-1", "worker-2"};
    const struct train_state train = {.step = 7, .samples = 28, .updates = 7};
    char *error = NULL, *dir = checkpoint_partial(fuzz_dir(), CHECKPOINT_WEIGHTS, 7, 1);
    for (int part = 0; part < parts; part++) {
        struct state_range ranges[2];
        for (int u = 0; u < 2; u++) {
            int64_t n = l->units[u].n_pad;
            ranges[u] = (struct state_range){
                .unit = u, .kind = STATE_WEIGHTS, .begin = n * part / parts, .end = n * (part + 1) / parts};
        }
        const struct part_options o = {.dir = dir,
                                       .participant = names[part],
                                       .layout = l,
                                       .dtype = DT_F32,
                                       .ranges = ranges,
                                       .count = 2};
        struct part_file *f = part_file_create(&o, &error);
        FUZZ_CHECK(f, "%s", error);
        for (int u = 0; u < 2; u++) {
            float *x = xcalloc((unsigned long)l->units[u].n_pad, sizeof *x);
            for (int64_t i = 0; i < l->units[u].n_pad; i++) x[i] = (float)(u * 1000 + i);
            part_file_write(f, u, ranges[u].begin, ranges[u].end, x + ranges[u].begin);
            free(x);
        }
        FUZZ_CHECK(part_file_finish(&f, &error) == 0, "%s", error);
    }
    const struct checkpoint_commit c = {.run_dir = fuzz_dir(),
                                        .kind = CHECKPOINT_WEIGHTS,
                                        .start_number = 1,
                                        .participants = names,
                                        .count = parts,
                                        .train = &train,
                                        .dtype = "fp32",
                                        .optimizer = "AdamW"};
    FUZZ_CHECK(checkpoint_complete(&c, NULL, &error) == 0, "%s", error);
    free(dir);
}

// The bytes of worker-0's file, spoiled. Whether any is another now.
static bool spoil(struct fuzz_bytes *in, const char *path) {
    uint8_t *bytes = xcalloc(FILE_MAX, 1), *before = xcalloc(FILE_MAX, 1);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, FILE_MAX, f) : 0, was = n;
    if (f) fclose(f);
    memcpy(before, bytes, n);
    while (in->left) {
        uint8_t how = fuzz_u8(in);
        size_t at = (size_t)fuzz_word(in, how & 1 ? 1 : 2);
        if (how & 2 && n) n = how & 4 ? at % (n + 1) : n;
        for (int i = 0; i < 1 + (how >> 4) && at < n; i++) bytes[at++] = fuzz_u8(in);
    }
    f = fopen(path, "wb");
    FUZZ_CHECK(f && fwrite(bytes, 1, n, f) == n, "%s", path);
    fclose(f);
    bool other = n != was || memcmp(before, bytes, n) != 0;
    free(before);
    free(bytes);
    return other;
}

FUZZ_TARGET(snapshot) {
    struct fuzz_bytes in = {data, size};
    struct layout *l = small_layout();
    uint8_t how = fuzz_u8(&in);
    write_parts(l, 1 + how % PARTS_MAX);
    char *path = checkpoint_path_of(fuzz_dir(), CHECKPOINT_WEIGHTS, 7),
         *part = xasprintf("%s/worker-0.safetensors", path);
    bool other = spoil(&in, part);
    error_clear();
    struct checkpoint *c = checkpoint_open(path);
    FUZZ_CHECK(c || (error_last()[0] && strstr(error_last(), "step-7")), "refused without a name");
    for (int u = 0; c && u < 2; u++) {
        const struct tensor *t = &l->units[u].tensors[0];
        float *x = xcalloc((unsigned long)l->units[u].n_pad, sizeof *x);
        int rc = checkpoint_weights(c, l, u, x);
        FUZZ_CHECK(rc == 0 || error_last()[0], "refused in silence");
        FUZZ_CHECK(rc != 0 || !other || how % PARTS_MAX, "a file that is another is read");
        for (int64_t i = t->offset; rc == 0 && i < t->offset + t->numel; i++)
            FUZZ_CHECK(x[i] == (float)(u * 1000 + i), "unit %d is read as other numbers", u);
        free(x);
    }
    checkpoint_close(&c);
    checkpoint_drop(fuzz_dir(), CHECKPOINT_WEIGHTS, 7);
    free(part);
    free(path);
    layout_destroy(&l);
}
