#include <stdlib.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"

// Adds item at "a.b.c", creating the sections on the way.
static void put(cJSON *root, const char *path, cJSON *item) {
    char *copy = xstrdup(path), *name = copy;
    cJSON *at = root;
    for (char *dot = strchr(name, '.'); dot; dot = strchr(name, '.')) {
        *dot = 0;
        cJSON *next = cJSON_GetObjectItemCaseSensitive(at, name);
        at = next ? next : cJSON_AddObjectToObject(at, name);
        name = dot + 1;
    }
    cJSON_AddItemToObject(at, name, item);
    free(copy);
}

char *config_to_json(const struct config *c) {
    // Reading a draft's texts does not take them over.
    const struct draft d = {.c = *c,
                            .stage = c->stage,
                            .fp16 = c->dtype == DT_F16,
                            .bf16 = c->dtype == DT_BF16,
                            .last_iteration = -1};
    cJSON *root = cJSON_CreateObject();
    for (size_t i = 0; i < field_count(); i++) {
        const struct field *f = field_at(i);
        bool of_ring = !strcmp(f->path, "zero_optimization.stage") || !strcmp(f->path, "ring.collective");
        if (of_ring && c->kind != TOPOLOGY_ZERO) continue;
        if (!strcmp(f->path, "optimizer.params.torch_adam")) continue;  // it only chose a default
        if (!field_serves(f, c->schedule.type)) continue;
        cJSON *item = field_load(f, &d);
        if (item) put(root, f->path, item);
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}
