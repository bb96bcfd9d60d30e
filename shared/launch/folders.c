// Small files travel as notes, numbered for each leader, 1 MiB of a file at most in each; rank 0 says which it has taken, and a
// leader is never more than a few ahead: neither holds more than that in memory.
#include "shared/launch/folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/name_map.h"
#include "shared/core/path.h"
#include "shared/core/run_file.h"
#include "shared/report/run_dir.h"
#include "shared/report/run_state.h"
#include "shared/state/checkpoint.h"
#include "shared/state/manifest.h"

#define CHUNK     ((size_t)1 << 20)  // bytes of a file in one message
#define AHEAD     4                  // notes that rank 0 has not taken yet
#define LOOK_S    0.1
#define TURN_NS   2000000  // between two looks at the rendezvous
#define SAY_S     10.0
#define PATH_MOST 240

enum note_kind {
    NOTE_FILE,  // a slice of a file, in order
    NOTE_SIZE,  // a part has grown to `size` bytes
    NOTE_OVER,  // the last note
};
struct note {  // followed by `bytes` bytes
    int32_t kind;
    uint32_t bytes;
    int64_t offset, size;
    char path[PATH_MOST];  // below DIR
};

struct leader {  // on rank 0
    int rank;    // -1: over
    uint64_t taken;
    struct new_file file;  // in hand
    bool open, failed;
};

struct folders {
    struct run *run;
    struct rendezvous *meeting;
    const char *dir;
    int rank, size, own;  // own: the lowest rank that sees this rank's DIR
    int *of;              // of each rank
    bool over, goes_on;   // what rank 0 found: nothing is left to train; it goes on in DIR
    uint64_t rounds, said, heard;
    bool started;
    pthread_t thread;
    _Atomic int ending;  // 1: what is left is handed over; 2: rank 0 waits for nobody
    bool whole;
    // A leader's:
    struct name_map sent;  // name -> bytes of it that rank 0 knows of; owns its names
    // Rank 0's:
    struct leader *leaders;
    int count;
    char *complete;  // the checkpoints as they were last told
};

bool folders_one(const struct folders *f) {
    for (int i = 0; i < f->size; i++)
        if (f->of[i]) return false;
    return true;
}

// ---------------------------------------------------------------- waiting
static const char *host_of(const struct folders *f, int rank) {
    return rendezvous_member(f->meeting, rank)->host;
}

static void turn(void) { nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL); }

// What a rank puts under the name, however long it takes while it is alive. NULL: it has gone, or the job has ended.
static void *await(struct folders *f, int rank, const char *what, size_t *bytes, const char *name) {
    size_t own;
    if (!bytes) bytes = &own;
    double start_s = now_seconds(), said_s = start_s;
    void *data = NULL;
    for (; !(data = rendezvous_look(f->meeting, name, bytes)); turn()) {
        if (rendezvous_ended(f->meeting) || rendezvous_gone(f->meeting, rank) || f->ending > 1) return NULL;
        if (now_seconds() - said_s < SAY_S) continue;
        said_s = now_seconds();
        info("waiting for rank %d on %s to %s: %.0f s, it is alive", rank, host_of(f, rank), what,
             said_s - start_s);
    }
    return data;
}

