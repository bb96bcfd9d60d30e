#include "shared/state/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/state/manifest.h"

#define POLL_NS     10000000
#define SIDECAR_MAX 4096
#define MAX_EXACT   9007199254740992.0  // 2^53: JSON numbers are read as doubles

static const char *const dirs[] = {[CHECKPOINT_ALL] = "checkpoints", [CHECKPOINT_WEIGHTS] = "snapshots"};

static char *checkpoints_dir(const char *run_dir, enum checkpoint_kind kind) {
    return xasprintf("%s/%s", run_dir, dirs[kind]);
}

char *checkpoint_partial(const char *run_dir, enum checkpoint_kind kind, int64_t step,
                         uint64_t start_number) {
    return xasprintf("%s/%s/.step-%" PRId64 ".%016" PRIx64 ".partial", run_dir, dirs[kind], step,
                     start_number);
}

char *checkpoint_path_of(const char *run_dir, enum checkpoint_kind kind, int64_t step) {
    return xasprintf("%s/%s/step-%" PRId64, run_dir, dirs[kind], step);
}

// ---------------------------------------------------------------- the names below RUN/checkpoints
struct checkpoint_place {
    int64_t step;
    bool old;  // the name is step-N.old, and no step-N exists
};
struct checkpoint_list {
    struct checkpoint_place *at;  // the newest first
    int count;
};

static char *checkpoint_place_path(const char *dir, const struct checkpoint_place *p) {
    return xasprintf("%s/step-%" PRId64 "%s", dir, p->step, p->old ? ".old" : "");
}

// Returns the number in "<before>N<after..>" as we write it, and the text after it; -1: no such number.
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

// Lists the complete checkpoints below dir (of checkpoints_dir). The caller frees list.at.
static struct checkpoint_list checkpoint_list(const char *dir) {
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
    char *dir = checkpoints_dir(run_dir, CHECKPOINT_ALL), *path = newest_in(dir, &step);
    free(dir);
    return path;
}

int64_t checkpoint_latest_step(const char *run_dir) {
    int count;
    int64_t *steps = checkpoint_steps(run_dir, CHECKPOINT_ALL, &count),
            latest = count ? steps[count - 1] : -1;
    free(steps);
    return latest;
}

int64_t *checkpoint_steps(const char *run_dir, enum checkpoint_kind kind, int *count) {
    char *dir = checkpoints_dir(run_dir, kind);
    struct checkpoint_list list = checkpoint_list(dir);
    int64_t *steps = xcalloc((unsigned long)list.count + 1, sizeof *steps);
    for (int i = 0; i < list.count; i++) steps[i] = list.at[list.count - 1 - i].step;
    *count = list.count;
    free(list.at);
    free(dir);
    return steps;
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

// *error receives why dir has no checkpoint to use.
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
    char *below = checkpoints_dir(text, CHECKPOINT_ALL),
         *path = newest_in(is_dir(below) ? below : text, &step);
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
// Renames path first: a process that dies in between leaves a .gone directory. path may be anything; returns 0 if
// it does not exist.
static int checkpoint_remove(const char *dir, const char *path, int64_t step, char **error) {
    char *gone = xasprintf("%s/.step-%" PRId64 ".%016x.gone", dir, step, 0u);
    int rc = disk_remove_dir(gone, error);  // left by a removal that was killed
    if (rc == 0 && disk()->rename(path, gone) != 0 && errno != ENOENT)
        rc = disk_error(error, "%s: cannot remove: %s", path, strerror(errno));
    // The new name is on disk before the first file is removed.
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
    char *dir = checkpoints_dir(run_dir, CHECKPOINT_ALL);
    struct checkpoint_list list = checkpoint_list(dir);
    for (int i = list.count - 1; i >= keep_last; i--)  // the oldest first
        if (keep_every <= 0 || list.at[i].step % keep_every != 0) remove_place(dir, &list.at[i]);
    free(list.at);
    free(dir);
}

void checkpoint_drop(const char *run_dir, enum checkpoint_kind kind, int64_t step) {
    char *dir = checkpoints_dir(run_dir, kind);
    remove_place(dir, &(struct checkpoint_place){step, false});
    rmdir(dir);
    free(dir);
}

void checkpoint_drop_later(const char *run_dir, enum checkpoint_kind kind, int64_t step) {
    char *dir = checkpoints_dir(run_dir, kind);
    struct checkpoint_list list = checkpoint_list(dir);
    for (int i = 0; i < list.count && list.at[i].step > step; i++) remove_place(dir, &list.at[i]);
    free(list.at);
    free(dir);
}

// Completes a replacement that was interrupted: step-N.old is removed if step-N exists; otherwise it is the only checkpoint
// of its step, and gets its name back.
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

// Returns whether the text after ".step-N" names this start's partial directory.
static bool partial_of(const char *after, uint64_t start_number) {
    char own[40];
    snprintf(own, sizeof own, ".%016" PRIx64 ".partial", start_number);
    return strcmp(after, own) == 0;
}

static void remove_unfinished(const char *path) {
    char *error = NULL;
    if (disk_remove_dir(path, &error)) warn("%s", error);
    free(error);
}

// Removes this start's partial directories of earlier steps. They exist if a participant was still writing when its
// checkpoint was given up.
static void checkpoint_sweep_given_up(const char *dir, uint64_t start_number, int64_t step) {
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const char *after = "";
        int64_t of = step_in(e->d_name, ".step-", &after);
        if (of < 0 || of >= step || !partial_of(after, start_number)) continue;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        remove_unfinished(path);
        free(path);
    }
    if (d) closedir(d);
}

