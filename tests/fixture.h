// Shared by the C tests: a temporary folder and files in it.
#ifndef STARRING_TESTS_FIXTURE_H
#define STARRING_TESTS_FIXTURE_H

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// path(64) becomes that of a new folder /tmp/starring-NAME-...; 0, or -1.
static inline int fixture_folder(char *path, const char *name) {
    snprintf(path, 64, "/tmp/starring-%.32s-XXXXXX", name);
    return mkdtemp(path) ? 0 : -1;
}

static inline int fixture_remove_one(const char *path, const struct stat *st, int kind, struct FTW *place) {
    (void)st;
    (void)kind;
    (void)place;
    return remove(path) && errno != ENOENT ? -1 : 0;  // a process that ends may have been first
}
// Removes a file, or a folder with all that is in it. 0, or -1.
static inline int fixture_remove(const char *path) {
    return nftw(path, fixture_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

// PATH becomes these bytes; 0, or -1. The file is a new one: file systems flush one that is rewritten in place, which takes
// a while.
static inline int fixture_put(const char *path, const void *bytes, size_t n) {
    unlink(path);
    FILE *f = fopen(path, "wb");
    if (!f) return -1;
    int rc = fwrite(bytes, 1, n, f) == n ? 0 : -1;
    return fclose(f) || rc ? -1 : 0;
}

// FOLDER/NAME becomes this text, likewise.
static inline int fixture_write(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fixture_put(path, text, strlen(text));
}

#endif
