#include "shared/device/product_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/regular_file.h"
#include "shared/core/relaxed_json.h"
#include "shared/core/sha256.h"
#include "shared/core/version.h"

#define FORMAT    "starring products"
#define VERSION   1
#define EXACT_MAX 9007199254740992.0  // 2^53: JSON numbers are doubles

static const char *const epilogue_names[] = {[EPILOGUE_NONE] = "none",
                                             [EPILOGUE_GELU] = "gelu",
                                             [EPILOGUE_GELU_GRAD] = "gelu_grad",
                                             [EPILOGUE_BIAS_GRAD] = "bias_grad"};
#define EPILOGUES (int)(sizeof epilogue_names / sizeof *epilogue_names)

const char *product_epilogue_name(int epilogue) { return epilogue_names[epilogue]; }

// The whole numbers of an entry, in the file's order: where they lie, and the least that makes sense.
struct number {
    const char *name;
    size_t at, bytes;
    int64_t low;
};
#define NUMBER(name, member, low) \
    { name, offsetof(struct product_entry, member), sizeof(((struct product_entry *)0)->member), low }
static const struct number numbers[] = {
    NUMBER("sm", sm, 1),
    NUMBER("cublaslt", library, 1),
    NUMBER("m", choice.key.m, 1),
    NUMBER("n", choice.key.n, 1),
    NUMBER("k", choice.key.k, 1),
    NUMBER("lda", choice.key.lda, 1),
    NUMBER("ldb", choice.key.ldb, 1),
    NUMBER("ldc", choice.key.ldc, 1),
    NUMBER("a_align", choice.key.a_align, 1),
    NUMBER("b_align", choice.key.b_align, 1),
    NUMBER("c_align", choice.key.c_align, 1),
    NUMBER("bias_align", choice.key.bias_align, 0),
    NUMBER("aux_align", choice.key.aux_align, 0),
};
static const struct {
    const char *name;
    size_t at;
} switches[] = {
    {"trans_a", offsetof(struct product_entry, choice.key.trans_a)},
    {"trans_b", offsetof(struct product_entry, choice.key.trans_b)},
    {"accumulate", offsetof(struct product_entry, choice.key.accumulate)},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static int64_t number_get(const struct product_entry *e, const struct number *n) {
    int64_t wide;
    int32_t narrow;
    const char *from = (const char *)e + n->at;
    if (n->bytes == sizeof wide) return memcpy(&wide, from, sizeof wide), wide;
    return memcpy(&narrow, from, sizeof narrow), narrow;
}

// ---------------------------------------------------------------- the check

static void algorithm_text(char text[17 * PRODUCT_ALGO_WORDS], const struct product_algo *a) {
    for (int i = 0; i < PRODUCT_ALGO_WORDS; i++)
        snprintf(text + 17 * i, 18 - (i == PRODUCT_ALGO_WORDS - 1), "%016" PRIx64 "%s", a->word[i],
                 i == PRODUCT_ALGO_WORDS - 1 ? "" : " ");
}

static void check_of(const struct product_entry *e, char text[17]) {
    struct sha256 s;
    char hex[65], line[64], algorithm[17 * PRODUCT_ALGO_WORDS];
    const struct product_key *k = &e->choice.key;
    sha256_init(&s);
    sha256_update(&s, e->device, strlen(e->device));
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int n =
            snprintf(line, sizeof line, "|%s %lld", numbers[i].name, (long long)number_get(e, &numbers[i]));
        sha256_update(&s, line, (size_t)n);
    }
    int n = snprintf(line, sizeof line, "|%d%d%d|%s|%s|", k->trans_a, k->trans_b, k->accumulate,
                     product_epilogue_name(k->epilogue), dtype_name((enum dtype)k->dt));
    sha256_update(&s, line, (size_t)n);
    algorithm_text(algorithm, &e->choice.algo);
    sha256_update(&s, algorithm, strlen(algorithm));
    sha256_finish(&s, hex);
    snprintf(text, 17, "%.16s", hex);
}

uint64_t product_entry_hash(const struct product_entry *e) {
    char text[17];
    check_of(e, text);
    return strtoull(text, NULL, 16);
}

// ---------------------------------------------------------------- reading

// An entry of a file: for messages.
struct place {
    const char *path;
    int index;
};

