#include "shared/hf/hf_dir.h"
#include "shared/core/disk.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/name_map.h"
#include "shared/core/path.h"
#include "shared/core/regular_file.h"
#include "shared/core/relaxed_json.h"
#include "shared/hf/hf_config.h"
#include "shared/hf/safetensors.h"

bool hf_is_buffer(const char *name) {
    static const char *const suffixes[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(name, suffixes[i])) return true;
    return false;
}

int hf_parts(const struct model_spec *s, const struct layout *l, int u, int t,
             struct hf_part parts[HF_MAX_PARTS]) {
    static const struct hf_tensor lm_head = {"lm_head", {"lm_head.weight"}};
    const struct tensor *tensor = &l->units[u].tensors[t];
    const char *ours = strrchr(tensor->name, '.') + 1;
    bool block = u > 0 && u < l->count - 1, is_head = strcmp(ours, lm_head.ours) == 0;
    const struct hf_family *family = hf_family_of(s);
    const struct hf_tensor *row = is_head ? &lm_head : family->tensors;
    while (row->ours && strcmp(row->ours, ours)) row++;
    assert(row->ours);

    int count = 0;
    while (count < HF_MAX_PARTS && row->theirs[count]) count++;
    for (int i = 0; i < count; i++) {
        struct hf_part *p = &parts[i];
        char layer[32] = "";
        if (block) snprintf(layer, sizeof layer, "%s.%d.", family->layers, u - 1);
        snprintf(p->name, sizeof p->name, "%s%s%s", is_head ? "" : family->prefix, layer, row->theirs[i]);
        // All of our tensor's rows, half of them, or those of q, k or v.
        p->rows = count < HF_MAX_PARTS ? tensor->shape[0] / count
                                       : (int64_t)(i == 0 ? s->heads : s->kv_heads) * s->head_size;
        p->dims = tensor->dims;
        p->transposed = block && family->conv1d && tensor->dims == 2;
        int64_t columns = tensor->shape[1];
        p->shape[0] = p->transposed ? columns : p->rows;
        p->shape[1] = p->transposed ? p->rows : columns;
    }
    return count;
}

// ---------------------------------------------------------------- reading
#define INDEX_NAME "model.safetensors.index.json"
#define TILE       32  // of a transposition: 4 KiB of each side in the first-level cache

// One tensor of any shard.
struct found {
    const struct st_tensor *tensor;
    const struct st_file *file;
    bool used;
};

struct hf_reader {
    char *dir;
    struct model_spec spec;
    const struct layout *layout;  // the caller's; outlives the reader
    struct st_file **files;
    int file_count;
    struct found *all;  // sorted by name
    int count;
};

bool hf_has_weights(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return false;
    bool yes = false;
    for (struct dirent *e; !yes && (e = readdir(d));)
        yes = ends_with(e->d_name, ".safetensors") || strcmp(e->d_name, INDEX_NAME) == 0;
    closedir(d);
    return yes;
}

static int open_shard(struct hf_reader *r, const char *name) {
    char *path = xasprintf("%s/%s", r->dir, name);
    struct st_file *f = st_open(path);
    free(path);
    if (!f) return -1;
    r->files = xrealloc(r->files, sizeof *r->files * (unsigned long)(r->file_count + 1));
    r->files[r->file_count++] = f;
    return 0;
}

// The index names the shard of each tensor; the shards must hold what it names.
static int open_indexed(struct hf_reader *r) {
    char *path = xasprintf("%s/%s", r->dir, INDEX_NAME);
    cJSON *root = relaxed_json_load(path);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map"), *j;
    struct name_map shards = {0};  // their place in r->files
    bool is_new;
    int rc = 0;
    if (!root)
        rc = -1;
    else if (!cJSON_IsObject(map))
        rc = fail("%s: \"weight_map\" is missing; it names the shard of each tensor", path);
    for (j = rc ? NULL : map->child; j && rc == 0; j = j->next) {
        if (!cJSON_IsString(j) || strchr(j->valuestring, '/') || !*j->valuestring) {
            rc = fail("%s: tensor %.200s: its shard must be the name of a file in this directory", path,
                      j->string);
            break;
        }
        int64_t at = name_map_put(&shards, j->valuestring, r->file_count, &is_new);
        if (is_new) rc = open_shard(r, j->valuestring);
        if (rc == 0 && !st_find(r->files[at], j->string))
            rc = fail("%s: tensor %.200s: is not in %s, where %s puts it", r->dir, j->string, j->valuestring,
                      INDEX_NAME);
    }
    name_map_free(&shards);
    cJSON_Delete(root);
    free(path);
    return rc;
}

static int open_listed(struct hf_reader *r) {
    struct dirent **names = NULL;
    int n = scandir(r->dir, &names, NULL, alphasort), rc = 0;
    if (n < 0) return fail("%s: %s", r->dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (rc == 0 && ends_with(names[i]->d_name, ".safetensors")) rc = open_shard(r, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    if (rc == 0 && r->file_count == 0)
        rc = fail("%s: has no weights (no model.safetensors, no %s)", r->dir, INDEX_NAME);
    return rc;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct found *)a)->tensor->name, ((const struct found *)b)->tensor->name);
}

