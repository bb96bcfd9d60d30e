#include "shared/report/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/data/vocabulary.h"
#include "shared/hf/hf_adapter.h"
#include "shared/report/evals.h"
#include "shared/report/metrics.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"

#define DYING_S 3.0  // the last process of a killed run (such as Open MPI's ranks) has ended after this time

static const char *const run_files[] = {"config.json",  "metrics.jsonl", "evals.jsonl",
                                        "summary.json", "trace.json",    "state.json"};
#define RUN_FILES (sizeof run_files / sizeof run_files[0])

static int make_path(const char *dir) {
    struct stat about;
    // Checked before any part of the path is created.
    if (strlen(dir) >= PATH_MAX) return fail("--out %.100s..: %s", dir, strerror(ENAMETOOLONG));
    if (dir_make(dir)) return fail("%s: cannot make the directory: %s", dir, strerror(errno));
    bool is_file = !stat(dir, &about) && !S_ISDIR(about.st_mode);
    return is_file ? fail("%s: is a file, not a directory: choose another --out", dir) : 0;
}

static char *run_dir_name(const struct config *c) {
    char utc[32], *model = xstrdup(c->model);
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(utc, sizeof utc, "%Y%m%dT%H%M%SZ", &tm);
    size_t length = strlen(model);
    while (length > 1 && model[length - 1] == '/') model[--length] = 0;
    const char *slash = strrchr(model, '/');
    char *base = xasprintf("runs/%s-%s-%s", slash ? slash + 1 : model, c->topology, utc);
    for (char *p = base; *p; p++)
        if (*p == ':') *p = '-';
    free(model);
    return base;
}

// Creates the first directory of that name that does not exist yet.
char *run_dir_make(const struct config *c) {
    char *base = run_dir_name(c), *name = xstrdup(base);
    int rc = make_path("runs");
    for (int i = 2; !rc && mkdir(name, 0777); i++) {
        if (errno != EEXIST) rc = fail("%s: cannot make the directory: %s", name, strerror(errno));
        if (rc) break;
        free(name);
        name = xasprintf("%s-%d", base, i);
    }
    free(base);
    if (!rc) return name;
    free(name);
    return NULL;
}

int run_dir_join(const char *dir) {
    char *ranks = xasprintf("%s/ranks", dir);
    int rc = make_path(ranks);
    free(ranks);
    return rc;
}

// Removes files from the folder `below` ("", "/ranks") in dir.
static void remove_files(const char *dir, const char *below, bool (*ours)(const char *name)) {
    char *folder = xasprintf("%s%s", dir, below);
    DIR *d = opendir(folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (!ours(e->d_name)) continue;
        char *path = xasprintf("%s/%s", folder, e->d_name);
        unlink(path);
        free(path);
    }
    if (d) closedir(d);
    free(folder);
}

bool run_dir_is_rank_file(const char *name) {
    return !strncmp(name, "worker-", 7) || !strncmp(name, "server-", 7) || !strncmp(name, "trace-", 6) ||
           !strncmp(name, "last-", 5) || !strncmp(name, "staleness-", 10) || !strncmp(name, "updates-", 8);
}

bool run_dir_is_record(const char *name) {
    return !strncmp(name, "arrivals.", 9) || !strcmp(name, "updates.jsonl");
}

static bool is_weights_file(const char *name) {
    return !strcmp(name, "config.json") || !strncmp(name, "model.safetensors", 17) ||
           !strcmp(name, ADAPTER_CONFIG) || !strcmp(name, ADAPTER_WEIGHTS) || tokenizer_file_known(name);
}

// Unfinished files of a killed writer: NAME.part or NAME.partPID for a NAME that a run writes.
static bool is_unfinished(const char *name) {
    const char *end = strrchr(name, '.');
    if (!end || strncmp(end, ".part", 5) || strspn(end + 5, "0123456789") != strlen(end + 5)) return false;
    char whole[256];
    if (snprintf(whole, sizeof whole, "%.*s", (int)(end - name), name) >= (int)sizeof whole) return false;
    for (size_t i = 0; i < RUN_FILES; i++)
        if (!strcmp(whole, run_files[i])) return true;
    return run_dir_is_rank_file(whole) || run_dir_is_record(whole) || is_weights_file(whole);
}

// Removes the files of one start of the run: its ranks' files, and unfinished files in this and other folders.
static void remove_life(const char *dir) {
    remove_files(dir, "", run_dir_is_record);
    remove_files(dir, "/ranks", run_dir_is_rank_file);
    remove_files(dir, "", is_unfinished);
    remove_files(dir, "/ranks", is_unfinished);
    remove_files(dir, "/weights", is_unfinished);
    remove_files(dir, "/weights/base", is_unfinished);
}

// Removes files of a run. whose: the text that says whose they are. Returns 0, or -1 after logging.
static int remove_named(const char *dir, const char *const *names, size_t count, const char *whose) {
    for (size_t i = 0; i < count; i++) {
        char *path = xasprintf("%s/%s", dir, names[i]);
        int rc = unlink(path) && errno != ENOENT
                     ? fail("%s: %s, and cannot be removed: %s", path, whose, strerror(errno))
                     : 0;
        free(path);
        if (rc) return -1;
    }
    return 0;
}

// Returns -1 after logging if a running process of this machine uses dir.
static int in_use(const char *dir, const struct run_state *s) {
    if (s->phase != RUN_RUNNING || s->own || s->elsewhere) return 0;
    return fail(
        "%s is in use: process %lld has been writing to it since "
        "%s; choose another --out, or end it first",
        dir, (long long)s->pid, s->started);
}

