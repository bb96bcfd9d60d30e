#include "shared/core/run_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/log_file.h"

// Enough for a million evaluations, or for the report of a rank of any model.
#define RUN_FILE_BYTES_MAX ((size_t)256 << 20)

static int replace(const char *dir, const char *name, const char *text, char **why) {
    char *path = xasprintf("%s/%s", dir, name);
    int rc = new_file_write(path, text, NEW_FILE_WHOLE, why);
    free(path);
    return rc;
}

int run_file_write(const char *dir, const char *name, const char *text) {
    char *why = NULL;
    int rc = replace(dir, name, text, &why);
    if (rc) fail("%s", why);
    free(why);
    return rc;
}

void run_file_try(const char *dir, const char *name, const char *text) {
    char *why = NULL;
    if (replace(dir, name, text, &why)) warn("%s; the job goes on without that", why);
    free(why);
}

void run_file_add(const char *dir, const char *name, const char *line) {
    char *path = xasprintf("%s/%s", dir, name);
    struct log_file f;
    bool lost = log_file_open(&f, path, NULL, NULL) || log_file_add(&f, line, strlen(line));
    if (lost) warn("%s: cannot write: %s: a line is missing there; the job goes on", path, strerror(errno));
    log_file_close(&f);
    free(path);
}

bool run_file_each(const char *dir, const char *name, void (*take)(void *ctx, const cJSON *line), void *ctx) {
    char *path = xasprintf("%s/%s", dir, name), why[FILE_WHY_MAX];
    struct log_reader lines;
    bool there = !log_reader_open(&lines, path, why);
    for (const char *line; (line = log_reader_next(&lines));) {
        cJSON *o = cJSON_Parse(line);
        if (o) take(ctx, o);
        cJSON_Delete(o);
    }
    free(path);
    return there;
}

char *run_file_read(const char *dir, const char *name, bool quiet) {
    char why[FILE_WHY_MAX], *text = run_file_read_up_to(dir, name, RUN_FILE_BYTES_MAX, why);
    if (!text && !quiet) fail("%s/%s: %s", dir, name, why);
    return text;
}

char *run_file_read_up_to(const char *dir, const char *name, size_t limit, char why[FILE_WHY_MAX]) {
    char *path = xasprintf("%s/%s", dir, name);
    size_t length;
    char *text = file_read_whole(path, limit, &length, why);
    free(path);
    return text;
}
