// Where a key was set, and the report on a configuration that was read: one line per topic, however many keys it concerns.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/topology_row.h"

const char *config_origin(const struct reading *r, const char *path, char text[128]) {
    for (size_t i = r->override_count; i > 0; i--) {
        const struct config_override *o = &r->overrides[i - 1];
        const struct config_key *f = config_key_find(o->path);  // which may be given by its other name
        const char *set = f ? f->path : o->path;
        size_t n = strlen(set);
        // It set this key, or a section above it.
        if (strncmp(set, path, n) != 0 || (path[n] != 0 && path[n] != '.')) continue;
        snprintf(text, 128, "%s", o->flag ? o->flag : "--set");
        return text;
    }
    return r->file;
}

static char *about(const struct reading *r, const char *key, const char *text, va_list values) {
    char from[128], *words = NULL;
    if (vasprintf(&words, text, values) < 0) words = NULL;
    char *all = xasprintf("%s: %s%s", config_origin(r, key, from), key, words ? words : "");
    free(words);
    return all;
}

int config_refuse(const struct reading *r, const char *key, const char *text, ...) {
    va_list values;
    va_start(values, text);
    char *all = about(r, key, text, values);
    va_end(values);
    fail("%s", all);
    free(all);
    return -1;
}

void config_warn(const struct reading *r, const char *key, const char *text, ...) {
    va_list values;
    va_start(values, text);
    char *all = about(r, key, text, values);
    va_end(values);
    warn("%s", all);
    free(all);
}

enum key_state config_state(const struct reading *r, const char *path) {
    return r->state[config_key_find(path) - config_key_at(0)];
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

static bool same_line(const struct note *a, const struct note *b) {
    return a->topic == b->topic && !strcmp(a->origin, b->origin) &&
           (a->why == b->why || (a->why && b->why && !strcmp(a->why, b->why)));
}

static size_t section_length(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? (size_t)(dot - path) : 0;
}

static bool same_section(const char *a, const char *b) {
    size_t n = section_length(a);
    return n == section_length(b) && !strncmp(a, b, n);
}

static void append(char **list, const char *separator, const struct note *n, size_t skip) {
    char *longer = xasprintf("%s%s%s%s%s", *list, separator, n->path + skip, n->value ? " " : "",
                             n->value ? n->value : "");
    free(*list);
    *list = longer;
}

// The keys of the notes that share a line with note `first`, each section once, as in
// "optimizer.params (lr 5e-05, eps 1e-08), gradient_clipping 1". *count: how many keys. The caller frees the text.
static char *join_keys(const struct reading *r, size_t first, int *count) {
    const struct note *all = r->notes;
    char *list = xstrdup("");
    *count = 0;
    for (size_t i = first; i < r->note_count; i++) {
        if (!same_line(&all[first], &all[i])) continue;
        bool told = false;
        for (size_t j = first; j < i; j++)
            told |= same_line(&all[first], &all[j]) && same_section(all[i].path, all[j].path);
        size_t n = section_length(all[i].path);
        ++*count;
        if (told && n) continue;  // it stands within its section's brackets
        if (!n) {
            append(&list, list[0] ? ", " : "", &all[i], 0);
            continue;
        }
        char *open = xasprintf("%s%s%.*s (", list, list[0] ? ", " : "", (int)n, all[i].path);
        free(list);
        list = open;
        const char *separator = "";
        for (size_t j = i; j < r->note_count; j++) {
            if (!same_line(&all[first], &all[j]) || !same_section(all[i].path, all[j].path)) continue;
            append(&list, separator, &all[j], n + 1);
            separator = ", ";
        }
        char *closed = xasprintf("%s)", list);
        free(list);
        list = closed;
    }
    return list;
}

static void say(const struct note *n, const char *keys, int count) {
    const char *s = count == 1 ? "" : "s", *is = count == 1 ? "is" : "are";
    switch (n->topic) {
        case NOTE_IGNORED:
            warn("%s: not supported yet and ignored, %s: %s", n->origin, n->why, keys);
            return;
        case NOTE_STAGE_3:
            warn("%s: without effect below stage 3, in DeepSpeed as here: %s", n->origin, keys);
            return;
        case NOTE_STAGE_3_TUNING:
            info("%s: of stage 3 alone, in DeepSpeed as here, and without effect: %s", n->origin, keys);
            return;
        case NOTE_TUNING:
            info("%s: %d key%s that tune%s DeepSpeed's communication and memory %s not used here: %s",
                 n->origin, count, s, count == 1 ? "s" : "", is, keys);
            return;
        case NOTE_ALWAYS:
            info("%s: done here whatever the key says: %s", n->origin, keys);
            return;
        case NOTE_WIRE:
            info(
                "%s: gradients travel in %s, and all workers' sum is taken in fp32, as with fp32 on the wire; of several "
                "micro-batches that are added in fp32 each worker's sum is rounded once before: %s",
                n->origin, n->why, keys);
            return;
        case NOTE_NOTHING:
            info("%s: nothing to act on here: %s", n->origin, keys);
            return;
        case NOTE_OFF:
            info("%s: off, so nothing is lost by not having it yet: %s", n->origin, keys);
            return;
        case NOTE_AUTO:
            info("%s: \"auto\" became %s: %s", n->origin, n->why, keys);
            return;
        case NOTE_TOPICS:
            return;
    }
}

void config_report(struct reading *r) {
    const struct config *c = &r->d->c;
    bool in_stage_3 = c->row && c->row->takes_stage && c->variant == 3;
    for (int topic = 0; topic < NOTE_TOPICS; topic++)
        for (size_t i = 0; i < r->note_count; i++) {
            if (r->notes[i].topic != (enum note_topic)topic) continue;
            bool of_stage_3 = topic == NOTE_STAGE_3 || topic == NOTE_STAGE_3_TUNING;
            bool told = of_stage_3 && in_stage_3;
            for (size_t j = 0; j < i; j++) told |= same_line(&r->notes[i], &r->notes[j]);
            if (told) continue;
            int count;
            char *keys = join_keys(r, i, &count);
            say(&r->notes[i], keys, count);
            free(keys);
        }
}
