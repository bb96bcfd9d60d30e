#include "shared/launch/joined.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#include <cjson/cJSON.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/topology_row.h"
#include "shared/fabric/address.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/rendezvous.h"
#include "shared/report/run_dir.h"
#include "shared/state/manifest.h"
#include "shared/train/job.h"

#define RUN_DIR   "run/dir"  // the name of rank 0's value
#define SLICE     ((size_t)1 << 20)
#define TURN_NS   2000000  // the time between two checks of the rendezvous
#define SAY_S     10.0
#define PATH_MOST 240

struct slice {             // A slice of a file; its bytes follow.
    int64_t left;          // bytes of the file after this slice
    char path[PATH_MOST];  // below DIR; "": the rank has no more files
};

static const char *host_of(const struct run *r, int rank) { return rendezvous_member(r->meet, rank)->host; }

// Waits for the value that a rank puts at the rendezvous under the name, as long as the rank is alive. what: what is
// waited for, "end". Returns NULL if the rank has gone, or the job has ended.
static void *rank_await(const struct run *r, int rank, const char *what, size_t *bytes, const char *name) {
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

bool run_meets(const struct run *r) { return rank_env_joins(&r->env) && !r->life; }

// On several hosts under mpirun, only MPI knows where rank 0 is.
static int find_rank_0(struct run *r) {
    char host[sizeof r->env.host] = "";
    gethostname(host, sizeof host - 1);
    if (!r->tell || r->tell(host, sizeof host))
        return fail("the host of rank 0 is not known: set MASTER_ADDR to it");
    snprintf(r->env.host, sizeof r->env.host, "%s", host);
    return 0;
}

// Returns the interface of ranks on several hosts: --interface, or else the one in PyTorch's or NCCL's variables.
// NULL: none.
static const char *interface_of(const struct run *r) {
    const char *gloo = getenv("GLOO_SOCKET_IFNAME"), *nccl = getenv("NCCL_SOCKET_IFNAME");
    const char *named = gloo && *gloo ? gloo : nccl && *nccl ? nccl : NULL;
    if (r->config->interface || !named || r->env.local_size == r->env.size) return r->config->interface;
    if (r->env.rank == 0)
        info("--interface %s, as %s says", named,
             named == gloo ? "GLOO_SOCKET_IFNAME" : "NCCL_SOCKET_IFNAME");
    return named;
}

static void say_open(const struct run *r) {
    const char *key = getenv(JOB_KEY_VARIABLE);
    bool inside = address_is_loopback(rendezvous_member(r->meet, 0)->address);
    if (r->env.rank || (key && *key) || inside || r->config->security.insecure) return;
    warn(
        "no key: any process that reaches port %d of %s can join this job, read its messages, or end it. Give all ranks the "
        "same key: " JOB_KEY_MAKE,
        r->env.port, r->env.host);
}

// ---------------------------------------------------------------- the common directory
// A rank without --out takes rank 0's.
static int agree_on_dir(struct run *r) {
    struct config *c = r->config;
    if (r->env.rank == 0 && !c->out && !(c->out = run_dir_make(c))) return -1;
    if (r->env.rank == 0) return rendezvous_put(r->meet, RUN_DIR, c->out, strlen(c->out));
    char *dir = rendezvous_get(r->meet, RUN_DIR, &(size_t){0});
    if (dir && !c->out) c->out = xstrdup(dir);
    free(dir);
    return dir ? 0 : -1;
}

// The result of a rank's check, sent to rank 0.
struct sight {
    bool folder;
    char checkpoint;  // 'y': the checkpoint that rank 0 resumes from; 'o': another one; 'n': none
};

static int lost(const struct run *r, int rank, const char *what) {
    const char *ended = rendezvous_end_reason(r->meet);
    return ended ? fail("%s", ended)
                 : fail("rank %d on %s has gone before it could %s", rank, host_of(r, rank), what);
}

// Returns whether a rank has not joined (with elastic_min the job continues without it).
static bool absent(const struct run *r, int rank) { return rendezvous_member(r->meet, rank)->machine < 0; }

// ---------------------------------------------------------------- the check, rank 0
// seal receives an identifier of the checkpoint: the hash of its manifest, which lists its files' hashes. "": no
// checkpoint.
static void seal_of(const char *path, char seal[17]) {
    char *text = run_file_read(path, MANIFEST_NAME, true);
    *seal = 0;
    if (text) hex64(seal, XXH64(text, strlen(text), 0));
    free(text);
}

// Creates a file with a fresh name in DIR. Returns a JSON text that names it and the checkpoint to resume from: the
// other ranks look for both.
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
    bool own = resume_is_inside(j->resume, dir);
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

// Returns the option that makes all ranks write into one common folder; NULL: none does.
static const char *together(const struct config *c) {
    bool parts = c->row->collectives && c->eval_batches;  // in a star only worker 0 writes snapshots
    if (c->recovery.checkpoint_every > 0) return "--checkpoint-every";
    return parts && c->eval_every > 0           ? "eval_every"
           : parts && c->eval_every_seconds > 0 ? "eval_every_seconds"
                                                : NULL;
}

// Returns text that names the first rank whose of[] is set and the number of the others (malloc'd), or NULL if none
// is.
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
            "--resume: %s has another checkpoint at %s than rank 0, on %s: copy rank 0's there, or give a folder that all ranks see",
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
            "%s does not see %s of rank 0, on %s: its report is sent there at the end; checkpoints would need a folder that "
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
        const struct sight *saw = rank_await(r, i, "access the run directory", &bytes, name);
        if (!saw || bytes != sizeof *saw) {
            rc = lost(r, i, "access the run directory");
        } else {
            blind[i] = !saw->folder;
            lacks[i] = saw->checkpoint != 'y';
            if (lacks[i] && !first_lacks) first_lacks = saw->checkpoint;
        }
        free((void *)saw);
    }
    if (path) unlink(path);
    if (!rc) rc = judge(r, blind, lacks, first_lacks);
    if (rc) rmdir(r->config->out);  // removes only an empty directory: the run has not begun
    free(lacks);
    free(blind);
    free(path);
    free(text);
    return rc;
}

