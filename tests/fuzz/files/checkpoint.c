// A checkpoint's directory: its manifest, a participant's file, or the sidecar that says the file is complete; the first
// byte says which one the rest is. Sizes and hashes are made to agree, which no fuzzer finds by itself. A file that opens
// and fits a model can be read.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/hf/safetensors.h"
#include "shared/model/layout.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/manifest.h"
#include "tests/fuzz/fuzz.h"

#define PART "worker-0.safetensors"
#define SEAL "\n\t\"manifest_xxh64\":\t\"0000000000000000\"\n}\n"

static struct layout *tiny_layout(void) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = 1;
    l->units = xcalloc(1, sizeof *l->units);
    snprintf(l->units[0].name, sizeof l->units[0].name, "u");
    l->units[0].count = 1;
    l->units[0].tensors[0] = (struct tensor){.name = "u.t", .shape = {6, 1}, .dims = 1};
    layout_finish(l, 1);
    return l;
}

// The file holds each element of this kind once, as F32, and `out` is what it holds.
static void check_values(const struct layout *l, const char *kind, const float *out) {
    const struct tensor *t = &l->units[0].tensors[0];
    char *path = fuzz_path(PART), *begin = xasprintf("%s/%s@", kind, t->name);
    struct st_file *f = st_open(path);
    int64_t found = 0;
    for (int i = 0; f && i < st_count(f); i++) {
        const struct st_tensor *piece = st_at(f, i);
        if (strncmp(piece->name, begin, strlen(begin)) != 0) continue;
        int64_t at = atoll(piece->name + strlen(begin));
        FUZZ_CHECK(piece->dtype == DT_F32 && at >= 0 && at + piece->numel <= t->numel, "%s fits",
                   piece->name);
        FUZZ_CHECK(memcmp(out + t->offset + at, piece->data, (size_t)piece->numel * sizeof *out) == 0,
                   "%s is read as other numbers", piece->name);
        found += piece->numel;
    }
    FUZZ_CHECK(found == t->numel, "%s has %lld elements of %lld, and fits", kind, (long long)found,
               (long long)t->numel);
    st_close(&f);
    free(begin);
    free(path);
}

static void check_names(void) {
    struct manifest m;
    if (manifest_read(fuzz_dir(), &m) != 0) return;
    for (int i = 0; i < m.count; i++) {
        const char *name = m.files[i].name, *end = strstr(name, PART_ENDING);
        char *who = xasprintf("%.*s", end ? (int)(end - name) : 0, name);
        FUZZ_CHECK(end && participant_name(who), "a file called \"%s\"", name);
        for (int k = 0; k < i; k++) FUZZ_CHECK(strcmp(m.files[k].name, name) != 0, "%s twice", name);
        free(who);
    }
    manifest_free(&m);
}

static void read_all(const struct layout *l) {
    error_clear();
    struct checkpoint *c = checkpoint_open(fuzz_dir());
    FUZZ_CHECK(c || error_last()[0], "refused in silence");
    if (!c) return;
    int64_t shape[2];
    float *out = xcalloc((unsigned long)l->units[0].n_pad, sizeof *out);
    checkpoint_verify(c);
    checkpoint_extra(c, NULL, "star/shape", shape, 2);
    if (checkpoint_fits(c, l) == 0) {
        FUZZ_CHECK(checkpoint_read(c, l, 0, STATE_MASTER, 0, l->units[0].n_pad, out) == 0,
                   "it fits and is not read: %s", error_last());
        check_values(l, "master", out);
        checkpoint_read(c, l, 0, STATE_MASTER, 3, 5, out);
    }
    free(out);
    checkpoint_close(&c);
}

static void put_part(const void *bytes, size_t n) {
    struct manifest m = {
        .train = {.step = 3}, .dtype = "fp32", .optimizer = "AdamW", .states = 1, .count = 1};
    struct manifest_file file = {.name = PART, .bytes = (int64_t)n, .xxh64 = XXH64(bytes, n, 0)};
    m.files = &file;
    m.train.scaler.scale = 1;
    char *text = manifest_text(&m);
    fuzz_put(PART, bytes, n);
    fuzz_put(MANIFEST_NAME, text, strlen(text));
    free(text);
}

// Anything, sealed.
static void put_manifest(const void *bytes, size_t n) {
    char *text = xcalloc(n + sizeof SEAL, 1), seal[17];
    memcpy(text, bytes, n);
    memcpy(text + n, SEAL, sizeof SEAL);
    hex64(seal, XXH64(text, n + strlen(SEAL), 0));
    memcpy(text + n + strlen(SEAL) - strlen("0000000000000000\"\n}\n"), seal, 16);
    fuzz_put(MANIFEST_NAME, text, n + strlen(SEAL));
    fuzz_put(PART, "", 0);
    free(text);
}

static void commit(const void *sidecar, size_t n) {
    static const char *const names[] = {"worker-0"};
    struct train_state train = {.step = 3, .scaler.scale = 1};
    char *error = NULL, *dir = checkpoint_partial(fuzz_dir(), CHECKPOINT_ALL, 3, 7), *path,
         *all = fuzz_path("checkpoints");
    mkdir(all, 0700);
    mkdir(dir, 0700);
    for (int i = 0; i < 2; i++) {
        path = xasprintf("%s/worker-0.%s", dir, i ? "json" : "safetensors");
        FILE *f = fopen(path, "wb");
        FUZZ_CHECK(f && fwrite(i ? sidecar : "0123456789", 1, i ? n : 10, f) == (i ? n : 10), "%s", path);
        fclose(f);
        free(path);
    }
    const struct checkpoint_commit c = {.run_dir = fuzz_dir(),
                                        .start_number = 7,
                                        .participants = names,
                                        .count = 1,
                                        .train = &train,
                                        .dtype = "fp32",
                                        .optimizer = "AdamW",
                                        .stall_seconds = 0.01};
    int rc = checkpoint_complete(&c, NULL, &error);
    FUZZ_CHECK(rc == 0 || error, "it fails in silence");
    free(error);
    checkpoint_drop_later(fuzz_dir(), CHECKPOINT_ALL, -1);
    FUZZ_CHECK(checkpoint_latest_step(fuzz_dir()) == -1, "a checkpoint stays");
    free(dir);
    free(all);
}

FUZZ_TARGET(checkpoint) {
    static struct layout *layout;
    struct fuzz_bytes in = {data, size};
    if (!layout) layout = tiny_layout();
    uint64_t what = fuzz_below(&in, 8);
    if (what == 7) {
        commit(in.left ? (const void *)in.p : "", in.left);
        return;
    }
    if (what & 1)
        put_manifest(in.left ? (const void *)in.p : "", in.left);
    else
        put_part(in.left ? (const void *)in.p : "", in.left);
    check_names();
    read_all(layout);
}
