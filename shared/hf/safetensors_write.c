// Writes a file of safetensors, piece by piece, hashed and handed to the disk on the way.
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/hf/safetensors.h"

// Small tensors are gathered to writes of a reasonable size; of large ones a piece is hashed while it is in the cache.
#define BUFFER_BYTES ((size_t)1 << 20)
// The disk is given each slice as soon as it is there, and has at most so many bytes before it that are not yet written:
// it is never idle, and closing a large file does not wait for all of it.
#define SLICE_BYTES ((off_t)16 << 20)
#define AHEAD_BYTES ((off_t)64 << 20)

struct st_writer {
    char *path;  // that it is to have; NULL: file is the path already
    char *file;  // that is being written, and removed if it does not become whole
    char *error;
    int fd;
    bool quiet;                              // errors are kept, not logged
    XXH64_state_t *hash;                     // or NULL
    int64_t header_bytes;                    // with its length
    uint64_t expected_bytes, written_bytes;  // of data
    off_t at, started, settled;  // of the file: handed to the kernel; on their way to the disk; there
    char *buffer;
    size_t buffered;
};

static const char *type_name(enum dtype t) {
    static const char *const names[DT_COUNT] = {"F32", "BF16", "F16", "F64", "I64", "U8"};
    return names[t];
}

// The header as the reference writes it: compact JSON, padded with spaces to a multiple of 8.
static char *header_text(const struct st_entry *entries, int count, uint64_t *data_bytes) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "__metadata__"), "format", "pt");
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        const struct st_entry *e = &entries[i];
        uint64_t bytes = dtype_size(e->dtype);
        cJSON *j = cJSON_AddObjectToObject(root, e->name);
        cJSON_AddStringToObject(j, "dtype", type_name(e->dtype));
        cJSON *shape = cJSON_AddArrayToObject(j, "shape");
        for (int d = 0; d < e->dims; d++) {
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->shape[d]));
            bytes *= (uint64_t)e->shape[d];
        }
        cJSON *offsets = cJSON_AddArrayToObject(j, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)at));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(at + bytes)));
        at += bytes;
    }
    char *printed = cJSON_PrintUnformatted(root);
    int n = (int)strlen(printed);
    char *text = xasprintf("%s%*s", printed, (8 - n % 8) % 8, "");
    cJSON_free(printed);
    cJSON_Delete(root);
    *data_bytes = at;
    return text;
}

// The reason is in w->error; it is logged unless the caller wants to have it.
static int refuse(struct st_writer *w) { return w->quiet ? -1 : fail("%s", w->error); }

// Beginning to write back and waiting for it, in turns. Where the file system cannot do that piece by piece, all of it.
static int settle(struct st_writer *w) {
    if (w->at - w->started < SLICE_BYTES) return 0;
    int rc = sync_file_range(w->fd, w->started, w->at - w->started, SYNC_FILE_RANGE_WRITE);
    w->started = w->at;
    off_t until = w->at - AHEAD_BYTES;
    if (until - w->settled < SLICE_BYTES) return 0;
    if (rc == 0)
        rc =
            sync_file_range(w->fd, w->settled, until - w->settled,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    w->settled = until;
    if (rc != 0 && errno != EIO && errno != ENOSPC && errno != EDQUOT) {
        rc = disk()->fsync(w->fd);
        w->settled = w->at;
    }
    return rc == 0 ? 0 : disk_error(&w->error, "%s: cannot write: %s", w->file, strerror(errno));
}

// All of it, past the buffer.
static int put_through(struct st_writer *w, const char *data, size_t bytes) {
    while (bytes > 0) {
        size_t n = bytes < BUFFER_BYTES ? bytes : BUFFER_BYTES;
        if (w->hash) XXH64_update(w->hash, data, n);
        if (disk_write(w->fd, w->file, data, n, &w->error)) return -1;
        w->at += (off_t)n;
        data += n;
        bytes -= n;
        if (settle(w)) return -1;
    }
    return 0;
}

static int flush(struct st_writer *w) {
    size_t n = w->buffered;
    w->buffered = 0;
    return put_through(w, w->buffer, n);
}

static int put(struct st_writer *w, const void *data, size_t bytes) {
    if (w->buffered + bytes > BUFFER_BYTES && flush(w)) return -1;
    if (bytes >= BUFFER_BYTES) return put_through(w, data, bytes);
    if (bytes > 0) memcpy(w->buffer + w->buffered, data, bytes);
    w->buffered += bytes;
    return 0;
}

// A disk that has no room for the whole file says so now. The file's size stays that of what is written.
static int reserve(struct st_writer *w) {
    if (disk()->reserve(w->fd, (off_t)st_writer_bytes(w)) == 0) return 0;
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) return 0;  // it cannot tell beforehand
    return disk_error(&w->error, "%s: no room for its %lld bytes: %s", w->file, (long long)st_writer_bytes(w),
                      strerror(errno));
}

