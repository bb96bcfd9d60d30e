#include "shared/state/identity.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/core/topology.h"
#include "shared/core/topology_row.h"
#include "shared/data/data.h"
#include "shared/hf/families.h"
#include "shared/hf/hf_dir.h"

#define NAMED_MAX 3   // differences that a message names
#define VALUE_MAX 64  // characters of a value in a message

struct entry {
    char *key, *value;
};
struct identity {
    int count;
    struct entry *entries;  // in the order in which they were added
};

// ---------------------------------------------------------------- keys
#define T           IDENTITY_TRAJECTORY
#define R           IDENTITY_RUN
#define B           IDENTITY_BITS
#define L           IDENTITY_LOCAL
#define ONE_PROGRAM "install one version of starring for all of them"
#define ONE_TEXT    "give all of them the same files (data.path, data.val_path, data.val_fraction)"
#define ONE_MODEL   "give all of them the same model"
#define ONE_RESUME  "let all of them see the same checkpoint directory"

// Keys that are not in the configuration. The contents of files are compared, not their paths.
static const struct identity_key unconfigured[] = {
    {"program", R, ONE_PROGRAM},
    {"model.tensors", T, ONE_MODEL},  // names, shapes, order, decay
    {"model.vocab", T, ONE_MODEL},
    {"model.channels", T, ONE_MODEL},
    {"model.layers", T, ONE_MODEL},
    {"model.heads", T, ONE_MODEL},
    {"model.kv_heads", T, ONE_MODEL},
    {"model.head_size", T, ONE_MODEL},
    {"model.ffn", T, ONE_MODEL},
    {"model.tied", T, ONE_MODEL},
    {"model.norm", T, ONE_MODEL},
    {"model.norm_eps", T, ONE_MODEL},
    {"model.positions", T, ONE_MODEL},
    {"model.rope", T, ONE_MODEL},
    {"model.mlp", T, ONE_MODEL},
    {"model.biases", T, ONE_MODEL},
    {"model.adapters", T, ONE_MODEL},     // of the configuration, or of the adapter that the run begins with
    {"model.init_std", R, ONE_MODEL},     // unused when weights are loaded
    {"model.weights", R | L, ONE_MODEL},  // not compared on resume: a checkpoint has its own weights
    {"model.frozen", T | L,
     ONE_MODEL},  // compared on resume, too: LoRA's checkpoints do not have the frozen weights
    {"data", T | L, ONE_TEXT},
    {"data.held_out", T | L, ONE_TEXT},  // the losses before and after a resume must be of the same text
    {"consistency", B, NULL},            // "sync" for all topologies that promise the same bits
    {"gradients.summed", B,
     NULL},  // over the ranks in each micro-batch or once per step: two orders of one sum
    {"recovery.resumed", R, ONE_RESUME},  // the content of the checkpoint that the run resumes from
};
#define UNCONFIGURED (sizeof unconfigured / sizeof *unconfigured)

static struct identity_key configured(const struct config_key *k) {
    return (struct identity_key){k->path, k->agree, NULL};
}

struct identity_key identity_key_at(size_t i) {
    if (i < UNCONFIGURED) return unconfigured[i];
    return i < UNCONFIGURED + config_key_count() ? configured(config_key_at(i - UNCONFIGURED))
                                                 : (struct identity_key){NULL};
}

struct identity_key identity_key(const char *key) {
    for (size_t i = 0; i < UNCONFIGURED; i++)
        if (!strcmp(unconfigured[i].key, key)) return unconfigured[i];
    const struct config_key *k = config_key_find(key);
    if (config_key_gone(key))
        return (struct identity_key){"", 0, NULL};  // an old checkpoint may still have it
    return k ? configured(k) : (struct identity_key){"", T | R, ONE_PROGRAM};
}

// ---------------------------------------------------------------- the list
static struct entry *find(const struct identity *i, const char *key) {
    for (int e = 0; e < i->count; e++)
        if (!strcmp(i->entries[e].key, key)) return &i->entries[e];
    return NULL;
}

void identity_put(struct identity *i, const char *key, const char *value) {
    struct entry *e = find(i, key);
    if (e) {
        free(e->value);
        e->value = xstrdup(value);
        return;
    }
    i->entries = xrealloc(i->entries, sizeof *i->entries * (unsigned long)(i->count + 1));
    i->entries[i->count++] = (struct entry){xstrdup(key), xstrdup(value)};
}

const char *identity_get(const struct identity *i, const char *key) {
    const struct entry *e = find(i, key);
    return e ? e->value : NULL;
}

