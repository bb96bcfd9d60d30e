#include "shared/core/path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);
    return n > k && strcmp(name + n - k, suffix) == 0;
}

bool ends_like(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);
    return n > k && !strcasecmp(name + n - k, suffix);
}

char *without_slashes(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    return xasprintf("%.*s", (int)n, path);
}

bool is_hub_name(const char *given) {
    const char *slash = strchr(given, '/');
    if (!slash || strchr(slash + 1, '/') || !slash[1] || slash == given || strchr(".~", *given)) return false;
    char *folder = xasprintf("%.*s", (int)(slash - given), given);
    bool yes = access(folder, F_OK) != 0;
    free(folder);
    return yes;
}

bool has_file(const char *dir, const char *name) {
    char *path = xasprintf("%s/%s", dir, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

void path_first_line(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "r");
    out[0] = 0;
    if (f && fgets(out, (int)size, f)) out[strcspn(out, "\n")] = 0;
    if (f) fclose(f);
}

int dir_make(const char *path) {
    char *part = xstrdup(path);
    int rc = 0;
    for (char *p = part + (*part != 0); !rc; p++) {
        char end = *p;
        if (end && end != '/') continue;
        *p = 0;
        rc = mkdir(part, 0777) && errno != EEXIST ? -1 : 0;
        *p = end;
        if (!end) break;
    }
    free(part);
    return rc;
}

int dir_possible(const char *dir, const char *option) {
    char *path = xstrdup(dir);
    struct stat about;
    while (*path && stat(path, &about)) {
        char *slash = strrchr(path, '/');
        path[!slash ? 0 : slash == path ? 1 : slash - path] = 0;
    }
    const char *found = *path ? path : ".";
    char *tried = xasprintf("%s/.starring-XXXXXX", found);
    int rc = 0;
    if (*path && !S_ISDIR(about.st_mode))
        rc = fail("%s: is a file, not a directory: choose another %s", found, option);
    else if (!mkdtemp(tried))
        rc = fail("%s: nothing can be written in %s: %s; choose another %s", dir, found, strerror(errno),
                  option);
    else
        rmdir(tried);
    free(tried);
    free(path);
    return rc;
}
