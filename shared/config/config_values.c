// A key's value: reading it from JSON within its limits, and writing it back.
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shared/config/config_internal.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"

// Parses a whole text as a number, as C's strtod does. python: as int() and float() do, without 0x, with blanks
// around it and _ between digits. Returns 0, or -1.
static int text_number(const char *text, bool python, double *out) {
    char plain[64], *end, *to = plain;
    const char *from = text + (python ? strspn(text, " \t\n") : 0);
    for (; *from && to < plain + sizeof plain - 1; from++)
        if (!python || *from != '_' || from == text || !isdigit((unsigned char)from[-1]) ||
            !isdigit((unsigned char)from[1]))
            *to++ = *from;
    while (python && to > plain && isspace((unsigned char)to[-1])) to--;
    *to = 0;
    if (*from || !plain[0] || isspace((unsigned char)plain[0]) || (python && strpbrk(plain, "xX"))) return -1;
    errno = 0;
    *out = strtod(plain, &end);
    return *end || !isfinite(*out) || (errno == ERANGE && *out == 0) ? -1 : 0;
}

// Parses the words that pydantic accepts for a switch, in any case. Returns 0, or -1.
static int text_bool(const char *text, bool *out) {
    static const char *const words[] = {"false", "true", "0",   "1",  "no", "yes",
                                        "n",     "y",    "off", "on", "f",  "t"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(text, words[i])) return *out = i % 2, 0;
    return -1;
}

bool key_converts(const char *path) {
    static const char *const models[] = {"zero_optimization", "fp16",  "bf16", "tensorboard", "csv_monitor",
                                         "tensor_parallel",   "wandb", "comet"};
    size_t n = strcspn(path, ".");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strlen(models[i]) == n && !strncmp(path, models[i], n)) return true;
    return false;
}

// Returns a hint for the end of an error message, if the given text probably means another value; otherwise "".
static const char *meant(const struct config_key *f, const char *origin, const cJSON *v, char text[256]) {
    const char *t = cJSON_GetStringValue(v), *comma = t ? strchr(t, ',') : NULL;
    char means[RELAXED_JSON_MEANT];
    double x;
    bool on;
    size_t n = t ? strlen(t) : 0;
    text[0] = 0;
    if (!n || f->type == KEY_TEXT || f->type == KEY_LIST) return text;
    relaxed_json_meant(t, means);
    const bool is_switch = f->type == KEY_BOOL || f->type == KEY_NOT;
    if (!is_switch && (!strcmp(means, "true") || !strcmp(means, "false")))
        means[0] = 0;  // no hint for a number
    bool bare = origin[0] != '-' && (strchr(",}]", t[n - 1]) || strchr(t, '#'));
    if (bare)
        snprintf(text, 256, "; without quotes a text goes to the end of its line%s%s",
                 *means ? ": write " : "", means);
    else if (origin[0] == '-' && comma && comma[1])
        text[0] = 0;
    else if (origin[0] != '-' && f->type != KEY_ENUM && !text_number(t, true, &x))
        snprintf(text, 256, "; a text is no number here: write the number %.15g", x);
    else if (is_switch && !text_bool(t, &on))
        snprintf(text, 256, "; DeepSpeed takes any text for true: write %s without quotes",
                 on ? "true" : "false");
    else if (*means)
        snprintf(text, 256, "; write %s", means);
    return text;
}

static int refuse(const struct config_key *f, const char *origin, const char *expected, const cJSON *v) {
    const char *kind = cJSON_IsString(v)   ? "string "
                       : cJSON_IsNumber(v) ? "number "
                       : cJSON_IsObject(v) ? "object "
                       : cJSON_IsArray(v)  ? "array "
                                           : "";
    char text[CONFIG_SHOWN], hint[256];
    return fail("%s: %s: expected %s%s, got %s%s%s", origin, f->path, expected,
                f->auto_value ? " or \"auto\"" : "", kind, config_shown(v, text), meant(f, origin, v, hint));
}

