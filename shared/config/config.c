#include "shared/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"

void config_destroy(struct config **c) {
    if (!*c) return;
    struct draft d = {.c = **c};
    draft_fini(&d);
    free((*c)->remarks);
    free(*c);
    *c = NULL;
}

// Makes a draft with the values of a resolved configuration. It borrows the texts.
static struct draft draft_of(const struct config *c) {
    return (struct draft){.c = *c,
                          .stage = c->variant,
                          .fp16 = c->dtype == DT_F16,
                          .bf16 = c->dtype == DT_BF16,
                          .recompute = (int)c->recompute.kind + 1,
                          .last_iteration = -1};
}

static cJSON *load_shown(const struct config_key *f, const struct draft *d) {
    bool shown = !f->only_read && (!f->ring || d->c.row->takes_stage) && key_applies(f, &d->c);
    return shown ? key_load(f, d) : NULL;
}

// Returns an item as text, a JSON string without its quotes. Deletes the item.
static char *item_text(cJSON *v) {
    char *text = cJSON_IsString(v) ? xstrdup(v->valuestring) : cJSON_PrintUnformatted(v);
    cJSON_Delete(v);
    return text;
}

char *config_value(const struct config *c, const struct config_key *key) {
    struct draft d = draft_of(c);
    cJSON *v = load_shown(key, &d);
    if (!v) return NULL;
    // The same text as printed by a program that has read config.json.
    char *printed = cJSON_PrintUnformatted(v);
    cJSON_Delete(v);
    v = cJSON_Parse(printed);
    free(printed);
    return item_text(v);
}

char *config_reset_section(struct config *c, const char *section) {
    struct draft now = {.c = *c};
    size_t n = strlen(section);
    char *said = NULL;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *f = config_key_at(i);
        if (strncmp(f->path, section, n) != 0 || f->path[n] != '.' || key_is_standard(f, &now)) continue;
        char *has = item_text(key_load(f, &now));
        text_add(&said, "%s%s %s", said ? ", " : "", f->path, has);
        free(has);
        key_reset(f, &now);
    }
    *c = now.c;
    return said;
}

struct config *config_load(const struct topology_table *t, const char *path, const struct config_override *o,
                           size_t count) {
    const char *ending = path ? strrchr(path, '.') : NULL;
    if (ending && (!strcmp(ending, ".yaml") || !strcmp(ending, ".yml"))) {
        fail(
            "%s: a file of YAML, and no DeepSpeed configuration: -c takes the JSON that it names, of accelerate's the key "
            "deepspeed_config_file, of a training program's the key deepspeed",
            path);
        return NULL;
    }
    if (path && path[0] == '{') {
        fail(
            "-c %.40s..: the text of a configuration, where a file is expected: put it into one, or give -c <(echo '..')",
            path);
        return NULL;
    }
    cJSON *root = path ? relaxed_json_load(path) : cJSON_CreateObject();
    if (!root) return NULL;
    struct draft d;
    draft_init(&d);
    d.c.topologies = t;
    struct config_override *set = xcalloc(count, sizeof *set);
    for (size_t i = 0; i < count; i++)
        set[i] = (struct config_override){config_override_path(&o[i]), o[i].value, o[i].flag};
    struct reading r = {.d = &d, .file = path ? path : "defaults", .overrides = set, .override_count = count};
    int rc = cJSON_IsObject(root) ? config_merge(&r, root)
                                  : fail("%s: expected an object {..} at the top", r.file);
    if (!rc) rc = config_read_types(&r, root);
    if (!rc) rc = config_walk(&r, root);
    if (!rc) rc = config_resolve(&r);
    if (!rc) config_report(&r);
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
    c->clip_given = config_state(&r, "gradient_clipping") != KEY_ABSENT;
    c->optimizer_given = config_state(&r, "optimizer.type") != KEY_ABSENT;
    return c;
}

char *config_to_json(const struct config *c) {
    const struct draft d = draft_of(c);
    cJSON *root = cJSON_CreateObject();
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *f = config_key_at(i);
        cJSON *item = load_shown(f, &d);
        if (!item) continue;
        char path[128];
        const char *name;
        snprintf(path, sizeof path, "%s", f->path);
        cJSON *parent = config_parent(root, path, true, &name);
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
