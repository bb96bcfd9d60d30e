#include "shared/state/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"

#define READ_MAX  ((size_t)1 << 24)
#define MAX_EXACT 9007199254740992.0

// The seal, at the end of the text, is the xxh64 of the whole text with zeros in place of the seal's digits.
#define SEAL_KEY   "manifest_xxh64"
#define SEAL_ZEROS "0000000000000000"
#define SEAL_END   "\"\n}\n"

void hex64(char text[17], uint64_t x) { snprintf(text, 17, "%016" PRIx64, x); }

bool hex64_read(const char *text, uint64_t *out) {
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

bool participant_name(const char *name) {
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
    return n > 0 && !name[n] && n + sizeof PART_ENDING <= PART_NAME_MAX;
}

char *manifest_text(const struct manifest *m) {
    cJSON *root = cJSON_CreateObject();
    json_put(root, "format", MANIFEST_FORMAT);
    char *program = xasprintf("%s%s%s", STARRING_VERSION, starring_revision && *starring_revision ? " " : "",
                              starring_revision ? starring_revision : "");
    json_put_text(root, "program", program);
    if (m->weights) json_put_text(root, "kind", "weights");
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%.17g", m->seconds);
    if (m->weights) cJSON_AddRawToObject(root, "seconds", seconds);
    json_put(root, "step", (double)m->train.step);
    cJSON_AddItemToObject(root, "train", train_state_json(&m->train));
    cJSON_AddItemToObject(root, "identity",
                          m->identity ? cJSON_Duplicate(m->identity, 1) : cJSON_CreateObject());
    json_put_text(root, "dtype", m->dtype);
    json_put_text(root, "optimizer", m->optimizer);
    json_put(root, "states", m->states);
    json_put(root, "participants", m->count);
    cJSON *files = cJSON_AddArrayToObject(root, "files");
    for (int i = 0; i < m->count; i++) {
        char hash[17];
        cJSON *f = cJSON_CreateObject();
        json_put_text(f, "name", m->files[i].name);
        json_put(f, "bytes", (double)m->files[i].bytes);
        hex64(hash, m->files[i].xxh64);
        json_put_text(f, "xxh64", hash);
        cJSON_AddItemToArray(files, f);
    }
    json_put_text(root, SEAL_KEY, SEAL_ZEROS);
    char *printed = cJSON_Print(root), *text = xasprintf("%s\n", printed);
    size_t n = strlen(text);
    char seal[17];
    hex64(seal, XXH64(text, n, 0));
    memcpy(text + n - strlen(SEAL_ZEROS SEAL_END), seal, 16);
    cJSON_free(printed);
    cJSON_Delete(root);
    free(program);
    return text;
}

// ---------------------------------------------------------------- reading
static bool sealed(char *text, size_t n) {
    size_t tail = strlen(SEAL_ZEROS SEAL_END);
    if (n < tail) return false;
    char *digits = text + n - tail, seal[17];
    snprintf(seal, sizeof seal, "%.16s", digits);
    uint64_t said;
    memcpy(digits, SEAL_ZEROS, 16);
    return hex64_read(seal, &said) && said == XXH64(text, n, 0);
}

static double whole(const cJSON *o, const char *key) {
    double x = json_number(o, key);
    return x >= 0 && x <= MAX_EXACT && x == floor(x) ? x : -1;
}

// Reads one element of "files" into *to. names: of the elements before it.
static int read_file(const char *path, const cJSON *f, struct manifest_file *to, struct name_map *names) {
    const char *name = json_text(f, "name", "");
    char participant[PART_NAME_MAX] = "";
    bool is_new;
    if (ends_with(name, PART_ENDING))
        snprintf(participant, sizeof participant, "%.*s", (int)(strlen(name) - strlen(PART_ENDING)), name);
    if (strlen(name) >= sizeof to->name || !participant_name(participant))
        return fail("%s: \"%.80s\" is not a valid name of a checkpoint's file (such as worker-0" PART_ENDING
                    ")",
                    path, name);
    name_map_put(names, name, 0, &is_new);
    if (!is_new) return fail("%s: %s is listed twice", path, name);
    snprintf(to->name, sizeof to->name, "%s", name);
    to->bytes = (int64_t)whole(f, "bytes");
    if (to->bytes < 0) return fail("%s: %s: \"bytes\" is no whole number >= 0", path, name);
    if (!hex64_read(json_text(f, "xxh64", NULL), &to->xxh64))
        return fail("%s: %s: \"xxh64\" is not 16 hexadecimal digits", path, name);
    return 0;
}

static int read_files(const char *path, const cJSON *root, struct manifest *out) {
    const cJSON *files = json_item(root, "files"), *f;
    double count = whole(root, "participants");
    if (!cJSON_IsArray(files) || count != cJSON_GetArraySize(files))
        return fail("%s: \"files\" does not list %.0f files, as many as \"participants\" says", path, count);
    out->files = xcalloc((unsigned long)count, sizeof *out->files);
    struct name_map names = {0};
    int rc = 0;
    cJSON_ArrayForEach(f, files) {
        if ((rc = read_file(path, f, &out->files[out->count], &names))) break;
        out->count++;
    }
    name_map_free(&names);
    return rc;
}

static int parse(const char *path, char *text, size_t n, struct manifest *out) {
    const cJSON *root = out->document = json_parse(text, n);
    if (!cJSON_IsObject(root)) return fail("%s: is no JSON object: cut short or damaged", path);
    double format = json_number(root, "format");
    if (format > MANIFEST_FORMAT)
        return fail("%s: has format %.0f, this program reads %d: take a newer starring", path, format,
                    MANIFEST_FORMAT);
    if (format != MANIFEST_FORMAT) return fail("%s: is no manifest of a checkpoint", path);
    if (!sealed(text, n))
        return fail("%s: is not what was written: \"" SEAL_KEY "\" does not belong to its text", path);
    out->weights = strcmp(json_text(root, "kind", ""), "weights") == 0;
    out->seconds = out->weights ? json_number(root, "seconds") : 0;
    double states = whole(root, "states");
    out->dtype = json_text(root, "dtype", "");
    out->optimizer = json_text(root, "optimizer", "");
    if (states < 0 || states > 99) return fail("%s: \"states\" is no number of optimizer states", path);
    out->states = (int)states;
    if (train_state_read(json_item(root, "train"), path, &out->train)) return -1;
    if (whole(root, "step") != (double)out->train.step)
        return fail("%s: \"step\" is not that of \"train\"", path);
    const cJSON *item;
    out->identity = json_item(root, "identity");
    if (!cJSON_IsObject(out->identity)) return fail("%s: \"identity\" is no object", path);
    cJSON_ArrayForEach(item, out->identity) {
        if (!cJSON_IsString(item)) return fail("%s: \"identity\": %.80s is no text", path, item->string);
    }
    return read_files(path, root, out);
}

int manifest_read(const char *dir, struct manifest *out) {
    *out = (struct manifest){0};
    char *path = xasprintf("%s/" MANIFEST_NAME, dir);
    char why[FILE_WHY_MAX];
    size_t n = 0;
    char *text = file_read_whole(path, READ_MAX, &n, why);
    int rc = text              ? parse(path, text, n, out)
             : errno == ENOENT ? fail("%s: %s: no complete checkpoint", path, why)
                               : fail("%s: %s", path, why);
    free(text);
    if (rc) manifest_free(out);
    free(path);
    return rc;
}

const char *manifest_left_on(const struct manifest *m, int file) {
    return json_text(cJSON_GetArrayItem(json_item(m->document, "files"), file), "host", NULL);
}

const char *manifest_seal(const struct manifest *m) { return json_text(m->document, SEAL_KEY, ""); }

void manifest_free(struct manifest *m) {
    cJSON_Delete(m->document);
    free(m->files);
    *m = (struct manifest){0};
}