static int put_text(struct folders *f, const void *data, size_t bytes, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int put_text(struct folders *f, const void *data, size_t bytes, const char *fmt, ...) {
    char name[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return rendezvous_put(f->meeting, name, data, bytes);
}

static int lost(const struct folders *f, int rank, const char *what) {
    const char *ended = rendezvous_ended(f->meeting);
    return ended ? fail("%s", ended)
                 : fail("rank %d on %s has gone before it could %s", rank, host_of(f, rank), what);
}

// Everybody's bytes, the same number of each, in rank order: rendezvous_all without its deadline, as files may stand still.
static int meet(struct folders *f, const char *what, const void *mine, size_t bytes, void *all) {
    uint64_t round = ++f->rounds;
    char name[64];
    size_t got = 0;
    int rc = 0;
    if (f->rank) put_text(f, mine, bytes, "folder/%" PRIu64 "/%d", round, f->rank);
    if (!f->rank) memcpy(all, mine, bytes);
    for (int i = 1; i < f->size && !f->rank && !rc; i++) {
        // It has not come, and the job may do without it.
        if (rendezvous_member(f->meeting, i)->machine < 0) {
            memset((char *)all + (size_t)i * bytes, 0, bytes);
            continue;
        }
        snprintf(name, sizeof name, "folder/%" PRIu64 "/%d", round, i);
        char *data = await(f, i, what, &got, name);
        if (!data || got != bytes) rc = lost(f, i, what);
        if (!rc) memcpy((char *)all + (size_t)i * bytes, data, bytes);
        if (!rc) rendezvous_put(f->meeting, name, "", 0);
        free(data);
    }
    snprintf(name, sizeof name, "folder/%" PRIu64, round);
    if (!f->rank && !rc) rc = rendezvous_put(f->meeting, name, all, bytes * (size_t)f->size);
    if (!f->rank) return rc;
    char *all_could = xasprintf("hear that all could %s", what), *data = await(f, 0, all_could, &got, name);
    if (!data || got != bytes * (size_t)f->size) rc = lost(f, 0, what);
    if (!rc) memcpy(all, data, got);
    free(all_could);
    free(data);
    return rc;
}

// ---------------------------------------------------------------- who shares a folder
static char *token(const struct folders *f, uint64_t nonce, int rank) {
    return xasprintf("%s/.rank-%d.%016" PRIx64, f->dir, rank, nonce);
}

static int find_folders(struct folders *f) {
    uint64_t mine = (uint64_t)getpid(), *draws = xcalloc((unsigned long)f->size, sizeof *draws);
    bool drawn = getrandom(&mine, sizeof mine, 0) == (ssize_t)sizeof mine || f->rank;
    int rc =
        drawn && !dir_make(f->dir) ? 0 : fail("%s: cannot make the directory: %s", f->dir, strerror(errno));
    // 1. All have a directory, and know rank 0's number, which no earlier start has left in a name.
    if (!rc) rc = meet(f, "make the run directory", &mine, sizeof mine, draws);
    char *own = token(f, draws[0], f->rank), *why = NULL;
    // 2. All have left a token: who sees it sees this folder.
    if (!rc && new_file_write(own, "", NEW_FILE_WHOLE, &why)) rc = fail("%s", why);
    if (!rc) rc = meet(f, "write to the run directory", "", 0, draws);
    for (f->own = 0; !rc && f->own < f->rank; f->own++) {
        char *other = token(f, draws[0], f->own);
        bool sees = access(other, F_OK) == 0;
        free(other);
        if (sees) break;
    }
    // 3. All have looked.
    if (!rc) rc = meet(f, "look into the run directory", &f->own, sizeof f->own, f->of);
    unlink(own);
    free(why);
    free(own);
    free(draws);
    return rc;
}

// ---------------------------------------------------------------- the checkpoint to go on from
// A leader's copy of one file: it lacks it, or it is the one that hands it to those who do.
static int bring(struct folders *f, const char *path, int64_t size, int file, bool lacks, bool gives,
                 int from) {
    char *chunk = gives ? xcalloc(1, CHUNK) : NULL, why[FILE_WHY_MAX], name[64], *error = NULL;
    bool *good = xcalloc((unsigned long)f->size, sizeof *good), fine = true;
    struct new_file to = {.fd = -1};
    int fd = gives ? file_open(path, NULL, why) : -1, rc = 0;
    if (gives && fd < 0) fail("%s: %s", path, why);
    fine = (!gives || fd >= 0) && (!lacks || new_file_begin(&to, path, false));
    if (lacks && !fine) fail("%s: cannot write: %s", path, strerror(errno));
    for (int64_t at = 0; at < size && !rc; at += (int64_t)CHUNK) {
        size_t bytes = size - at < (int64_t)CHUNK ? (size_t)(size - at) : CHUNK, got = 0;
        snprintf(name, sizeof name, "part/%d/%" PRId64, file, at);
        if (gives && fine && pread(fd, chunk, bytes, (off_t)at) != (ssize_t)bytes)
            fine = !fail("%s: cannot read it", path);
        if (gives) rendezvous_put(f->meeting, name, chunk, fine ? bytes : 0);
        char *data = lacks ? await(f, from, "read a checkpoint's part", &got, name) : NULL;
        if (lacks && fine && (got != bytes || disk_write(to.fd, path, data, bytes, &error)))
            fine = !fail("%s: %s", path, error ? error : "its bytes have not come");
        free(data);
        rc = meet(f, "take a checkpoint's part", &fine, sizeof fine, good);
        if (gives) rendezvous_put(f->meeting, name, "", 0);
        for (int i = 0; i < f->size && !rc; i++)
            if (!good[i]) rc = fine ? fail("rank %d on %s has no whole %s", i, host_of(f, i), path) : -1;
    }
    if (lacks && new_file_end(&to, rc || !fine ? NEW_FILE_DISCARD : NEW_FILE_ON_DISK) && !rc)
        rc = fail("%s: cannot write: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(error);
    free(good);
    free(chunk);
    return rc;
}

// Makes the checkpoint `path`, whose manifest is there in every folder, whole in all of them.
static int bring_all(struct folders *f, const char *path) {
    struct manifest m;
    if (manifest_read(path, &m)) return -1;
    size_t count = (size_t)m.count;
    char *mine = xcalloc(count, 1), *all = xcalloc(count, (unsigned long)f->size);
    for (int i = 0; i < m.count; i++) {
        struct stat st;
        char *file = xasprintf("%s/%s", path, m.files[i].name);
        mine[i] = stat(file, &st) == 0 && st.st_size == m.files[i].bytes;
        free(file);
    }
    int rc = meet(f, "look for a checkpoint's parts", mine, count, all), lacking = 0;
    for (int i = 0; i < m.count && !rc; i++) {
        int from = -1, lack = 0;
        for (int k = 0; k < f->size; k++) {
            bool has = all[(size_t)k * count + (size_t)i];
            if (f->of[k] == k && !has) lack++;
            if (f->of[k] == k && has && from < 0) from = k;
        }
        if (from < 0 && f->rank) error_quiet(QUIET_ALL);  // rank 0 says it
        if (from < 0)
            rc = fail("--resume: %s/%s: none of the ranks' folders has it; it was written on %s", path,
                      m.files[i].name, *m.files[i].host ? m.files[i].host : "the host of rank 0");
        error_quiet(QUIET_NOT);
        if (rc || !lack) continue;
        if (!lacking++ && !f->rank)
            info("--resume: parts of %s are on other hosts: bringing each to those that lack it", path);
        char *file = xasprintf("%s/%s", path, m.files[i].name);
        rc = bring(f, file, m.files[i].bytes, i, f->own == f->rank && !mine[i], f->rank == from, from);
        free(file);
    }
    manifest_free(&m);
    free(mine);
    free(all);
    return rc;
}

// Rank 0 chooses; in every folder the same checkpoint gets its name and its manifest.
static int choose(struct folders *f, char **path) {
    struct job *j = &f->run->job;
    size_t bytes = 0;
    const char *asked = j->config->recovery.resume;
    char *text = NULL, *manifest = NULL, *why = NULL;
    cJSON *told = cJSON_CreateObject();
    if (!f->rank) {
        if (resume_find(j->config, true, path)) return cJSON_Delete(told), -1;
        f->goes_on = resume_is_own(*path, f->dir);
        manifest = *path ? run_file_read(*path, MANIFEST_NAME, false) : NULL;
        json_put_text(told, "path", *path ? f->goes_on ? strrchr(*path, '/') + 1 : *path : "");
        json_put_text(told, "manifest", manifest ? manifest : "");
        json_put(told, "own", f->goes_on);
        json_put_text(told, "asked", asked ? asked : "");
        text = cJSON_PrintUnformatted(told);
        rendezvous_put(f->meeting, "folder/resume", text, strlen(text));
    } else if ((text = await(f, 0, "find its checkpoint", &bytes, "folder/resume"))) {
        cJSON_Delete(told);
        told = cJSON_Parse(text);
        const char *name = json_text(told, "path", "");
        f->goes_on = json_number(told, "own") == 1;
        manifest = xstrdup(json_text(told, "manifest", ""));
        if (*name) *path = f->goes_on ? xasprintf("%s/checkpoints/%s", f->dir, name) : xstrdup(name);
    }
    int rc = text ? 0 : lost(f, 0, "find its checkpoint");
    const char *first = json_text(told, "asked", "");
    if (!rc && f->rank && asked && *first && f->run->far_life < 2 && strcmp(asked, first) != 0)
        rc = fail("rank %d has --resume %s, rank 0 has --resume %s: give all ranks the same words", f->rank,
                  asked, first);
    if (!rc && *path && f->rank && f->own == f->rank) {
        if (f->goes_on)
            rc = checkpoint_adopt(f->dir, manifest, &why) ? fail("--resume: %s", why) : 0;
        else if (!has_file(*path, MANIFEST_NAME))
            rc = dir_make(*path) || run_file_write(*path, MANIFEST_NAME, manifest)
                     ? fail("--resume: %s", *path)
                     : 0;
        char *here = rc ? NULL : run_file_read(*path, MANIFEST_NAME, false);
        if (!rc && (!here || strcmp(here, manifest) != 0))
            rc = fail("--resume: %s is another checkpoint here than on %s, rank 0's host", *path,
                      host_of(f, 0));
        free(here);
    }
    free(why);
    free(manifest);
    free(text);
    cJSON_Delete(told);
    return rc;
}

static int find_checkpoint(struct folders *f) {
    struct job *j = &f->run->job;
    char *path = NULL;
    const char *asked = j->config->recovery.resume;
    int rc = choose(f, &path);
    if (!rc && !path && asked && strcmp(asked, "latest") != 0)
        rc = fail(
            "rank %d: --resume %s: rank 0 was told of no checkpoint to go on from; give all ranks the same words",
            f->rank, asked);
    if (!rc) rc = meet(f, "find its checkpoint", "", 0, f->of);
    if (!rc && path && !folders_one(f)) rc = bring_all(f, path);
    if (!rc && !f->rank) rc = job_resume(j, path != NULL);
    if (!rc && f->rank) {
        job_resume_forget(j);
        j->resume = path ? xstrdup(path) : NULL;
        j->resume_found = true;
    }
    free(path);
    return rc;
}

// ---------------------------------------------------------------- a leader: notes to rank 0
static int say(struct folders *f, struct note n, const char *path, const void *data) {
    if (snprintf(n.path, sizeof n.path, "%s", path) >= (int)sizeof n.path)
        return fail("%s: too long a name", path);
    if (f->said >= AHEAD) {
        char name[64];
        snprintf(name, sizeof name, "taken/%d/%" PRIu64, f->rank, f->said - AHEAD);
        void *word = await(f, 0, "take this host's files", NULL, name);
        if (!word) return -1;
        free(word);
    }
    char *both = xcalloc(1, sizeof n + n.bytes);
    memcpy(both, &n, sizeof n);
    if (n.bytes) memcpy(both + sizeof n, data, n.bytes);
    int rc = put_text(f, both, sizeof n + n.bytes, "note/%d/%" PRIu64, f->rank, f->said++);
    free(both);
    return rc;
}

static int say_text(struct folders *f, const char *path, const char *text) {
    size_t bytes = strlen(text);
    return say(f, (struct note){.kind = NOTE_FILE, .bytes = (uint32_t)bytes, .size = (int64_t)bytes}, path,
               text);
}

static int say_file(struct folders *f, const char *name) {
    char *path = xasprintf("%s/%s", f->dir, name), *chunk = xcalloc(1, CHUNK), why[FILE_WHY_MAX];
    int64_t size = 0, at = 0;
    int fd = file_open(path, &size, why), rc = fd < 0 ? fail("%s: %s", path, why) : 0;
    while (!rc && (at < size || !at)) {
        size_t bytes = size - at < (int64_t)CHUNK ? (size_t)(size - at) : CHUNK;
        if (pread(fd, chunk, bytes, (off_t)at) != (ssize_t)bytes) rc = fail("%s: cannot read it", path);
        struct note n = {.kind = NOTE_FILE, .bytes = (uint32_t)bytes, .offset = at, .size = size};
        if (!rc) rc = say(f, n, name, chunk);
        at += bytes ? (int64_t)bytes : 1;
    }
    if (fd >= 0) close(fd);
    free(chunk);
    free(path);
    return rc;
}

// Whether rank 0 knows no such size of that file yet.
static bool is_news(struct folders *f, const char *name, int64_t bytes) {
    char *own = xstrdup(name);
    bool added;
    int64_t before = name_map_put(&f->sent, own, bytes, &added);
    if (added) return true;
    for (size_t i = 0; before != bytes && i < f->sent.room; i++)
        if (f->sent.slots[i].name && !strcmp(f->sent.slots[i].name, own)) f->sent.slots[i].value = bytes;
    free(own);
    return before != bytes;
}

// A participant has ended its file (the sidecar), given it up, or is at it.
static int carry_part(struct folders *f, enum checkpoint_kind kind, const char *partial, const char *file) {
    char *name = xasprintf("%s/%s", partial, file), *whole = xasprintf("%s/%s", f->dir, name), *text = NULL;
    bool sidecar = ends_with(file, ".json"), growing = ends_with(file, PART_ENDING ".part");
    struct stat st = {0};
    int rc = 0;
    if (growing && kind == CHECKPOINT_ALL && !stat(whole, &st) && is_news(f, name, (int64_t)st.st_size))
        rc = say(f, (struct note){.kind = NOTE_SIZE, .size = (int64_t)st.st_size}, name, NULL);
    if ((sidecar || ends_with(file, ".failed")) && is_news(f, name, 0))
        text = run_file_read(f->dir, name, true);
    cJSON *words = text && sidecar ? cJSON_Parse(text) : NULL;
    char *part = words ? xasprintf("%s/%s", partial, json_text(words, "file", "")) : NULL;
    if (part && kind == CHECKPOINT_WEIGHTS) rc = say_file(f, part);
    if (part && kind == CHECKPOINT_ALL) {
        json_put_text(words, "host", host_of(f, f->rank));
        free(text);
        text = cJSON_PrintUnformatted(words);
    }
    if (text && !rc) rc = say_text(f, name, text);
    for (int i = 0; part && kind == CHECKPOINT_WEIGHTS && i < 2; i++) {  // rank 0 has it
        char *gone = xasprintf("%s/%s", f->dir, i ? part : name);
        unlink(gone);
        free(gone);
    }
    cJSON_Delete(words);
    free(part);
    free(text);
    free(whole);
    free(name);
    return rc;
}

// The names in a folder below DIR that `ours` wants, to `take`.
typedef int take_name(struct folders *f, const char *below, const char *name);
static int each(struct folders *f, const char *below, take_name *take) {
    char *path = xasprintf("%s/%s", f->dir, below);
    DIR *d = opendir(path);
    int rc = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && take(f, below, e->d_name)) rc = -1;
    if (d) closedir(d);
    free(path);
    return rc;
}

static int take_part(struct folders *f, const char *below, const char *name) {
    return carry_part(f, strncmp(below, "snapshots", 9) ? CHECKPOINT_ALL : CHECKPOINT_WEIGHTS, below, name);
}

static int take_partial(struct folders *f, const char *below, const char *name) {
    if (!ends_with(name, ".partial")) return 0;
    char *path = xasprintf("%s/%s", below, name), *whole = xasprintf("%s/%s", f->dir, path);
    int rc = each(f, path, take_part);
    if (f->ending && !strcmp(below, "snapshots"))
        rmdir(whole);  // empty, and nobody begins a part there any more
    free(whole);
    free(path);
    return rc;
}

static int take_record(struct folders *f, const char *below, const char *name) {
    bool root = !*below;
    if (ends_with(name, ".part") || !(root ? run_dir_is_record(name) : run_dir_is_rank_file(name))) return 0;
    char *path = xasprintf("%s%s%s", below, root ? "" : "/", name);
    int rc = say_file(f, path);
    free(path);
    return rc;
}

// ---------------------------------------------------------------- a leader: what rank 0 has completed
// {"steps":[20,40],"manifests":{"40":".."}}: this folder has those checkpoints and no others.
static void follow(struct folders *f, const char *text) {
    cJSON *told = cJSON_Parse(text), *one;
    char *why = NULL;
    int count;
    cJSON_ArrayForEach(one, json_item(told, "manifests")) {
        if (checkpoint_adopt(f->dir, one->valuestring, &why)) warn("%s", why);
        free(why);
        why = NULL;
    }
    int64_t *steps = checkpoint_steps(f->dir, CHECKPOINT_ALL, &count);
    for (int i = 0; i < count; i++) {
        bool kept = false;
        cJSON_ArrayForEach(one, json_item(told, "steps")) kept =
            kept || (int64_t)one->valuedouble == steps[i];
        if (!kept) checkpoint_drop(f->dir, CHECKPOINT_ALL, steps[i]);
    }
    free(steps);
    cJSON_Delete(told);
}

static void hear(struct folders *f) {
    char name[64], *text;
    size_t bytes;
    snprintf(name, sizeof name, "complete/%" PRIu64, f->heard);
    if (!(text = rendezvous_look(f->meeting, name, &bytes))) return;
    follow(f, text);
    f->heard++;
    free(text);
}

static void *lead(void *arg) {
    struct folders *f = arg;
    error_set_label("rank %d", f->rank);
    for (int ending = 0; !ending && !rendezvous_ended(f->meeting);) {
        ending = f->ending;
        each(f, "checkpoints", take_partial);
        each(f, "snapshots", take_partial);
        hear(f);
        for (double until_s = now_seconds() + LOOK_S; !f->ending && now_seconds() < until_s;) turn();
    }
    if (f->whole) {
        each(f, "ranks", take_record);
        each(f, "", take_record);
    }
    say(f, (struct note){.kind = NOTE_OVER}, "", NULL);
    // The last checkpoint may become complete behind the last note.
    void *last = await(f, 0, "end the run", NULL, "complete/over");
    for (; last && f->heard < strtoull(last, NULL, 10) && !rendezvous_ended(f->meeting); turn()) hear(f);
    free(last);
    return NULL;
}

// ---------------------------------------------------------------- rank 0
// A name of a run's file, whoever says it.
static bool plain(const char *path) {
    return memchr(path, 0, PATH_MOST) && *path && *path != '/' && !strstr(path, "..");
}

static void take_slice(struct folders *f, struct leader *l, const struct note *n, const char *data) {
    char *path = xasprintf("%s/%s", f->dir, n->path), *folder = xstrdup(path), *error = NULL;
    *strrchr(folder, '/') = 0;
    if (n->offset == 0) {
        if (l->open) new_file_end(&l->file, NEW_FILE_DISCARD);
        char *growing = xasprintf("%.*s" PART_ENDING ".part", (int)(strlen(path) - strlen(".json")), path);
        if (ends_with(path, ".json") && strstr(n->path, ".partial/")) unlink(growing);
        free(growing);
        l->failed = dir_make(folder) || !new_file_begin(&l->file, path, false);
        l->open = true;
    }
    if (l->open && !l->failed && disk_write(l->file.fd, path, data, n->bytes, &error)) l->failed = true;
    if (l->open && n->offset + (int64_t)n->bytes >= n->size) {
        if (new_file_end(&l->file, l->failed ? NEW_FILE_DISCARD : NEW_FILE_WHOLE) || l->failed)
            fail("%s: cannot write what has come from %s: %s", path, host_of(f, l->rank),
                 error ? error : strerror(errno));
        l->open = false;
    }
    free(error);
    free(folder);
    free(path);
}

// As long as the part elsewhere, and without any of it: who waits for it sees that it grows. Where the checkpoint has been given
// up there is no folder for it.
static void grow(struct folders *f, const struct note *n) {
    char *path = xasprintf("%s/%s", f->dir, n->path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && ftruncate(fd, (off_t)n->size)) warn("%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(path);
}

static bool take_note(struct folders *f, struct leader *l) {
    char name[64];
    size_t bytes = 0;
    struct note n = {0};
    snprintf(name, sizeof name, "note/%d/%" PRIu64, l->rank, l->taken);
    char *data = rendezvous_look(f->meeting, name, &bytes);
    if (!data) return false;
    memcpy(&n, data, bytes < sizeof n ? bytes : sizeof n);
    bool good = bytes >= sizeof n && bytes == sizeof n + n.bytes && (n.kind == NOTE_OVER || plain(n.path));
    char *why = good ? NULL
                     : xasprintf("rank %d on %s has handed over a file that makes no sense: %.80s", l->rank,
                                 host_of(f, l->rank), n.path);
    if (why) rendezvous_abort(f->meeting, why);
    free(why);
    if (good && n.kind == NOTE_FILE) take_slice(f, l, &n, data + sizeof n);
    if (good && n.kind == NOTE_SIZE) grow(f, &n);
    rendezvous_put(f->meeting, name, "", 0);
    put_text(f, "", 0, "taken/%d/%" PRIu64, l->rank, l->taken++);
    if (good && n.kind == NOTE_OVER) l->rank = -1;
    free(data);
    return true;
}

// Tells the leaders which checkpoints are complete, when those have changed.
static void tell(struct folders *f) {
    int count;
    int64_t *steps = checkpoint_steps(f->dir, CHECKPOINT_ALL, &count);
    char *now = xstrdup("");
    cJSON *told = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(told, "steps"),
          *manifests = cJSON_AddObjectToObject(told, "manifests");
    for (int i = 0; i < count; i++) {
        char *path = checkpoint_path_of(f->dir, CHECKPOINT_ALL, steps[i]), number[24], one[80];
        struct stat st = {0};
        snprintf(number, sizeof number, "%" PRId64, steps[i]);
        if (stat(path, &st)) st.st_ino = 0;
        snprintf(one, sizeof one, ";%s %ju;", number, (uintmax_t)st.st_ino);
        char *manifest =
            f->complete && strstr(f->complete, one) ? NULL : run_file_read(path, MANIFEST_NAME, true);
        char *longer = xasprintf("%s%s", now, one);
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)steps[i]));
        if (manifest) json_put_text(manifests, number, manifest);
        free(manifest);
        free(now);
        now = longer;
        free(path);
    }
    if (!f->complete || strcmp(f->complete, now) != 0) {
        char *text = cJSON_PrintUnformatted(told);
        put_text(f, text, strlen(text), "complete/%" PRIu64, f->heard++);
        free(text);
    }
    free(f->complete);
    f->complete = now;
    cJSON_Delete(told);
    free(steps);
}