// Reads v as a number within the field's limits. Returns 0, or -1 after fail().
static int number(const struct config_key *f, const cJSON *v, const char *origin, double *out) {
    bool whole = f->type == KEY_INT || f->type == KEY_I64 || f->type == KEY_SIZE,
         converts = key_converts(f->path);
    const char *what = whole ? "an integer" : f->type == KEY_PAIR ? "an array of two numbers" : "a number";
    const cJSON *list = f->of_groups && cJSON_IsArray(v) ? v : NULL;
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next)
        if (!cJSON_Compare(item, list->child, true))
            return refuse(f, origin, "a number, or a list of equal ones: one rate is all parameters'", v);
    if (list && list->child) v = list->child;
    double x = v->valuedouble;
    if (f->no_bool && cJSON_IsBool(v)) return refuse(f, origin, what, v);
    if (f->true_is_1 && cJSON_IsTrue(v))
        warn("%s: %s true is 1, in DeepSpeed as here: write the number", origin, f->path);
    if (cJSON_IsFalse(v) ||
        ((converts || f->true_is_1) && cJSON_IsTrue(v)))  // Python's False is 0 everywhere
        x = cJSON_IsTrue(v);
    else if (!cJSON_IsNumber(v) && !(converts && cJSON_IsString(v) && !text_number(v->valuestring, true, &x)))
        return refuse(f, origin, what, v);
    if ((whole && x != floor(x)) || !isfinite(x)) return refuse(f, origin, what, v);
    if (f->type == KEY_SIZE && converts && x > f->high) x = f->high;  // no limit, like sys.maxsize
    // The limits of fp32 apply also to a schedule's rates: it computes in double, but an update uses fp32.
    if ((f->type == KEY_F32 || f->type == KEY_PAIR || f->of_groups) && x != 0 && (float)x == 0)
        return refuse(f, origin, "a number that fp32 does not round to 0, from 1e-45 on", v);
    if (x < f->low || x > f->high) {
        char range[96];
        if (f->high == BELOW_1)
            snprintf(range, sizeof range, "%s of at least %.10g and below 1", what, f->low);
        else if (f->low == f->high)
            snprintf(range, sizeof range, "%.10g", f->low);
        else if (x < f->low && f->high >= (whole ? EXACT_MAX : FLOAT_MAX))
            snprintf(range, sizeof range, "%s of at least %.10g", what, f->low);
        else
            snprintf(range, sizeof range, whole ? "%s from %.10g to %.16g" : "%s from %.10g to %.6g", what,
                     f->low, f->high);
        return refuse(f, origin, range, v);
    }
    *out = x == 0 && f->zero > 0 ? f->zero : x;
    return 0;
}

const char *config_dtype_name(const char *text) {
    static const char *const spelt[][2] = {{"float32", "fp32"}, {"float", "fp32"}, {"bfloat16", "bf16"},
                                           {"float16", "fp16"}, {"half", "fp16"},  {"fp32", "fp32"},
                                           {"bf16", "bf16"},    {"fp16", "fp16"}};
    const char *name = strncasecmp(text, "torch.", 6) ? text : text + 6;
    for (size_t i = 0; i < sizeof spelt / sizeof *spelt; i++)
        if (!strcasecmp(name, spelt[i][0])) return spelt[i][1];
    return text;
}

// Values that keys had in earlier versions, and what to use instead.
static const struct {
    const char *path, *value, *says;
} gone_values[] = {
    {"launch", "ssh",
     "experiments/over_ssh.py --hosts H:N,.. starring train .. starts ranks on other hosts: leave it out"},
    {"ring.collective", "gloo", "tcp does the same over connections of the program's own: use \"tcp\""},
};

