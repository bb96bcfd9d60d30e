// Where a key was set, and the report on a configuration that was read. The report prints one line per origin at
// once; --print-config prints a line per topic, for any number of keys.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/core/topology_row.h"

const char *config_file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && strncmp(path, "/dev/", 5) != 0 ? slash + 1 : path;
}

const char *config_origin(const struct reading *r, const char *path, char text[128]) {
    for (size_t i = r->override_count; i > 0; i--) {
        const struct config_override *o = &r->overrides[i - 1];
        const struct config_key *f = config_key_find(o->path);  // the override may have the key's other name
        const char *set = f ? f->path : o->path;
        size_t n = strlen(set);
        // The override set this key, or a section that contains it.
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

const char *config_shown(const cJSON *v, char text[CONFIG_SHOWN]) {
    char *all = cJSON_PrintUnformatted(v);
    const size_t n = all ? strlen(all) : 0, most = CONFIG_SHOWN - sizeof " ..";
    size_t cut = 0;
    bool quoted = false;
    for (size_t i = 0; n >= CONFIG_SHOWN && i < most; i++) {
        if (all[i] == '"') quoted = !quoted;
        if (quoted && all[i] == '\\') i++;
        if (!quoted && i < most && strchr(",{[", all[i])) cut = i + 1;
    }
    if (!cut)  // it is one long text: cut it between two characters of UTF-8
        for (cut = most; n >= CONFIG_SHOWN && (all[cut] & 0xc0) == 0x80; cut--) {
        }
    if (n >= CONFIG_SHOWN)
        snprintf(text, CONFIG_SHOWN, "%.*s ..", (int)cut, all);
    else
        snprintf(text, CONFIG_SHOWN, "%s", all ? all : "?");
    cJSON_free(all);
    return text;
}

void config_note(struct reading *r, const struct note *n) {
    char from[128];
    const char *origin = config_origin(r, n->path, from);
    if (origin == r->file) origin = config_file_name(origin);
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

static void free_note(struct note *n) {
    free((char *)n->path);
    free((char *)n->value);
    free((char *)n->origin);
}

void config_notes_free(struct reading *r) {
    for (size_t i = 0; i < r->note_count; i++) free_note(&r->notes[i]);
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
    text_add(list, "%s%s%s%s", separator, n->path + skip, n->value ? " " : "", n->value ? n->value : "");
}

// Returns the keys of the notes that share a line with note `first`, each section once, as in "optimizer.params (lr
// 5e-05, eps 1e-08), gradient_clipping 1". The caller frees the text.
static char *join_keys(const struct reading *r, size_t first) {
    const struct note *all = r->notes;
    char *list = xstrdup("");
    for (size_t i = first; i < r->note_count; i++) {
        if (!same_line(&all[first], &all[i])) continue;
        bool told = false;
        for (size_t j = first; j < i; j++)
            told |= same_line(&all[first], &all[j]) && same_section(all[i].path, all[j].path);
        size_t n = section_length(all[i].path);
        if (told && n) continue;  // it is already listed in its section's brackets
        if (!n) {
            append(&list, list[0] ? ", " : "", &all[i], 0);
            continue;
        }
        text_add(&list, "%s%.*s (", list[0] ? ", " : "", (int)n, all[i].path);
        const char *separator = "";
        for (size_t j = i; j < r->note_count; j++) {
            if (!same_line(&all[first], &all[j]) || !same_section(all[i].path, all[j].path)) continue;
            append(&list, separator, &all[j], n + 1);
            separator = ", ";
        }
        text_add(&list, ")");
    }
    return list;
}

// A topic's texts: `before` the note's reason, and `behind` it. ask: the key requests something that this program does not
// do, so the report warns at once. off: only --print-config prints the topic.
static const struct {
    const char *before, *behind;
    bool ask, off;
} topics[NOTE_TOPICS] = {
    [NOTE_IGNORED] = {"not supported yet and ignored, ", "", true, false},
    [NOTE_STAGE_3] = {"without effect below stage 3, in DeepSpeed as here", "", true, false},
    [NOTE_STAGE_3_TUNING] = {"of stage 3 alone, in DeepSpeed as here, and without effect", "", false, false},
    [NOTE_TUNING] = {"tunes DeepSpeed's communication and memory, and is not used here", "", false, false},
    [NOTE_ALWAYS] = {"done here whatever the key says", "", false, false},
    [NOTE_WIRE] =
        {"gradients travel in ",
         ", and all workers' sum is taken in fp32, as with fp32 on the wire; of several micro-batches that "
         "are added in fp32 each worker's sum is rounded once before",
         false, false},
    [NOTE_NOTHING] = {"nothing to act on here", "", false, false},
    [NOTE_OFF] = {"off, so nothing is lost by not having it yet", "", false, true},
    [NOTE_AUTO] = {"\"auto\" became ", "", false, false},
};

// Returns the keys of r's notes of one kind from `origin`, joined, at most `most` of them. *count receives the
// number of all. The caller frees the text.
enum kind { KIND_ASKS, KIND_IDLE, KIND_AUTO };
static char *keys_of(const struct reading *r, const char *origin, enum kind kind, int most, int *count) {
    char *list = xstrdup("");
    *count = 0;
    for (size_t i = 0; i < r->note_count; i++) {
        const struct note *n = &r->notes[i];
        enum kind its = topics[n->topic].ask ? KIND_ASKS : n->topic == NOTE_AUTO ? KIND_AUTO : KIND_IDLE;
        if (strcmp(n->origin, origin) != 0 || topics[n->topic].off || its != kind) continue;
        if (++*count <= most) append(&list, list[0] ? ", " : "", n, 0);
    }
    return list;
}

#define NAMED_MAX 3  // if there are more, they are counted, not named

// Prints one line on an origin: its keys without effect, and its "auto" keys.
static void say_in_short(const struct reading *r, const char *origin) {
    int asks, idle, autos;
    char *asked = keys_of(r, origin, KIND_ASKS, 8, &asks),
         *idly = keys_of(r, origin, KIND_IDLE, NAMED_MAX, &idle),
         *resolved = keys_of(r, origin, KIND_AUTO, NAMED_MAX, &autos), *text = xstrdup("");
    const struct {
        int count;
        const char *keys;
        int named;
        const char *one, *many;
    } parts[] = {{asks, asked, 8, "key requests something unsupported", "keys request something unsupported"},
                 {idle, idly, NAMED_MAX, "key has no effect here", "keys have no effect here"},
                 {autos, resolved, NAMED_MAX, "key was \"auto\"", "keys were \"auto\""}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].count) continue;
        text_add(&text, "%s%d %s", *text ? "; " : "", parts[i].count,
                 parts[i].count == 1 ? parts[i].one : parts[i].many);
        if (parts[i].count <= parts[i].named) text_add(&text, " (%s)", parts[i].keys);
    }
    if (asks)
        warn("%s: %s: --print-config says why", origin, text);
    else if (*text)
        info("%s: %s: --print-config says why", origin, text);
    free(text);
    free(asked);
    free(idly);
    free(resolved);
}

void config_report(struct reading *r) {
    struct config *c = &r->d->c;
    size_t kept = 0;
    bool stage_3 = c->row && c->row->takes_stage && c->variant == 3;
    for (size_t i = 0; i < r->note_count; i++) {
        enum note_topic topic = r->notes[i].topic;
        if (stage_3 &&
            (topic == NOTE_STAGE_3 || topic == NOTE_STAGE_3_TUNING))  // at stage 3 the key has an effect
            free_note(&r->notes[i]);
        else
            r->notes[kept++] = r->notes[i];
    }
    r->note_count = kept;
    for (size_t i = 0; i < r->note_count; i++) {
        bool told = false;
        for (size_t j = 0; j < i; j++) told |= !strcmp(r->notes[i].origin, r->notes[j].origin);
        if (!told) say_in_short(r, r->notes[i].origin);
    }
    c->remarks = xstrdup("");
    for (int topic = 0; topic < NOTE_TOPICS; topic++)
        for (size_t i = 0; i < r->note_count; i++) {
            const struct note *n = &r->notes[i];
            bool told = n->topic != (enum note_topic)topic;
            for (size_t j = 0; j < i; j++) told |= same_line(n, &r->notes[j]);
            if (told) continue;
            char *keys = join_keys(r, i);
            text_add(&c->remarks, "%s: %s%s%s: %s\n", n->origin, topics[topic].before, n->why ? n->why : "",
                     topics[topic].behind, keys);
            free(keys);
        }
}