void identity_destroy(struct identity **i) {
    if (!*i) return;
    for (int e = 0; e < (*i)->count; e++) {
        free((*i)->entries[e].key);
        free((*i)->entries[e].value);
    }
    free((*i)->entries);
    free(*i);
    *i = NULL;
}

static void put_integer(struct identity *i, const char *key, int64_t n) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)n);
    identity_put(i, key, text);
}

static void put_real(struct identity *i, const char *key, float x) {
    char text[32];
    shortest_f32(text, x);
    identity_put(i, key, text);
}

// ---------------------------------------------------------------- the entries
// Hashes the tensors in logical order, independent of the padding for a number of ranks.
static void put_tensors(struct identity *i, const struct layout *l) {
    XXH64_state_t *h = XXH64_createState();
    char text[96];
    int count = 0;
    XXH64_reset(h, 0);
    for (int u = 0; u < l->count; u++) {
        const struct unit *unit = &l->units[u];
        XXH64_update(h, unit->name, strlen(unit->name) + 1);
        for (int k = 0; k < unit->count; k++, count++) {
            const struct tensor *t = &unit->tensors[k];
            int64_t facts[4] = {t->shape[0], t->shape[1], t->dims, t->decay};
            XXH64_update(h, t->name, strlen(t->name) + 1);
            XXH64_update(h, facts, sizeof facts);
        }
    }
    snprintf(text, sizeof text, "%d, %lld parameters, xxh64 %016llx", count, (long long)l->params,
             (unsigned long long)XXH64_digest(h));
    XXH64_freeState(h);
    identity_put(i, "model.tensors", text);
}

static void put_rope(struct identity *i, const struct model_spec *s) {
    static const char *const scalings[] = {"plain", "linear", "llama3"};
    const float values[] = {s->rope_theta, s->rope_factor, s->rope_low_freq_factor, s->rope_high_freq_factor};
    char number[4][32];
    if (s->traits.positions != POSITIONS_ROTARY) return;
    for (int k = 0; k < 4; k++) shortest_f32(number[k], values[k]);
    bool scaled = s->rope_scaling != ROPE_PLAIN, llama3 = s->rope_scaling == ROPE_LLAMA3;
    char *text = xasprintf("%s, theta %s%s%s", scalings[s->rope_scaling], number[0],
                           scaled ? ", factor " : "", scaled ? number[1] : "");
    if (llama3)
        text_add(&text, ", frequencies %s to %s of %d positions", number[2], number[3],
                 s->rope_original_positions);
    identity_put(i, "model.rope", text);
    free(text);
}

// Omits the name and the path, and also the longest sequence length: it only decides which --seq is refused.
static void put_model(struct identity *i, const struct model_spec *s) {
    const struct model_traits *t = &s->traits;
    char biases[32];
    put_integer(i, "model.vocab", s->vocab);
    put_integer(i, "model.channels", s->channels);
    put_integer(i, "model.layers", s->layers);
    put_integer(i, "model.heads", s->heads);
    put_integer(i, "model.kv_heads", s->kv_heads);
    put_integer(i, "model.head_size", s->head_size);
    put_integer(i, "model.ffn", s->ffn);
    identity_put(i, "model.tied", s->tied ? "true" : "false");
    identity_put(i, "model.norm", t->norm == NORM_RMS ? "RMSNorm" : "LayerNorm");
    put_real(i, "model.norm_eps", s->norm_eps);
    identity_put(i, "model.positions", t->positions == POSITIONS_ROTARY ? "rotary" : "learned");
    put_rope(i, s);
    identity_put(i, "model.mlp", t->mlp == MLP_SWIGLU ? "SwiGLU" : "GELU");
    bool any = t->qkv_bias || t->out_bias || t->mlp_bias;
    snprintf(biases, sizeof biases, "%s%s%s%s", any ? "" : "none", t->qkv_bias ? "qkv " : "",
             t->out_bias ? "out " : "", t->mlp_bias ? "mlp " : "");
    identity_put(i, "model.biases", biases);
    if (s->lora.r) {
        char alpha[32];
        shortest_f32(alpha, s->lora.alpha);
        char *text = xasprintf("rank %d, alpha %s", s->lora.r, alpha), module[HF_NAME_MAX];
        for (int m = 0; hf_lora_module(s, m, module); m++) text_add(&text, "%s %s", m ? "" : ", of", module);
        identity_put(i, "model.adapters", text);
        free(text);
    }
    put_real(i, "model.init_std", s->init_std);
}

static const char accum_key[] = "data_types.grad_accum_dtype";

static bool starts(const char *key, const char *with) {
    size_t n = strlen(with);
    return !strncmp(key, with, n) && key[n] == '.';
}