static int collect(struct hf_reader *r) {
    for (int i = 0; i < r->file_count; i++) r->count += st_count(r->files[i]);
    r->all = xcalloc((unsigned long)r->count, sizeof *r->all);
    int k = 0;
    for (int i = 0; i < r->file_count; i++)
        for (int t = 0; t < st_count(r->files[i]); t++)
            r->all[k++] = (struct found){st_at(r->files[i], t), r->files[i], false};
    qsort(r->all, (size_t)r->count, sizeof *r->all, by_name);
    for (k = 1; k < r->count; k++)
        if (strcmp(r->all[k - 1].tensor->name, r->all[k].tensor->name) == 0)
            return fail("%s: tensor %s: also in %s", st_path(r->all[k].file), r->all[k].tensor->name,
                        st_path(r->all[k - 1].file));
    return 0;
}

static struct found *lookup_exact(const struct hf_reader *r, const char *name) {
    struct st_tensor wanted = {.name = (char *)name};
    struct found key = {.tensor = &wanted};
    return bsearch(&key, r->all, (size_t)r->count, sizeof key, by_name);
}

// With the family's prefix, or without: files saved from the bare model lack it.
static struct found *lookup(const struct hf_reader *r, const char *name) {
    struct found *f = lookup_exact(r, name);
    const char *prefix = hf_family_of(&r->spec)->prefix;
    if (!f && strncmp(name, prefix, strlen(prefix)) == 0) f = lookup_exact(r, name + strlen(prefix));
    return f;
}

static struct found *embedding_of(const struct hf_reader *r) {
    struct hf_part parts[HF_MAX_PARTS];
    hf_parts(&r->spec, r->layout, 0, 0, parts);
    return lookup(r, parts[0].name);
}

static void shape_text(char *out, size_t bytes, int dims, const int64_t *shape) {
    size_t at = (size_t)snprintf(out, bytes, "(");
    for (int d = 0; d < dims && at < bytes; d++)
        at += (size_t)snprintf(out + at, bytes - at, d ? ",%lld" : "%lld", (long long)shape[d]);
    if (at < bytes) snprintf(out + at, bytes - at, ")");
}

static int check_part(struct hf_reader *r, const struct hf_part *p) {
    struct found *f = lookup(r, p->name);
    if (!f) return fail("%s: tensor %s: missing; the model of config.json needs it", r->dir, p->name);
    const struct st_tensor *t = f->tensor;
    f->used = true;
    if (t->dtype < 0 || t->dtype == DT_I64 || t->dtype == DT_U8)
        return fail("%s: tensor %s: dtype %s cannot be weights; known are F32, F16, BF16 and F64",
                    st_path(f->file), t->name, t->type_name);
    bool same = t->dims == p->dims;
    for (int d = 0; same && d < p->dims; d++) same = t->shape[d] == p->shape[d];
    if (same) return 0;
    char is[256], wanted[64];
    shape_text(is, sizeof is, t->dims, t->shape);
    shape_text(wanted, sizeof wanted, p->dims, p->shape);
    return fail("%s: tensor %s: shape %s, but config.json makes it %s", st_path(f->file), t->name, is,
                wanted);
}

// If a file of a tied model holds a head, it must equal the embedding.
static void check_tied_head(struct hf_reader *r) {
    struct found *head = lookup_exact(r, "lm_head.weight"), *embedding = embedding_of(r);
    if (!r->spec.tied || !head || !embedding) return;
    head->used = true;
    const struct st_tensor *a = head->tensor, *b = embedding->tensor;
    if (a->dtype != b->dtype || a->bytes != b->bytes || memcmp(a->data, b->data, a->bytes))
        warn(
            "%s: tensor lm_head.weight differs from the embedding, but "
            "tie_word_embeddings is true: it is ignored",
            st_path(head->file));
}

static int check_all(struct hf_reader *r) {
    struct hf_part parts[HF_MAX_PARTS];
    for (int u = 0; u < r->layout->count; u++)
        for (int t = 0; t < r->layout->units[u].count; t++) {
            int n = hf_parts(&r->spec, r->layout, u, t, parts);
            for (int i = 0; i < n; i++)
                if (check_part(r, &parts[i])) return -1;
        }
    check_tied_head(r);
    int unexpected = 0;
    for (int k = 0; k < r->count; k++) {
        if (r->all[k].used || hf_is_buffer(r->all[k].tensor->name)) continue;
        if (unexpected++ < 5)
            warn("%s: tensor %s: unexpected, ignored", st_path(r->all[k].file), r->all[k].tensor->name);
    }
    if (unexpected > 5) warn("%s: %d more unexpected tensors are ignored", r->dir, unexpected - 5);
    return 0;
}

struct hf_reader *hf_open(const char *dir, const struct model_spec *s, const struct layout *l) {
    struct hf_reader *r = xcalloc(1, sizeof *r);
    r->dir = xstrdup(dir);
    r->spec = *s;
    r->layout = l;
    int rc;
    // transformers looks in this order.
    if (has_file(dir, "model.safetensors"))
        rc = open_shard(r, "model.safetensors");
    else if (has_file(dir, INDEX_NAME))
        rc = open_indexed(r);
    else
        rc = open_listed(r);
    if (rc || collect(r) || check_all(r)) hf_close(&r);
    return r;
}