// ---------------------------------------------------------------- the check, other ranks
// Looks for what rank 0 has announced; *saw receives the result. job.resume becomes the checkpoint, by its path on
// this machine.
static int look(struct run *r, const cJSON *told, struct sight *saw) {
    struct job *j = &r->job;
    const char *asked = j->config->recovery.resume, *first = json_text(told, "asked", ""),
               *dir = j->config->out, *name = json_text(told, "checkpoint", "");
    if (asked && strcmp(asked, first) != 0)
        return fail("rank %d has --resume %s, rank 0 has %s%s: give all ranks the same option", r->env.rank,
                    asked, *first ? "--resume " : "none", first);
    // The directory is created here first: the file system's client may have cached that it does not exist.
    if (dir_make(dir)) return fail("%s: cannot make the directory: %s", dir, strerror(errno));
    char *token = xasprintf("%s/%s", dir, json_text(told, "token", "?"));
    int fd = open(token, O_RDONLY | O_CLOEXEC);
    saw->folder = fd >= 0;
    if (fd >= 0) close(fd);
    free(token);
    job_resume_clear(j);
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

// Uses a folder of this rank's own below its DIR. Nothing else in DIR is touched.
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
    char *text = rank_await(r, 0, "find its checkpoint and make the run directory", &bytes, "files/look");
    if (!text) return lost(r, 0, "make the run directory");
    cJSON *told = cJSON_Parse(text);
    int rc = look(r, told, &saw);
    snprintf(name, sizeof name, "files/saw/%d", r->env.rank);
    if (!rc) rc = rendezvous_put(r->meet, name, &saw, sizeof saw);
    char *go = rc ? NULL : rank_await(r, 0, "take the run directory", &bytes, "files/go");
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

int run_begin_together(struct run *r) {
    int rc = r->env.rank ? look_as_other(r) : look_as_0(r);
    if (!rc && !r->env.rank) {
        rc = run_is_over(r) ? 1 : run_begin(r);
        if (rc >= 0) rendezvous_put(r->meet, "files/go", "over", rc ? strlen("over") : 0);
    }
    if (rc < 0) rendezvous_abort(r->meet, error_last());
    return rc;
}

// ---------------------------------------------------------------- the files of a rank that does not see DIR
// They are sent as slices of at most 1 MiB, numbered per rank. Rank 0 acknowledges each slice before the next one is
// sent: neither side keeps more than one in memory. Slow files are waited for, with a log line now and then, as long as
// the rank that reads or writes them is alive.
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
    rmdir(own);  // removes the folder only if it is empty
    free(why);
    free(ranks);
}

