#include "shared/hf/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/hf/file_kind.h"

#define MAX_HEADER_BYTES 100000000u          // the reference implementation's limit
#define MAX_EXACT        9007199254740992.0  // 2^53: JSON numbers are read as doubles
#define HASH_BYTES       ((size_t)1 << 20)
// How many bytes the kernel is asked to read at once, and how far ahead of the hash.
#define SLICE_BYTES ((size_t)4 << 20)
#define AHEAD_BYTES ((size_t)32 << 20)

struct st_file {
    char *path;
    struct mapped_file map;
    struct st_tensor *tensors;  // sorted by name
    int count;
};

// The types of enum dtype are first, in its order.
static const struct {
    const char *name;
    int dtype;
    int bytes;
} types[] = {{"F32", DT_F32, 4}, {"BF16", DT_BF16, 2}, {"F16", DT_F16, 2}, {"F64", DT_F64, 8},
             {"I64", DT_I64, 8}, {"U8", DT_U8, 1},     {"I32", -1, 4},     {"U32", -1, 4},
             {"I16", -1, 2},     {"U16", -1, 2},       {"I8", -1, 1},      {"U64", -1, 8},
             {"BOOL", -1, 1},    {"F8_E4M3", -1, 1},   {"F8_E5M2", -1, 1}};
#define TYPES (sizeof types / sizeof *types)

// Returns a number that is whole, not negative and exactly representable, or -1.
static int64_t whole(const cJSON *j) {
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 0.0 && j->valuedouble <= MAX_EXACT)) return -1;
    return j->valuedouble == floor(j->valuedouble) ? (int64_t)j->valuedouble : -1;
}

static int read_shape(const char *path, struct st_tensor *t, const cJSON *shape) {
    if (!cJSON_IsArray(shape)) return fail("%s: tensor %s: no shape", path, t->name);
    t->numel = 1;
    const cJSON *size;
    cJSON_ArrayForEach(size, shape) {
        int64_t n = whole(size);
        if (n < 0)
            return fail("%s: tensor %s: a size in its shape is not a whole number >= 0", path, t->name);
        if (t->dims == ST_MAX_DIMS)
            return fail("%s: tensor %s: more than %d dimensions", path, t->name, ST_MAX_DIMS);
        t->shape[t->dims++] = n;
        if (__builtin_mul_overflow(t->numel, n, &t->numel))
            return fail("%s: tensor %s: its shape has more elements than 64 bits count", path, t->name);
    }
    return 0;
}

// Parses one member of the header. data, data_bytes: the file's bytes after the header.
static int read_tensor(const char *path, struct st_tensor *t, const cJSON *j, const char *data,
                       int64_t data_bytes) {
    t->name = xstrdup(j->string);
    const cJSON *type = json_item(j, "dtype");
    if (!cJSON_IsString(type)) return fail("%s: tensor %s: no dtype", path, t->name);
    size_t row = 0;
    while (row < TYPES && strcmp(types[row].name, type->valuestring) != 0) row++;
    if (row == TYPES) return fail("%s: tensor %s: unknown dtype \"%.40s\"", path, t->name, type->valuestring);
    t->dtype = types[row].dtype;
    snprintf(t->type_name, sizeof t->type_name, "%s", types[row].name);
    if (read_shape(path, t, json_item(j, "shape"))) return -1;
    const cJSON *offsets = json_item(j, "data_offsets");
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return fail("%s: tensor %s: data_offsets must be [begin, end]", path, t->name);
    int64_t begin = whole(cJSON_GetArrayItem(offsets, 0)), end = whole(cJSON_GetArrayItem(offsets, 1));
    if (begin < 0 || end < begin)
        return fail("%s: tensor %s: data_offsets are not whole numbers with 0 <= begin <= end", path,
                    t->name);
    if (end > data_bytes)
        return fail(
            "%s: tensor %s: ends at byte %lld of the data, but only %lld are "
            "there; the file is truncated or its header is wrong",
            path, t->name, (long long)end, (long long)data_bytes);
    int64_t need;
    if (__builtin_mul_overflow(t->numel, (int64_t)types[row].bytes, &need) || need != end - begin)
        return fail("%s: tensor %s: data_offsets span %lld bytes, but its shape of %lld %s elements does not",
                    path, t->name, (long long)(end - begin), (long long)t->numel, t->type_name);
    t->data = data + begin;
    t->bytes = (size_t)need;
    return 0;
}