static void *collect(void *arg) {
    struct folders *f = arg;
    double told_s = 0, end_s = 0, said_s = 0;
    for (int left = f->count; left && f->ending < 2 && !rendezvous_ended(f->meeting); turn()) {
        int first = -1;
        left = 0;
        for (int i = 0; i < f->count; i++) {
            struct leader *l = &f->leaders[i];
            if (l->rank >= 0 && !take_note(f, l) && rendezvous_gone(f->meeting, l->rank)) {
                warn("rank %d on %s has gone: %s lacks its files", l->rank, host_of(f, l->rank), f->dir);
                l->rank = -1;
            }
            left += l->rank >= 0;
            if (first < 0) first = l->rank;
        }
        if (f->ending && !end_s) end_s = said_s = now_seconds();
        if (first >= 0 && end_s && now_seconds() - said_s > SAY_S) {
            said_s = now_seconds();
            info("waiting for the files of rank %d on %s: %.0f s, it is alive", first, host_of(f, first),
                 said_s - end_s);
        }
        if (now_seconds() - told_s < LOOK_S) continue;
        tell(f);
        told_s = now_seconds();
    }
    return NULL;
}

// ---------------------------------------------------------------- the whole
// What rank 0 found in its DIR holds for all: an earlier run there is refused, continued or replaced.
static int take_dir(struct folders *f) {
    const struct config *c = f->run->config;
    bool latest = c->recovery.resume && !strcmp(c->recovery.resume, "latest");
    if (f->goes_on) return run_dir_continue(f->dir, c);
    return latest && !f->run->job.resume ? run_dir_begin_again(f->dir, c)
                                         : run_dir_take(f->dir, c, f->run->force);
}