static bool unfinished(const char *after, uint64_t own_start) {
    if (own_start && partial_of(after, own_start)) return false;
    return ends_with(after, ".partial") || ends_with(after, ".gone");
}

void checkpoint_sweep(const char *run_dir, enum checkpoint_kind kind, uint64_t own_start) {
    char *dir = checkpoints_dir(run_dir, kind);
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const char *after = "";
        char *path = xasprintf("%s/%s", dir, e->d_name);
        int64_t step = step_in(e->d_name, "step-", &after);
        if (step >= 0 && strcmp(after, ".old") == 0)
            end_replacing(dir, e->d_name, step);
        else if (step_in(e->d_name, ".step-", &after) >= 0 && unfinished(after, own_start)) {
            if (kind == CHECKPOINT_WEIGHTS && ends_with(after, ".partial"))
                warn("snapshot %s: it was being written when the run ended, and is removed", path);
            remove_unfinished(path);
        }
        free(path);
    }
    if (d) closedir(d);
    if (!own_start) rmdir(dir);
    free(dir);
}

// ---------------------------------------------------------------- completing one
// The data of one call of checkpoint_complete.
struct commit {
    const struct checkpoint_commit *c;
    char *dir, *all;  // the partial directory; checkpoints/
    int place;  // descriptor of the partial directory, open so that its inode is not reused; -1: not open yet
    struct manifest_file *files;
    bool *there;  // (count) the participant's sidecar has been read
    bool named;   // the directory has been renamed to step-N
    char **error;
};

// ---------------------------------------------------------------- waiting for the participants
static bool read_small(const char *dir, const char *participant, const char *ending, char text[SIDECAR_MAX]) {
    char *path = xasprintf("%s/%s%s", dir, participant, ending);
    char why[FILE_WHY_MAX];
    FILE *f = file_open_stream(path, why);
    free(path);
    if (!f) return false;
    size_t n = fread(text, 1, SIDECAR_MAX - 1, f);
    text[n] = '\0';
    fclose(f);
    return true;
}

// Returns the size of a file, or of its unfinished NAME.part; -1: neither exists.
static int64_t size_of(const char *dir, const char *name) {
    struct stat st;
    char *path = xasprintf("%s/%s.part", dir, name);
    int rc = stat(path, &st);
    *strrchr(path, '.') = '\0';
    if (rc) rc = stat(path, &st);
    free(path);
    return rc ? -1 : (int64_t)st.st_size;
}

