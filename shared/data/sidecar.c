#include "shared/data/sidecar.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/core/version.h"
#include "shared/files/regular_file.h"

#define READ_MAX ((size_t)1 << 24)

char *sidecar_path(const char *bin_path) { return xasprintf("%s.json", bin_path); }

int64_t sidecar_count(const cJSON *object, const char *key, int64_t low) {
    double x = json_number(object, key);
    bool whole = x >= (double)low && x <= 9007199254740992.0 && x == (double)(int64_t)x;
    return whole ? (int64_t)x : -1;
}

static cJSON *read_quietly(const char *path) {
    char why[FILE_WHY_MAX];
    size_t n = 0;
    char *text = file_read_whole(path, READ_MAX, &n, why);
    cJSON *root = text && n ? json_parse(text, n) : NULL;
    free(text);
    return root;
}

struct sidecar_summary sidecar_read(const char *bin_path) {
    char *path = sidecar_path(bin_path);
    cJSON *root = read_quietly(path);
    const cJSON *t = json_item(root, "tokenizer");
    const char *name = json_text(t, "name", NULL), *kind = json_text(t, "kind", NULL);
    int64_t vocab = sidecar_count(root, "vocab_size", 1);
    struct sidecar_summary s = {.vocab = vocab <= INT32_MAX ? (int32_t)vocab : -1};
    if (name && kind) s.tokenizer = strcmp(name, kind) ? xasprintf("%s (%s)", name, kind) : xstrdup(name);
    cJSON_Delete(root);
    free(path);
    return s;
}

static cJSON *describe(const struct byte_sidecar *b) {
    const char *slash = strrchr(b->source, '/');
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "format", "starring tokens");
    cJSON_AddStringToObject(root, "program", "starring data tokenize " STARRING_VERSION);
    cJSON *tokenizer = cJSON_AddObjectToObject(root, "tokenizer");
    cJSON_AddStringToObject(tokenizer, "name", "byte");
    cJSON_AddStringToObject(tokenizer, "kind", "byte");
    cJSON_AddObjectToObject(tokenizer, "files");
    cJSON_AddNumberToObject(root, "vocab_size", 256);
    cJSON_AddNumberToObject(root, "tokens", (double)b->bytes);
    cJSON_AddNumberToObject(root, "documents", 1);
    cJSON_AddNullToObject(root, "document_start");
    cJSON *source = cJSON_CreateObject();
    cJSON_AddStringToObject(source, "name", slash ? slash + 1 : b->source);
    cJSON_AddNumberToObject(source, "bytes", (double)b->bytes);
    cJSON_AddStringToObject(source, "sha256", b->sha256);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(root, "sources"), source);
    return root;
}

int sidecar_write_bytes(const struct byte_sidecar *b) {
    cJSON *root = describe(b);
    char *path = sidecar_path(b->bin_path);
    int rc = json_file_write(path, root);
    free(path);
    cJSON_Delete(root);
    return rc;
}
