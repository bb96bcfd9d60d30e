// Who set a key and how, and the notes for the report.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"

// Whether path is `full` or a section above it.
static bool covers(const char *path, const char *full) {
    size_t n = strlen(path);
    return !strncmp(path, full, n) && (full[n] == 0 || full[n] == '.');
}

static const struct config_override *override_of(const struct reading *r, const char *path) {
    for (size_t i = r->override_count; i > 0; i--) {
        const struct config_override *o = &r->overrides[i - 1];
        const struct field *f = field_find(o->path);  // which may be given by its other name
        if (covers(f ? f->path : o->path, path)) return o;
    }
    return NULL;
}

const char *config_origin(const struct reading *r, const char *path, char text[128]) {
    const struct config_override *o = override_of(r, path);
    if (!o) return r->file;
    snprintf(text, 128, "%s", o->flag ? o->flag : "--set");
    return text;
}

enum field_state config_state(const struct reading *r, const char *path) {
    return r->state[field_find(path) - field_at(0)];
}

void config_note(struct reading *r, const struct note *n) {
    char from[128];
    const char *origin = config_origin(r, n->path, from);
    if (origin == r->file && strrchr(origin, '/')) origin = strrchr(origin, '/') + 1;
    r->notes = xrealloc(r->notes, (r->note_count + 1) * sizeof *r->notes);
    r->notes[r->note_count++] = (struct note){.topic = n->topic,
                                              .path = xstrdup(n->path),
                                              .value = n->value ? xstrdup(n->value) : NULL,
                                              .why = n->why,
                                              .origin = xstrdup(origin)};
}

void config_say_auto(struct reading *r, const char *path, const char *value, const char *why) {
    static const char from_run[] = "what this run gives";
    char *text = xasprintf("%s%s%s", value, why ? " = " : "", why ? why : "");
    config_note(r, &(struct note){.topic = NOTE_AUTO, .path = path, .value = text, .why = from_run});
    free(text);
}

void config_notes_free(struct reading *r) {
    for (size_t i = 0; i < r->note_count; i++) {
        free((char *)r->notes[i].path);
        free((char *)r->notes[i].value);
        free((char *)r->notes[i].origin);
    }
    free(r->notes);
}