static int read_sidecar(struct commit *m, int i, const char *text) {
    struct manifest_file *f = &m->files[i];
    cJSON *root = cJSON_Parse(text);
    double bytes = json_number(root, "bytes");
    bool good = strcmp(json_text(root, "file", ""), f->name) == 0 && bytes >= 0 && bytes <= MAX_EXACT &&
                hex64_read(json_text(root, "xxh64", NULL), &f->xxh64);
    f->bytes = good ? (int64_t)bytes : -1;
    cJSON_Delete(root);
    if (!good)
        return disk_error(m->error, "%s/%s.json: is not a valid sidecar (file, bytes, xxh64)", m->dir,
                          m->c->participants[i]);
    int64_t found = size_of(m->dir, f->name);
    if (found == f->bytes) return 0;
    return disk_error(m->error, "%s/%s: has %lld bytes, but its sidecar says that %lld were written", m->dir,
                      f->name, (long long)found, (long long)f->bytes);
}

// Returns 0 when all files have arrived, 1 when some are missing, -1 when the checkpoint failed. *seen receives the
// progress, in bytes and sidecars.
static int read_progress(struct commit *m, int64_t *seen) {
    char text[SIDECAR_MAX];
    int missing = 0;
    *seen = 0;
    for (int i = 0; i < m->c->count; i++) {
        const char *name = m->c->participants[i];
        if (m->there[i]) continue;
        if (read_small(m->dir, name, ".failed", text))
            return disk_error(m->error, "%s: %s", name, *text ? text : CHECKPOINT_NO_REASON);
        m->there[i] = read_small(m->dir, name, ".json", text);
        if (m->there[i] && read_sidecar(m, i, text)) return -1;
        missing += !m->there[i];
        *seen += m->there[i] ? 1 : size_of(m->dir, m->files[i].name);
    }
    // Check that the partial directory is still the one that this commit opened: another process may have removed it, and
    // a late participant may have created it again without the other files.
    struct stat began, now;
    if (fstat(m->place, &began) || stat(m->dir, &now) || began.st_ino != now.st_ino ||
        began.st_dev != now.st_dev)
        return disk_error(m->error, "%s: the directory has vanished", m->dir);
    return missing ? 1 : 0;
}

// Names the participants whose files are missing.
static void not_there(struct commit *m, bool stalled) {
    char *names = xstrdup("");
    bool none_exists = stalled;  // none of their files exists: perhaps they write to another file system
    for (int i = 0; i < m->c->count; i++) {
        if (m->there[i]) continue;
        none_exists = none_exists && size_of(m->dir, m->files[i].name) < 0;
        text_add(&names, "%s%s", *names ? ", " : "", m->c->participants[i]);
    }
    disk_error(m->error, "%s while %s had not written all of it%s%s%s",
               stalled ? "timeout: no file grew" : "the run ended", names,
               none_exists ? ": none of their files is in " : "", none_exists ? m->all : "",
               none_exists ? ", which must be one directory, shared by all hosts" : "");
    free(names);
}