// Returns whether a compared key has an effect in this configuration.
static bool is_compared(const struct identity_source *s, const struct config_key *k) {
    const struct config *c = s->config;
    if (k->agree & IDENTITY_LOCAL && !s->data) return false;
    if (starts(k->path, "fp16")) return c->scaler.enabled;
    for (int d = 0; d < DEVICE_KINDS; d++)
        if (device_rows[d].section && starts(k->path, device_rows[d].section)) return (int)c->device == d;
    // tcp and auto are compatible: a medium that one side does not offer is not used. shm must be offered by both sides.
    if (!strcmp(k->path, "medium")) return c->medium == MEDIUM_SHM;
    if (!strcmp(k->path, accum_key)) return c->accumulation > 1;
    if (!strcmp(k->path, "data.documents"))
        return c->documents != DOCUMENTS_PACKED;  // older checkpoints, without this key, were all "packed"
    return true;
}

// Ring stages, a synchronous star and a run without peers promise the same bits, so all are "sync".
static void put_consistency(struct identity *i, const struct config *c) {
    char text[TOPOLOGY_CONSISTENCY] = "sync";
    if (c->row->consistency) c->row->consistency(c, text);
    identity_put(i, "consistency", text);
}

struct identity *identity_make(const struct identity_source *source) {
    struct identity_source of = *source;
    const struct identity_source *s = &of;
    if (of.config->outer_run) of.config = of.config->outer_run;
    struct identity *i = xcalloc(1, sizeof *i);
    const struct config *c = s->config;
    // 1. The program.
    char *program = xasprintf("starring " STARRING_VERSION "%s%s", starring_revision ? ", " : "",
                              starring_revision ? starring_revision : "");
    identity_put(i, "program", program);
    free(program);
    // 2. The model, the data, and the weights that a run begins with: each worker reads its own files.
    if (s->spec) put_model(i, s->spec);
    if (s->layout) put_tensors(i, s->layout);
    if (s->data) {
        const struct data_identity *d = data_identity(s->data);
        char *files = c->model ? hf_files_identity(c->model) : NULL;
        identity_put(i, "data", d->train);
        identity_put(i, "data.held_out", d->held_out);
        identity_put(i, "model.weights", files ? files : "from the seed");
        if (s->layout && s->layout->model) identity_put(i, "model.frozen", files ? files : "from the seed");
        free(files);
    }
    // 3. The keys that are compared.
    for (size_t n = 0; n < config_key_count(); n++) {
        const struct config_key *k = config_key_at(n);
        char *value = k->agree && is_compared(s, k) ? config_value(c, k) : NULL;
        if (value) identity_put(i, k->path, value);
        free(value);
    }
    put_consistency(i, c);
    // 4. The order of sums. With one micro-batch per step, all "sync" topologies sum in the same order. With more, a
    //    ring's stages 2 and 3 sum each micro-batch over several ranks, the others sum each step: two orders of the
    //    same sum. Also the type of the sums, since "auto" means the run's type in old checkpoints.
    if (c->accumulation <= 1) return i;
    bool each = c->row->takes_stage && c->variant >= 2 && c->workers > 1 && !c->no_sync;
    identity_put(i, "gradients.summed", each ? "each micro-batch" : "each step");
    identity_put(i, accum_key, config_sums_in_fp32(c) ? "fp32" : dtype_name(c->dtype));
    return i;
}

// ---------------------------------------------------------------- as JSON
struct identity *identity_from_json(const cJSON *o) {
    struct identity *i = xcalloc(1, sizeof *i);
    for (const cJSON *item = o ? o->child : NULL; item; item = item->next)
        if (item->string && cJSON_IsString(item)) identity_put(i, item->string, item->valuestring);
    return i;
}

struct identity *identity_parse(const char *text) {
    cJSON *o = cJSON_Parse(text);
    struct identity *i = cJSON_IsObject(o) ? identity_from_json(o) : NULL;
    cJSON_Delete(o);
    return i;
}

cJSON *identity_json(const struct identity *i) {
    cJSON *o = cJSON_CreateObject();
    for (int e = 0; e < i->count; e++) cJSON_AddStringToObject(o, i->entries[e].key, i->entries[e].value);
    return o;
}