static int by_offset(const void *a, const void *b) {
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

// Checks that every byte of the data belongs to exactly one tensor, and that every name occurs once.
static int check_whole(struct st_file *f, const char *data, size_t data_bytes) {
    qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, by_offset);
    const char *at = data;
    for (int i = 0; i < f->count; i++) {
        const struct st_tensor *t = &f->tensors[i];
        if ((const char *)t->data < at)
            return fail("%s: tensor %s: overlaps tensor %s", f->path, t->name, f->tensors[i - 1].name);
        if ((const char *)t->data > at)
            return fail("%s: tensor %s: %lld bytes before it belong to no tensor", f->path, t->name,
                        (long long)((const char *)t->data - at));
        at = (const char *)t->data + t->bytes;
    }
    if (at != data + data_bytes)
        return fail("%s: the last %lld bytes belong to no tensor", f->path,
                    (long long)(data + data_bytes - at));
    qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, by_name);
    for (int i = 1; i < f->count; i++)
        if (strcmp(f->tensors[i - 1].name, f->tensors[i].name) == 0)
            return fail("%s: tensor %s: occurs twice", f->path, f->tensors[i].name);
    return 0;
}

static int read_tensors(struct st_file *f, const cJSON *root, const char *data, size_t data_bytes) {
    f->tensors = xcalloc((unsigned long)cJSON_GetArraySize(root), sizeof *f->tensors);
    const cJSON *j;
    cJSON_ArrayForEach(j, root) {
        if (strcmp(j->string, "__metadata__") == 0) continue;
        if (!cJSON_IsObject(j))
            return fail("%s: tensor %.200s: its header entry is no object", f->path, j->string);
        if (read_tensor(f->path, &f->tensors[f->count++], j, data, (int64_t)data_bytes)) return -1;
    }
    return check_whole(f, data, data_bytes);
}

static int read_header(struct st_file *f) {
    if (f->map.bytes < 8) return fail("%s: %zu bytes are no safetensors file", f->path, f->map.bytes);
    const unsigned char *p = f->map.base;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | p[i];
    if (n > MAX_HEADER_BYTES || n > f->map.bytes - 8) {
        // The header begins as JSON does, so this is a safetensors file that is cut short, not another kind of file.
        bool begins = n <= MAX_HEADER_BYTES && f->map.bytes > 8 && p[8] == '{';
        const struct file_kind *kind = begins ? NULL : file_kind_of_bytes(FILE_AS_MODEL, p, f->map.bytes);
        char *what = file_kind_text(FILE_AS_MODEL, kind, f->path);
        int rc = what ? fail("%s", what) : 0;
        free(what);
        if (rc) return rc;
        return fail(
            "%s: says its header has %llu bytes, but the file has "
            "%zu; it is truncated or no safetensors file",
            f->path, (unsigned long long)n, f->map.bytes);
    }
    int64_t values = json_values_at_most((const char *)p + 8, (size_t)n);
    if (values > JSON_VALUES_MAX)
        return fail("%s: its header has about %lld values, at most %d are read: no model has so many tensors",
                    f->path, (long long)values, JSON_VALUES_MAX);
    // Parse a NUL-terminated copy, so that the parser cannot read beyond the header into the data.
    char *text = xcalloc(n + 1, 1);
    memcpy(text, p + 8, n);
    const char *end = text;
    cJSON *root = n && text[0] == '{' ? cJSON_ParseWithLengthOpts(text, n, &end, 0) : NULL;
    while (root && end < text + n && (*end == ' ' || *end == '\n' || *end == '\t' || *end == '\r')) end++;
    int rc;
    if (!cJSON_IsObject(root) || end != text + n)
        rc = fail("%s: its header is no JSON object (mistake near byte %lld)", f->path,
                  (long long)(8 + (end - text)));
    else
        rc = read_tensors(f, root, (const char *)p + 8 + n, f->map.bytes - 8 - (size_t)n);
    cJSON_Delete(root);
    free(text);
    return rc;
}

struct st_file *st_open(const char *path) {
    struct st_file *f = xcalloc(1, sizeof *f);
    f->path = xstrdup(path);
    char why[FILE_WHY_MAX];
    int rc = mapped_file_open(&f->map, "", path, why) ? fail("%s: %s", path, why) : read_header(f);
    if (rc) st_close(&f);
    return f;
}

