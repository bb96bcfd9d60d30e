#include "shared/state/checkpoint_list.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/state/checkpoint.h"
#include "shared/state/manifest.h"

char *checkpoints_dir(const char *run_dir) { return xasprintf("%s/checkpoints", run_dir); }

char *checkpoint_final(const char *run_dir, int64_t step) {
    return xasprintf("%s/checkpoints/step-%" PRId64, run_dir, step);
}

char *checkpoint_place_path(const char *dir, const struct checkpoint_place *p) {
    return xasprintf("%s/step-%" PRId64 "%s", dir, p->step, p->old ? ".old" : "");
}

// The number in "<before>N<after..>" as it is written by us, and what is behind it; -1: it is none.
static int64_t step_in(const char *name, const char *before, const char **after) {
    size_t n = strlen(before);
    if (strncmp(name, before, n) != 0) return -1;
    const char *digits = name + n;
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 18 || (digits[0] == '0' && count > 1)) return -1;
    *after = digits + count;
    return strtoll(digits, NULL, 10);
}

static int newest_first(const void *a, const void *b) {
    const struct checkpoint_place *x = a, *y = b;
    return x->step != y->step ? (x->step < y->step) - (x->step > y->step) : x->old - y->old;
}

struct checkpoint_list checkpoint_list(const char *dir) {
    struct checkpoint_list list = {0};
    DIR *d = opendir(dir);
    if (!d) return list;
    for (const struct dirent *e; (e = readdir(d));) {
        const char *after = "";
        int64_t step = step_in(e->d_name, "step-", &after);
        bool old = strcmp(after, ".old") == 0;
        if (step < 0 || (*after && !old)) continue;
        char *manifest = xasprintf("%s/" MANIFEST_NAME, e->d_name);
        if (has_file(dir, manifest)) {
            list.at = xrealloc(list.at, (unsigned long)(list.count + 1) * sizeof *list.at);
            list.at[list.count++] = (struct checkpoint_place){step, old};
        }
        free(manifest);
    }
    closedir(d);
    if (list.count) qsort(list.at, (size_t)list.count, sizeof *list.at, newest_first);
    int kept = 0;  // step-N before step-N.old
    for (int i = 0; i < list.count; i++)
        if (!kept || list.at[kept - 1].step != list.at[i].step) list.at[kept++] = list.at[i];
    list.count = kept;
    return list;
}

// ---------------------------------------------------------------- choosing
static char *newest_in(const char *dir, int64_t *step) {
    struct checkpoint_list list = checkpoint_list(dir);
    char *path = NULL;
    *step = list.count ? list.at[0].step : -1;
    if (list.count) {
        char *place = checkpoint_place_path(dir, &list.at[0]);
        path = realpath(place, NULL);
        free(place);
    }
    free(list.at);
    return path;
}

char *checkpoint_latest(const char *run_dir) {
    int64_t step;
    char *dir = checkpoints_dir(run_dir), *path = newest_in(dir, &step);
    free(dir);
    return path;
}

int64_t checkpoint_latest_step(const char *run_dir) {
    int64_t step;
    char *dir = checkpoints_dir(run_dir);
    free(newest_in(dir, &step));
    free(dir);
    return step;
}

int64_t checkpoint_named(const char *path) {
    const char *slash = strrchr(path, '/'), *after = "";
    int64_t step = step_in(slash ? slash + 1 : path, "step-", &after);
    return step >= 0 && (!*after || strcmp(after, ".old") == 0) ? step : -1;
}

char *checkpoint_older(const char *path) {
    int64_t step = checkpoint_named(path);
    char *dir = xstrdup(path), *slash = strrchr(dir, '/'), *found = NULL;
    if (slash) *slash = '\0';
    struct checkpoint_list list = checkpoint_list(slash ? dir : ".");
    for (int i = 0; i < list.count && !found; i++)
        if (list.at[i].step < step) found = checkpoint_place_path(slash ? dir : ".", &list.at[i]);
    free(list.at);
    free(dir);
    return found;
}

static bool is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// Why there is nothing to take below dir.
static void nothing_there(const char *dir, char **error) {
    DIR *d = opendir(dir);
    char found[NAME_MAX + 1] = "";
    const char *after;
    if (d)
        for (const struct dirent *e; (e = readdir(d));)
            if (step_in(e->d_name, ".step-", &after) >= 0 || step_in(e->d_name, "step-", &after) >= 0)
                snprintf(found, sizeof found, "%s", e->d_name);
    if (d) closedir(d);
    if (*found)
        disk_error(error, "%s: only unfinished checkpoints (%s), none that is complete", dir, found);
    else
        disk_error(error, "%s: no checkpoints", dir);
}