// Finds v among the field's names. Returns 0, or -1 after fail().
static int name_index(const struct config_key *f, const cJSON *v, const char *origin, int *out) {
    char list[128];
    snprintf(list, sizeof list, "%s",
             f->type != KEY_SIZE                ? "one of"
             : !strcmp(f->path, "reduce_group") ? "a number of workers, or one of"
             : strstr(f->path, "max_lead")      ? "a number of steps, or one of"
             : strstr(f->path, "zero_")         ? "a number of elements, or one of"
             : f->low > 0                       ? "bytes (4096, 64K, 1.5GiB or 1GB), or one of"
                                                : "a number, or one of");
    const char *name = cJSON_IsString(v) ? v->valuestring : "";
    if (f->is_dtype) name = config_dtype_name(name);
    for (int i = 0; f->names[i]; i++) {
        if (!strcmp(name, f->names[i])) return *out = i, 0;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s \"%s\"", i ? "," : "", f->names[i]);
    }
    for (size_t i = 0; i < sizeof gone_values / sizeof *gone_values; i++)
        if (!strcmp(f->path, gone_values[i].path) && !strcmp(name, gone_values[i].value))
            return fail("%s: %s \"%s\" has gone: %s", origin, f->path, name, gone_values[i].says);
    return refuse(f, origin, list, v);
}

// Stores texts joined by commas. v is an array of texts, or a text that is joined already.
static int store_list(const struct config_key *f, char **place, const cJSON *v, const char *origin) {
    const cJSON *first = cJSON_IsArray(v) ? v->child : v;
    size_t bytes = 1;
    for (const cJSON *item = first; item; item = cJSON_IsArray(v) ? item->next : NULL) {
        if (!cJSON_IsString(item) || !item->valuestring[0]) return refuse(f, origin, "an array of texts", v);
        bytes += strlen(item->valuestring) + 1;
    }
    free(*place);
    *place = NULL;
    if (!first) return 0;
    char *at = *place = xcalloc(bytes, 1);
    for (const cJSON *item = first; item; item = cJSON_IsArray(v) ? item->next : NULL)
        at += sprintf(at, "%s%s", item == first ? "" : ",", item->valuestring);
    return 0;
}

static cJSON *load_list(const char *list) {
    cJSON *array = list ? cJSON_CreateArray() : NULL;
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char *item = xasprintf("%.*s", (int)strcspn(at, ","), at);
        cJSON_AddItemToArray(array, cJSON_CreateString(item));
        free(item);
    }
    return array;
}

int key_store(const struct config_key *f, struct draft *d, const cJSON *v, const char *origin) {
    void *place = (char *)d + f->offset;
    double x = 0;
    int index = 0;
    bool on;
    switch (f->type) {
        case KEY_BOOL:
        case KEY_NOT:
            on = cJSON_IsTrue(v);
            if (cJSON_IsNumber(v) && (v->valuedouble == 0 || v->valuedouble == 1))
                on = v->valuedouble == 1;
            else if (!cJSON_IsBool(v) &&
                     !(cJSON_IsString(v) && key_converts(f->path) && !text_bool(v->valuestring, &on)))
                return refuse(f, origin, "true or false", v);
            *(bool *)place = on != (f->type == KEY_NOT);
            return 0;
        case KEY_TEXT:
            if (!cJSON_IsString(v)) return refuse(f, origin, "a text", v);
            if (!v->valuestring[0] && !f->empty)
                return fail("%s: %s is empty: give it a value, or leave it out", origin, f->path);
            free(*(char **)place);
            // If there is a default, "" is stored as an empty text, not as NULL.
            *(char **)place = v->valuestring[0] || f->default_value ? xstrdup(v->valuestring) : NULL;
            return 0;
        case KEY_LIST:
            return store_list(f, place, v, origin);
        case KEY_ENUM:
        case KEY_SWITCH:
            if (name_index(f, v, origin, &index)) return -1;
            if (f->type == KEY_SWITCH)
                *(bool *)place = index == 1;
            else
                *(int *)place = index;
            return 0;
        case KEY_SIZE:
            if (!cJSON_IsString(v)) break;
            if (f->low > 0 && !text_bytes(v->valuestring, place)) return 0;
            if (key_converts(f->path) && !text_number(v->valuestring, true, &x)) break;
            if (name_index(f, v, origin, &index)) return -1;
            *(int64_t *)place = -index;
            return 0;
        case KEY_PAIR:
            if (!cJSON_IsArray(v) || cJSON_GetArraySize(v) != 2)
                return refuse(f, origin, "an array of two numbers", v);
            for (int i = 0; i < 2; i++)
                if (!cJSON_IsNumber(cJSON_GetArrayItem(v, i)) && !cJSON_IsBool(cJSON_GetArrayItem(v, i)))
                    return refuse(f, origin, "an array of two numbers", v);
            for (int i = 0; i < 2; i++) {
                if (number(f, cJSON_GetArrayItem(v, i), origin, &x)) return -1;
                ((float *)place)[i] = (float)x;
            }
            return 0;
        case KEY_INT:
        case KEY_I64:
        case KEY_F32:
        case KEY_F64:
            break;
    }
    if (number(f, v, origin, &x)) return -1;
    if (f->type == KEY_INT) *(int *)place = (int)x;
    if (f->type == KEY_I64 || f->type == KEY_SIZE) *(int64_t *)place = (int64_t)x;
    if (f->type == KEY_F32) *(float *)place = (float)x;
    if (f->type == KEY_F64) *(double *)place = x;
    return 0;
}

