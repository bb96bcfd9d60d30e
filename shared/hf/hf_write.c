// Weights into a Hugging Face directory.
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/hf/hf_config.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/hf_map.h"
#include "shared/hf/safetensors.h"

#define TILE 32

struct hf_writer {
    char *dir;
    struct model_spec spec;
    const struct layout *layout;  // the caller's; outlives the writer
    enum dtype dtype;
    int next;  // unit
    struct st_writer *file;
    char *scratch;  // a transposed matrix
};

// The entries of the file in the order in which units are written; *largest_bytes: of a transposed one.
static struct st_entry *list_entries(const struct hf_writer *w, int *count, char (**names)[HF_NAME_MAX],
                                     size_t *largest_bytes) {
    int room = 0, n = 0;
    for (int u = 0; u < w->layout->count; u++) room += HF_MAX_PARTS * w->layout->units[u].count;
    struct st_entry *entries = xcalloc((unsigned long)room, sizeof *entries);
    *names = xcalloc((unsigned long)room, sizeof **names);
    *largest_bytes = 0;
    struct hf_part parts[HF_MAX_PARTS];
    for (int u = 0; u < w->layout->count; u++)
        for (int t = 0; t < w->layout->units[u].count; t++) {
            int k = hf_parts(&w->spec, w->layout, u, t, parts);
            for (int i = 0; i < k; i++, n++) {
                memcpy((*names)[n], parts[i].name, sizeof parts[i].name);
                entries[n] = (struct st_entry){.name = (*names)[n], .dtype = w->dtype, .dims = parts[i].dims};
                memcpy(entries[n].shape, parts[i].shape, sizeof parts[i].shape);
                size_t bytes = (size_t)(parts[i].shape[0] * parts[i].shape[1]) * dtype_size(w->dtype);
                if (parts[i].transposed && bytes > *largest_bytes) *largest_bytes = bytes;
            }
        }
    *count = n;
    return entries;
}

struct hf_writer *hf_writer_create(const char *dir, const struct model_spec *s, const struct layout *l,
                                   enum dtype dt) {
    struct hf_writer *w = xcalloc(1, sizeof *w);
    w->dir = xstrdup(dir);
    w->spec = *s;
    w->layout = l;
    w->dtype = dt;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        fail("%s: cannot create the directory: %s", dir, strerror(errno));
    } else {
        int count;
        char(*names)[HF_NAME_MAX];
        size_t largest_bytes;
        struct st_entry *entries = list_entries(w, &count, &names, &largest_bytes);
        char *path = xasprintf("%s/model.safetensors", dir);
        w->file = st_writer_create(path, entries, count);
        w->scratch = xcalloc(largest_bytes, 1);
        free(path);
        free(names);
        free(entries);
    }
    if (!w->file) hf_writer_discard(&w);
    return w;
}

// out(columns, rows) = in(rows, columns) transposed, elements of `size` bytes.
static void transpose(const char *in, int64_t rows, int64_t columns, size_t size, char *out) {
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
        for (int64_t c0 = 0; c0 < columns; c0 += TILE)
            for (int64_t c = c0; c < columns && c < c0 + TILE; c++)
                for (int64_t r = r0; r < rows && r < r0 + TILE; r++)
                    memcpy(out + (size_t)(c * rows + r) * size, in + (size_t)(r * columns + c) * size, size);
}

int hf_write_unit(struct hf_writer *w, int u, const void *weights) {
    assert(u == w->next);
    w->next++;
    const struct unit *unit = &w->layout->units[u];
    size_t size = dtype_size(w->dtype);
    struct hf_part parts[HF_MAX_PARTS];
    for (int t = 0; t < unit->count; t++) {
        const char *at = (const char *)weights + (size_t)unit->tensors[t].offset * size;
        int n = hf_parts(&w->spec, w->layout, u, t, parts);
        for (int i = 0; i < n; i++) {
            size_t bytes = (size_t)(parts[i].shape[0] * parts[i].shape[1]) * size;
            const char *from = at;
            if (parts[i].transposed) {
                transpose(at, parts[i].rows, parts[i].shape[0], size, w->scratch);
                from = w->scratch;
            }
            if (st_writer_append(w->file, from, bytes)) return -1;
            at += bytes;
        }
    }
    return 0;
}

static int write_config(const struct hf_writer *w) {
    cJSON *config = hf_config_json(&w->spec, w->dtype);
    char *path = xasprintf("%s/config.json", w->dir);
    int rc = json_file_write(path, config);
    free(path);
    cJSON_Delete(config);
    return rc;
}

int hf_writer_finish(struct hf_writer **w) {
    int rc = st_writer_finish(&(*w)->file);
    if (rc == 0) rc = write_config(*w);
    hf_writer_discard(w);
    return rc;
}

void hf_writer_discard(struct hf_writer **w) {
    if (!*w) return;
    st_writer_discard(&(*w)->file);
    free((*w)->scratch);
    free((*w)->dir);
    free(*w);
    *w = NULL;
}
