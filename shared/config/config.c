#include "shared/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/config/config_internal.h"
#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"
#include "shared/core/topology_row.h"

void config_destroy(struct config **c) {
    if (!*c) return;
    struct draft d = {.c = **c};
    draft_fini(&d);
    free(*c);
    *c = NULL;
}

// A field's value as text: a JSON string without its quotes. Every field here has one.
static char *value_text(const struct field *f, const struct draft *d) {
    cJSON *v = field_load(f, d);
    char *text = cJSON_IsString(v) ? xstrdup(v->valuestring) : cJSON_PrintUnformatted(v);
    cJSON_Delete(v);
    return text;
}

char *config_reset_section(struct config *c, const char *section) {
    struct draft standard, now = {.c = *c};
    size_t n = strlen(section);
    char *said = NULL;
    draft_init(&standard);
    for (size_t i = 0; i < field_count(); i++) {
        const struct field *f = field_at(i);
        if (strncmp(f->path, section, n) != 0 || f->path[n] != '.') continue;
        char *has = value_text(f, &now), *usual = value_text(f, &standard);
        if (strcmp(has, usual) != 0) {
            char *longer = xasprintf("%s%s%s %s", said ? said : "", said ? ", " : "", f->path, has);
            cJSON *v = field_parse(f, usual);
            field_store(f, &now, v, section);
            cJSON_Delete(v);
            free(said);
            said = longer;
        }
        free(has);
        free(usual);
    }
    *c = now.c;
    draft_fini(&standard);
    return said;
}

static int read_all(struct reading *r, cJSON *root) {
    if (config_merge(r, root) || config_read_types(r, root) || config_walk(r, root) || config_resolve(r))
        return -1;
    config_report(r);
    return 0;
}

struct config *config_load(const struct topology_table *t, const char *path, const struct config_override *o,
                           size_t count) {
    cJSON *root = path ? relaxed_json_load(path) : cJSON_CreateObject();
    if (!root) return NULL;
    struct draft d;
    draft_init(&d);
    d.c.topologies = t;
    struct config_override *set = xcalloc(count, sizeof *set);
    for (size_t i = 0; i < count; i++)
        set[i] = (struct config_override){config_override_path(&o[i]), o[i].value, o[i].flag};
    struct reading r = {.d = &d, .file = path ? path : "defaults", .overrides = set, .override_count = count};
    int rc =
        cJSON_IsObject(root) ? read_all(&r, root) : fail("%s: expected an object {..} at the top", r.file);
    for (size_t i = 0; i < count; i++) free((char *)set[i].path);
    free(set);
    config_notes_free(&r);
    cJSON_Delete(root);
    if (rc) {
        draft_fini(&d);
        return NULL;
    }
    struct config *c = xcalloc(1, sizeof *c);
    *c = d.c;
    c->clip_given = config_state(&r, "gradient_clipping") != FIELD_ABSENT;
    c->optimizer_given = config_state(&r, "optimizer.type") != FIELD_ABSENT;
    return c;
}

char *config_to_json(const struct config *c) {
    // The draft borrows the texts.
    const struct draft d = {.c = *c,
                            .stage = c->variant,
                            .fp16 = c->dtype == DT_F16,
                            .bf16 = c->dtype == DT_BF16,
                            .recompute = (int)c->recompute.kind + 1,
                            .last_iteration = -1};
    cJSON *root = cJSON_CreateObject();
    for (size_t i = 0; i < field_count(); i++) {
        const struct field *f = field_at(i);
        bool of_ring = !strcmp(f->path, "zero_optimization.stage") || !strncmp(f->path, "ring.", 5) ||
                       !strncmp(f->path, "zero_optimization.offload_", 26) || !strncmp(f->path, "aio.", 4);
        if (of_ring && !c->row->collectives) continue;
        if (!strcmp(f->path, "optimizer.params.torch_adam")) continue;         // it only chose a default
        if (!strncmp(f->path, "zero_optimization.cpu_offload", 29)) continue;  // so did these
        if (!strcmp(f->path, "communication_data_type")) continue;             // dtype says it
        if (!strcmp(f->path, "unknown_keys")) continue;                        // of a file that was read
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

int config_hand_down(const struct config *c, char path[32]) {
    char *text = config_to_json(c);
    size_t size = strlen(text);
    int fd = memfd_create("config.json", 0);
    bool written = fd >= 0 && write(fd, text, size) == (ssize_t)size;
    free(text);
    snprintf(path, 32, CONFIG_HANDED_DOWN "%d", fd);
    if (written) return fd;
    fail("no memory for the configuration of other processes: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}