static int wrong(const struct place *p, const char *member, const char *expected, const cJSON *found) {
    char *text = found ? cJSON_PrintUnformatted(found) : NULL;
    fail(
        "%s: products[%d].%s: expected %s, got %.60s: measure again with `starring bench tune`, or leave the "
        "file out (cuda.products=none)",
        p->path, p->index, member, expected, text ? text : "nothing");
    free(text);
    return -1;
}

static int read_numbers(const struct place *p, const cJSON *o, struct product_entry *e) {
    char expected[64];
    for (size_t i = 0; i < COUNT(numbers); i++) {
        const cJSON *v = json_item(o, numbers[i].name);
        double high = numbers[i].bytes == sizeof(int64_t) ? EXACT_MAX : (double)INT32_MAX;
        double x = cJSON_IsNumber(v) ? v->valuedouble : -1;
        snprintf(expected, sizeof expected, "a whole number of at least %lld", (long long)numbers[i].low);
        if (!(x >= (double)numbers[i].low && x <= high) || x != (double)(int64_t)x)
            return wrong(p, numbers[i].name, expected, v);
        int64_t wide = (int64_t)x;
        int32_t narrow = (int32_t)x;
        memcpy((char *)e + numbers[i].at, numbers[i].bytes == sizeof wide ? (void *)&wide : &narrow,
               numbers[i].bytes);
    }
    for (size_t i = 0; i < COUNT(switches); i++) {
        const cJSON *v = json_item(o, switches[i].name);
        if (!cJSON_IsBool(v)) return wrong(p, switches[i].name, "true or false", v);
        ((char *)e)[switches[i].at] = cJSON_IsTrue(v);
    }
    return 0;
}

static int read_algorithm(const struct place *p, const cJSON *o, struct product_algo *out) {
    const cJSON *v = json_item(o, "algorithm");
    const char *text = cJSON_GetStringValue(v);
    char again[17 * PRODUCT_ALGO_WORDS];
    const char *at = text ? text : "";
    for (int i = 0; i < PRODUCT_ALGO_WORDS; i++) {
        char *end;
        out->word[i] = strtoull(at, &end, 16);
        at = end;
    }
    algorithm_text(again, out);
    return text && !strcmp(text, again) ? 0 : wrong(p, "algorithm", "8 words of 16 hexadecimal digits", v);
}

static int read_names(const struct place *p, const cJSON *o, struct product_entry *e) {
    const char *name = json_text(o, "device", ""), *type = json_text(o, "dtype", ""),
               *epilogue = json_text(o, "epilogue", "");
    int dt = DT_F32, at = 0;
    while (dt <= DT_F16 && strcmp(type, dtype_name((enum dtype)dt))) dt++;
    if (dt > DT_F16) return wrong(p, "dtype", "fp32, bf16 or fp16", json_item(o, "dtype"));
    while (at < EPILOGUES && strcmp(epilogue, epilogue_names[at])) at++;
    if (at == EPILOGUES)
        return wrong(p, "epilogue", "none, gelu, gelu_grad or bias_grad", json_item(o, "epilogue"));
    if (!*name || strlen(name) >= sizeof e->device)
        return wrong(p, "device", "the name of a device", json_item(o, "device"));
    e->choice.key.dt = (uint8_t)dt;
    e->choice.key.epilogue = (uint8_t)at;
    snprintf(e->device, sizeof e->device, "%s", name);
    return 0;
}

static double measured(const cJSON *o, const char *name) {
    double x = json_number(o, name);
    return isnan(x) ? 0 : x;
}

static int read_entry(const struct place *p, const cJSON *o, struct product_entry *e) {
    char check[17];
    memset(e, 0, sizeof *e);
    if (!cJSON_IsObject(o)) return wrong(p, "", "an object", o);
    if (read_names(p, o, e) || read_numbers(p, o, e) || read_algorithm(p, o, &e->choice.algo)) return -1;
    check_of(e, check);
    if (strcmp(json_text(o, "check", ""), check))
        return fail(
            "%s: products[%d]: its check does not fit: the entry has been edited or damaged, and an "
            "algorithm is nothing to be edited: measure again with `starring bench tune`, or leave the "
            "file out (cuda.products=none)",
            p->path, p->index);
    e->rank = (int)measured(o, "rank");
    e->first_s = measured(o, "first_ms") * 1e-3;
    e->best_s = measured(o, "best_ms") * 1e-3;
    return 0;
}