char *checkpoint_resolve(const char *text, const char *run_dir, char **error) {
    if (strcmp(text, "latest") == 0) return checkpoint_latest(run_dir);
    if (!is_dir(text)) {
        disk_error(error, "%s: %s", text, access(text, F_OK) == 0 ? "is no directory" : strerror(errno));
        return NULL;
    }
    if (access(text, X_OK)) {
        disk_error(error, "%s: %s", text, strerror(errno));
        return NULL;
    }
    if (has_file(text, MANIFEST_NAME)) return realpath(text, NULL);
    int64_t step;
    char *below = checkpoints_dir(text), *path = newest_in(is_dir(below) ? below : text, &step);
    if (!path && is_dir(below))
        nothing_there(below, error);
    else if (!path && ends_with(text, ".partial"))
        disk_error(error, "%s: is an unfinished checkpoint", text);
    else if (!path)
        disk_error(error,
                   "%s: neither a checkpoint (it has no " MANIFEST_NAME
                   ") nor a run's directory "
                   "(it has no checkpoints/)",
                   text);
    free(below);
    return path;
}

// ---------------------------------------------------------------- removing
int checkpoint_remove(const char *dir, const char *path, int64_t step, char **error) {
    char *gone = xasprintf("%s/.step-%" PRId64 ".%016x.gone", dir, step, 0u);
    int rc = disk_remove_dir(gone, error);  // a removal that was killed
    if (rc == 0 && disk()->rename(path, gone) != 0 && errno != ENOENT)
        rc = disk_error(error, "%s: cannot remove: %s", path, strerror(errno));
    // The name is gone on the disk as well before the first file is.
    if (rc == 0) rc = disk_sync_dir(dir, error);
    if (rc == 0) rc = disk_remove_dir(gone, error);
    free(gone);
    return rc;
}

static void remove_place(const char *dir, const struct checkpoint_place *p) {
    char *error = NULL, *path = checkpoint_place_path(dir, p);
    if (checkpoint_remove(dir, path, p->step, &error)) warn("%s", error);
    free(error);
    free(path);
}

void checkpoint_rotate(const char *run_dir, int keep_last, int64_t keep_every) {
    if (keep_last <= 0) return;
    char *dir = checkpoints_dir(run_dir);
    struct checkpoint_list list = checkpoint_list(dir);
    for (int i = list.count - 1; i >= keep_last; i--)  // the oldest first
        if (keep_every <= 0 || list.at[i].step % keep_every != 0) remove_place(dir, &list.at[i]);
    free(list.at);
    free(dir);
}

void checkpoint_drop_later(const char *run_dir, int64_t step) {
    char *dir = checkpoints_dir(run_dir);
    struct checkpoint_list list = checkpoint_list(dir);
    for (int i = 0; i < list.count && list.at[i].step > step; i++) remove_place(dir, &list.at[i]);
    free(list.at);
    free(dir);
}

// step-N.old: of no use beside a step-N, otherwise the only one of its step.
static void end_replacing(const char *dir, const char *name, int64_t step) {
    const struct checkpoint_place new = {step, false}, old = {step, true};
    char *to = checkpoint_place_path(dir, &new), *from = xasprintf("%s/%s", dir, name);
    if (has_file(to, MANIFEST_NAME))
        remove_place(dir, &old);
    else if (disk()->rename(from, to) != 0)
        warn("%s: cannot rename to %s: %s", from, to, strerror(errno));
    free(from);
    free(to);
}

// Behind ".step-N": this life's partial directory.
static bool partial_of(const char *after, uint64_t life) {
    char own[40];
    snprintf(own, sizeof own, ".%016" PRIx64 ".partial", life);
    return strcmp(after, own) == 0;
}

static void remove_unfinished(const char *path) {
    char *error = NULL;
    if (disk_remove_dir(path, &error)) warn("%s", error);
    free(error);
}

void checkpoint_sweep_given_up(const char *dir, uint64_t life, int64_t step) {
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const char *after = "";
        int64_t of = step_in(e->d_name, ".step-", &after);
        if (of < 0 || of >= step || !partial_of(after, life)) continue;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        remove_unfinished(path);
        free(path);
    }
    if (d) closedir(d);
}

static bool unfinished(const char *after, uint64_t own_life) {
    if (own_life && partial_of(after, own_life)) return false;
    return ends_with(after, ".partial") || ends_with(after, ".gone");
}

void checkpoint_sweep(const char *run_dir, uint64_t own_life) {
    char *dir = checkpoints_dir(run_dir);
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const char *after = "";
        char *path = xasprintf("%s/%s", dir, e->d_name);
        int64_t step = step_in(e->d_name, "step-", &after);
        if (step >= 0 && strcmp(after, ".old") == 0)
            end_replacing(dir, e->d_name, step);
        else if (step_in(e->d_name, ".step-", &after) >= 0 && unfinished(after, own_life))
            remove_unfinished(path);
        free(path);
    }
    if (d) closedir(d);
    free(dir);
}