static int take_dirs(struct folders *f) {
    size_t bytes;
    char name[64];
    int rc = 0;
    if (!f->rank) {
        f->over = run_is_over(f->run);
        rc = f->over ? 0 : run_begin(f->run);
        return rc ? rc : rendezvous_put(f->meeting, "ready/0", f->over ? "over" : "", f->over ? 4 : 0);
    }
    char *word = await(f, 0, "take the run directory", &bytes, "ready/0");
    if (!word) return lost(f, 0, "take the run directory");
    f->over = bytes > 0;
    free(word);
    if (f->own == 0 || f->over) return 0;
    snprintf(name, sizeof name, "ready/%d", f->own);
    if (f->own == f->rank) return take_dir(f) ? -1 : rendezvous_put(f->meeting, name, "", 0);
    word = await(f, f->own, "take the run directory", NULL, name);
    rc = word ? 0 : lost(f, f->own, "take the run directory");
    free(word);
    return rc;
}

static int start(struct folders *f) {
    for (int i = 1; i < f->size && !f->rank; i++)
        if (f->of[i] == i) f->leaders[f->count++].rank = i;
    bool leads = f->rank && f->own == f->rank;
    if (f->over || (!leads && !f->count)) return 0;
    int error = pthread_create(&f->thread, NULL, leads ? lead : collect, f);
    f->started = !error;
    return error ? fail("no thread carries the files of hosts: %s; " ERROR_RAISE_THREADS, strerror(error))
                 : 0;
}