char *identity_text(const struct identity *i) {
    cJSON *o = identity_json(i);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

// ---------------------------------------------------------------- comparing
// Returns whether a comparison for these uses includes the key.
static bool concerns(struct identity_key k, unsigned uses) {
    return k.uses & uses & ~(unsigned)IDENTITY_LOCAL;
}

uint64_t identity_hash(const struct identity *i, unsigned uses) {
    XXH64_state_t *h = XXH64_createState();
    XXH64_reset(h, 0);
    for (int e = 0; e < i->count; e++) {
        const struct entry *at = &i->entries[e];
        struct identity_key k = identity_key(at->key);
        if (!concerns(k, uses) || (k.uses & IDENTITY_LOCAL & ~uses)) continue;
        XXH64_update(h, at->key, strlen(at->key) + 1);
        XXH64_update(h, at->value, strlen(at->value) + 1);
    }
    uint64_t out = XXH64_digest(h);
    XXH64_freeState(h);
    return out;
}

// Returns a value such that equal values give the same bits of sums. A checkpoint that is older than a key does not have it;
// "auto" means the run's type in old checkpoints. One group of all workers, and groups of one, are the same as no groups.
static const char *meaning(const struct identity_side *of, const char *key) {
    const char *value = identity_get(of->identity, key);
    if (!strcmp(key, accum_key) && (!value || !strcmp(value, "auto")))
        return identity_get(of->identity, "dtype");
    const struct config_key *f = config_key_find(key);
    if (!value && f && !strncmp(key, "parameter_server.", 17)) return f->default_value;
    if (!value || strcmp(key, "reduce_group") != 0) return value;
    const char *workers = identity_get(of->identity, "workers");
    return !strcmp(value, "1") || (workers && !strcmp(value, workers)) ? "none" : value;
}

static bool same_bits(const char *key, const struct identity_side *a, const struct identity_side *b) {
    const char *one = meaning(a, key), *two = meaning(b, key);
    return one && two && !strcmp(one, two);
}

static void append(char **text, const char *more) { text_add(text, "%s%s", *text ? "; " : "", more); }

static void name_difference(char **text, const char *key, const struct identity_side *a,
                            const struct identity_side *b) {
    const char *va = identity_get(a->identity, key), *vb = identity_get(b->identity, key);
    char *one = va && vb ? xasprintf("%s has %s = %.*s, %s has %.*s", a->name, key, VALUE_MAX, va, b->name,
                                     VALUE_MAX, vb)
                : va     ? xasprintf("%s has %s = %.*s, %s has none", a->name, key, VALUE_MAX, va, b->name)
                         : xasprintf("%s has no %s, %s has %.*s", a->name, key, b->name, VALUE_MAX, vb);
    append(text, one);
    free(one);
}

struct found {
    char *text;         // NULL: no difference found yet
    const char *first;  // the first key that differs
    int count;
};

static void look(struct found *f, const char *key, const struct identity_side *a,
                 const struct identity_side *b, unsigned uses) {
    struct identity_key k = identity_key(key);
    const char *va = identity_get(a->identity, key), *vb = identity_get(b->identity, key);
    if (!concerns(k, uses) || (va && vb && !strcmp(va, vb))) return;
    if ((!va || !vb) && k.uses & IDENTITY_LOCAL) return;
    if (!(uses & IDENTITY_RUN) && same_bits(key, a, b)) return;  // ranks of one run must have equal values
    if (!f->count++) f->first = key;
    if (f->count <= NAMED_MAX) name_difference(&f->text, key, a, b);
}

static struct found differences(const struct identity_side *a, const struct identity_side *b, unsigned uses) {
    struct found f = {.count = 0};
    for (int e = 0; e < a->identity->count; e++) look(&f, a->identity->entries[e].key, a, b, uses);
    for (int e = 0; e < b->identity->count; e++)
        if (!find(a->identity, b->identity->entries[e].key))
            look(&f, b->identity->entries[e].key, a, b, uses);
    if (f.count > NAMED_MAX) {
        char more[48];
        snprintf(more, sizeof more, "%d more differ", f.count - NAMED_MAX);
        append(&f.text, more);
    }
    return f;
}

char *identity_difference(struct identity_side a, struct identity_side b, unsigned uses) {
    return differences(&a, &b, uses).text;
}

char *identity_disagreement(struct identity_side a, struct identity_side b) {
    struct found f = differences(&a, &b, IDENTITY_TRAJECTORY | IDENTITY_RUN);
    if (!f.count) return NULL;
    const char *advice = identity_key(f.first).advice;
    char *text = xasprintf("%s: %s", f.text, advice ? advice : "use one configuration");
    free(f.text);
    return text;
}

char *identity_texts_disagreement(const char *name_a, const char *a, const char *name_b, const char *b) {
    struct identity *of_a = identity_parse(a), *of_b = identity_parse(b);
    if (!of_a) of_a = identity_from_json(NULL);
    if (!of_b) of_b = identity_from_json(NULL);
    char *text =
        identity_disagreement((struct identity_side){name_a, of_a}, (struct identity_side){name_b, of_b});
    identity_destroy(&of_a);
    identity_destroy(&of_b);
    return text;
}

// ---------------------------------------------------------------- between ranks
#define EVERYTHING (IDENTITY_TRAJECTORY | IDENTITY_RUN | IDENTITY_LOCAL)

// The ranks add up the 16-bit pieces of their hashes, and the squares of the pieces. With up to 2^16 ranks the sums are
// below 2^32 and 2^48, so exact as doubles. N times the sum of squares equals the square of the sum exactly when all
// pieces are equal (Cauchy-Schwarz).
#define PIECES 4

static int hashes_equal(struct topology *t, uint64_t hash, bool *equal) {
    double sums[2 * PIECES];
    for (int i = 0; i < PIECES; i++) {
        double piece = (double)(hash >> 16 * i & 0xffff);
        sums[i] = piece;
        sums[PIECES + i] = piece * piece;
    }
    if (topology_sum(t, sums, 2 * PIECES)) return -1;
    *equal = true;
    for (int i = 0; i < PIECES; i++)
        *equal &= (unsigned __int128)t->size * (uint64_t)sums[PIECES + i] ==
                  (unsigned __int128)(uint64_t)sums[i] * (uint64_t)sums[i];
    return 0;
}

// Six bytes form an integer that a double holds exactly.
#define BYTES 6

// Sends the text of one rank (all others pass NULL) to all ranks. Returns it (malloc'd), or NULL if a sum failed.
static char *broadcast_text(struct topology *t, const char *text) {
    double length = text ? (double)strlen(text) : 0;
    if (topology_sum(t, &length, 1)) return NULL;
    size_t bytes = (size_t)length;
    int count = (int)((bytes + BYTES - 1) / BYTES);
    double *values = xcalloc((unsigned long)count + 1, sizeof *values);
    char *all = xcalloc((unsigned long)(count + 1) * BYTES, 1);
    for (size_t i = 0; text && i < bytes; i++)
        values[i / BYTES] += (double)((uint64_t)(unsigned char)text[i] << 8 * (i % BYTES));
    int rc = topology_sum(t, values, count);
    for (size_t i = 0; i < bytes && !rc; i++)
        all[i] = (char)((uint64_t)values[i / BYTES] >> 8 * (i % BYTES) & 0xff);
    free(values);
    if (!rc) return all;
    free(all);
    return NULL;
}

// *out receives how this rank differs from rank 0 (malloc'd), or NULL if it agrees. Returns -1 if a sum failed.
static int compare_with_first(struct topology *t, const struct identity *i, char **out) {
    char *text = t->rank == 0 ? identity_text(i) : NULL, name[32];
    char *first = broadcast_text(t, text);
    free(text);
    *out = NULL;
    if (!first) return -1;
    struct identity *of_first = identity_parse(first);
    snprintf(name, sizeof name, "worker %d", t->rank);
    if (of_first && t->rank > 0)
        *out = identity_disagreement((struct identity_side){name, i},
                                     (struct identity_side){"worker 0", of_first});
    identity_destroy(&of_first);
    free(first);
    return 0;
}

// *first receives the lowest rank that differs, *count how many ranks differ.
static int find_others(struct topology *t, bool differs, int *first, int *count) {
    double *who = xcalloc((unsigned long)t->size, sizeof *who);
    who[t->rank] = differs;
    int rc = topology_sum(t, who, t->size);
    *first = *count = 0;
    for (int r = t->size - 1; r > 0 && !rc; r--) {
        if (who[r] == 0) continue;
        *first = r;
        ++*count;
    }
    free(who);
    return rc;
}

static int fail_with_difference(struct topology *t, const struct identity *i) {
    char *own, more[48] = "";
    int first, count;
    if (compare_with_first(t, i, &own)) return -1;
    int rc = find_others(t, own != NULL, &first, &count);
    if (!rc && count) {
        char *words = broadcast_text(t, t->rank == first ? own : NULL);
        if (count > 1) snprintf(more, sizeof more, " (and %d more workers differ)", count - 1);
        if (words) {
            if (t->rank > 0 && !own) error_quiet(1);
            fail("%s%s", own ? own : words, own ? "" : more);
        }
        rc = -1;
        free(words);
    }
    free(own);
    return rc;
}

int identity_agree(struct topology *t, const struct identity *i) {
    bool equal;
    if (t->size < 2) return 0;
    if (hashes_equal(t, identity_hash(i, EVERYTHING), &equal)) return -1;
    return equal ? 0 : fail_with_difference(t, i);
}
