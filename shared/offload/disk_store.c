#include "shared/offload/disk_store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/offload/disk_lane.h"

// The most transfers at the same time: a stream that reads and one that writes, for masters and for weights. Others wait.
#define LANES 4

// A call in a stream. Requests are reused: after the first step none is allocated.
struct request {
    struct request *next_free, *next;
    struct disk_store *owner;
    void *buf;
    size_t offset, bytes;
    bool write;
    char name[96];
};

struct disk_store {
    int fd;
    size_t bytes;
    bool direct;
    char *dir, *key, *label, *remark;
    const struct disk_method *method;
    pthread_mutex_t lock;  // guards the fields below
    pthread_cond_t freed;
    struct disk_lane *lanes[LANES];  // the first `spare` are idle
    int lane_count, spare;
    struct request *all, *free;
    atomic_uint_fast64_t read_bytes, written_bytes;
};

// ---------------------------------------------------------------- lanes
static void lanes_close(struct disk_store *s) {
    assert(s->spare == s->lane_count && "a disk_store is destroyed while a stream uses it");
    while (s->lane_count) s->method->close(s->lanes[--s->lane_count]);
    s->spare = 0;
}

// Opens all lanes of one implementation. Returns 0, or -1 with errno.
static int lanes_open(struct disk_store *s, const struct disk_method *method,
                      const struct disk_store_options *o) {
    s->method = method;
    while (s->lane_count < LANES) {
        struct disk_lane *lane = method->open(o->block_bytes ? o->block_bytes : DISK_BLOCK_BYTES,
                                              o->depth ? o->depth : DISK_DEPTH);
        if (!lane) {
            int error = errno;
            lanes_close(s);
            errno = error;
            return -1;
        }
        s->lanes[s->lane_count++] = lane;
        s->spare = s->lane_count;
    }
    return 0;
}

// ---------------------------------------------------------------- a transfer
static int log_failure(const struct disk_store *s, const struct request *r, const struct disk_failure *why) {
    const char *doing = r->write ? "writing" : "reading";
    error_set_label("%s", s->label);
    if (!why->error)
        return fail(
            "offload to disk: %s: %s %zu bytes at %zu of the file in %s: it ends at %zu, another program has truncated it: leave it "
            "alone and go on from the last checkpoint (--resume latest)",
            r->name, doing, r->bytes, r->offset, s->dir, why->offset);
    if (why->error == ENOSPC || why->error == EDQUOT)
        return fail(
            "offload to disk: %s: %s %zu bytes at %zu of the file in %s: %s: make room there or name another directory%s%s, "
            "and go on from the last checkpoint (--resume latest)",
            r->name, doing, r->bytes, r->offset, s->dir, strerror(why->error), *s->key ? " with " : "",
            s->key);
    return fail(
        "offload to disk: %s: %s %zu bytes at %zu of the file in %s fails at %zu: %s: the kernel's log (dmesg) says more "
        "of the disk; name another directory%s%s and go on from the last checkpoint (--resume latest)",
        r->name, doing, r->bytes, r->offset, s->dir, why->offset, strerror(why->error),
        *s->key ? " with " : "", s->key);
}

// Returns whether the file has been truncated, which other programs can do through /proc. A write would make it long again,
// with zeros instead of the lost bytes.
static bool is_truncated(const struct disk_store *s, struct disk_failure *why) {
    struct stat st;
    if (fstat(s->fd, &st) || st.st_nlink || (size_t)st.st_size >= s->bytes) return false;
    *why = (struct disk_failure){.offset = (size_t)st.st_size};
    return true;
}

static int transfer(const struct request *r) {
    struct disk_store *s = r->owner;
    struct disk_transfer t = {s->fd, r->write, s->direct, r->buf, r->offset, r->bytes};
    struct disk_failure why = {0};
    if (is_truncated(s, &why)) return log_failure(s, r, &why);
    pthread_mutex_lock(&s->lock);
    while (!s->spare) pthread_cond_wait(&s->freed, &s->lock);
    struct disk_lane *lane = s->lanes[--s->spare];
    pthread_mutex_unlock(&s->lock);
    int rc = s->method->run(lane, &t, &why);
    pthread_mutex_lock(&s->lock);
    s->lanes[s->spare++] = lane;
    pthread_cond_signal(&s->freed);
    pthread_mutex_unlock(&s->lock);
    if (rc) return log_failure(s, r, &why);
    atomic_fetch_add(r->write ? &s->written_bytes : &s->read_bytes, r->bytes);
    return 0;
}