static void destroy(struct folders **at) {
    struct folders *f = *at;
    for (size_t i = 0; i < f->sent.room; i++) free((char *)f->sent.slots[i].name);
    name_map_free(&f->sent);
    free(f->complete);
    free(f->leaders);
    free(f->of);
    free(f);
    *at = NULL;
}

// A checkpoint's parts lie where they were written, and go with a host that ends before the others have them.
static void say_apart(const struct folders *f) {
    const struct config *c = f->run->config;
    if (f->rank || f->over || folders_one(f) || c->recovery.checkpoint_every < 1) return;
    int other = 1;
    while (!f->of[other]) other++;
    warn(
        "--checkpoint-every %lld: %s of rank %d, on %s, is not the folder of rank 0. A job that dies just behind a checkpoint may "
        "leave one that nothing can go on from: give --out a folder that all ranks see",
        (long long)c->recovery.checkpoint_every, f->dir, other, host_of(f, other));
}

struct folders *folders_begin(struct run *r, struct rendezvous *meeting) {
    struct folders *f = xcalloc(1, sizeof *f);
    *f = (struct folders){
        .run = r, .meeting = meeting, .dir = r->config->out, .rank = r->env.rank, .size = r->env.size};
    f->of = xcalloc((unsigned long)f->size, sizeof *f->of);
    f->leaders = xcalloc((unsigned long)f->size, sizeof *f->leaders);
    r->job.dir = f->dir;
    if (find_folders(f) || find_checkpoint(f) || take_dirs(f) || start(f)) {
        rendezvous_abort(meeting, error_last());
        destroy(&f);
    } else {
        say_apart(f);
    }
    return f;
}