static bool same_product(const struct product_entry *a, const struct product_entry *b) {
    return memcmp(&a->choice.key, &b->choice.key, sizeof a->choice.key) == 0 && a->sm == b->sm &&
           a->library == b->library && !strcmp(a->device, b->device);
}

static int read_all(const char *path, const cJSON *root, struct product_table *out) {
    const cJSON *list = json_item(root, "products"), *o;
    if (strcmp(json_text(root, "format", ""), FORMAT) || !cJSON_IsArray(list))
        return fail("%s: no table of products (\"format\": \"" FORMAT
                    "\"), as `starring bench tune` writes it",
                    path);
    if (json_number(root, "version") != VERSION)
        return fail(
            "%s: a table of products of another version than %d: measure again with `starring bench tune`",
            path, VERSION);
    cJSON_ArrayForEach(o, list) {
        struct place p = {path, out->count};
        struct product_entry e;
        if (read_entry(&p, o, &e)) return -1;
        for (int i = 0; i < out->count; i++)
            if (same_product(&out->entries[i], &e))
                return fail("%s: products[%d] and products[%d] are of the same product", path, i, p.index);
        product_table_put(out, &e);
    }
    return 0;
}

int product_table_read(const char *path, struct product_table *out) {
    *out = (struct product_table){0};
    cJSON *root = relaxed_json_load(path);
    int rc = root ? read_all(path, root, out) : -1;
    cJSON_Delete(root);
    return rc;
}

// ---------------------------------------------------------------- writing

static cJSON *entry_json(const struct product_entry *e) {
    char algorithm[17 * PRODUCT_ALGO_WORDS], check[17];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "device", e->device);
    for (size_t i = 0; i < COUNT(numbers); i++)
        cJSON_AddNumberToObject(o, numbers[i].name, (double)number_get(e, &numbers[i]));
    for (size_t i = 0; i < COUNT(switches); i++)
        cJSON_AddBoolToObject(o, switches[i].name, ((const char *)e)[switches[i].at] != 0);
    cJSON_AddStringToObject(o, "epilogue", product_epilogue_name(e->choice.key.epilogue));
    cJSON_AddStringToObject(o, "dtype", dtype_name((enum dtype)e->choice.key.dt));
    algorithm_text(algorithm, &e->choice.algo);
    cJSON_AddStringToObject(o, "algorithm", algorithm);
    check_of(e, check);
    cJSON_AddStringToObject(o, "check", check);
    cJSON_AddNumberToObject(o, "rank", e->rank);
    cJSON_AddNumberToObject(o, "first_ms", e->first_s * 1e3);
    cJSON_AddNumberToObject(o, "best_ms", e->best_s * 1e3);
    return o;
}

int product_table_write(const char *path, const struct product_table *t) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "format", FORMAT);
    cJSON_AddNumberToObject(root, "version", VERSION);
    cJSON_AddStringToObject(root, "program", "starring bench tune " STARRING_VERSION);
    cJSON *list = cJSON_AddArrayToObject(root, "products");
    for (int i = 0; i < t->count; i++) cJSON_AddItemToArray(list, entry_json(&t->entries[i]));
    int rc = json_file_write(path, root);
    cJSON_Delete(root);
    return rc;
}

int product_table_writable(const char *path) {
    struct new_file n;
    if (new_file_begin(&n, path, false)) {
        new_file_end(&n, NEW_FILE_DISCARD);
        return 0;
    }
    new_file_end(&n, NEW_FILE_DISCARD);
    return fail("%s: cannot write: %s: name another file with --out", path, strerror(errno));
}

void product_table_put(struct product_table *t, const struct product_entry *e) {
    for (int i = 0; i < t->count; i++)
        if (same_product(&t->entries[i], e)) {
            t->entries[i] = *e;
            return;
        }
    t->entries = xrealloc(t->entries, (size_t)(t->count + 1) * sizeof *t->entries);
    t->entries[t->count++] = *e;
}

void product_table_free(struct product_table *t) {
    free(t->entries);
    *t = (struct product_table){0};
}