static int wait_for_all(struct commit *m, const _Atomic int *quit) {
    int64_t seen, before = -1;
    double since = now_seconds();
    for (int rc; (rc = read_progress(m, &seen)) != 0;) {
        if (rc < 0) return -1;
        if (seen != before) since = now_seconds();
        before = seen;
        bool stalled = m->c->stall_seconds > 0 && now_seconds() - since > m->c->stall_seconds;
        if (stalled || (quit && *quit)) {
            not_there(m, stalled);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return 0;
}

// ---------------------------------------------------------------- the commit
// For file systems that cannot exchange two names: renames the older checkpoint to step-N.old, which also counts as
// complete, and this one to step-N.
static int replace_by_rename(const struct commit *m, const char *final, const char *old) {
    if (checkpoint_remove(m->all, old, m->c->train->step, m->error)) return -1;
    if (disk()->rename(final, old) != 0)
        return disk_error(m->error, "%s: cannot rename: %s", final, strerror(errno));
    if (disk()->rename(m->dir, final) == 0) return 0;
    disk_error(m->error, "%s: cannot rename to %s: %s", m->dir, final, strerror(errno));
    disk()->rename(old, final);
    return -1;
}

// Gives the checkpoint its name, then removes the one that had the name before.
static int give_name(struct commit *m) {
    int64_t step = m->c->train->step;
    char *final = checkpoint_path_of(m->c->run_dir, m->c->kind, step), *old = xasprintf("%s.old", final);
    const char *replaced = NULL;
    int rc = 0;
    if (access(final, F_OK) != 0) {
        if (disk()->rename(m->dir, final) != 0)
            rc = disk_error(m->error, "%s: cannot rename to %s: %s", m->dir, final, strerror(errno));
    } else if (disk()->exchange(m->dir, final) == 0) {
        replaced = m->dir;
    } else if (errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP) {
        rc = replace_by_rename(m, final, old);
        replaced = old;
    } else {
        rc = disk_error(m->error, "%s: cannot replace %s: %s", m->dir, final, strerror(errno));
    }
    m->named = rc == 0;
    if (rc == 0) rc = disk_sync_dir(m->all, m->error);
    if (rc == 0) rc = disk_sync_dir(m->c->run_dir, m->error);  // checkpoints/ may be new
    if (rc == 0 && replaced) {
        char *why = NULL;
        if (checkpoint_remove(m->all, replaced, step, &why)) warn("%s", why);
        free(why);
    }
    free(old);
    free(final);
    return rc;
}

// Writes the manifest to disk before the directory gets its name, and removes the sidecars.
static int seal(struct commit *m) {
    const struct checkpoint_commit *c = m->c;
    const struct manifest manifest = {.weights = c->kind == CHECKPOINT_WEIGHTS,
                                      .seconds = c->seconds,
                                      .train = *c->train,
                                      .dtype = c->dtype,
                                      .optimizer = c->optimizer,
                                      .states = c->states,
                                      .identity = c->identity,
                                      .files = m->files,
                                      .count = c->count};
    char *text = manifest_text(&manifest), *path = xasprintf("%s/" MANIFEST_NAME, m->dir);
    int rc = new_file_write(path, text, NEW_FILE_ON_DISK, m->error);
    free(path);
    free(text);
    for (int i = 0; i < c->count && !rc; i++) {
        char *sidecar = xasprintf("%s/%s.json", m->dir, c->participants[i]);
        disk()->unlink(sidecar);
        free(sidecar);
    }
    return rc ? -1 : disk_sync_dir(m->dir, m->error);
}

int checkpoint_complete(const struct checkpoint_commit *c, const _Atomic int *quit, char **error) {
    char *why = NULL;
    struct commit m = {.c = c,
                       .dir = checkpoint_partial(c->run_dir, c->kind, c->train->step, c->start_number),
                       .all = checkpoints_dir(c->run_dir, c->kind),
                       .place = -1,
                       .files = xcalloc((unsigned long)c->count, sizeof *m.files),
                       .there = xcalloc((unsigned long)c->count, sizeof *m.there),
                       .error = &why};
    for (int i = 0; i < c->count; i++)
        snprintf(m.files[i].name, sizeof m.files[i].name, "%s" PART_ENDING, c->participants[i]);
    checkpoint_sweep_given_up(m.all, c->start_number, c->train->step);
    // The directory exists from here on: if it is missing later, another process has removed it.
    int rc = c->failed ? disk_error(m.error, "%s", c->failed) : 0;
    if (rc == 0) rc = disk_make_dir(m.all, m.error) || disk_make_dir(m.dir, m.error) ? -1 : 0;
    if (rc == 0) m.place = open(m.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = rc || wait_for_all(&m, quit) || seal(&m) || give_name(&m) ? -1 : 0;
    if (rc) {
        char kept[48] = "";
        if (!m.named) disk_remove_dir(m.dir, NULL);
        int64_t step = c->kind == CHECKPOINT_ALL ? checkpoint_latest_step(c->run_dir) : 0;
        if (c->kind == CHECKPOINT_ALL && step >= 0)
            snprintf(kept, sizeof kept, "; step-%lld is kept", (long long)step);
        else if (c->kind == CHECKPOINT_ALL)
            snprintf(kept, sizeof kept, "; there is no earlier one");
        disk_error(error, "the %s of step %lld was given up: %s%s",
                   c->kind == CHECKPOINT_ALL ? "checkpoint" : "snapshot", (long long)c->train->step,
                   why ? why : "?", kept);
    }
    free(why);
    if (m.place >= 0) close(m.place);
    free(m.there);
    free(m.files);
    free(m.all);
    free(m.dir);
    return rc;
}