bool folders_over(const struct folders *f) { return f->over; }

void folders_end(struct folders **at, int status) {
    struct folders *f = *at;
    char name[64];
    // 1. Whose folder it is waits for those who write there.
    put_text(f, "", 0, "ended/%d", f->rank);
    for (int i = 0; i < f->size && f->own == f->rank && !status && !f->over; i++) {
        snprintf(name, sizeof name, "ended/%d", i);
        if (f->of[i] == f->rank) free(await(f, i, "end", NULL, name));
    }
    // 2. The leaders hand over, rank 0 takes, and says which checkpoints the run has kept.
    f->whole = !status;
    f->ending = status && !f->rank ? 2 : 1;
    if (f->ending > 1)
        rendezvous_abort(f->meeting, *error_last() ? error_last() : "rank 0 has ended before its run did");
    if (f->started) pthread_join(f->thread, NULL);
    if (f->started && !f->rank) {
        tell(f);
        snprintf(name, sizeof name, "%" PRIu64, f->heard);
        rendezvous_put(f->meeting, "complete/over", name, strlen(name));
    }
    if (f->started && f->rank) {
        checkpoint_sweep(f->dir, CHECKPOINT_ALL, 0);
        run_state_end(f->dir, status ? RUN_FAILED : RUN_COMPLETE, status ? error_last() : NULL);
    }
    destroy(at);
}
