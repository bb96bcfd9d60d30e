// The tree of members: the file's, with the overrides put into it.
#include <stdio.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"

cJSON *config_parent(cJSON *root, char *path, const char **name) {
    cJSON *at = root;
    *name = path;
    for (char *dot; (dot = strchr(*name, '.')); *name = dot + 1) {
        *dot = 0;
        cJSON *section = cJSON_GetObjectItemCaseSensitive(at, *name);
        if (section && !cJSON_IsObject(section) && !cJSON_IsNull(section)) return NULL;
        if (!cJSON_IsObject(section)) {
            cJSON_DeleteItemFromObjectCaseSensitive(at, *name);
            section = cJSON_AddObjectToObject(at, *name);
        }
        at = section;
    }
    return at;
}

// "model": "X" means {"name": "X"}, "data": "X" means {"path": "X"}, "bfloat16" is the old "bf16".
static void normalise(cJSON *root) {
    static const char *const whole[][2] = {{"model", "name"}, {"data", "path"}};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(root, whole[i][0]);
        if (!v || cJSON_IsObject(v) || cJSON_IsNull(v)) continue;
        cJSON *section = cJSON_CreateObject();
        cJSON_AddItemToObject(section, whole[i][1], cJSON_Duplicate(v, true));
        cJSON_ReplaceItemInObjectCaseSensitive(root, whole[i][0], section);
    }
    if (!cJSON_GetObjectItemCaseSensitive(root, "bf16") && cJSON_GetObjectItemCaseSensitive(root, "bfloat16"))
        cJSON_AddItemToObject(root, "bf16", cJSON_DetachItemFromObjectCaseSensitive(root, "bfloat16"));
}

char *config_override_path(const struct config_override *o) {
    bool whole = o->value[strspn(o->value, " \t\n")] == '{';
    const char *tail = whole                       ? ""
                       : !strcmp(o->path, "model") ? ".name"
                       : !strcmp(o->path, "data")  ? ".path"
                                                   : "";
    return xasprintf("%s%s", o->path, tail);
}

// Puts one override into the tree, creating the sections above it.
static int apply_override(cJSON *root, const struct config_override *o) {
    const char *flag = o->flag ? o->flag : "--set";
    char path[256];
    int n = snprintf(path, sizeof path, "%s", o->path);
    if (n >= (int)sizeof path || !path[0] || path[0] == '.' || path[n - 1] == '.' || strstr(path, ".."))
        return fail("%s: \"%s\" is no path: write names joined by dots, as in optimizer.params.lr", flag,
                    path);
    const char *name;
    cJSON *parent = config_parent(root, path, &name);
    if (!parent)
        return fail("%s: %s: \"%s\" is not an object: nothing can be set below it", flag, o->path, name);
    cJSON_DeleteItemFromObjectCaseSensitive(parent, name);
    cJSON_AddItemToObject(parent, name, field_parse(field_find(o->path), o->value));
    return 0;
}

int config_merge(const struct reading *r, cJSON *root) {
    normalise(root);
    for (size_t i = 0; i < r->override_count; i++)
        if (apply_override(root, &r->overrides[i])) return -1;
    return 0;
}