static void request_fill(struct request *r, struct disk_store *s, void *buf, const struct disk_range *range) {
    assert((uintptr_t)buf % DISK_ALIGN == 0 && range->offset % DISK_ALIGN == 0 &&
           range->bytes % DISK_ALIGN == 0);
    assert(range->offset <= s->bytes && range->bytes <= s->bytes - range->offset);
    r->owner = s;
    r->buf = buf;
    r->offset = range->offset;
    r->bytes = range->bytes;
    snprintf(r->name, sizeof r->name, "%s", range->name ? range->name : "a range");
}

static int request_run(void *arg) {
    struct request *r = arg;
    struct disk_store *s = r->owner;
    int rc = transfer(r);
    pthread_mutex_lock(&s->lock);
    r->next_free = s->free;
    s->free = r;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void enqueue(struct disk_store *s, struct stream *stream, bool write, void *buf,
                    const struct disk_range *range) {
    if (!range->bytes) return;
    // If the stream fails, it does not run its remaining calls: their requests are freed with the store.
    pthread_mutex_lock(&s->lock);
    struct request *r = s->free;
    if (r) {
        s->free = r->next_free;
    } else {
        r = xcalloc(1, sizeof *r);
        r->next = s->all;
        s->all = r;
    }
    pthread_mutex_unlock(&s->lock);
    request_fill(r, s, buf, range);
    r->write = write;
    stream_host(stream, write ? "disk write" : "disk read", request_run, r);
}

void disk_store_read(struct disk_store *s, struct stream *stream, void *to, struct disk_range range) {
    enqueue(s, stream, false, to, &range);
}

void disk_store_write(struct disk_store *s, struct stream *stream, const void *from,
                      struct disk_range range) {
    enqueue(s, stream, true, (void *)from, &range);
}

static int at_once(struct disk_store *s, bool write, void *buf, const struct disk_range *range) {
    struct request r = {.write = write};
    if (!range->bytes) return 0;
    request_fill(&r, s, buf, range);
    return transfer(&r);
}

int disk_store_load(struct disk_store *s, void *to, struct disk_range range) {
    return at_once(s, false, to, &range);
}

int disk_store_save(struct disk_store *s, const void *from, struct disk_range range) {
    return at_once(s, true, (void *)from, &range);
}

// ---------------------------------------------------------------- the file: without a name, with all of its space
// Writes "name another directory with KEY".
static const char *elsewhere(const struct disk_store_options *o, char text[160]) {
    snprintf(text, 160, "name another directory%s%s", o->key ? " with " : "", o->key ? o->key : "");
    return text;
}

// Opens a file that no other program can open: without a name, or with one for a short time only.
static int open_nameless(const char *dir) {
    int fd = open(dir, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)) return fd;
    char *path = xasprintf("%s/starring-offload-XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    free(path);
    return fd;
}

// Creates the file. Returns its descriptor, or -1 after logging directory, bytes wanted and free. *why_cached
// receives NULL, or why the file is not O_DIRECT.
static int file_create(const struct disk_store_options *o, const char **why_cached) {
    size_t bytes = disk_round(o->bytes);
    struct statvfs at;
    char wanted[24], has[24], text[160];
    int rc;
    format_bytes(wanted, (double)bytes);
    *why_cached = NULL;
    // 1. The directory.
    if (mkdir(o->dir, 0700) != 0 && errno != EEXIST) {
        if (errno == ENOENT)
            return fail(
                "offload to disk: %s is not there, and neither is the directory that it should lie in: mount the disk, or %s",
                o->dir, elsewhere(o, text));
        return fail("offload to disk: cannot make the directory %s: %s; %s", o->dir, strerror(errno),
                    elsewhere(o, text));
    }
    // 2. The file.
    int fd = open_nameless(o->dir);
    if (fd < 0)
        return fail("offload to disk: cannot make a file in %s: %s; %s", o->dir, strerror(errno),
                    elsewhere(o, text));
    // 3. Its space. The free space is checked first: on a disk that is too small, fallocate would fill it and then
    //    fail.
    double free_bytes = 0;
    if (statvfs(o->dir, &at)) {
        rc = fail("offload to disk: %s: %s", o->dir, strerror(errno));
    } else if ((double)bytes > (free_bytes = (double)at.f_bavail * (double)at.f_frsize)) {
        rc = fail("offload to disk: %s needs %s (%zu bytes), %s are free there: make room or %s", o->dir,
                  wanted, bytes, format_bytes(has, free_bytes), elsewhere(o, text));
    } else {
        do rc = posix_fallocate(fd, 0, (off_t)bytes);
        while (rc == EINTR);
        if (rc == EFBIG)
            fail(
                "offload to disk: %s takes no file of %s (%zu bytes), by its file system or by the limit of file sizes "
                "(ulimit -f): raise the limit or %s",
                o->dir, wanted, bytes, elsewhere(o, text));
        else if (rc)
            fail("offload to disk: %s cannot hold a file of %s (%zu bytes): %s; make room or %s", o->dir,
                 wanted, bytes, strerror(rc), elsewhere(o, text));
    }
    if (rc) {
        close(fd);
        return -1;
    }
    if (fcntl(fd, F_SETFL, O_DIRECT) != 0) *why_cached = strerror(errno);
    return fd;
}

// ---------------------------------------------------------------- creation and destruction
int disk_store_create(struct disk_store **out, const struct disk_store_options *o) {
    const char *why_cached, *why_threads = NULL;
    assert(o->bytes && o->bytes <= SIZE_MAX / 2 && o->block_bytes % DISK_ALIGN == 0 &&
           o->block_bytes <= INT_MAX && o->depth >= 0 && o->depth <= DISK_DEPTH_MAX);
    *out = NULL;
    int fd = file_create(o, &why_cached);
    if (fd < 0) return -1;
    struct disk_store *s = xcalloc(1, sizeof *s);
    s->fd = fd;
    s->bytes = disk_round(o->bytes);
    s->direct = !why_cached;
    s->dir = xstrdup(o->dir);
    s->key = xstrdup(o->key ? o->key : "");
    s->label = xstrdup(o->label ? o->label : "");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->freed, NULL);
    int rc = o->engine == DISK_ENGINE_THREADS ? -1 : lanes_open(s, &disk_method_uring, o);
    if (rc && o->engine == DISK_ENGINE_AUTO) why_threads = strerror(errno);
    if (rc && o->engine != DISK_ENGINE_URING) rc = lanes_open(s, &disk_method_threads, o);
    if (rc) {
        fail(
            "offload to disk: can use neither io_uring nor threads: %s; raise the limits of memory and threads "
            "(ulimit -l, ulimit -u)",
            strerror(errno));
        disk_store_destroy(&s);
        return -1;
    }
    char *a =
        why_cached
            ? xasprintf(
                  "%s takes no O_DIRECT (%s): bytes go through the kernel's cache, and take memory there",
                  s->dir, why_cached)
            : xstrdup("");
    char *b = why_threads ? xasprintf("io_uring is not to be had (%s): threads call pread and pwrite instead",
                                      why_threads)
                          : xstrdup("");
    if (*a || *b) s->remark = xasprintf("%s%s%s", a, *a && *b ? "; " : "", b);
    free(a);
    free(b);
    *out = s;
    return 0;
}

void disk_store_destroy(struct disk_store **store) {
    struct disk_store *s = *store;
    if (!s) return;
    lanes_close(s);
    close(s->fd);
    for (struct request *r = s->all, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    pthread_cond_destroy(&s->freed);
    pthread_mutex_destroy(&s->lock);
    free(s->dir);
    free(s->key);
    free(s->label);
    free(s->remark);
    free(s);
    *store = NULL;
}

void disk_store_count(const struct disk_store *s, struct disk_count *out) {
    out->read_bytes = atomic_load(&s->read_bytes);
    out->written_bytes = atomic_load(&s->written_bytes);
}

const char *disk_store_remark(const struct disk_store *s) { return s->remark; }
char *disk_store_path(const struct disk_store *s) {
    return xasprintf("/proc/%d/fd/%d", (int)getpid(), s->fd);
}
bool disk_store_direct(const struct disk_store *s) { return s->direct; }
enum disk_engine disk_store_engine(const struct disk_store *s) {
    return s->method == &disk_method_uring ? DISK_ENGINE_URING : DISK_ENGINE_THREADS;
}
