// Shared by the tests of the configuration: loading, with all messages captured.
#ifndef STARRING_TESTS_CONFIG_CONFIG_HELPER_H
#define STARRING_TESTS_CONFIG_CONFIG_HELPER_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
// clang-format on

#include "shared/config/config.h"
#include "shared/core/error.h"
#include "tests/topologies.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define DS       "tests/data/ds_configs/"

static char said[16384];  // what the last load() wrote to stderr, and its remarks
static char file_path[64];

static inline struct config *load_path(const char *path, const struct config_override *o, size_t count) {
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    int kept = dup(2);
    dup2(fileno(f), 2);
    error_clear();
    struct config *c = config_load(&topologies, path, o, count);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    rewind(f);
    size_t n = fread(said, 1, sizeof said - 1, f);
    fclose(f);
    snprintf(said + n, sizeof said - n, "%s", c ? c->remarks : "");
    return c;
}

static inline void write_file(const char *text) {
    strcpy(file_path, "/tmp/starring-config-XXXXXX");
    int fd = mkstemp(file_path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static inline struct config *load(const char *text, const struct config_override *o, size_t count) {
    write_file(text);
    struct config *c = load_path(file_path, o, count);
    unlink(file_path);
    return c;
}

static inline struct config *accept(const char *text) {
    struct config *c = load(text, NULL, 0);
    if (!c) fail_msg("refused: %s\n%s", text, said);
    return c;
}

// Every word of the space-free, '|'-separated list stands in text.
static inline void assert_words(const char *text, const char *words, const char *about) {
    char list[1024];
    snprintf(list, sizeof list, "%s", words);
    for (char *w = strtok(list, "|"); w; w = strtok(NULL, "|"))
        if (!strstr(text, w)) fail_msg("%s: \"%s\" is missing in: %s", about, w, text);
}

static inline void refuse(const char *text, const char *words) {
    struct config *c = load(text, NULL, 0);
    if (c) fail_msg("accepted: %s", text);
    assert_words(error_last(), words, text);
    assert_words(error_last(), file_path, text);
}

static inline void check_batch(const struct config *c, int64_t train, int64_t micro, int64_t accumulation,
                               int workers) {
    assert_int_equal(c->train_batch, train);
    assert_int_equal(c->micro_batch, micro);
    assert_int_equal(c->accumulation, accumulation);
    assert_int_equal(c->workers, workers);
}

#endif
