#include "shared/core/json.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"

const cJSON *json_item(const cJSON *o, const char *key) { return cJSON_GetObjectItemCaseSensitive(o, key); }

double json_number(const cJSON *o, const char *key) {
    const cJSON *v = json_item(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

const char *json_text(const cJSON *o, const char *key, const char *otherwise) {
    const char *text = cJSON_GetStringValue(json_item(o, key));
    return text ? text : otherwise;
}

void json_put(cJSON *o, const char *key, double x) {
    cJSON_AddItemToObject(o, key, isfinite(x) ? cJSON_CreateNumber(x) : cJSON_CreateNull());
}

void json_put_text(cJSON *o, const char *key, const char *text) {
    cJSON_AddItemToObject(o, key, text && *text ? cJSON_CreateString(text) : cJSON_CreateNull());
}

// Each value except the first follows a comma or an opening bracket. Those inside texts are counted too: for our
// own documents the bound is at most twice the true number.
int64_t json_values_at_most(const char *text, size_t bytes) {
    int64_t values = 1;
    for (size_t i = 0; i < bytes; i++) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return values;
}

cJSON *json_parse(const char *text, size_t bytes) {
    return json_values_at_most(text, bytes) > JSON_VALUES_MAX ? NULL : cJSON_ParseWithLength(text, bytes);
}

void json_print(FILE *f, const cJSON *root) {
    char *text = cJSON_Print(root);
    fprintf(f, "%s\n", text);
    free(text);
}

int json_file_write(const char *path, const cJSON *root) {
    struct new_file n;
    if (new_file_begin(&n, path, false)) json_print(n.file, root);
    return new_file_end(&n, true) ? fail("%s: cannot write: %s", path, strerror(errno)) : 0;
}