// cJSON's own printing may lose the last bit.
static cJSON *load_f32(float v) {
    char text[32];
    shortest_f32(text, v);
    return cJSON_CreateRaw(text);
}

// Parses numbers joined by commas or blanks, with or without brackets. Returns NULL for another text.
static cJSON *parse_numbers(const char *value) {
    static const char between[] = " ,()[]";
    cJSON *array = cJSON_CreateArray();
    char *copy = xstrdup(value), *rest = NULL;
    double x;
    for (char *word = strtok_r(copy, between, &rest); word && array; word = strtok_r(NULL, between, &rest)) {
        if (!text_number(word, false, &x)) {
            cJSON_AddItemToArray(array, cJSON_CreateNumber(x));
            continue;
        }
        cJSON_Delete(array);
        array = NULL;
    }
    free(copy);
    return array;
}

cJSON *key_parse(const struct config_key *f, const char *value) {
    double x;
    bool on;
    bool list = f && f->type == KEY_LIST && value[0] != '[';
    if (list || (f && f->type == KEY_TEXT && value[0] != '"')) return cJSON_CreateString(value);
    if (f && (f->type == KEY_BOOL || f->type == KEY_NOT) && !text_bool(value, &on))
        return cJSON_CreateBool(on);
    cJSON *v = f && f->type == KEY_PAIR ? parse_numbers(value) : relaxed_json_try(value);
    if (v) return v;
    bool takes_number =
        f && f->type != KEY_TEXT && f->type != KEY_LIST && f->type != KEY_ENUM && f->type != KEY_SWITCH;
    return takes_number && !text_number(value, false, &x) ? cJSON_CreateNumber(x) : cJSON_CreateString(value);
}

static void store_default(const struct config_key *f, struct draft *d, const char *value) {
    if (!value || !*value) return;
    cJSON *v = key_parse(f, value);
    int rc = key_store(f, d, v, "defaults");
    assert(rc == 0 && "a default is a value of its field");
    (void)rc;
    cJSON_Delete(v);
}

void draft_init(struct draft *d) {
    *d = (struct draft){0};
    for (size_t i = 0; i < config_key_count(); i++)
        store_default(config_key_at(i), d, config_key_at(i)->default_value);
}

// Returns the optimizer's default for the field's key below "optimizer.params". "": the field is not a parameter of any
// optimizer; NULL: it is a parameter of other optimizers only.
static const char *optimizer_says(const struct config_key *f, const struct optimizer *row) {
    static const char params[] = "optimizer.params.";
    bool param = !strncmp(f->path, params, sizeof params - 1);
    return param ? optimizer_default(row, f->path + sizeof params - 1) : "";
}

