// Files are sent as slices of at most 1 MiB, numbered per rank. Rank 0 acknowledges each slice before the next one is
// sent: neither side keeps more than one in memory.
#include "shared/launch/rank_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/fabric/rendezvous.h"
#include "shared/report/run_dir.h"

#define SLICE     ((size_t)1 << 20)
#define TURN_NS   2000000  // between two checks of the rendezvous
#define SAY_S     10.0
#define PATH_MOST 240

struct slice {             // followed by its bytes
    int64_t left;          // bytes of the file after this slice
    char path[PATH_MOST];  // below DIR; "": the rank has no more files
};

// ---------------------------------------------------------------- waiting
static const char *host_of(const struct run *r, int rank) { return rendezvous_member(r->meet, rank)->host; }

void *rank_await(const struct run *r, int rank, const char *what, size_t *bytes, const char *name) {
    double start_s = now_seconds(), said_s = start_s;
    void *data;
    for (; !(data = rendezvous_try_get(r->meet, name, bytes));
         nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL)) {
        if (rendezvous_end_reason(r->meet) || rendezvous_is_lost(r->meet, rank)) return NULL;
        if (now_seconds() - said_s < SAY_S) continue;
        said_s = now_seconds();
        info("waiting for rank %d on %s to %s: %.0f s, it is alive", rank, host_of(r, rank), what,
             said_s - start_s);
    }
    return data;
}

// ---------------------------------------------------------------- the end: a rank with its own folder
static int say(const struct run *r, uint64_t *number, const struct slice *s, const void *data, size_t bytes) {
    char name[64], *both = xcalloc(1, sizeof *s + bytes);
    memcpy(both, s, sizeof *s);
    memcpy(both + sizeof *s, data, bytes);
    snprintf(name, sizeof name, "files/%d/%" PRIu64, r->env.rank, *number);
    int rc = rendezvous_put(r->meet, name, both, sizeof *s + bytes);
    free(both);
    if (rc || !s->path[0]) return rc;
    snprintf(name, sizeof name, "files/taken/%d/%" PRIu64, r->env.rank, (*number)++);
    void *taken = rank_await(r, 0, "take this rank's files", &bytes, name);
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
    rmdir(own);  // fails if anything else is left in it
    free(why);
    free(ranks);
}

// ---------------------------------------------------------------- the end: rank 0
// Returns whether path is a name of a file that a rank may send, whatever its sender claims.
static bool good_name(const char *path) {
    if (!memchr(path, 0, PATH_MOST)) return false;
    bool below = !strncmp(path, "ranks/", strlen("ranks/"));
    const char *name = below ? path + strlen("ranks/") : path;
    return !strchr(name, '/') && (below ? run_dir_is_rank_file(name) : run_dir_is_record(name));
}

struct taking {
    struct new_file file;
    char *path;  // of the file that is being received; NULL: none
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
            fail("%s: cannot write a file that %s has sent: %s", t->path, host_of(r, from),
                 why ? why : strerror(errno));
        free(t->path);
        t->path = NULL;
    }
    free(why);
}

// Receives all files of a rank, and returns when that rank has ended; there are none from a rank that writes into DIR
// itself.
static void take_all(const struct run *r, int from) {
    struct taking t = {0};
    bool over = false;
    for (uint64_t number = 0; !over; number++) {
        char name[64];
        size_t bytes;
        snprintf(name, sizeof name, "files/%d/%" PRIu64, from, number);
        char *data = rank_await(r, from, "end, and hand over its files", &bytes, name);
        if (!data) {
            if (!rendezvous_end_reason(r->meet))
                warn("rank %d on %s has gone: %s lacks its report", from, host_of(r, from),
                     r->config->out);
            break;
        }
        const struct slice *s = (const struct slice *)data;
        bool good = bytes >= sizeof *s && (!s->path[0] || good_name(s->path));
        over = !good || !s->path[0];
        if (good && !over) take_slice(r, from, &t, s, data + sizeof *s, bytes - sizeof *s);
        if (!good) {
            fail("rank %d on %s has sent a file that does not belong to a run directory", from, host_of(r, from));
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
        if (rendezvous_member(r->meet, i)->machine >= 0) take_all(r, i);
    if (r->env.rank && !status) {
        int rc = r->apart ? say_each(r, &number, "ranks/", run_dir_is_rank_file) ||
                                say_each(r, &number, "", run_dir_is_record)
                          : 0;
        if (!rc) say(r, &number, &(struct slice){0}, "", 0);
    }
    if (r->apart) remove_dir(r);
}
