#include "shared/evaluation/snapshot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/error.h"

#define MAGIC       0x50414e5352415453ULL  // "STARSNAP"
#define FORMAT      1
#define MARKS_AT    256
#define DATA_ALIGN  4096
#define PARTS_LIMIT 65536

struct header {
    uint64_t magic;
    uint32_t format, dtype;
    uint64_t layout;  // hash
    uint64_t parts;
    struct snapshot_info info;
    uint64_t check;  // of all before it
};

struct snapshot_file {
    struct snapshot_place place;
    char *path, *error;
    pthread_mutex_t mutex;  // of error
    int fd, part, parts;
};

// A hash of the layout, the same for every padding.
static uint64_t layout_identity(const struct layout *l) {
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    XXH64_update(h, &l->count, sizeof l->count);
    for (int u = 0; u < l->count; u++) {
        const struct unit *unit = &l->units[u];
        XXH64_update(h, &unit->n, sizeof unit->n);
        for (int i = 0; i < unit->count; i++) {
            const struct tensor *t = &unit->tensors[i];
            XXH64_update(h, t->name, strlen(t->name) + 1);
            XXH64_update(h, t->shape, sizeof t->shape);
            XXH64_update(h, &t->offset, sizeof t->offset);
        }
    }
    uint64_t out = XXH64_digest(h);
    XXH64_freeState(h);
    return out;
}

static off_t unit_at(const struct snapshot_file *f, int u) {
    off_t marks_end = MARKS_AT + (off_t)f->parts * (off_t)sizeof(uint64_t);
    off_t at = (marks_end + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    for (int i = 0; i < u; i++)
        at += (off_t)(f->place.layout->units[i].n * (int64_t)dtype_size(f->place.dtype));
    return at;
}

static uint64_t mark_of(const struct header *h, int part) {
    const uint64_t words[] = {MAGIC, h->layout, h->dtype, (uint64_t)part};
    return XXH64(words, sizeof words, 0);
}

static struct header header_of(const struct snapshot_file *f) {
    return (struct header){.magic = MAGIC,
                           .format = FORMAT,
                           .dtype = (uint32_t)f->place.dtype,
                           .layout = layout_identity(f->place.layout),
                           .parts = (uint64_t)f->parts};
}

static uint64_t check_of(const struct header *h) { return XXH64(h, offsetof(struct header, check), 0); }

// The first reason is kept.
static int refuse(struct snapshot_file *f, const char *why) {
    pthread_mutex_lock(&f->mutex);
    if (!f->error) f->error = xasprintf("%s: %s", f->path, why);
    pthread_mutex_unlock(&f->mutex);
    return -1;
}

static int put(struct snapshot_file *f, const void *data, size_t bytes, off_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(f->fd, (const char *)data + done, bytes - done, at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return refuse(f, strerror(n ? errno : ENOSPC));
        done += (size_t)n;
    }
    return 0;
}

static int get(struct snapshot_file *f, void *data, size_t bytes, off_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(f->fd, (char *)data + done, bytes - done, at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return refuse(f, n ? strerror(errno) : "is cut short");
        done += (size_t)n;
    }
    return 0;
}

static struct snapshot_file *file_at(const struct snapshot_place *p, int flags, char **error) {
    struct snapshot_file *f = xcalloc(1, sizeof *f);
    f->place = *p;
    f->path = xstrdup(p->path);
    f->place.path = f->path;
    pthread_mutex_init(&f->mutex, NULL);
    f->fd = open(p->path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->fd >= 0) return f;
    *error = xasprintf("%s: %s", p->path, strerror(errno));
    snapshot_file_close(&f);
    return NULL;
}

struct snapshot_file *snapshot_file_create(const struct snapshot_place *p, int part, int parts,
                                           char **error) {
    struct snapshot_file *f = file_at(p, O_WRONLY | O_CREAT, error);
    if (!f) return NULL;
    f->part = part;
    f->parts = parts;
    return f;
}

int snapshot_file_write(struct snapshot_file *f, int u, int64_t begin, int64_t end, const void *data) {
    int64_t n = f->place.layout->units[u].n, size = (int64_t)dtype_size(f->place.dtype);
    if (end > n) end = n;
    if (begin >= end) return 0;
    return put(f, data, (size_t)((end - begin) * size), unit_at(f, u) + (off_t)(begin * size));
}

int snapshot_file_finish(struct snapshot_file *f, const struct snapshot_info *info) {
    struct header h = header_of(f);
    uint64_t mark = mark_of(&h, f->part);
    if (f->error) return -1;
    if (info) {
        h.info = *info;
        h.check = check_of(&h);
        if (put(f, &h, sizeof h, 0)) return -1;
    }
    return put(f, &mark, sizeof mark, MARKS_AT + (off_t)f->part * (off_t)sizeof mark);
}

// ---------------------------------------------------------------- reading
static int check_header(struct snapshot_file *f, struct snapshot_info *info) {
    struct header h, own;
    if (get(f, &h, sizeof h, 0)) return -1;
    if (h.magic == 0) return refuse(f, "was not finished: its first part is missing");
    if (h.magic != MAGIC || h.format != FORMAT || h.check != check_of(&h) || h.parts > PARTS_LIMIT ||
        !h.parts)
        return refuse(f, "is no snapshot of this version");
    f->parts = (int)h.parts;
    own = header_of(f);
    if (h.layout != own.layout || h.dtype != own.dtype)
        return refuse(f, "is of another model or another dtype");
    for (int part = 0; part < f->parts; part++) {
        uint64_t mark = 0;
        char text[80];
        if (get(f, &mark, sizeof mark, MARKS_AT + (off_t)part * (off_t)sizeof mark)) return -1;
        snprintf(text, sizeof text, "was not finished: rank %d's part of %d is missing", part, f->parts);
        if (mark != mark_of(&own, part)) return refuse(f, text);
    }
    *info = h.info;
    return 0;
}

struct snapshot_file *snapshot_file_open(const struct snapshot_place *p, struct snapshot_info *info,
                                         char **error) {
    struct snapshot_file *f = file_at(p, O_RDONLY, error);
    if (!f) return NULL;
    off_t size = lseek(f->fd, 0, SEEK_END);
    int rc = check_header(f, info);
    if (!rc && size < unit_at(f, f->place.layout->count)) rc = refuse(f, "is cut short");
    if (!rc) return f;
    *error = xstrdup(f->error);
    snapshot_file_close(&f);
    return NULL;
}

int snapshot_file_read(struct snapshot_file *f, int u, void *out) {
    const struct unit *unit = &f->place.layout->units[u];
    size_t size = dtype_size(f->place.dtype), bytes = (size_t)unit->n * size;
    memset((char *)out + bytes, 0, (size_t)(unit->n_pad - unit->n) * size);
    return get(f, out, bytes, unit_at(f, u));
}

const char *snapshot_file_error(const struct snapshot_file *f) { return f->error ? f->error : ""; }
const char *snapshot_file_path(const struct snapshot_file *f) { return f->path; }

void snapshot_file_close(struct snapshot_file **at) {
    struct snapshot_file *f = *at;
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    pthread_mutex_destroy(&f->mutex);
    free(f->path);
    free(f->error);
    free(f);
    *at = NULL;
}
