#include <stdio.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/topology_row.h"

char *config_to_json(const struct config *c) {
    // The draft borrows the texts.
    const struct draft d = {.c = *c,
                            .stage = c->variant,
                            .fp16 = c->dtype == DT_F16,
                            .bf16 = c->dtype == DT_BF16,
                            .last_iteration = -1};
    cJSON *root = cJSON_CreateObject();
    for (size_t i = 0; i < field_count(); i++) {
        const struct field *f = field_at(i);
        bool of_ring = !strcmp(f->path, "zero_optimization.stage") || !strcmp(f->path, "ring.collective");
        if (of_ring && !c->row->collectives) continue;
        if (!strcmp(f->path, "optimizer.params.torch_adam")) continue;  // it only chose a default
        if (!field_serves(f, c)) continue;
        cJSON *item = field_load(f, &d);
        if (!item) continue;
        char path[128];
        const char *name;
        snprintf(path, sizeof path, "%s", f->path);
        cJSON *parent = config_parent(root, path, &name);
        cJSON_AddItemToObject(parent, name, item);
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}
