// Weights from a Hugging Face directory: which tensor is which, checked before anything is read.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/config/name_map.h"
#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/hf_map.h"
#include "shared/hf/safetensors.h"

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

static bool file_exists(const char *dir, const char *name) {
    char *path = xasprintf("%s/%s", dir, name);
    struct stat st;
    bool yes = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return yes;
}

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
    struct found *head = lookup_exact(r, "lm_head.weight");
    struct hf_part wte[HF_MAX_PARTS];
    hf_parts(&r->spec, r->layout, 0, 0, wte);
    struct found *embedding = lookup(r, wte[0].name);
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
    if (file_exists(dir, "model.safetensors"))
        rc = open_shard(r, "model.safetensors");
    else if (file_exists(dir, INDEX_NAME))
        rc = open_indexed(r);
    else
        rc = open_listed(r);
    if (rc || collect(r) || check_all(r)) hf_close(&r);
    return r;
}

enum dtype hf_dtype(const struct hf_reader *r) {
    struct hf_part parts[HF_MAX_PARTS];
    hf_parts(&r->spec, r->layout, 0, 0, parts);
    enum dtype dt = (enum dtype)lookup(r, parts[0].name)->tensor->dtype;
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
