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

// The object that holds the last name of a dotted path, or NULL; path is cut at its dots, *name is its last name.
static cJSON *find_section(cJSON *root, char *path, const char **name) {
    *name = path;
    for (char *dot; root && (dot = strchr(*name, '.')); *name = dot + 1) {
        *dot = 0;
        root = cJSON_GetObjectItemCaseSensitive(root, *name);
    }
    return cJSON_IsObject(root) ? root : NULL;
}

static const char old_bf16[] = "bfloat16", new_bf16[] = "bf16";

// Brings a key that is given by its other name to its own. What is given by both must be the same twice.
static int join_names(const struct reading *r, cJSON *root, const char *other, const char *own) {
    char other_path[128], own_path[128];
    const char *other_name, *own_name;
    snprintf(other_path, sizeof other_path, "%s", other);
    snprintf(own_path, sizeof own_path, "%s", own);
    cJSON *parent = find_section(root, other_path, &other_name);
    if (!parent || parent != find_section(root, own_path, &own_name)) return 0;
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(parent, other_name);
    const cJSON *b = cJSON_GetObjectItemCaseSensitive(parent, own_name);
    if (!a) return 0;
    if (b && !cJSON_IsNull(a) && !cJSON_IsNull(b) && !cJSON_Compare(a, b, true)) {
        char *x = cJSON_PrintUnformatted(a), *y = cJSON_PrintUnformatted(b);
        fail("%s: %s is %.60s and %s is %.60s, and they are two names of one key: leave one of them out",
             r->file, other, x ? x : "?", own, y ? y : "?");
        cJSON_free(x);
        cJSON_free(y);
        return -1;
    }
    cJSON *kept = cJSON_DetachItemFromObjectCaseSensitive(parent, other_name);
    if (b && !cJSON_IsNull(b)) {
        cJSON_Delete(kept);
        return 0;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(parent, own_name);
    cJSON_AddItemToObject(parent, own_name, kept);
    return 0;
}

// "model": "X" means {"name": "X"}, "data": "X" means {"path": "X"}, "bfloat16" is the old "bf16"; fields have other
// names, too. 0, or -1 after fail().
static int normalise(const struct reading *r, cJSON *root) {
    static const char *const whole[][2] = {{"model", "name"}, {"data", "path"}};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(root, whole[i][0]);
        if (!v || cJSON_IsObject(v) || cJSON_IsNull(v)) continue;
        cJSON *section = cJSON_CreateObject();
        cJSON_AddItemToObject(section, whole[i][1], cJSON_Duplicate(v, true));
        cJSON_ReplaceItemInObjectCaseSensitive(root, whole[i][0], section);
    }
    for (size_t i = 0; i < field_count(); i++)
        if (field_at(i)->alias && join_names(r, root, field_at(i)->alias, field_at(i)->path)) return -1;
    return join_names(r, root, old_bf16, new_bf16);
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
    const struct field *f = field_find(o->path);
    int n = snprintf(path, sizeof path, "%s", f ? f->path : o->path);
    if (n >= (int)sizeof path || !path[0] || path[0] == '.' || path[n - 1] == '.' || strstr(path, ".."))
        return fail("%s: \"%s\" is no path: write names joined by dots, as in optimizer.params.lr", flag,
                    path);
    const char *name;
    cJSON *parent = config_parent(root, path, &name);
    if (!parent)
        return fail("%s: %s: \"%s\" is not an object: nothing can be set below it", flag, o->path, name);
    cJSON_DeleteItemFromObjectCaseSensitive(parent, name);
    cJSON_AddItemToObject(parent, name, field_parse(f, o->value));
    return 0;
}

int config_merge(const struct reading *r, cJSON *root) {
    if (normalise(r, root)) return -1;
    for (size_t i = 0; i < r->override_count; i++)
        if (apply_override(root, &r->overrides[i])) return -1;
    return 0;
}
