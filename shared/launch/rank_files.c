// Files travel as slices, 1 MiB of a file at most in each, numbered for each rank. Rank 0 says which it has taken, and the next one is
// said then: neither holds more than that in memory.
#include "shared/launch/rank_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#include <cjson/cJSON.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/path.h"
#include "shared/core/run_file.h"
#include "shared/core/topology_row.h"
#include "shared/fabric/peer.h"
#include "shared/report/run_dir.h"
#include "shared/state/manifest.h"
#include "shared/train/job.h"

#define SLICE     ((size_t)1 << 20)
#define TURN_NS   2000000  // between two looks at the rendezvous
#define SAY_S     10.0
#define PATH_MOST 240

struct slice {             // followed by its bytes
    int64_t left;          // bytes of the file behind them
    char path[PATH_MOST];  // below DIR; "": the rank has no more
};

// What a rank has seen, for rank 0.
struct sight {
    bool folder;
    char checkpoint;  // 'y': the one that rank 0 goes on from; 'o': another one; 'n': none
};

// ---------------------------------------------------------------- waiting
static const char *host_of(const struct run *r, int rank) { return rendezvous_member(r->meet, rank)->host; }

// What a rank puts under the name, however long it takes while it is alive. NULL: it has gone, or the job has ended.
static void *await(const struct run *r, int rank, const char *what, size_t *bytes, const char *name) {
    double start_s = now_seconds(), said_s = start_s;
    void *data;
    for (; !(data = rendezvous_look(r->meet, name, bytes));
         nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL)) {
        if (rendezvous_ended(r->meet) || rendezvous_gone(r->meet, rank)) return NULL;
        if (now_seconds() - said_s < SAY_S) continue;
        said_s = now_seconds();
        info("waiting for rank %d on %s to %s: %.0f s, it is alive", rank, host_of(r, rank), what,
             said_s - start_s);
    }
    return data;
}

static int lost(const struct run *r, int rank, const char *what) {
    const char *ended = rendezvous_ended(r->meet);
    return ended ? fail("%s", ended)
                 : fail("rank %d on %s has gone before it could %s", rank, host_of(r, rank), what);
}

// It has not come, and the job may do without it.
static bool absent(const struct run *r, int rank) { return rendezvous_member(r->meet, rank)->machine < 0; }

// ---------------------------------------------------------------- the look, rank 0
// What tells a checkpoint from every other one: the hash of its manifest, which has its files' hashes. "": there is none.
static void seal_of(const char *path, char seal[17]) {
    char *text = run_file_read(path, MANIFEST_NAME, true);
    *seal = 0;
    if (text) hex64(seal, XXH64(text, strlen(text), 0));
    free(text);
}