void st_close(struct st_file **f) {
    if (!*f) return;
    for (int i = 0; i < (*f)->count; i++) free((*f)->tensors[i].name);
    free((*f)->tensors);
    mapped_file_close(&(*f)->map);
    free((*f)->path);
    free(*f);
    *f = NULL;
}

const char *st_path(const struct st_file *f) { return f->path; }

// Asks the kernel to read ahead of the hash. If only page faults read the file, disk and hash would wait for each other.
uint64_t st_hash(const struct st_file *f) {
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    for (size_t at = 0, asked = 0; at < f->map.bytes; at += HASH_BYTES) {
        for (; asked < f->map.bytes && asked < at + AHEAD_BYTES; asked += SLICE_BYTES) {
            size_t left = f->map.bytes - asked;
            madvise((char *)(uintptr_t)f->map.base + asked, left < SLICE_BYTES ? left : SLICE_BYTES,
                    MADV_WILLNEED);
        }
        size_t left = f->map.bytes - at;
        XXH64_update(h, (const char *)f->map.base + at, left < HASH_BYTES ? left : HASH_BYTES);
    }
    uint64_t hash = XXH64_digest(h);
    XXH64_freeState(h);
    return hash;
}

int st_count(const struct st_file *f) { return f->count; }
const struct st_tensor *st_at(const struct st_file *f, int i) { return &f->tensors[i]; }

const struct st_tensor *st_find(const struct st_file *f, const char *name) {
    struct st_tensor key = {.name = (char *)name};
    return bsearch(&key, f->tensors, (size_t)f->count, sizeof key, by_name);
}

int st_to_f32(const struct st_tensor *t, int64_t first, int64_t count, float *out) {
    if (t->dtype < 0 || t->dtype == DT_I64 || t->dtype == DT_U8) return -1;
    size_t size = dtype_size((enum dtype)t->dtype);
    const char *p = (const char *)t->data + (size_t)first * size;
    if (t->dtype == DT_F32) {
        memcpy(out, p, (size_t)count * sizeof *out);
        return 0;
    }
    for (int64_t i = 0; i < count; i++, p += size) {
        // memcpy, because the element may be unaligned: the header's length need not be a multiple of the element's size.
        if (t->dtype == DT_F64) {
            double x;
            memcpy(&x, p, sizeof x);
            out[i] = (float)x;
        } else {
            uint16_t h;
            memcpy(&h, p, sizeof h);
            out[i] = t->dtype == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
        }
    }
    return 0;
}

// ---------------------------------------------------------------- writing

// Small tensors are collected in a buffer. Large ones are hashed in blocks that fit the cache.
#define BUFFER_BYTES ((size_t)1 << 20)
// Each slice is sent to the disk as soon as it is complete, and at most WRITE_AHEAD_BYTES before it are not on disk yet. So
// the disk is never idle, and closing a large file waits only for its last bytes.
#define WRITE_SLICE_BYTES ((off_t)16 << 20)
#define WRITE_AHEAD_BYTES ((off_t)64 << 20)

struct st_writer {
    struct new_file file;
    enum new_file_end how;
    char *error;
    XXH64_state_t *hash;
    int64_t header_bytes;                    // with its length field
    uint64_t expected_bytes, written_bytes;  // of data
    off_t at, started, settled;              // offsets: given to the kernel; write-back started; on disk
    char *buffer;
    size_t buffered;
};

// Returns the header as the reference writes it: compact JSON, padded with spaces to a multiple of 8.
static char *header_text(const struct st_entry *entries, int count, uint64_t *data_bytes) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "__metadata__"), "format", "pt");
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        const struct st_entry *e = &entries[i];
        uint64_t bytes = dtype_size(e->dtype);
        cJSON *j = cJSON_AddObjectToObject(root, e->name);
        cJSON_AddStringToObject(j, "dtype", types[e->dtype].name);
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

