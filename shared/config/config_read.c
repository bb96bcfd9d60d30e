// Reads the tree of members: the file's, with the overrides in it. The path of a member is one of:
//
//     a field                    read
//     a key known to DeepSpeed   noted, or refused
//     a section                  visited: some field's or known key's path continues it with a dot
//     unknown                    reported with the nearest known name; refused if it looks like that name misspelt
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"

// ---------------------------------------------------------------- one tree of file and overrides
cJSON *config_parent(cJSON *root, char *path, bool make, const char **name) {
    *name = path;
    for (char *dot; root && (dot = strchr(*name, '.')); *name = dot + 1) {
        *dot = 0;
        cJSON *section = cJSON_GetObjectItemCaseSensitive(root, *name);
        if (make && (!section || cJSON_IsNull(section))) {
            cJSON_DeleteItemFromObjectCaseSensitive(root, *name);
            section = cJSON_AddObjectToObject(root, *name);
        }
        if (!cJSON_IsObject(section)) return NULL;
        root = section;
    }
    return root;
}

static const char first_bucket[] = "allgather_size";
static const char old_bf16[] = "bfloat16", new_bf16[] = "bf16";

// Renames a key that is given by its other name. If it is given by both names, the values must be equal.
static int join_names(const struct reading *r, cJSON *root, const char *other, const char *own) {
    char other_path[128], own_path[128];
    const char *other_name, *own_name;
    snprintf(other_path, sizeof other_path, "%s", other);
    snprintf(own_path, sizeof own_path, "%s", own);
    cJSON *parent = config_parent(root, other_path, false, &other_name);
    if (!parent || parent != config_parent(root, own_path, false, &own_name)) return 0;
    const cJSON *a = json_item(parent, other_name);
    const cJSON *b = json_item(parent, own_name);
    if (!a) return 0;
    if (b && !cJSON_IsNull(a) && !cJSON_IsNull(b) && !cJSON_Compare(a, b, true)) {
        char x[CONFIG_SHOWN], y[CONFIG_SHOWN];
        return fail("%s: %s is %s and %s is %s, and they are two names of one key: leave one of them out",
                    r->file, other, config_shown(a, x), own, config_shown(b, y));
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

// DeepSpeed's first form of ZeRO, a truth value, is stage 1 or 0 (0.19.6: runtime/zero/config.py). The key of its
// bucket is at the top level.
static void read_first_zero(const struct reading *r, cJSON *root) {
    static const char zero[] = "zero_optimization";
    const cJSON *v = json_item(root, zero);
    if (!cJSON_IsBool(v)) return;
    bool on = cJSON_IsTrue(v);
    cJSON *bucket = on ? cJSON_DetachItemFromObjectCaseSensitive(root, first_bucket) : NULL;
    cJSON *section = cJSON_CreateObject();
    cJSON_AddNumberToObject(section, "stage", on);
    if (bucket) cJSON_AddItemToObject(section, "allgather_bucket_size", bucket);
    cJSON_ReplaceItemInObjectCaseSensitive(root, zero, section);
    config_warn(r, zero, " %s is DeepSpeed's first form of {\"stage\": %d}: write that",
                on ? "true" : "false", on);
}

// Old forms of "communication_data_type": "fp32".
static void read_first_wire(cJSON *root) {
    static const char *const old[] = {"fp32_allreduce", "allreduce_always_fp32"},
                             today[] = "communication_data_type";
    for (int i = 0; i < 2; i++) {
        const cJSON *v = json_item(root, old[i]);
        bool on = cJSON_IsTrue(v) || (cJSON_IsNumber(v) && v->valuedouble == 1);
        if (!on || cJSON_HasObjectItem(root, today)) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(root, old[i]);
        cJSON_AddStringToObject(root, today, "fp32");
    }
}

// Expands short and old forms: "model": "X" means {"name": "X"}, "data": "X" means {"path": "X"}, "bfloat16" is the
// old "bf16"; fields have other names, too. Returns 0, or -1 after fail().
static int normalise(const struct reading *r, cJSON *root) {
    static const char *const whole[][2] = {{"model", "name"}, {"data", "path"}};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = json_item(root, whole[i][0]);
        if (!v || cJSON_IsObject(v) || cJSON_IsNull(v)) continue;
        cJSON *section = cJSON_CreateObject();
        cJSON_AddItemToObject(section, whole[i][1], cJSON_Duplicate(v, true));
        cJSON_ReplaceItemInObjectCaseSensitive(root, whole[i][0], section);
    }
    read_first_zero(r, root);
    read_first_wire(root);
    for (size_t i = 0; i < config_key_count(); i++)
        if (config_key_at(i)->alias && join_names(r, root, config_key_at(i)->alias, config_key_at(i)->path))
            return -1;
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

int config_merge(const struct reading *r, cJSON *root) {
    if (normalise(r, root)) return -1;
    // Adds the overrides one by one, and the sections that contain them.
    for (const struct config_override *o = r->overrides; o < r->overrides + r->override_count; o++) {
        const char *flag = o->flag ? o->flag : "--set", *name;
        char path[256];
        const struct config_key *f = config_key_find(o->path);
        int n = snprintf(path, sizeof path, "%s", f ? f->path : o->path);
        if (n >= (int)sizeof path || !path[0] || path[0] == '.' || path[n - 1] == '.' || strstr(path, ".."))
            return fail("%s: \"%s\" is no path: write names joined by dots, as in optimizer.params.lr", flag,
                        path);
        cJSON *parent = config_parent(root, path, true, &name);
        if (!parent)
            return fail("%s: %s: \"%s\" is not an object: nothing can be set below it", flag, o->path, name);
        cJSON_DeleteItemFromObjectCaseSensitive(parent, name);
        cJSON_AddItemToObject(parent, name, key_parse(f, o->value));
    }
    read_first_zero(r, root);
    return 0;
}

// ---------------------------------------------------------------- the tree's members
static size_t path_count(void) { return config_key_count() + known_count(); }
static const char *path_at(size_t i) {
    return i < config_key_count() ? config_key_at(i)->path : known_at(i - config_key_count())->path;
}

static bool is_below(const char *path, const char *section) {
    size_t n = strlen(section);
    return !strncmp(path, section, n) && path[n] == '.';
}

static bool is_section(const char *path) {
    for (size_t i = 0; i < path_count(); i++)
        if (is_below(path_at(i), path)) return true;
    return false;
}

#define NAME_MEANT_MAX 96  // characters; a longer unknown name is not compared with the known ones
// How many unknown keys of a file are reported one by one; the others are counted.
#define UNKNOWN_SAID_MAX 20
#define MISSPELT_MAX     2  // letters that may differ in a misspelt name

struct nearest {
    char name[128];
    size_t distance;
};

static void consider(struct nearest *best, const char *name, const char *candidate, int length) {
    char part[128];
    snprintf(part, sizeof part, "%.*s", length, candidate);
    size_t d = edit_distance(name, part);
    if (d >= best->distance) return;
    best->distance = d;
    snprintf(best->name, sizeof best->name, "%s", part);
}

// Names of other libraries for a key of the section, which the edit distance does not find.
static const char *foreign_name(const char *level, const char *name) {
    static const struct {
        const char *level, *word, *ours;
    } rows[] = {{"optimizer", "name", "type"},
                {"optimizer.params", "epsilon", "eps"},
                {"optimizer.params", "beta1", "betas"},
                {"optimizer.params", "beta2", "betas"},
                {"optimizer.params", "beta_1", "betas"},
                {"optimizer.params", "beta_2", "betas"},
                {"optimizer.params", "wd", "weight_decay"},
                {"optimizer.params", "l2", "weight_decay"},
                {"optimizer.params", "correct_bias", "bias_correction"},
                {"scheduler", "name", "type"},
                {"scheduler.params", "warmup", "warmup_num_steps"},
                {"scheduler.params", "warmup_ratio", "warmup_num_steps"},
                {"scheduler.params", "warmup_steps", "warmup_num_steps"},
                {"scheduler.params", "num_warmup_steps", "warmup_num_steps"},
                {"scheduler.params", "total_steps", "total_num_steps"},
                {"scheduler.params", "num_training_steps", "total_num_steps"},
                {"scheduler.params", "max_steps", "total_num_steps"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(level, rows[i].level) && !strcmp(name, rows[i].word)) return rows[i].ours;
    return NULL;
}

// Whether the members are arguments of a constructor: DeepSpeed passes all of them, and Python raises TypeError for
// an unknown one.
static bool is_constructor(const char *level) {
    return !strcmp(level, "optimizer.params") || !strcmp(level, "scheduler.params");
}

// Returns whether this key, or a key of this section, changes the result of a run.
static bool acts(const char *path) {
    for (size_t i = 0; i < path_count(); i++)
        if ((!strcmp(path_at(i), path) || is_below(path_at(i), path)) &&
            (i < config_key_count() || known_at(i - config_key_count())->use == KNOWN_REFUSED))
            return true;
    return false;
}

// Returns how many letters two names share, or 0 if they are not similar: they begin with the same letters, or the given
// name ends with the section's whole name. "zero" and "zero_optimizer" resemble zero_optimization, "lr_scheduler"
// resembles scheduler. The shared letters must be two thirds of the shorter name, and at least four.
static size_t resembles(const char *name, const char *section) {
    size_t a = strlen(name), b = strlen(section), shorter = a < b ? a : b, begin = 0, end = 0;
    while (begin < shorter && name[begin] == section[begin]) begin++;
    while (end < shorter && name[a - 1 - end] == section[b - 1 - end]) end++;
    size_t most = end < b || begin > end ? begin : end;
    return most >= 4 && 3 * most >= 2 * shorter ? most : 0;
}

// Finds the known section of the top level that is similar to an unknown one. Returns whether there is one; otherwise out
// is unchanged.
static bool section_meant(const char *name, char out[128]) {
    size_t most = 0;
    for (size_t i = 0; i < path_count(); i++) {
        char section[128];
        size_t length = strcspn(path_at(i), ".");
        snprintf(section, sizeof section, "%.*s", (int)length, path_at(i));
        size_t letters = path_at(i)[length] ? resembles(name, section) : 0;
        if (letters <= most) continue;
        most = letters;
        snprintf(out, 128, "%s", section);
    }
    return most > 0;
}

// Finds the known name nearest to `given`, or "". In this order: another library's name for a key of this level; a
// key of this level that is close or that `given` abbreviates; a key below that has this name; a key that ends in
// it; the only key of this name elsewhere. All known names are lower-case. Returns whether `given` looks like a
// misspelt name: at most two letters differ, and at most a third of its letters.
static bool find_nearest(const char *level, const char *given, char out[128]) {
    char *lower = xstrdup(given);
    for (char *p = lower; *p; p++) *p = (char)tolower((unsigned char)*p);
    const char *name = lower;
    char initials[16] = "";  // "lr" of learning_rate
    size_t words = 0;
    for (const char *p = name; *p && words < 15; p++)
        if (p == name || p[-1] == '_') initials[words++] = *p;
    initials[words > 1 ? words : 0] = 0;
    size_t skip = level[0] ? strlen(level) + 1 : 0;
    size_t close = strlen(name) / 3 > 1 ? strlen(name) / 3 : 1;
    struct nearest here = {.distance = SIZE_MAX};
    const char *below = NULL, *ends = NULL, *other = NULL, *word = foreign_name(level, name);
    int others = 0;
    for (size_t i = 0; i < path_count(); i++) {
        const char *path = path_at(i), *leaf = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
        const bool inside = !skip || is_below(path, level);
        if (inside) {
            const char *part = path + skip;
            consider(&here, !strcmp(part, initials) ? part : name, part, (int)strcspn(part, "."));
        }
        const char *tail = strlen(leaf) > strlen(name) ? leaf + strlen(leaf) - strlen(name) : leaf;
        if (strcmp(tail, name) != 0) continue;
        if (tail == leaf && inside && !below) below = path;
        if (tail == leaf && !inside) others++, other = path;
        if (tail > leaf && leaf > path && inside && tail[-1] == '_' && !ends) ends = path;
    }
    if (!word)
        word = here.distance <= close ? here.name : below ? below : ends ? ends : others == 1 ? other : "";
    snprintf(out, 128, "%s", word);
    free(lower);
    return strcmp(here.name, initials) != 0 && here.distance <= MISSPELT_MAX &&
           3 * here.distance <= strlen(given);
}

static int unknown_key(struct reading *r, const char *level, const cJSON *v, const char *path) {
    char from[128], near[128] = "", help[192] = "", meant[256];
    const char *name = v->string;
    const char *origin = config_origin(r, path, from);
    // A section that is in the tree only because a flag sets a key in it counts as set by the flag.
    for (size_t i = 0; i < r->override_count && origin == r->file; i++)
        if (is_below(r->overrides[i].path, path)) origin = config_origin(r, r->overrides[i].path, from);
    bool said = origin == r->file && r->unknown++ >= UNKNOWN_SAID_MAX;
    if (said) return 0;
    bool misspelt = false;
    if (strlen(name) <= NAME_MEANT_MAX) {
        misspelt = find_nearest(level, name, near);
        if (!misspelt && !level[0] && cJSON_IsObject(v)) misspelt = section_meant(name, near);
        if (*near) snprintf(help, sizeof help, "; the nearest known name is %s", near);
        snprintf(meant, sizeof meant, "%s%s%s", level, level[0] ? "." : "", near);
        misspelt = misspelt && acts(meant);
    }
    const char *cut = strlen(path) > 200 ? ".." : "";
    // A flag is typed for this run, so an unknown key in it is a mistake. Files are shared with other programs.
    if (origin != r->file) return fail("%s: unknown key %.200s%s%s", origin, path, cut, help);
    if (is_constructor(level) && !r->lenient) {
        r->misspelt = true;
        fail(
            "%s: unknown key %.200s%s%s; DeepSpeed refuses it, too. Correct it, remove it, or ignore all such keys with "
            "--set unknown_keys=ignore",
            r->file, path, cut, help);
    } else if (misspelt && !r->lenient) {
        r->misspelt = true;
        fail(
            "%s: unknown key %.200s%s: did you mean %s? That would change the training. Correct it, remove it, or ignore all "
            "such keys with --set unknown_keys=ignore",
            r->file, path, cut, near);
    } else {
        warn("%s: unknown key %.200s%s is ignored%s", config_file_name(r->file), path, cut, help);
    }
    return 0;
}

// Whether the name marks a remark or a disabled section: "_comment", "//", "#", "$schema", "note".
static bool is_remark(const char *name) {
    static const char *const words[] = {"note", "notes", "description", "doc", "remark", "todo"};
    if ((name[0] && strchr("_/#$*-", name[0])) || strstr(name, "comment")) return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(name, words[i])) return true;
    return false;
}

static bool is_auto_text(const cJSON *v) { return cJSON_IsString(v) && !strcmp(v->valuestring, "auto"); }

static int read_field(struct reading *r, const struct config_key *f, const cJSON *v) {
    char from[128];
    const char *origin = config_origin(r, f->path, from);
    enum key_state *state = &r->state[f - config_key_at(0)];
    if (cJSON_IsNull(v)) return 0;  // Python's None: not given
    bool is_auto = is_auto_text(v);
    bool says_off =
        f->type == KEY_I64 && cJSON_IsNumber(v) && v->valuedouble <= 1;  // a partition of one rank
    if (f->stage_3 && !is_auto && !says_off)
        config_note(r, &(struct note){.topic = NOTE_STAGE_3_TUNING, .path = f->path});
    bool is_name = f->type == KEY_TEXT && !key_converts(f->path);
    for (const char *const *name = f->names; name && *name; name++) is_name |= !strcmp(*name, "auto");
    if (!is_auto || is_name) {
        *state = KEY_GIVEN;
        return key_store(f, r->d, v, origin);
    }
    if (!f->auto_value && !key_converts(f->path) && strncmp(f->path, "aio.", 4) != 0)
        return fail("%s: %s: \"auto\" has no meaning here: give a value", origin, f->path);
    *state = KEY_AUTO;
    if (!f->auto_value) {  // DeepSpeed drops the key
        cJSON *left = key_load(f, r->d);
        char *text = left ? cJSON_PrintUnformatted(left) : NULL;
        config_note(r, &(struct note){NOTE_AUTO, f->path, text ? text : "none", "the key's default", NULL});
        free(text);
        cJSON_Delete(left);
        return 0;
    }
    if (!f->auto_value[0]) return 0;
    config_note(r, &(struct note){NOTE_AUTO, f->path, f->auto_value, f->auto_why, NULL});
    cJSON *value = relaxed_json_try(f->auto_value);
    int rc = key_store(f, r->d, value, origin);
    cJSON_Delete(value);
    return rc;
}

static int meet_known(struct reading *r, const struct known *k, const cJSON *v) {
    bool off = known_is_off(k, v, key_converts(k->path));
    if (k->use == KNOWN_ELSEWHERE || (k->use == KNOWN_GONE && !off))
        return config_refuse(r, k->path, ": %s", k->why);
    if (k->use == KNOWN_REFUSED && !off) {
        char from[128], text[CONFIG_SHOWN];
        const char *why = known_is_off(k, v, true)
                              ? "DeepSpeed takes any text for true: write false without quotes, or the number"
                              : k->why;
        fail(
            "%s: %s: %s is known to %s and not supported yet, and "
            "it would change the results: remove the key%s%s",
            config_origin(r, k->path, from), k->path, config_shown(v, text),
            strncmp(k->path, "lora.", 5) ? "DeepSpeed" : "peft",
            why ? " or turn it off; " : " or turn it off", why ? why : "");
        return -1;
    }
    enum note_topic topic = k->use == KNOWN_NO_EFFECT ? k->topic : off ? NOTE_OFF : NOTE_IGNORED;
    config_note(
        r, &(struct note){.topic = topic, .path = k->path, .why = topic == NOTE_IGNORED ? k->why : NULL});
    return 0;
}

// Refuses a value such as "fp16": true where an object is expected, and names the form that may be meant.
static int not_a_section(const struct reading *r, const char *path, const cJSON *v) {
    static const struct {
        const char *section, *member, *value;  // section: NULL: any
    } forms[] = {{NULL, "enabled", "true"},
                 {NULL, "stage", "1"},
                 {NULL, "device", "\"cpu\""},
                 {"optimizer", "type", "\"AdamW\""},
                 {"scheduler", "type", "\"WarmupLR\""}};
    char from[128], key[160], text[CONFIG_SHOWN];
    const char *form = "";
    char meant[64];
    for (size_t i = 0; i < sizeof forms / sizeof *forms && !*form; i++) {
        snprintf(key, sizeof key, "%s.%s", path, forms[i].member);
        if (!config_key_find(key) || (forms[i].section && strcmp(path, forms[i].section) != 0)) continue;
        snprintf(meant, sizeof meant, ", as {\"%s\": %s}", forms[i].member, forms[i].value);
        form = meant;
    }
    fail("%s: %s: expected an object {..}%s, got %s", config_origin(r, path, from), path, form,
         config_shown(v, text));
    return -1;
}

static int walk_level(struct reading *r, const char *level, const cJSON *object) {
    const cJSON *v = NULL;
    cJSON_ArrayForEach(v, object) {
        char path[256], from[128];
        int n = snprintf(path, sizeof path, "%s%s%s", level, level[0] ? "." : "", v->string);
        const struct config_key *f = n < (int)sizeof path ? config_key_find(path) : NULL;
        const struct known *k = n < (int)sizeof path ? known_find(path) : NULL;
        int rc = 0;
        if (f)
            rc = read_field(r, f, v);
        else if (k)
            rc = meet_known(r, k, v);
        else if (!is_section(path))
            rc = is_remark(v->string) && config_origin(r, path, from) == r->file
                     ? 0
                     : unknown_key(r, level, v, path);
        else if (cJSON_IsObject(v))
            rc = walk_level(r, path, v);
        else if (!cJSON_IsNull(v) && !(level[0] && key_converts(path) && is_auto_text(v)))
            rc = not_a_section(r, path, v);
        if (rc) return -1;
    }
    return 0;
}

int config_walk(struct reading *r, const cJSON *root) {
    const cJSON *unknown = json_item(root, "unknown_keys");
    r->lenient = cJSON_IsString(unknown) && !strcmp(unknown->valuestring, "ignore");
    int rc = walk_level(r, "", root);
    if (r->unknown > UNKNOWN_SAID_MAX)
        warn("%s: %zu more unknown keys are ignored", config_file_name(r->file),
             r->unknown - UNKNOWN_SAID_MAX);
    return r->misspelt ? -1 : rc;
}
