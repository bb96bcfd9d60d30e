#include "shared/state/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/config/json.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/files/regular_file.h"
#include "shared/state/checkpoint_list.h"
#include "shared/state/manifest.h"

#define POLL_NS     10000000
#define SIDECAR_MAX 4096
#define MAX_EXACT   9007199254740992.0  // 2^53: JSON numbers arrive as doubles

char *checkpoint_partial(const char *run_dir, int64_t step, uint64_t life) {
    return xasprintf("%s/checkpoints/.step-%" PRId64 ".%016" PRIx64 ".partial", run_dir, step, life);
}

// What one call of checkpoint_complete works with.
struct commit {
    const struct checkpoint_commit *c;
    char *dir, *all;  // the partial directory; checkpoints/
    int place;        // the partial directory, open: while it is, no other can be taken for it; -1: not yet
    struct manifest_file *files;
    bool *there;
    bool named;  // what bears the partial name now is not this checkpoint
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

// -1: there is no such file.
static int64_t size_of(const char *dir, const char *name) {
    struct stat st;
    char *path = xasprintf("%s/%s", dir, name);
    int rc = stat(path, &st);
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
    if (!good) return disk_error(m->error, "%s/%s.json: is no sidecar", m->dir, m->c->participants[i]);
    int64_t found = size_of(m->dir, f->name);
    if (found == f->bytes) return 0;
    return disk_error(m->error, "%s/%s: has %lld bytes, %lld were written", m->dir, f->name, (long long)found,
                      (long long)f->bytes);
}

// Whether the partial directory is still the one that this commit began with: somebody may have removed it, and a late
// participant made it anew, without the parts that were there.
static int same_place(struct commit *m) {
    struct stat began, now;
    if (fstat(m->place, &began) == 0 && stat(m->dir, &now) == 0 && began.st_ino == now.st_ino &&
        began.st_dev == now.st_dev)
        return 0;
    return disk_error(m->error, "%s: the directory has vanished", m->dir);
}

// 1: not all are there yet. -1: it will not come to a checkpoint. *seen: what has arrived, in bytes and sidecars.
static int look(struct commit *m, int64_t *seen) {
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
    if (same_place(m)) return -1;
    return missing ? 1 : 0;
}

// Names those whose files are missing.
static void not_there(struct commit *m, const char *why) {
    char *names = xstrdup("");
    for (int i = 0; i < m->c->count; i++) {
        if (m->there[i]) continue;
        char *longer = xasprintf("%s%s%s", names, *names ? ", " : "", m->c->participants[i]);
        free(names);
        names = longer;
    }
    disk_error(m->error, "%s while %s had not written all of it", why, names);
    free(names);
}

static int wait_for_all(struct commit *m, const _Atomic int *quit) {
    int64_t seen, before = -1;
    double since = now_seconds();
    for (int rc; (rc = look(m, &seen)) != 0;) {
        if (rc < 0) return -1;
        if (seen != before) since = now_seconds();
        before = seen;
        bool stalled = m->c->stall_seconds > 0 && now_seconds() - since > m->c->stall_seconds;
        if (stalled || (quit && *quit)) {
            not_there(m, stalled ? "nothing moved" : "the run ended");
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return 0;
}

// ---------------------------------------------------------------- the commit
static int write_manifest(struct commit *m) {
    const struct checkpoint_commit *c = m->c;
    const struct manifest manifest = {.train = *c->train,
                                      .dtype = c->dtype,
                                      .optimizer = c->optimizer,
                                      .states = c->states,
                                      .identity = c->identity,
                                      .files = m->files,
                                      .count = c->count};
    char *text = manifest_text(&manifest), *path = xasprintf("%s/" MANIFEST_NAME, m->dir);
    int rc = disk_write_file(path, text, m->error);
    free(path);
    free(text);
    return rc;
}

static void remove_sidecars(const struct commit *m) {
    for (int i = 0; i < m->c->count; i++) {
        char *path = xasprintf("%s/%s.json", m->dir, m->c->participants[i]);
        disk()->unlink(path);
        free(path);
    }
}

// Where two names cannot be exchanged: the older one steps aside under a name that counts as complete as well.
static int step_aside(const struct commit *m, const char *final, const char *aside) {
    if (checkpoint_remove(m->all, aside, m->c->train->step, m->error)) return -1;
    if (disk()->rename(final, aside) != 0)
        return disk_error(m->error, "%s: cannot rename: %s", final, strerror(errno));
    if (disk()->rename(m->dir, final) == 0) return 0;
    disk_error(m->error, "%s: cannot rename to %s: %s", m->dir, final, strerror(errno));
    disk()->rename(aside, final);
    return -1;
}

// The checkpoint gets its name; what had it before is removed afterwards.
static int give_name(struct commit *m) {
    int64_t step = m->c->train->step;
    char *final = checkpoint_final(m->c->run_dir, step), *aside = xasprintf("%s.old", final);
    const char *replaced = NULL;
    int rc = 0;
    if (size_of(final, "") < 0) {
        if (disk()->rename(m->dir, final) != 0)
            rc = disk_error(m->error, "%s: cannot rename to %s: %s", m->dir, final, strerror(errno));
    } else if (disk()->exchange(m->dir, final) == 0) {
        replaced = m->dir;
    } else if (errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP) {
        rc = step_aside(m, final, aside);
        replaced = aside;
    } else {
        rc = disk_error(m->error, "%s: cannot take the place of %s: %s", m->dir, final, strerror(errno));
    }
    m->named = rc == 0;
    if (rc == 0) rc = disk_sync_dir(m->all, m->error);
    if (rc == 0) rc = disk_sync_dir(m->c->run_dir, m->error);  // checkpoints/ may be new
    if (rc == 0 && replaced) {
        char *why = NULL;
        if (checkpoint_remove(m->all, replaced, step, &why)) warn("%s", why);
        free(why);
    }
    free(aside);
    free(final);
    return rc;
}

static int commit(struct commit *m, const _Atomic int *quit) {
    checkpoint_sweep_given_up(m->all, m->c->life, m->c->train->step);
    // The directory is there from now on: if it is not later, somebody has taken it away.
    if (disk_make_dir(m->all, m->error) || disk_make_dir(m->dir, m->error)) return -1;
    m->place = open(m->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (wait_for_all(m, quit) || write_manifest(m)) return -1;
    remove_sidecars(m);
    return disk_sync_dir(m->dir, m->error) || give_name(m) ? -1 : 0;
}

// With what is kept.
static void explain(const struct checkpoint_commit *c, char *why, char **error) {
    char kept[40] = "no earlier one is there";
    int64_t step = checkpoint_latest_step(c->run_dir);
    if (step >= 0) snprintf(kept, sizeof kept, "step-%lld is kept", (long long)step);
    disk_error(error, "the checkpoint of step %lld was given up: %s; %s", (long long)c->train->step,
               why ? why : "?", kept);
    free(why);
}

int checkpoint_complete(const struct checkpoint_commit *c, const _Atomic int *quit, char **error) {
    char *why = NULL;
    struct commit m = {.c = c,
                       .dir = checkpoint_partial(c->run_dir, c->train->step, c->life),
                       .all = checkpoints_dir(c->run_dir),
                       .place = -1,
                       .files = xcalloc((unsigned long)c->count, sizeof *m.files),
                       .there = xcalloc((unsigned long)c->count, sizeof *m.there),
                       .error = &why};
    for (int i = 0; i < c->count; i++)
        snprintf(m.files[i].name, sizeof m.files[i].name, "%s" PART_ENDING, c->participants[i]);
    int rc = commit(&m, quit);
    if (rc) {
        if (!m.named) disk_remove_dir(m.dir, NULL);
        explain(c, why, error);
    }
    if (m.place >= 0) close(m.place);
    free(m.there);
    free(m.files);
    free(m.all);
    free(m.dir);
    return rc;
}
