// A directory of files for the tests of safetensors and Hugging Face directories.
#ifndef STARRING_TESTS_FILES_ST_HELPER_H
#define STARRING_TESTS_FILES_ST_HELPER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "tests/fixture.h"

// A directory whose known files are removed at the end.
struct dir {
    char path[64];
    char *file, *config, *index, *shard[2];
};

static inline int make_dir(void **state) {
    struct dir *d = calloc(1, sizeof *d);
    assert_int_equal(fixture_folder(d->path, "safetensors"), 0);
    d->file = xasprintf("%s/model.safetensors", d->path);
    d->config = xasprintf("%s/config.json", d->path);
    d->index = xasprintf("%s/model.safetensors.index.json", d->path);
    d->shard[0] = xasprintf("%s/a.safetensors", d->path);
    d->shard[1] = xasprintf("%s/b.safetensors", d->path);
    *state = d;
    return 0;
}

static inline int remove_dir(void **state) {
    struct dir *d = *state;
    char *all[] = {d->file, d->config, d->index, d->shard[0], d->shard[1]};
    for (int i = 0; i < 5; i++) {
        unlink(all[i]);
        free(all[i]);
    }
    int left = rmdir(d->path);
    free(d);
    return left;  // temporaries would be left over
}

static inline void put_file(const char *path, const void *bytes, size_t n) {
    assert_int_equal(fixture_put(path, bytes, n), 0);
}

static inline char *get_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*n);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    return bytes;
}

// A file of this header text and data_bytes zeros.
static inline void put_header(const char *path, const char *header, size_t data_bytes) {
    size_t n = strlen(header);
    char *bytes = calloc(8 + n + data_bytes, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(bytes + 8, header, n);
    put_file(path, bytes, 8 + n + data_bytes);
    free(bytes);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

#endif
