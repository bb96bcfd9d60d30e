// A file of a run's weights (shared/evaluation/snapshot_file.h): a good one of one or more parts, with bytes of it changed,
// cut or never written. Where its header was hit the check is made to agree, which no fuzzer finds by itself. What opens is
// of this model, has all parts and can be read, and its weights are the file's.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/evaluation/snapshot_file.h"
#include "shared/model/layout.h"
#include "tests/fuzz/fuzz.h"

#define FILE_MAX  (64 << 10)
#define CHECK_AT  64  // of the header, behind all that it covers
#define PARTS_AT  24
#define MARKS_AT  256
#define PARTS_MAX 3

static struct layout *small_layout(void) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = 2;
    l->units = xcalloc(2, sizeof *l->units);
    for (int u = 0; u < 2; u++) {
        struct unit *unit = &l->units[u];
        snprintf(unit->name, sizeof unit->name, "u%d", u);
        unit->count = 1;
        unit->tensors[0] = (struct tensor){.name = "t", .shape = {100 + u, 1}, .dims = 1};
    }
    layout_finish(l, 2);
    return l;
}

// Parts that are not there stay unwritten.
static void write_parts(const struct snapshot_place *place, int parts, uint8_t missing) {
    unlink(place->path);
    for (int part = 0; part < parts; part++) {
        char *error = NULL;
        const struct snapshot_info info = {.step = 7, .samples = 28, .updates = 7, .seconds = 1.5};
        struct snapshot_file *f = snapshot_file_create(place, part, parts, &error);
        FUZZ_CHECK(f, "%s", error);
        for (int u = 0; u < place->layout->count; u++) {
            int64_t n = place->layout->units[u].n_pad, begin = n * part / parts, end = n * (part + 1) / parts;
            float *x = xcalloc((unsigned long)n, sizeof *x);
            for (int64_t i = 0; i < n; i++) x[i] = (float)(u * 1000 + i);
            FUZZ_CHECK(snapshot_file_write(f, u, begin, end, x + begin) == 0, "%s", snapshot_file_error(f));
            free(x);
        }
        if (!(missing >> part & 1))
            FUZZ_CHECK(snapshot_file_finish(f, part ? NULL : &info) == 0, "%s", snapshot_file_error(f));
        snapshot_file_close(&f);
    }
}

static size_t spoil(struct fuzz_bytes *in, uint8_t *bytes, size_t n) {
    while (in->left) {
        uint8_t how = fuzz_u8(in);
        size_t at = (size_t)fuzz_word(in, how & 1 ? 1 : 2);
        if (how & 2 && n) n = how & 4 ? at % (n + 1) : n;
        for (int i = 0; i < 1 + (how >> 4) && at < n; i++) bytes[at++] = fuzz_u8(in);
    }
    return n;
}

static void read_it(const struct snapshot_place *place, const uint8_t *bytes, size_t n) {
    struct snapshot_info info;
    char *error = NULL;
    struct snapshot_file *f = snapshot_file_open(place, &info, &error);
    FUZZ_CHECK(f || (error && strstr(error, "snapshot-file")), "refused without a name");
    free(error);
    if (!f) return;
    uint64_t parts;
    memcpy(&parts, bytes + PARTS_AT, sizeof parts);
    size_t at = MARKS_AT;
    for (uint64_t part = 0, mark; part < parts; part++, at += sizeof mark) {
        memcpy(&mark, bytes + at, sizeof mark);
        FUZZ_CHECK(mark, "part %llu was never finished", (unsigned long long)part);
    }
    at = (at + 4095) / 4096 * 4096;
    FUZZ_CHECK(!memcmp(&info, bytes + 32, sizeof info), "another moment than the file's");
    for (int u = 0; u < place->layout->count; u++) {
        const struct unit *unit = &place->layout->units[u];
        float *x = xcalloc((unsigned long)unit->n_pad, sizeof *x);
        FUZZ_CHECK(snapshot_file_read(f, u, x) == 0, "it opens and is not read: %s", snapshot_file_error(f));
        FUZZ_CHECK(at + (size_t)unit->n * 4 <= n && !memcmp(x, bytes + at, (size_t)unit->n * 4),
                   "unit %d is read as other numbers", u);
        at += (size_t)unit->n * 4;
        free(x);
    }
    snapshot_file_close(&f);
}

FUZZ_TARGET(snapshot) {
    struct fuzz_bytes in = {data, size};
    struct layout *l = small_layout();
    char *path = fuzz_path("snapshot-file"), *good_path = fuzz_path("snapshot-good");
    const struct snapshot_place place = {.path = path, .layout = l, .dtype = DT_F32},
                                good = {.path = good_path, .layout = l, .dtype = DT_F32};
    uint8_t how = fuzz_u8(&in);
    write_parts(&good, 1 + how % PARTS_MAX, how & 4 ? fuzz_u8(&in) : 0);
    FILE *f = fopen(good_path, "rb");
    uint8_t *bytes = xcalloc(FILE_MAX, 1);
    size_t n = f ? fread(bytes, 1, FILE_MAX, f) : 0;
    if (f) fclose(f);
    n = spoil(&in, bytes, n);
    uint64_t check = XXH64(bytes, CHECK_AT, 0);
    if (how & 8 && n >= CHECK_AT + sizeof check) memcpy(bytes + CHECK_AT, &check, sizeof check);
    fuzz_put("snapshot-file", bytes, n);
    read_it(&place, bytes, n);
    free(bytes);
    unlink(good_path);
    free(good_path);
    free(path);
    layout_destroy(&l);
}
