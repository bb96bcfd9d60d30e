#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "shared/core/error.h"
#include "shared/hf/safetensors.h"

struct st_writer {
    char *path, *tmp;
    FILE *file;
    uint64_t expected_bytes, written_bytes;  // of data
    uint64_t synced_bytes;                   // of those, on disk
};

// Bytes between two fsyncs, so that finishing a large file does not wait for all of it.
#define SYNC_BYTES ((uint64_t)64 << 20)

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

static int put(struct st_writer *w, const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, w->file) == bytes) return 0;
    return fail("%s: cannot write: %s", w->tmp, strerror(errno));
}

static int sync_file(struct st_writer *w) {
    if (fflush(w->file) == 0 && fsync(fileno(w->file)) == 0) return 0;
    return fail("%s: cannot write: %s", w->tmp, strerror(errno));
}

struct st_writer *st_writer_create(const char *path, const struct st_entry *entries, int count) {
    struct st_writer *w = xcalloc(1, sizeof *w);
    w->path = xstrdup(path);
    w->tmp = xasprintf("%s.tmp", path);
    w->file = fopen(w->tmp, "wb");
    int rc = w->file ? 0 : fail("%s: cannot create: %s", w->tmp, strerror(errno));
    if (rc == 0) {
        char *header = header_text(entries, count, &w->expected_bytes);
        uint64_t n = strlen(header);
        unsigned char length[8];
        for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n >> 8 * i);
        rc = put(w, length, sizeof length);
        if (rc == 0) rc = put(w, header, n);
        free(header);
    }
    if (rc) st_writer_discard(&w);
    return w;
}

int st_writer_append(struct st_writer *w, const void *data, size_t bytes) {
    if (bytes > w->expected_bytes - w->written_bytes)
        return fail("%s: more data than its header announced (%llu bytes)", w->tmp,
                    (unsigned long long)w->expected_bytes);
    w->written_bytes += bytes;
    if (put(w, data, bytes)) return -1;
    if (w->written_bytes - w->synced_bytes < SYNC_BYTES) return 0;
    w->synced_bytes = w->written_bytes;
    return sync_file(w);
}

int st_writer_finish(struct st_writer **w) {
    struct st_writer *x = *w;
    int rc = 0;
    if (x->written_bytes != x->expected_bytes)
        rc = fail("%s: %llu bytes of data are still missing", x->tmp,
                  (unsigned long long)(x->expected_bytes - x->written_bytes));
    // The data are on disk before the rename replaces an older file.
    if (rc == 0) rc = sync_file(x);
    if (fclose(x->file) != 0 && rc == 0) rc = fail("%s: cannot write: %s", x->tmp, strerror(errno));
    x->file = NULL;
    if (rc == 0 && rename(x->tmp, x->path) != 0) rc = fail("%s: cannot rename: %s", x->tmp, strerror(errno));
    if (rc == 0) {
        free(x->tmp);
        x->tmp = NULL;  // nothing left to remove
    }
    st_writer_discard(w);
    return rc;
}

void st_writer_discard(struct st_writer **w) {
    struct st_writer *x = *w;
    if (!x) return;
    if (x->file) fclose(x->file);
    if (x->tmp) unlink(x->tmp);
    free(x->tmp);
    free(x->path);
    free(x);
    *w = NULL;
}