enum dtype hf_dtype(const struct hf_reader *r) {
    enum dtype dt = (enum dtype)embedding_of(r)->tensor->dtype;
    return dt == DT_F64 ? DT_F32 : dt;
}

// out(rows, columns) = in(columns, rows) transposed, in tiles.
static void read_transposed(const struct st_tensor *t, int64_t rows, int64_t columns, float *out) {
    float tile[TILE][TILE];
    for (int64_t c0 = 0; c0 < columns; c0 += TILE)
        for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
            int64_t cn = columns - c0 < TILE ? columns - c0 : TILE, rn = rows - r0 < TILE ? rows - r0 : TILE;
            for (int64_t c = 0; c < cn; c++) st_to_f32(t, (c0 + c) * rows + r0, rn, tile[c]);
            for (int64_t i = 0; i < rn; i++)
                for (int64_t c = 0; c < cn; c++) out[(r0 + i) * columns + c0 + c] = tile[c][i];
        }
}

int hf_read_unit(struct hf_reader *r, int u, float *out) {
    const struct unit *unit = &r->layout->units[u];
    memset(out, 0, (size_t)unit->n_pad * sizeof *out);
    struct hf_part parts[HF_MAX_PARTS];
    for (int t = 0; t < unit->count; t++) {
        float *at = out + unit->tensors[t].offset;
        int n = hf_parts(&r->spec, r->layout, u, t, parts);
        for (int i = 0; i < n; i++) {
            const struct st_tensor *in = lookup(r, parts[i].name)->tensor;
            if (parts[i].transposed)
                read_transposed(in, parts[i].rows, parts[i].shape[0], at);
            else if (st_to_f32(in, 0, in->numel, at))
                return fail("%s: tensor %s: cannot convert %s", r->dir, in->name, in->type_name);
            at += in->numel;
        }
    }
    return 0;
}

void hf_close(struct hf_reader **r) {
    if (!*r) return;
    for (int i = 0; i < (*r)->file_count; i++) st_close(&(*r)->files[i]);
    free((*r)->files);
    free((*r)->all);
    free((*r)->dir);
    free(*r);
    *r = NULL;
}

// ---------------------------------------------------------------- writing
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
        char *why = NULL;
        w->file = st_writer_begin(path, entries, count, NEW_FILE_ON_DISK, &why);
        if (!w->file) fail("%s", why);
        free(why);
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
            if (st_writer_append(w->file, from, bytes)) return fail("%s", st_writer_error(w->file));
            at += bytes;
        }
    }
    return 0;
}

int hf_writer_finish(struct hf_writer **w) {
    char *why = NULL;
    int rc = st_writer_end(&(*w)->file, NULL, &why) ? fail("%s", why) : 0;
    cJSON *config = rc ? NULL : hf_config_json(&(*w)->spec, (*w)->dtype);
    char *path = xasprintf("%s/config.json", (*w)->dir);
    if (config) rc = json_file_write(path, config);
    cJSON_Delete(config);
    free(path);
    free(why);
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

// ---------------------------------------------------------------- whether two machines have the same files
#define SAMPLE  (64 << 10)  // bytes
#define SAMPLES 256

static int64_t add_file(XXH64_state_t *h, const char *path) {
    char *buf = xcalloc(SAMPLE, 1);
    char why[FILE_WHY_MAX];
    int64_t bytes = 0;
    int fd = file_open(path, &bytes, why);
    int64_t most = bytes > SAMPLE ? bytes - SAMPLE : 0;  // where the last sample begins
    int64_t count = (bytes + SAMPLE - 1) / SAMPLE;
    if (count > SAMPLES) count = SAMPLES;
    XXH64_update(h, &bytes, sizeof bytes);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = count > 1 ? (int64_t)((__int128)most * i / (count - 1)) : 0;
        ssize_t n = pread(fd, buf, SAMPLE, at);
        if (n > 0) XXH64_update(h, buf, (size_t)n);
    }
    if (fd >= 0) close(fd);
    free(buf);
    return bytes;
}

char *hf_files_identity(const char *dir) {
    struct dirent **names = NULL;
    int n = scandir(dir, &names, NULL, alphasort), files = 0;
    int64_t bytes = 0;
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    for (int i = 0; i < n; i++) {
        if (ends_with(names[i]->d_name, ".safetensors")) {
            char *path = xasprintf("%s/%s", dir, names[i]->d_name);
            XXH64_update(h, names[i]->d_name, strlen(names[i]->d_name) + 1);
            bytes += add_file(h, path);
            files++;
            free(path);
        }
        free(names[i]);
    }
    free(names);
    uint64_t hash = XXH64_digest(h);
    XXH64_freeState(h);
    return files ? xasprintf("%d file%s, %lld bytes, xxh64 %016llx", files, files == 1 ? "" : "s",
                             (long long)bytes, (unsigned long long)hash)
                 : NULL;
}