// Starts to write a slice to disk, then waits for an earlier slice. If the file system cannot sync slices, it syncs the
// whole file.
static int settle(struct st_writer *w) {
    if (w->how != NEW_FILE_ON_DISK || w->at - w->started < WRITE_SLICE_BYTES) return 0;
    int rc = sync_file_range(w->file.fd, w->started, w->at - w->started, SYNC_FILE_RANGE_WRITE);
    w->started = w->at;
    off_t until = w->at - WRITE_AHEAD_BYTES;
    if (until - w->settled < WRITE_SLICE_BYTES) return 0;
    if (rc == 0)
        rc =
            sync_file_range(w->file.fd, w->settled, until - w->settled,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    w->settled = until;
    if (rc != 0 && errno != EIO && errno != ENOSPC && errno != EDQUOT) {
        rc = disk()->fsync(w->file.fd);
        w->settled = w->at;
    }
    return rc == 0 ? 0 : disk_error(&w->error, "%s: cannot write: %s", w->file.path, strerror(errno));
}

// Writes data directly, without the buffer.
static int put_through(struct st_writer *w, const char *data, size_t bytes) {
    while (bytes > 0) {
        size_t n = bytes < BUFFER_BYTES ? bytes : BUFFER_BYTES;
        XXH64_update(w->hash, data, n);
        if (disk_write(w->file.fd, w->file.path, data, n, &w->error)) return -1;
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

static int begin(struct st_writer *w, const char *path, const struct st_entry *entries, int count) {
    if (!new_file_begin(&w->file, path, false))
        return disk_error(&w->error, "%s: cannot create: %s", path, strerror(w->file.error));
    char *header = header_text(entries, count, &w->expected_bytes);
    uint64_t n = strlen(header);
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n >> 8 * i);
    w->header_bytes = (int64_t)(sizeof length + n);
    w->buffer = xcalloc(BUFFER_BYTES, 1);
    int rc = 0;
    // Reserve the space of the whole file, so that a disk that is too small fails here. The file's size does not change.
    if (disk()->reserve(w->file.fd, (off_t)st_writer_bytes(w)) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        rc = disk_error(&w->error, "%s: no room for its %lld bytes: %s", w->file.path,
                        (long long)st_writer_bytes(w), strerror(errno));
    if (rc == 0) rc = put(w, length, sizeof length);
    if (rc == 0) rc = put(w, header, n);
    free(header);
    return rc;
}

struct st_writer *st_writer_begin(const char *path, const struct st_entry *entries, int count,
                                  enum new_file_end how, char **error) {
    struct st_writer *w = xcalloc(1, sizeof *w);
    w->how = how;
    w->hash = XXH64_createState();
    XXH64_reset(w->hash, 0);
    if (begin(w, path, entries, count)) {
        disk_error(error, "%s", w->error);
        st_writer_discard(&w);
    }
    return w;
}

const char *st_writer_error(const struct st_writer *w) { return w->error; }
int64_t st_writer_bytes(const struct st_writer *w) { return w->header_bytes + (int64_t)w->expected_bytes; }

int st_writer_append(struct st_writer *w, const void *data, size_t bytes) {
    if (w->error) return -1;
    if (bytes > w->expected_bytes - w->written_bytes)
        return disk_error(&w->error, "%s: more data than its header announced (%llu bytes)", w->file.path,
                          (unsigned long long)w->expected_bytes);
    w->written_bytes += bytes;
    return put(w, data, bytes);
}

int st_writer_end(struct st_writer **at, struct st_written *out, char **error) {
    struct st_writer *w = *at;
    int rc = w->error ? -1 : 0;
    if (rc == 0 && w->written_bytes != w->expected_bytes)
        rc = disk_error(&w->error, "%s: %llu bytes of data are still missing", w->file.path,
                        (unsigned long long)(w->expected_bytes - w->written_bytes));
    if (rc == 0) rc = flush(w);
    if (rc == 0) {
        char *path = xstrdup(w->file.path);
        if (new_file_end(&w->file, w->how))
            rc = disk_error(&w->error, "%s: cannot write: %s", path, strerror(errno));
        free(path);
    }
    if (rc) disk_error(error, "%s", w->error);
    if (rc == 0 && out) *out = (struct st_written){.bytes = w->at, .xxh64 = XXH64_digest(w->hash)};
    st_writer_discard(at);
    return rc;
}

void st_writer_discard(struct st_writer **at) {
    struct st_writer *w = *at;
    if (!w) return;
    if (w->file.path) new_file_end(&w->file, NEW_FILE_DISCARD);
    XXH64_freeState(w->hash);
    free(w->buffer);
    free(w->error);
    free(w);
    *at = NULL;
}
