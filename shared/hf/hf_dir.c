#include "shared/hf/hf_dir.h"
#include "shared/core/disk.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/hf/families.h"
#include "shared/hf/hf_adapter.h"
#include "shared/hf/safetensors.h"
#include "shared/model/layout.h"

// True for buffers that files contain besides the weights (masks, rotary tables).
static bool is_buffer(const char *name) {
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
    size_t length = strlen(ours) - (tensor->adapter ? strlen("0_A") : 0);
    int layer_of = l->model ? u : u - 1;
    bool block = l->model || (u > 0 && u < l->count - 1), is_head = strcmp(ours, lm_head.ours) == 0;
    const struct hf_family *family = hf_family_of(s);
    const struct hf_tensor *row = is_head ? &lm_head : family->tensors;
    while (row->ours && (strncmp(row->ours, ours, length) || row->ours[length])) row++;
    assert(row->ours);

    int count = 0;
    while (count < HF_MAX_PARTS && row->theirs[count]) count++;
    if (tensor->adapter) {
        const char *module = row->theirs[tensor->part];
        *parts = (struct hf_part){.dims = 2, .rows = tensor->shape[0]};
        memcpy(parts->shape, tensor->shape, sizeof parts->shape);
        snprintf(parts->name, sizeof parts->name, "%s%s.%d.%.*s.lora_%c.weight", family->prefix,
                 family->layers, layer_of, (int)(strlen(module) - strlen(".weight")), module,
                 tensor->adapter);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        struct hf_part *p = &parts[i];
        char layer[32] = "";
        if (block) snprintf(layer, sizeof layer, "%s.%d.", family->layers, layer_of);
        snprintf(p->name, sizeof p->name, "%s%s%s", is_head ? "" : family->prefix, layer, row->theirs[i]);
        // The part is all rows of our tensor, half of them, or those of q, k or v.
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

// One tensor of a shard.
struct found {
    // The name within the model, without any prefix: "layers.3.mlp.up_proj.weight", "lm_head.weight".
    const char *name;
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
    const struct st_file *adapter;  // the file with the adapter's tensors; NULL: none
    struct found *all;              // sorted by name
    char *names;                    // the texts of all names
    int count;
};

// Excludes an adapter's files, and files in Mistral's own names, which are next to the others on the hub.
static bool is_weights(const char *name) {
    return ends_with(name, ".safetensors") && strncmp(name, "adapter_model", strlen("adapter_model")) != 0 &&
           strncmp(name, "consolidated", strlen("consolidated")) != 0;
}

// Returns whether dir has weights of a whole model.
static bool has_model(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return false;
    bool yes = false;
    for (struct dirent *e; !yes && (e = readdir(d));)
        yes = is_weights(e->d_name) || strcmp(e->d_name, INDEX_NAME) == 0;
    closedir(d);
    return yes;
}

bool hf_is_adapter(const char *dir) {
    return has_file(dir, ADAPTER_CONFIG) && !(has_file(dir, "config.json") && has_model(dir));
}

bool hf_has_weights(const char *dir) {
    return has_model(dir) || (has_file(dir, ADAPTER_CONFIG) && has_file(dir, ADAPTER_WEIGHTS));
}

static int open_shard(struct hf_reader *r, const char *dir, const char *name) {
    char *path = xasprintf("%s/%s", dir, name);
    struct st_file *f = st_open(path);
    free(path);
    if (!f) return -1;
    r->files = xrealloc(r->files, sizeof *r->files * (unsigned long)(r->file_count + 1));
    r->files[r->file_count++] = f;
    return 0;
}

// Lists the directory's weight files in the order of their names. Returns their number, or -1. The caller frees
// each entry and the list. Logs nothing.
static int list_weights(const char *dir, struct dirent ***names) {
    int n = scandir(dir, names, NULL, alphasort), kept = 0;
    if (n < 0) return -1;
    for (int i = 0; i < n; i++)
        if (is_weights((*names)[i]->d_name))
            (*names)[kept++] = (*names)[i];
        else
            free((*names)[i]);
    return kept;
}

// Reports a missing shard that the index names. If there are files that the index does not name, index and files belong to
// different versions of the model; otherwise the download is incomplete.
static int missing_shard(const struct hf_reader *r, const struct name_map *shards, const char *name) {
    struct dirent **names = NULL;
    int n = list_weights(r->dir, &names), here = 0;
    char *other = NULL;
    for (int i = 0; i < n; i++) {
        if (name_map_get(shards, names[i]->d_name) >= 0)
            here++;
        else if (!other)
            other = xstrdup(names[i]->d_name);
        free(names[i]);
    }
    free(names);
    if (other)
        fail(
            "%s: %s names the shard %s, which is not there, and does not name %s, which is: index and shards are of different "
            "builds of the model; fetch the whole directory again",
            r->dir, INDEX_NAME, name, other);
    else
        fail(
            "%s: the shard %s is missing (of the %zu that %s names %d are here): did the download stop? Fetch it again",
            r->dir, name, shards->count, INDEX_NAME, here);
    free(other);
    return -1;
}

// Returns whether a shard's name leads to a file below the directory. It may contain folders, which transformers joins to
// the directory's name.
static bool is_below(const char *name) {
    for (const char *at = name; at; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL) {
        size_t n = strcspn(at, "/");
        if (!n || (n == 2 && !strncmp(at, "..", 2))) return false;
    }
    return true;
}

// Checks the index, which names the shard of each tensor: each shard must contain the tensors for which it is named.
static int open_indexed(struct hf_reader *r) {
    char *path = xasprintf("%s/%s", r->dir, INDEX_NAME);
    cJSON *root = relaxed_json_load(path);
    const cJSON *map = json_item(root, "weight_map"), *j;
    struct name_map shards = {0};  // their index in r->files
    int shard_count = 0, rc = 0;
    bool is_new;
    if (!root)
        rc = -1;
    else if (!cJSON_IsObject(map) || !map->child)
        rc = fail("%s: \"weight_map\" %s; it names the shard of each tensor: fetch the file again", path,
                  cJSON_IsObject(map) ? "is empty" : "is missing");
    for (j = rc ? NULL : map->child; j && rc == 0; j = j->next) {
        if (!cJSON_IsString(j) || !is_below(j->valuestring))
            rc =
                fail("%s: tensor %.200s: its shard must be the name of a file in this directory, or below it",
                     path, j->string);
        else
            shard_count += name_map_put(&shards, j->valuestring, shard_count, &is_new) == shard_count;
    }
    for (j = rc ? NULL : map->child; j && rc == 0; j = j->next) {
        if (name_map_get(&shards, j->valuestring) < r->file_count) continue;
        rc = has_file(r->dir, j->valuestring) ? open_shard(r, r->dir, j->valuestring)
                                              : missing_shard(r, &shards, j->valuestring);
    }
    for (j = rc ? NULL : map->child; j && rc == 0; j = j->next)
        if (!st_find(r->files[name_map_get(&shards, j->valuestring)], j->string))
            rc = fail(
                "%s: tensor %.200s: is not in %s, where %s puts it: they are of different builds of the model; fetch both again",
                r->dir, j->string, j->valuestring, INDEX_NAME);
    name_map_free(&shards);
    cJSON_Delete(root);
    free(path);
    return rc;
}

// Checks the numbers in the names of shards: "model-00002-of-00003.safetensors" states how many there are.
static int check_numbers(const struct hf_reader *r, struct dirent **names, int n) {
    int here = 0, of = 0, shard, all;
    int64_t sum = 0;
    const char *like = NULL;
    for (int i = 0; i < n; i++) {
        const char *at = strstr(names[i]->d_name, "-of-"), *from = at;
        while (from > names[i]->d_name && isdigit((unsigned char)from[-1])) from--;
        const char *end = at && text_count(from, &shard) == at ? text_count(at + strlen("-of-"), &all) : NULL;
        if (!end || strcmp(end, ".safetensors") != 0) continue;
        if (of && all != of)
            return fail(
                "%s: %s is one of %d shards, and %s one of %d: they are of different builds of the model",
                r->dir, like, of, names[i]->d_name, all);
        of = all;
        like = names[i]->d_name;
        here++;
        sum += shard;
    }
    if (here >= of) return 0;
    char first[80] = "";
    if (here == of - 1)
        snprintf(first, sizeof first, " (number %lld is missing)",
                 (long long)((int64_t)of * (of + 1) / 2 - sum));
    return fail(
        "%s: the names say %d shards (%s), and %d %s there%s: did the download stop? Fetch the directory again",
        r->dir, of, like, here, here == 1 ? "is" : "are", first);
}

static int open_listed(struct hf_reader *r) {
    struct dirent **names = NULL;
    int n = list_weights(r->dir, &names);
    if (n < 0) return fail("%s: %s", r->dir, strerror(errno));
    int rc = n ? check_numbers(r, names, n)
               : fail("%s: has no weights (no model.safetensors, no %s)", r->dir, INDEX_NAME);
    for (int i = 0; i < n; i++) {
        if (rc == 0) rc = open_shard(r, r->dir, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return rc;
}

// ---- names
// Prefixes that wrapper modules put in front of tensor names, or, with `anywhere`, inside the names.
static const struct {
    const char *text;
    bool anywhere;
} wrappers[] = {
    {"_orig_mod.", true},                   // torch.compile
    {"_fsdp_wrapped_module.", true},        // FSDP
    {"_checkpoint_wrapped_module.", true},  // activation checkpointing
    {"module.", false},                     // DataParallel, DDP, DeepSpeed
    {"base_model.model.", false},           // PEFT
    {"model.", false},                      // a module that has the model as a member
};

// Returns the text after a wrapper of that kind at `at`, or NULL.
static const char *behind_wrapper(const char *at, bool anywhere) {
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (wrappers[i].anywhere == anywhere && !strncmp(at, wrappers[i].text, strlen(wrappers[i].text)))
            return at + strlen(wrappers[i].text);
    return NULL;
}

// Writes the name without wrappers and without the family's prefix to out, which must be large enough. Takes linear time,
// because the names may come from a file of unknown origin.
static void bare_name(const char *name, const char *prefix, char *out) {
    char *to = out;
    bool begins = true;  // so far only wrappers and the prefix were read
    while (*name) {
        const char *behind = behind_wrapper(name, true);
        if (!behind && begins) behind = behind_wrapper(name, false);
        if (!behind && begins && !strncmp(name, prefix, strlen(prefix))) behind = name + strlen(prefix);
        begins = begins && behind;
        if (behind)
            name = behind;
        else
            *to++ = *name++;
    }
    *to = 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct found *)a)->name, ((const struct found *)b)->name);
}

static int collect(struct hf_reader *r) {
    size_t room = 1;
    for (int i = 0; i < r->file_count; i++)
        for (int t = 0; t < st_count(r->files[i]); t++, r->count++)
            room += strlen(st_at(r->files[i], t)->name) + 1;
    r->all = xcalloc((unsigned long)r->count, sizeof *r->all);
    char *name = r->names = xcalloc(room, 1);
    const char *prefix = hf_family_of(&r->spec)->prefix;
    int k = 0;
    for (int i = 0; i < r->file_count; i++)
        for (int t = 0; t < st_count(r->files[i]); t++) {
            bare_name(st_at(r->files[i], t)->name, prefix, name);
            r->all[k++] = (struct found){name, st_at(r->files[i], t), r->files[i], false};
            name += strlen(name) + 1;
        }
    qsort(r->all, (size_t)r->count, sizeof *r->all, by_name);
    for (k = 1; k < r->count; k++)
        if (strcmp(r->all[k - 1].name, r->all[k].name) == 0)
            return fail("%s: tensor %s: also in %s", st_path(r->all[k].file), r->all[k].tensor->name,
                        st_path(r->all[k - 1].file));
    return 0;
}

// Refuses an adapter's tensors among the weights of a model. They change what the model computes, so they must not be
// ignored silently.
static int check_adapters(const struct hf_reader *r) {
    static const char *const parts[] = {".lora_", ".base_layer.", ".lora_magnitude_vector",
                                        ".hada_", ".ia3_",        ".oft_"};
    for (int i = 0; i < r->count; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            if (r->all[i].file != r->adapter && strstr(r->all[i].name, parts[k]))
                return fail(
                    "%s: tensor %s: these weights of PEFT contain an adapter (LoRA or another): merge it in "
                    "(merge_and_unload()) and save the model again",
                    st_path(r->all[i].file), r->all[i].tensor->name);
    return 0;
}

static struct found *lookup_bare(const struct hf_reader *r, const char *name) {
    struct found key = {.name = name};
    return bsearch(&key, r->all, (size_t)r->count, sizeof key, by_name);
}

#define HEAD_NAME "lm_head.weight"

// Finds one part of a tensor of ours by its full name. The one matrix of a tied model may be stored under the head's name.
static struct found *lookup(const struct hf_reader *r, const char *name) {
    const struct hf_family *family = hf_family_of(&r->spec);
    const char *bare =
        name + (strncmp(name, family->prefix, strlen(family->prefix)) ? 0 : strlen(family->prefix));
    struct found *f = lookup_bare(r, bare);
    return f || !r->spec.tied || strcmp(bare, family->tensors[0].theirs[0]) ? f : lookup_bare(r, HEAD_NAME);
}

static struct found *embedding_of(const struct hf_reader *r) {
    return lookup(r, hf_family_of(&r->spec)->tensors[0].theirs[0]);
}

static void shape_text(char *out, size_t bytes, int dims, const int64_t *shape) {
    size_t at = (size_t)snprintf(out, bytes, "(");
    for (int d = 0; d < dims && at < bytes; d++)
        at += (size_t)snprintf(out + at, bytes - at, d ? ",%lld" : "%lld", (long long)shape[d]);
    if (at < bytes) snprintf(out + at, bytes - at, ")");
}

// Returns how many blocks the files have, from the numbers in the names.
static int blocks_of(const struct hf_reader *r) {
    const char *layers = hf_family_of(&r->spec)->layers;
    int most = 0, block;
    for (int i = 0; i < r->count; i++)
        if (!strncmp(r->all[i].name, layers, strlen(layers)) &&
            sscanf(r->all[i].name + strlen(layers), ".%d.", &block) == 1 && block >= most)
            most = block + 1;
    return most;
}

// Reports that a tensor of the model is missing, and the reason as far as the other names show it.
static int missing_tensor(const struct hf_reader *r, const char *name) {
    const struct hf_family *family = hf_family_of(&r->spec);
    const char *embedding = family->tensors[0].theirs[0];
    for (int i = 0; i < r->count; i++)
        if (ends_with(r->all[i].name, ".qweight"))
            return fail(
                "%s: tensor %s: quantized weights (GPTQ or AWQ) cannot be trained: take the model's directory from before "
                "quantization",
                st_path(r->all[i].file), r->all[i].tensor->name);
    if (!strcmp(name, HEAD_NAME) && embedding_of(r))
        return fail(
            "%s: tensor %s: missing, and config.json does not tie it to the embedding. If the model shares its embedding, set "
            "\"tie_word_embeddings\": true in config.json; a separate head must be saved with the model",
            r->dir, name);
    if (ends_with(name, embedding) && lookup_bare(r, HEAD_NAME))
        return fail("%s: tensor %s: missing, but " HEAD_NAME
                    " is there: if the model shares its embedding, set \"tie_word_embeddings\": "
                    "true in config.json",
                    r->dir, name);
    int blocks = blocks_of(r);
    if (!embedding_of(r) || !blocks)
        return fail(
            "%s: tensor %s: missing, and nothing is called like a tensor of a %s model (%s, for one): the weights are of another "
            "model, or of another program, than config.json",
            r->dir, name, family->type, r->count ? r->all[0].tensor->name : "no tensor");
    if (blocks < r->spec.layers)
        return fail(
            "%s: tensor %s: missing: the files have %d blocks, and config.json says %d: one of them is of another model",
            r->dir, name, blocks, r->spec.layers);
    return fail(
        "%s: tensor %s: missing; the model of config.json needs it, and %s: the weights are not complete, or of another model",
        r->dir, name, has_file(r->dir, INDEX_NAME) ? "the index does not name it either" : "no file has it");
}

static int check_part(struct hf_reader *r, const struct hf_part *p, bool adapter) {
    struct found *f = lookup(r, p->name);
    if (!f && adapter)
        return fail("%s: tensor " ADAPTER_PREFIX "%s: missing, but target_modules of " ADAPTER_CONFIG
                    " names its module, and the base model %s has it",
                    st_path(r->adapter), p->name, r->dir);
    if (!f) return missing_tensor(r, p->name);
    const struct st_tensor *t = f->tensor;
    f->used = true;
    if (t->dtype < 0 || t->dtype == DT_I64 || t->dtype == DT_U8)
        return fail(
            "%s: tensor %s: dtype %s cannot be weights (quantized ones cannot be trained); known are F32, F16, BF16 and F64",
            st_path(f->file), t->name, t->type_name);
    bool same = t->dims == p->dims;
    for (int d = 0; same && d < p->dims; d++) same = t->shape[d] == p->shape[d];
    if (same) return 0;
    char is[256], wanted[64];
    shape_text(is, sizeof is, t->dims, t->shape);
    shape_text(wanted, sizeof wanted, p->dims, p->shape);
    if (adapter)
        return fail("%s: tensor %s: shape %s, but r of " ADAPTER_CONFIG
                    " and the base model %s make it %s: is the adapter one of another model?",
                    st_path(f->file), t->name, is, r->dir, wanted);
    return fail("%s: tensor %s: shape %s, but config.json makes it %s", st_path(f->file), t->name, is,
                wanted);
}

static int check_all(struct hf_reader *r) {
    struct hf_part parts[HF_MAX_PARTS];
    struct found *head = r->spec.tied ? lookup_bare(r, HEAD_NAME) : NULL;
    if (head)
        head->used =
            true;  // it equals the embedding (hf_settle has compared them), or is stored instead of it
    for (int u = 0; u < r->layout->count; u++)
        for (int t = 0; t < r->layout->units[u].count; t++) {
            bool adapter = r->layout->units[u].tensors[t].adapter;
            int n = adapter && !r->adapter ? 0 : hf_parts(&r->spec, r->layout, u, t, parts);
            for (int i = 0; i < n; i++)
                if (check_part(r, &parts[i], adapter)) return -1;
        }
    for (int i = 0; i < r->count; i++)
        if (r->all[i].file == r->adapter && !r->all[i].used)
            return fail("%s: tensor %s: belongs to no module that target_modules of " ADAPTER_CONFIG
                        " names and the base model %s has: is the adapter one of another model?",
                        st_path(r->adapter), r->all[i].tensor->name, r->dir);
    return 0;
}

// Opens the files and lists their tensors. Returns NULL after fail(). hf_settle need not have been called for s.
static struct hf_reader *open_files(const char *dir, const struct model_spec *s) {
    struct hf_reader *r = xcalloc(1, sizeof *r);
    bool adapter = hf_is_adapter(dir);
    r->dir = adapter ? hf_adapter_base(dir) : without_slashes(dir);
    r->spec = *s;
    int rc;
    // transformers searches in this order.
    if (!r->dir)
        rc = -1;
    else if (has_file(r->dir, "model.safetensors"))
        rc = open_shard(r, r->dir, "model.safetensors");
    else if (has_file(r->dir, INDEX_NAME))
        rc = open_indexed(r);
    else
        rc = open_listed(r);
    if (adapter && !rc && !(rc = open_shard(r, dir, ADAPTER_WEIGHTS)))
        r->adapter = r->files[r->file_count - 1];
    if (rc || collect(r) || check_adapters(r)) hf_close(&r);
    return r;
}

struct hf_reader *hf_open(const char *dir, const struct model_spec *s, const struct layout *l) {
    struct hf_reader *r = open_files(dir, s);
    if (r) r->layout = layout_of_model(l);
    if (r && check_all(r)) hf_close(&r);
    return r;
}

int hf_settle(const char *dir, struct model_spec *s) {
    struct hf_reader *r = open_files(dir, s);
    if (!r) return -1;
    if (!r->adapter && has_file(dir, ADAPTER_CONFIG))
        warn("%s: has a whole model, which is used, and an adapter (" ADAPTER_CONFIG
             ") in the same directory, which is not",
             r->dir);
    const struct found *head = lookup_bare(r, HEAD_NAME), *embedding = embedding_of(r);
    if (s->tied && head && embedding) {
        const struct st_tensor *a = head->tensor, *b = embedding->tensor;
        bool same = a->dtype == b->dtype && a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
        if (!same)
            warn(
                "%s: tensor %s differs from the embedding, though tie_word_embeddings is true: the model is untied, as transformers "
                "takes it (its config.json should say false)",
                st_path(head->file), a->name);
        r->spec.tied = s->tied = same;
    }
    struct layout *l = model_layout_create(s, 1);
    if (l) r->layout = layout_of_model(l);
    int rc = !l || check_all(r) ? -1 : 0, unexpected = 0;
    for (int k = 0; k < r->count && !rc; k++) {
        if (r->all[k].used || is_buffer(r->all[k].tensor->name)) continue;
        if (unexpected++ < 5)
            warn("%s: tensor %s: unexpected, ignored", st_path(r->all[k].file), r->all[k].tensor->name);
    }
    if (unexpected > 5) warn("%s: %d more unexpected tensors are ignored", r->dir, unexpected - 5);
    hf_close(&r);
    if (l) layout_destroy(&l);
    return rc;
}

// ---------------------------------------------------------------- reading tensors
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

// Checks that all values of a part, (rows, columns) as ours, are finite: one NaN makes every later loss NaN. The
// reported position is the one in the file.
static int check_finite(const struct found *f, const struct hf_part *p, const float *at) {
    int64_t n = f->tensor->numel, bad = 0, k = 0;
    for (int64_t i = 0; i < n; i++) bad += !(fabsf(at[i]) <= FLT_MAX);
    if (!bad) return 0;
    while (fabsf(at[k]) <= FLT_MAX) k++;
    int64_t columns = p->transposed ? p->shape[0] : 1, rows = p->rows;
    int64_t place = p->transposed ? k % columns * rows + k / columns : k;
    return fail(
        "%s: tensor %s: value %lld of %lld is %s in fp32, and %lld are not finite: the values were wrong already when the model was saved; take an "
        "earlier or another copy of it",
        st_path(f->file), f->tensor->name, (long long)place, (long long)n, isnan(at[k]) ? "NaN" : "infinite",
        (long long)bad);
}

int hf_read_unit(struct hf_reader *r, int u, float *out) {
    const struct unit *unit = &r->layout->units[u];
    memset(out, 0, (size_t)unit->n_pad * sizeof *out);
    struct hf_part parts[HF_MAX_PARTS];
    for (int t = 0; t < unit->count; t++) {
        float *at = out + unit->tensors[t].offset;
        bool none = unit->tensors[t].adapter && !r->adapter;
        int n = none ? 0 : hf_parts(&r->spec, r->layout, u, t, parts);
        for (int i = 0; i < n; i++) {
            const struct found *f = lookup(r, parts[i].name);
            const struct st_tensor *in = f->tensor;
            if (parts[i].transposed)
                read_transposed(in, parts[i].rows, parts[i].shape[0], at);
            else if (st_to_f32(in, 0, in->numel, at))
                return fail("%s: tensor %s: cannot convert %s", r->dir, in->name, in->type_name);
            if (check_finite(f, &parts[i], at)) return -1;
            at += in->numel;
        }
    }
    return 0;
}

int hf_initial_unit(struct hf_reader *r, const struct layout *l, int u, uint64_t seed, float *out) {
    if (!r) model_init_unit(l, u, seed, out);
    if (r && hf_read_unit(r, u, out)) return -1;
    if (r && !r->adapter) model_init_adapters(l, u, seed, out);
    return 0;
}

void hf_close(struct hf_reader **r) {
    if (!*r) return;
    for (int i = 0; i < (*r)->file_count; i++) st_close(&(*r)->files[i]);
    free((*r)->files);
    free((*r)->all);
    free((*r)->names);
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
    bool adapter;  // writes an adapter's files: the layout is that of the trained units of LoRA
    char *base;    // the adapter's base model, or NULL
    int next;      // number of the unit that must be written next
    struct st_writer *file;
    char *scratch;  // a transposed matrix
};

#define WRITTEN_NAME_MAX (sizeof ADAPTER_PREFIX + HF_NAME_MAX)

// Lists the parts of a tensor, if this file has it.
static int written_parts(const struct hf_writer *w, int u, int t, struct hf_part parts[HF_MAX_PARTS]) {
    bool adapter = w->layout->units[u].tensors[t].adapter;
    return adapter == w->adapter ? hf_parts(&w->spec, w->layout, u, t, parts) : 0;
}

// Returns the entries of the file in the order in which units are written. *largest_bytes receives the size of the
// largest transposed one.
static struct st_entry *list_entries(const struct hf_writer *w, int *count, char (**names)[WRITTEN_NAME_MAX],
                                     size_t *largest_bytes) {
    int room = 0, n = 0;
    for (int u = 0; u < w->layout->count; u++) room += HF_MAX_PARTS * w->layout->units[u].count;
    struct st_entry *entries = xcalloc((unsigned long)room, sizeof *entries);
    *names = xcalloc((unsigned long)room, sizeof **names);
    *largest_bytes = 0;
    struct hf_part parts[HF_MAX_PARTS];
    for (int u = 0; u < w->layout->count; u++)
        for (int t = 0; t < w->layout->units[u].count; t++) {
            int k = written_parts(w, u, t, parts);
            for (int i = 0; i < k; i++, n++) {
                const char *prefix = w->adapter ? ADAPTER_PREFIX : "";
                memcpy((*names)[n], prefix, strlen(prefix));
                memcpy((*names)[n] + strlen(prefix), parts[i].name, sizeof parts[i].name);
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
    w->adapter = l->model != NULL;
    w->dtype = dt;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        fail("%s: cannot create the directory: %s", dir, strerror(errno));
    } else {
        int count;
        char(*names)[WRITTEN_NAME_MAX];
        size_t largest_bytes;
        struct st_entry *entries = list_entries(w, &count, &names, &largest_bytes);
        char *path = xasprintf("%s/%s", dir, w->adapter ? ADAPTER_WEIGHTS : "model.safetensors");
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
        int n = written_parts(w, u, t, parts);
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

void hf_writer_base(struct hf_writer *w, const char *model) {
    char *base = hf_is_adapter(model) ? hf_adapter_base(model) : xstrdup(model);
    char *whole = base ? realpath(base, NULL) : NULL;
    free(w->base);
    w->base = whole ? whole : base;
    if (whole) free(base);
}

int hf_writer_finish(struct hf_writer **w) {
    char *why = NULL;
    int rc = st_writer_end(&(*w)->file, NULL, &why) ? fail("%s", why) : 0;
    cJSON *config = rc              ? NULL
                    : (*w)->adapter ? hf_adapter_json(&(*w)->spec, (*w)->base)
                                    : hf_config_json(&(*w)->spec, (*w)->dtype);
    char *path = xasprintf("%s/%s", (*w)->dir, (*w)->adapter ? ADAPTER_CONFIG : "config.json");
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
    free((*w)->base);
    free((*w)->dir);
    free(*w);
    *w = NULL;
}

// ---------------------------------------------------------------- the identity of the files
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

char *hf_files_identity(const char *given) {
    struct dirent **names = NULL;
    bool adapter = hf_is_adapter(given);
    char *dir = adapter ? hf_adapter_base(given) : xstrdup(given);
    if (!dir) return NULL;
    int n = list_weights(dir, &names), files = 0;
    int64_t bytes = 0;
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    for (int i = 0; i < n; i++) {
        char *path = xasprintf("%s/%s", dir, names[i]->d_name);
        XXH64_update(h, names[i]->d_name, strlen(names[i]->d_name) + 1);
        bytes += add_file(h, path);
        files++;
        free(path);
        free(names[i]);
    }
    free(names);
    // Add the shards that the index names in folders below dir: the list above has only files of dir itself.
    char *path = xasprintf("%s/%s", dir, INDEX_NAME);
    cJSON *root = has_file(dir, INDEX_NAME) ? relaxed_json_load(path) : NULL;
    struct name_map seen = {0};
    const cJSON *j;
    cJSON_ArrayForEach(j, json_item(root, "weight_map")) {
        bool is_new = false;
        if (!cJSON_IsString(j) || !strchr(j->valuestring, '/') || !is_below(j->valuestring)) continue;
        name_map_put(&seen, j->valuestring, 0, &is_new);
        if (!is_new) continue;
        char *shard = xasprintf("%s/%s", dir, j->valuestring);
        XXH64_update(h, j->valuestring, strlen(j->valuestring) + 1);
        bytes += add_file(h, shard);
        files++;
        free(shard);
    }
    name_map_free(&seen);
    cJSON_Delete(root);
    free(path);
    if (adapter) {
        path = xasprintf("%s/" ADAPTER_WEIGHTS, given);
        bytes += add_file(h, path);
        files++;
        free(path);
    }
    free(dir);
    uint64_t hash = XXH64_digest(h);
    XXH64_freeState(h);
    return files ? xasprintf("%d file%s, %lld bytes, xxh64 %016llx", files, files == 1 ? "" : "s",
                             (long long)bytes, (unsigned long long)hash)
                 : NULL;
}