// A file of a fresh name in DIR, and which checkpoint the job goes on from: what the others look for.
static char *leave_token(struct run *r, char **path) {
    struct job *j = &r->job;
    const char *asked = j->config->recovery.resume, *dir = j->config->out;
    char *why = NULL, name[40], seal[17] = "";
    uint64_t number = 0;
    if (job_resume(j, true)) return NULL;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return fail("no random number"), NULL;
    if (dir_make(dir)) return fail("%s: cannot make the directory: %s", dir, strerror(errno)), NULL;
    snprintf(name, sizeof name, ".seen-%016" PRIx64, number);
    *path = xasprintf("%s/%s", dir, name);
    int rc = new_file_write(*path, "", NEW_FILE_WHOLE, &why) ? fail("%s", why) : 0;
    free(why);
    if (rc) return NULL;
    bool own = resume_is_own(j->resume, dir);
    cJSON *o = cJSON_CreateObject();
    json_put_text(o, "token", name);
    json_put_text(o, "asked", asked ? asked : "");
    json_put_text(o, "checkpoint", !j->resume ? "" : own ? strrchr(j->resume, '/') + 1 : j->resume);
    cJSON_AddBoolToObject(o, "own", own);
    if (j->resume) seal_of(j->resume, seal);
    json_put_text(o, "seal", seal);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

// What all ranks write together, and only where they see one folder: the option that asks for it; NULL: nothing.
static const char *together(const struct config *c) {
    bool parts = c->row->collectives && c->eval_batches;  // a star's worker 0 writes snapshots alone
    if (c->recovery.checkpoint_every > 0) return "--checkpoint-every";
    return parts && c->eval_every > 0           ? "eval_every"
           : parts && c->eval_every_seconds > 0 ? "eval_every_seconds"
                                                : NULL;
}

// The first rank of those in `of` (0 or 1 each), and how many more there are, in words (malloc'd); NULL: there is none.
static char *first_of(const struct run *r, const bool *of, int *rank) {
    int more = -1;
    *rank = -1;
    for (int i = 0; i < r->env.size; i++) {
        more += of[i];
        if (of[i] && *rank < 0) *rank = i;
    }
    if (*rank < 0) return NULL;
    return more ? xasprintf("rank %d on %s, and %d more,", *rank, host_of(r, *rank), more)
                : xasprintf("rank %d on %s", *rank, host_of(r, *rank));
}

static int judge(const struct run *r, const bool *blind, const bool *lacks, char first_lacks) {
    const struct config *c = r->config;
    const char *asks = together(c);
    int rank, rc = 0;
    char *who = first_of(r, lacks, &rank);
    if (who && first_lacks == 'o')
        rc = fail(
            "--resume: %s has another checkpoint at %s than rank 0, on %s: copy that one there, or give a folder that all ranks see",
            who, r->job.resume, host_of(r, 0));
    else if (who)
        rc = fail(
            "--resume: %s does not see %s of rank 0, on %s: give a folder that all ranks see, or copy the checkpoint to the same path there",
            who, r->job.resume, host_of(r, 0));
    free(who);
    if (rc) return rc;
    who = first_of(r, blind, &rank);
    if (who && asks)
        rc = fail(
            "%s: all ranks write their parts into one folder, and %s does not see %s of rank 0, on %s: give --out a folder "
            "that all of them see, or leave %s out",
            asks, who, c->out, host_of(r, 0), asks);
    else if (who && !c->quiet)
        info(
            "%s does not see %s of rank 0, on %s: what it reports comes there at the end; checkpoints would need a folder that "
            "all ranks see",
            who, c->out, host_of(r, 0));
    free(who);
    return rc;
}

static int look_as_0(struct run *r) {
    char *path = NULL, *text = leave_token(r, &path), first_lacks = 0;
    bool *blind = xcalloc((unsigned long)r->env.size, sizeof *blind),
         *lacks = xcalloc((unsigned long)r->env.size, sizeof *lacks);
    int rc = text ? rendezvous_put(r->meet, "files/look", text, strlen(text)) : -1;
    for (int i = 1; i < r->env.size && !rc; i++) {
        char name[32];
        size_t bytes;
        if (absent(r, i)) continue;
        snprintf(name, sizeof name, "files/saw/%d", i);
        const struct sight *saw = await(r, i, "look into the run directory", &bytes, name);
        if (!saw || bytes != sizeof *saw) {
            rc = lost(r, i, "look into the run directory");
        } else {
            blind[i] = !saw->folder;
            lacks[i] = saw->checkpoint != 'y';
            if (lacks[i] && !first_lacks) first_lacks = saw->checkpoint;
        }
        free((void *)saw);
    }
    if (path) unlink(path);
    if (!rc) rc = judge(r, blind, lacks, first_lacks);
    if (rc) rmdir(r->config->out);  // of a run that has not begun; it stays where it has anything
    free(lacks);
    free(blind);
    free(path);
    free(text);
    return rc;
}

// ---------------------------------------------------------------- the look, the others
// What rank 0 says to look for, and this rank's answer. job.resume is then the checkpoint, by its path here.
static int look(struct run *r, const cJSON *told, struct sight *saw) {
    struct job *j = &r->job;
    const char *asked = j->config->recovery.resume, *first = json_text(told, "asked", ""),
               *dir = j->config->out, *name = json_text(told, "checkpoint", "");
    if (asked && strcmp(asked, first) != 0)
        return fail("rank %d has --resume %s, rank 0 has %s%s: give all ranks the same words", r->env.rank,
                    asked, *first ? "--resume " : "none", first);
    // A directory that is made here has no name from before that the file system's client remembers as missing.
    if (dir_make(dir)) return fail("%s: cannot make the directory: %s", dir, strerror(errno));
    char *token = xasprintf("%s/%s", dir, json_text(told, "token", "?"));
    int fd = open(token, O_RDONLY | O_CLOEXEC);
    saw->folder = fd >= 0;
    if (fd >= 0) close(fd);
    free(token);
    job_resume_forget(j);
    if (*name)
        j->resume =
            cJSON_IsTrue(json_item(told, "own")) ? xasprintf("%s/checkpoints/%s", dir, name) : xstrdup(name);
    j->resume_found = true;
    char seal[17] = "";
    if (*name) seal_of(j->resume, seal);
    bool same = !strcmp(seal, json_text(told, "seal", ""));
    saw->checkpoint = same ? 'y' : *seal ? 'o' : 'n';
    return 0;
}

// A folder of this rank's own, below its DIR: nothing else of what lies there is touched.
static int leave_dir(struct run *r, const char *token) {
    char *own = xasprintf("%s/.rank-%d%s", r->config->out, r->env.rank, strrchr(token, '-'));
    free(r->config->out);
    r->config->out = own;
    r->apart = true;
    return run_dir_join(own);
}

static int look_as_other(struct run *r) {
    char name[32];
    size_t bytes;
    struct sight saw = {0};
    char *text = await(r, 0, "find its checkpoint and make the run directory", &bytes, "files/look");
    if (!text) return lost(r, 0, "make the run directory");
    cJSON *told = cJSON_Parse(text);
    int rc = look(r, told, &saw);
    snprintf(name, sizeof name, "files/saw/%d", r->env.rank);
    if (!rc) rc = rendezvous_put(r->meet, name, &saw, sizeof saw);
    char *go = rc ? NULL : await(r, 0, "take the run directory", &bytes, "files/go");
    if (!rc && !go) rc = lost(r, 0, "take the run directory");
    if (!rc && bytes) rc = 1;
    if (!rc && !saw.folder) rc = leave_dir(r, json_text(told, "token", "-"));
    if (rc && !saw.folder && !r->apart) rmdir(r->config->out);
    r->job.dir = r->config->out;
    free(go);
    cJSON_Delete(told);
    free(text);
    return rc;
}

int rank_files_begin(struct run *r) {
    int rc = r->env.rank ? look_as_other(r) : look_as_0(r);
    if (!rc && !r->env.rank) {
        rc = run_is_over(r) ? 1 : run_begin(r);
        if (rc >= 0) rendezvous_put(r->meet, "files/go", "over", rc ? strlen("over") : 0);
    }
    if (rc < 0) rendezvous_abort(r->meet, error_last());
    return rc;
}

// ---------------------------------------------------------------- the end: a rank with a folder of its own
static int say(const struct run *r, uint64_t *number, const struct slice *s, const void *data, size_t bytes) {
    char name[64], *both = xcalloc(1, sizeof *s + bytes);
    memcpy(both, s, sizeof *s);
    memcpy(both + sizeof *s, data, bytes);
    snprintf(name, sizeof name, "files/%d/%" PRIu64, r->env.rank, *number);
    int rc = rendezvous_put(r->meet, name, both, sizeof *s + bytes);
    free(both);
    if (rc || !s->path[0]) return rc;
    snprintf(name, sizeof name, "files/taken/%d/%" PRIu64, r->env.rank, (*number)++);
    void *taken = await(r, 0, "take this rank's files", &bytes, name);
    rendezvous_drop(r->meet, name);
    free(taken);
    return taken ? 0 : -1;
}

static int say_file(const struct run *r, uint64_t *number, const char *name) {
    char *path = xasprintf("%s/%s", r->config->out, name), *data = xcalloc(1, SLICE), why[FILE_WHY_MAX];
    struct slice s = {0};
    int64_t size = 0, at = 0;
    int fd = file_open(path, &size, why), rc = fd < 0 ? fail("%s: %s", path, why) : 0;
    if (!rc && snprintf(s.path, sizeof s.path, "%s", name) >= (int)sizeof s.path)
        rc = fail("%s: too long a name", path);
    for (bool first = true; !rc && (first || at < size); first = false) {
        size_t bytes = size - at < (int64_t)SLICE ? (size_t)(size - at) : SLICE;
        if (pread(fd, data, bytes, (off_t)at) != (ssize_t)bytes) rc = fail("%s: cannot read it", path);
        at += (int64_t)bytes;
        s.left = size - at;
        if (!rc) rc = say(r, number, &s, data, bytes);
    }
    if (fd >= 0) close(fd);
    free(data);
    free(path);
    return rc;
}

static int say_each(const struct run *r, uint64_t *number, const char *below,
                    bool (*ours)(const char *name)) {
    char *path = xasprintf("%s/%s", r->config->out, below);
    DIR *d = opendir(path);
    int rc = 0;
    for (const struct dirent *e; d && !rc && (e = readdir(d));) {
        if (!ours(e->d_name) || ends_with(e->d_name, ".part")) continue;
        char *name = xasprintf("%s%s", below, e->d_name);
        rc = say_file(r, number, name);
        free(name);
    }
    if (d) closedir(d);
    free(path);
    return rc;
}

static void remove_dir(struct run *r) {
    char *own = r->config->out, *ranks = xasprintf("%s/ranks", own), *why = NULL;
    if (disk_remove_dir(ranks, &why) || disk_remove_dir(own, &why)) warn("%s", why);
    *strrchr(own, '/') = 0;
    rmdir(own);  // it stays where anything else is there
    free(why);
    free(ranks);
}

// ---------------------------------------------------------------- the end: rank 0
// A name of a file that comes so, whoever says it.
static bool good_name(const char *path) {
    if (!memchr(path, 0, PATH_MOST)) return false;
    bool below = !strncmp(path, "ranks/", strlen("ranks/"));
    const char *name = below ? path + strlen("ranks/") : path;
    return !strchr(name, '/') && (below ? run_dir_is_rank_file(name) : run_dir_is_record(name));
}

struct taking {
    struct new_file file;
    char *path;  // of the file in hand; NULL: there is none
    bool failed;
};

static void take_slice(const struct run *r, int from, struct taking *t, const struct slice *s,
                       const char *data, size_t bytes) {
    char *why = NULL;
    if (!t->path) {
        t->path = xasprintf("%s/%s", r->config->out, s->path);
        t->failed = !new_file_begin(&t->file, t->path, false);
    }
    if (!t->failed && disk_write(t->file.fd, t->path, data, bytes, &why)) t->failed = true;
    if (s->left <= 0) {
        if (new_file_end(&t->file, t->failed ? NEW_FILE_DISCARD : NEW_FILE_WHOLE) || t->failed)
            fail("%s: cannot write what has come from %s: %s", t->path, host_of(r, from),
                 why ? why : strerror(errno));
        free(t->path);
        t->path = NULL;
    }
    free(why);
}

// All that a rank hands over, which has ended then; nothing, of one that writes into DIR itself.
static void take_all(const struct run *r, int from) {
    struct taking t = {0};
    bool over = false;
    for (uint64_t number = 0; !over; number++) {
        char name[64];
        size_t bytes;
        snprintf(name, sizeof name, "files/%d/%" PRIu64, from, number);
        char *data = await(r, from, "end, and hand over its files", &bytes, name);
        if (!data) {
            if (!rendezvous_ended(r->meet))
                warn("rank %d on %s has gone: %s lacks what it reports", from, host_of(r, from),
                     r->config->out);
            break;
        }
        const struct slice *s = (const struct slice *)data;
        bool good = bytes >= sizeof *s && (!s->path[0] || good_name(s->path));
        over = !good || !s->path[0];
        if (good && !over) take_slice(r, from, &t, s, data + sizeof *s, bytes - sizeof *s);
        if (!good) {
            fail("rank %d on %s has handed over a file that is none of a run's", from, host_of(r, from));
            rendezvous_abort(r->meet, error_last());
        }
        free(data);
        rendezvous_drop(r->meet, name);
        snprintf(name, sizeof name, "files/taken/%d/%" PRIu64, from, number);
        if (!over) rendezvous_put(r->meet, name, "", 0);
    }
    if (t.path) new_file_end(&t.file, NEW_FILE_DISCARD);
    free(t.path);
}

void rank_files_end(struct run *r, int status) {
    uint64_t number = 0;
    for (int i = 1; i < r->env.size && !r->env.rank && !status; i++)
        if (!absent(r, i)) take_all(r, i);
    if (r->env.rank && !status) {
        int rc = r->apart ? say_each(r, &number, "ranks/", run_dir_is_rank_file) ||
                                say_each(r, &number, "", run_dir_is_record)
                          : 0;
        if (!rc) say(r, &number, &(struct slice){0}, "", 0);
    }
    if (r->apart) remove_dir(r);
}