// ---- rank 0
// Returns whether path is a name of a file that a rank may send, whatever its sender claims.
static bool good_name(const char *path) {
    if (!memchr(path, 0, PATH_MOST)) return false;
    bool below = !strncmp(path, "ranks/", strlen("ranks/"));
    const char *name = below ? path + strlen("ranks/") : path;
    return !strchr(name, '/') && (below ? run_dir_is_rank_file(name) : run_dir_is_record(name));
}

struct taking {
    struct new_file file;
    char *path;  // path of the file that is being received; NULL: none
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
                warn("rank %d on %s has gone: %s lacks its report", from, host_of(r, from), r->config->out);
            break;
        }
        const struct slice *s = (const struct slice *)data;
        bool good = bytes >= sizeof *s && (!s->path[0] || good_name(s->path));
        over = !good || !s->path[0];
        if (good && !over) take_slice(r, from, &t, s, data + sizeof *s, bytes - sizeof *s);
        if (!good) {
            fail("rank %d on %s has sent a file that does not belong to a run directory", from,
                 host_of(r, from));
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

// ---------------------------------------------------------------- from the rendezvous to the end
int run_join(struct run *r, int *status) {
    *status = EXIT_RUN_FAILED;
    if (!*r->env.host && find_rank_0(r)) return -1;
    const struct identity_source source = job_identity(&r->job);
    struct identity *identity = identity_make(&source);
    char *text = identity_text(identity);
    struct rendezvous_options o = {.host = r->env.host,
                                   .port = r->env.port,
                                   .rank = r->env.rank,
                                   .size = r->env.size,
                                   .identity = text,
                                   .differs = identity_texts_disagreement,
                                   .min_ranks = r->config->recovery.elastic_min,
                                   .interface = interface_of(r),
                                   .deadline_s = (double)r->config->deadline_ms * 1e-3};
    if (r->config->row->meet) r->config->row->meet(r->config, &o);
    // NCCL finds an interface by itself. It takes names; "=" requires an exact match.
    if (o.interface && if_nametoindex(o.interface)) {
        char *name = xasprintf("=%s", o.interface);
        setenv("NCCL_SOCKET_IFNAME", name, 0);
        free(name);
    }
    r->meet = rendezvous_open(&o);
    free(text);
    identity_destroy(&identity);
    if (!r->meet) return -1;
    say_open(r);
    r->job.ranks_here = 0;
    for (int i = 0; i < o.size; i++)
        r->job.ranks_here +=
            rendezvous_member(r->meet, i)->machine == rendezvous_member(r->meet, o.rank)->machine;
    int rc = agree_on_dir(r);
    if (rc) rendezvous_abort(r->meet, error_last());
    if (!rc) rc = run_begin_together(r);
    if (!rc) return 0;
    *status = rc > 0 ? 0 : o.rank == 0 ? EXIT_USAGE : EXIT_RUN_FAILED;
    rendezvous_close(&r->meet);
    if (!*status && o.rank == 0) *status = run_show(r);
    return -1;
}

int run_part(struct run *r, int status) {
    if (status) rendezvous_abort(r->meet, error_last());
    rank_files_end(r, status);
    int rc = rendezvous_close(&r->meet);
    return status ? status : rc ? EXIT_RUN_FAILED : 0;
}

int run_leave(struct run *r, int status, int number) {
    if (r->env.rank == 0) return run_end(r, status, number);
    return status || !number ? status : 128 + number;
}
