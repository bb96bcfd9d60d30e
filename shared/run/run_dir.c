#include "shared/run/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"

static const char *const run_files[] = {"config.json", "metrics.jsonl", "summary.json", "trace.json"};
#define RUN_FILES (sizeof run_files / sizeof run_files[0])

char *run_dir_name(const struct config *c) {
    char utc[32];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(utc, sizeof utc, "%Y%m%dT%H%M%SZ", &tm);
    char *model = xstrdup(c->model);
    size_t length = strlen(model);
    while (length > 1 && model[length - 1] == '/') model[--length] = 0;
    const char *slash = strrchr(model, '/');
    char *name = xasprintf("runs/%s-%s-%s", slash ? slash + 1 : model, c->topology, utc);
    free(model);
    for (char *p = name; *p; p++)
        if (*p == ':') *p = '-';
    return name;
}

static int make_path(const char *dir) {
    char *path = xstrdup(dir);
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/') continue;
        char kept = *p;
        *p = 0;
        if (mkdir(path, 0777) && errno != EEXIST) {
            fail("%s: cannot make the directory: %s", path, strerror(errno));
            free(path);
            return -1;
        }
        *p = kept;
        if (!kept) break;
    }
    free(path);
    return 0;
}

int run_dir_join(const char *dir) {
    char *ranks = xasprintf("%s/ranks", dir);
    int rc = make_path(ranks);
    free(ranks);
    return rc;
}

static void remove_files(const char *dir, bool (*ours)(const char *name)) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (!ours(e->d_name)) continue;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        unlink(path);
        free(path);
    }
    closedir(d);
}

static bool is_rank_file(const char *name) {
    return !strncmp(name, "worker-", 7) || !strncmp(name, "server-", 7) || !strncmp(name, "trace-", 6);
}

static bool is_weights_file(const char *name) {
    return !strcmp(name, "config.json") || !strncmp(name, "model.safetensors", 17);
}

int run_dir_prepare(const char *dir, bool force) {
    const char *found = NULL;
    for (size_t i = 0; i < RUN_FILES; i++) {
        char *path = xasprintf("%s/%s", dir, run_files[i]);
        if (!access(path, F_OK)) {
            if (!force)
                found = run_files[i];
            else if (unlink(path))
                found = run_files[i];
        }
        free(path);
    }
    if (found)
        return fail("%s/%s is there from an earlier run: choose another --out, or --force to replace it", dir,
                    found);
    char *ranks = xasprintf("%s/ranks", dir);
    char *weights = xasprintf("%s/weights", dir);
    if (force) {
        remove_files(ranks, is_rank_file);
        remove_files(weights, is_weights_file);
    }
    free(ranks);
    free(weights);
    return run_dir_join(dir);
}

int run_dir_write(const char *dir, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", dir, name);
    char *part = xasprintf("%s/%s.part%d", dir, name, (int)getpid());
    FILE *f = fopen(part, "w");
    int rc = 0;
    if (!f) {
        rc = fail("%s: %s", part, strerror(errno));
    } else {
        bool bad = fputs(text, f) < 0;
        if (fclose(f) || bad || rename(part, path)) {
            rc = fail("%s: cannot write: %s", path, strerror(errno));
            unlink(part);
        }
    }
    free(part);
    free(path);
    return rc;
}

char *run_dir_read(const char *dir, const char *name, bool quiet) {
    char *path = xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    char *text = NULL;
    if (f) {
        size_t length = 0, room = 1 << 16;
        text = xcalloc(room + 1, 1);
        for (size_t got; (got = fread(text + length, 1, room - length, f)) > 0;) {
            length += got;
            if (length == room) text = xrealloc(text, (room *= 2) + 1);
        }
        text[length] = 0;
        fclose(f);
    } else if (!quiet) {
        fail("%s: %s", path, strerror(errno));
    }
    free(path);
    return text;
}