int run_dir_check(const char *dir, bool force) {
    struct run_state s;
    int64_t step = metrics_last_step(dir);
    const char *found = NULL;
    for (size_t i = 0; i < RUN_FILES && !found; i++)
        if (has_file(dir, run_files[i])) found = run_files[i];
    run_state_read(dir, &s);
    if (in_use(dir, &s)) return -1;
    if (force || !found) return 0;
    if (s.phase == RUN_RUNNING && s.elsewhere)
        return fail(
            "%s is in use by process %lld on %s, according to its state.json: choose another --out, or --force if that has ended",
            dir, (long long)s.pid, s.host);
    // A config.json without a state.json may belong to something else, for example a model.
    if (s.phase == RUN_UNKNOWN)
        return fail("%s/%s is there from an earlier run: choose another --out, or --force to replace it", dir,
                    found);
    if (step > 0)
        return fail(
            "%s holds %lld steps of an earlier run (%s): choose another --out, or --force to replace it", dir,
            (long long)step, run_phase_word(s.phase));
    if (checkpoint_latest_step(dir) > 0)
        return fail(
            "%s holds a checkpoint of step %lld: --resume latest continues from it; choose another --out, or --force "
            "to replace it",
            dir, (long long)checkpoint_latest_step(dir));
    return 0;
}

// Creates dir if it does not exist, and lets several processes continue one at a time. Where directories cannot be
// locked (some network file systems), processes that come at exactly the same time may miss each other.
static int lock_dir(const char *dir, int *lock) {
    *lock = -1;
    if (make_path(dir)) return -1;
    *lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock >= 0) flock(*lock, LOCK_EX);
    return 0;
}

int run_dir_prepare(const char *dir, bool force) {
    int lock;
    if (lock_dir(dir, &lock)) return -1;
    int rc = run_dir_check(dir, force);
    if (!rc) rc = remove_named(dir, run_files, RUN_FILES, "an earlier run's");
    if (!rc) {
        remove_life(dir);
        if (force) remove_files(dir, "/weights", is_weights_file);
        if (force) remove_files(dir, "/weights/base", is_weights_file);
        for (int kind = force ? CHECKPOINT_ALL : CHECKPOINT_WEIGHTS; kind < CHECKPOINT_KINDS; kind++) {
            checkpoint_drop_later(dir, kind, -1);
            checkpoint_sweep(dir, kind, 0);
        }
        rc = run_dir_join(dir);
    }
    if (!rc) rc = run_state_begin(dir);
    if (lock >= 0) close(lock);
    return rc;
}

static int leave_config(const char *dir, const struct config *c) {
    char *text = config_to_json(c);
    int rc = run_file_write(dir, "config.json", text);
    free(text);
    if (rc) run_state_end(dir, RUN_FAILED, error_last());
    return rc;
}

int run_dir_take(const char *dir, const struct config *c, bool force) {
    return run_dir_prepare(dir, force) ? -1 : leave_config(dir, c);
}

// ---------------------------------------------------------------- runs that are resumed
// A process on another machine cannot be checked from here. It has ended if a queue restarted the job.
static void say_elsewhere(const char *dir, const struct run_state *s) {
    if (s->phase == RUN_RUNNING && s->elsewhere)
        warn("%s was in use by process %lld on %s, which has probably ended", dir, (long long)s->pid,
             s->host);
}

// A run that is resumed right after a kill may find the last process of the previous start still ending.
static void let_it_end(const char *dir, struct run_state *s) {
    const struct timespec pause = {.tv_nsec = 20000000};
    double until_s = now_seconds() + DYING_S;
    run_state_read(dir, s);
    while (s->phase == RUN_RUNNING && !s->own && !s->elsewhere && now_seconds() < until_s) {
        nanosleep(&pause, NULL);
        run_state_read(dir, s);
    }
}

int run_dir_resume(const char *dir, const struct config *c) {
    static const char *const over[] = {"summary.json", "trace.json"};
    struct run_state s;
    int lock;
    if (lock_dir(dir, &lock)) return -1;
    let_it_end(dir, &s);
    int rc = in_use(dir, &s);
    if (!rc) say_elsewhere(dir, &s);
    if (!rc) rc = remove_named(dir, over, sizeof over / sizeof *over, "an earlier start's");
    if (!rc) remove_life(dir);
    if (!rc) rc = run_dir_join(dir);
    if (!rc) rc = run_state_begin(dir) || leave_config(dir, c) ? -1 : 0;
    if (lock >= 0) close(lock);
    return rc;
}

void run_dir_adopt(const char *dir, const struct config *c) {
    struct run_state s;
    run_state_read(dir, &s);
    if (s.phase == RUN_RUNNING && s.own) return;
    char *text = config_to_json(c);
    run_file_try(dir, "config.json", text);
    free(text);
    run_state_adopt(dir);
}

int run_dir_restart(const char *dir, const struct config *c) {
    struct run_state s;
    let_it_end(dir, &s);
    if (s.phase == RUN_COMPLETE)
        return fail(
            "%s holds a complete run without checkpoints: it cannot be resumed; choose another --out, or "
            "--force without --resume to replace it",
            dir);
    if (in_use(dir, &s)) return -1;
    say_elsewhere(dir, &s);
    return run_dir_take(dir, c, s.phase != RUN_UNKNOWN);
}

int run_dir_cut(const char *dir, int64_t step, int64_t place) {
    checkpoint_drop_later(dir, CHECKPOINT_WEIGHTS, place);
    checkpoint_drop_later(dir, CHECKPOINT_ALL, step);
    struct evals e;
    if (evals_read(dir, &e)) return -1;
    int all = e.count;
    while (e.count > 0 && e.all[e.count - 1].step > place) e.count--;
    int rc = e.count < all ? evals_write(dir, &e) : 0;
    evals_free(&e);
    return rc;
}