void draft_set_optimizer(struct draft *d, const struct optimizer *row) {
    d->c.optimizer = (struct optimizer_config){.row = row};
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *f = config_key_at(i);
        store_default(f, d, optimizer_says(f, row));
    }
}

bool key_applies(const struct config_key *f, const struct config *c) {
    return (!f->schedules || f->schedules >> c->schedule.type & 1) && optimizer_says(f, c->optimizer.row);
}

bool key_is_standard(const struct config_key *f, const struct draft *d) {
    struct draft standard;
    draft_init(&standard);
    cJSON *has = key_load(f, d), *usual = key_load(f, &standard);
    bool same = has && usual ? cJSON_Compare(has, usual, true) : !has && !usual;
    cJSON_Delete(has);
    cJSON_Delete(usual);
    draft_fini(&standard);
    return same;
}

void draft_fini(struct draft *d) {
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *f = config_key_at(i);
        if (f->type == KEY_TEXT || f->type == KEY_LIST) free(*(char **)((char *)d + f->offset));
    }
}

void key_clear(const struct config_key *f, struct draft *d) {
    static const size_t sizes[] = {
        [KEY_BOOL] = sizeof(bool),   [KEY_NOT] = sizeof(bool),       [KEY_INT] = sizeof(int),
        [KEY_I64] = sizeof(int64_t), [KEY_F32] = sizeof(float),      [KEY_F64] = sizeof(double),
        [KEY_ENUM] = sizeof(int),    [KEY_PAIR] = 2 * sizeof(float), [KEY_SIZE] = sizeof(int64_t),
        [KEY_SWITCH] = sizeof(bool)};
    memset((char *)d + f->offset, 0, sizes[f->type]);
}

void key_reset(const struct config_key *f, struct draft *d) {
    if (f->default_value) {
        store_default(f, d, f->default_value);
    } else if (f->type == KEY_TEXT || f->type == KEY_LIST) {
        free(*(char **)((char *)d + f->offset));
        *(char **)((char *)d + f->offset) = NULL;
    } else {
        key_clear(f, d);
    }
}

cJSON *key_load(const struct config_key *f, const struct draft *d) {
    const void *place = (const char *)d + f->offset;
    char text[40];
    switch (f->type) {
        case KEY_BOOL:
            return cJSON_CreateBool(*(const bool *)place);
        case KEY_NOT:
            return cJSON_CreateBool(!*(const bool *)place);
        case KEY_INT:
            return cJSON_CreateNumber(*(const int *)place);
        case KEY_SIZE:
        case KEY_I64:
            if (f->type == KEY_SIZE && *(const int64_t *)place <= 0)
                return cJSON_CreateString(f->names[-*(const int64_t *)place]);
            snprintf(text, sizeof text, "%lld", (long long)*(const int64_t *)place);
            return cJSON_CreateRaw(text);
        case KEY_F32:
            return load_f32(*(const float *)place);
        case KEY_F64:
            shortest_f64(text, *(const double *)place);
            return cJSON_CreateRaw(text);
        case KEY_TEXT:
            return *(char *const *)place ? cJSON_CreateString(*(char *const *)place) : NULL;
        case KEY_LIST:
            return load_list(*(char *const *)place);
        case KEY_ENUM:
            return cJSON_CreateString(f->names[*(const int *)place]);
        case KEY_SWITCH:
            return cJSON_CreateString(f->names[*(const bool *)place]);
        case KEY_PAIR: {
            cJSON *pair = cJSON_CreateArray();
            cJSON_AddItemToArray(pair, load_f32(((const float *)place)[0]));
            cJSON_AddItemToArray(pair, load_f32(((const float *)place)[1]));
            return pair;
        }
    }
    return NULL;
}