static int begin(struct st_writer *w, const struct st_entry *entries, int count) {
    w->fd = disk()->open(w->file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (w->fd < 0) {
        disk_error(&w->error, "%s: cannot create: %s", w->file, strerror(errno));
        free(w->file);
        w->file = NULL;  // nothing to remove
        return -1;
    }
    char *header = header_text(entries, count, &w->expected_bytes);
    uint64_t n = strlen(header);
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n >> 8 * i);
    w->header_bytes = (int64_t)(sizeof length + n);
    w->buffer = xcalloc(BUFFER_BYTES, 1);
    int rc = reserve(w);
    if (rc == 0) rc = put(w, length, sizeof length);
    if (rc == 0) rc = put(w, header, n);
    free(header);
    return rc;
}

struct st_writer *st_writer_create(const char *path, const struct st_entry *entries, int count) {
    struct st_writer *w = xcalloc(1, sizeof *w);
    w->path = xstrdup(path);
    w->file = xasprintf("%s.tmp", path);
    if (begin(w, entries, count)) {
        refuse(w);
        st_writer_discard(&w);
    }
    return w;
}

struct st_writer *st_writer_begin(const char *path, const struct st_entry *entries, int count, char **error) {
    struct st_writer *w = xcalloc(1, sizeof *w);
    w->file = xstrdup(path);
    w->quiet = true;
    w->hash = XXH64_createState();
    XXH64_reset(w->hash, 0);
    if (begin(w, entries, count)) {
        disk_error(error, "%s", w->error);
        st_writer_discard(&w);
    }
    return w;
}

const char *st_writer_error(const struct st_writer *w) { return w->error; }
int64_t st_writer_bytes(const struct st_writer *w) { return w->header_bytes + (int64_t)w->expected_bytes; }

int st_writer_append(struct st_writer *w, const void *data, size_t bytes) {
    if (w->error) return -1;
    if (bytes > w->expected_bytes - w->written_bytes) {
        disk_error(&w->error, "%s: more data than its header announced (%llu bytes)", w->file,
                   (unsigned long long)w->expected_bytes);
        return refuse(w);
    }
    w->written_bytes += bytes;
    return put(w, data, bytes) ? refuse(w) : 0;
}

// Everything is on disk, and the file is closed.
static int close_whole(struct st_writer *w) {
    int rc = w->error ? -1 : 0;
    if (rc == 0 && w->written_bytes != w->expected_bytes)
        rc = disk_error(&w->error, "%s: %llu bytes of data are still missing", w->file,
                        (unsigned long long)(w->expected_bytes - w->written_bytes));
    if (rc == 0) rc = flush(w);
    if (rc == 0 && disk()->fsync(w->fd) != 0)
        rc = disk_error(&w->error, "%s: cannot bring to disk: %s", w->file, strerror(errno));
    if (close(w->fd) != 0 && rc == 0)
        rc = disk_error(&w->error, "%s: cannot write: %s", w->file, strerror(errno));
    w->fd = -1;
    return rc;
}

int st_writer_finish(struct st_writer **at) {
    struct st_writer *w = *at;
    bool logged = w->error != NULL;
    // The data are on disk before the rename replaces an older file.
    int rc = close_whole(w);
    if (rc == 0 && disk()->rename(w->file, w->path) != 0)
        rc = disk_error(&w->error, "%s: cannot rename: %s", w->file, strerror(errno));
    if (rc == 0) {
        free(w->file);
        w->file = NULL;  // nothing left to remove
    } else if (!logged) {
        refuse(w);
    }
    st_writer_discard(at);
    return rc;
}

int st_writer_end(struct st_writer **at, struct st_written *out, char **error) {
    struct st_writer *w = *at;
    int rc = close_whole(w);
    if (rc == 0) {
        *out = (struct st_written){.bytes = w->at, .xxh64 = XXH64_digest(w->hash)};
        free(w->file);
        w->file = NULL;
    } else {
        disk_error(error, "%s", w->error);
    }
    st_writer_discard(at);
    return rc;
}

void st_writer_discard(struct st_writer **at) {
    struct st_writer *w = *at;
    if (!w) return;
    if (w->file && w->fd >= 0) close(w->fd);
    if (w->file) disk()->unlink(w->file);
    if (w->hash) XXH64_freeState(w->hash);
    free(w->buffer);
    free(w->error);
    free(w->file);
    free(w->path);
    free(w);
    *at = NULL;
}
