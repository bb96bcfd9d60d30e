// Rows of figures: writes values to a document, joins ranks' values, and describes the rows.
#include "shared/report/figure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"

// Returns the object that holds the last component of a path, or NULL if it does not exist. *word receives that
// component.
static cJSON *holder_of(const cJSON *o, const char *path, const char **word) {
    char name[64];
    *word = path;
    for (const char *dot; o && (dot = strchr(*word, '.')); *word = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - *word), *word);
        o = json_item(o, name);
    }
    return (cJSON *)o;
}

double figure_number(const cJSON *o, const char *path) {
    const char *word;
    const cJSON *holder = holder_of(o, path, &word);
    return json_number(holder, word);
}

// Returns the number, or 1 if a text is not empty or not NULL, else 0.
static double number_at(enum figure_kind kind, const void *at) {
    switch (kind) {
        case FIGURE_REAL:
            return *(const double *)at;
        case FIGURE_INT:
            return *(const int *)at;
        case FIGURE_I64:
            return (double)*(const int64_t *)at;
        case FIGURE_U64:
            return (double)*(const uint64_t *)at;
        case FIGURE_BOOL:
            return *(const bool *)at;
        case FIGURE_CHARS:
            return *(const char *)at != 0;
        case FIGURE_TEXT:
            return *(const char *const *)at != NULL;
        default:
            return 1;
    }
}

double figure_value(const struct figure *f, const void *from) {
    bool number = f->kind >= FIGURE_REAL && f->kind <= FIGURE_BOOL;
    return number ? number_at(f->kind, (const char *)from + f->at) : NAN;
}

bool figure_is_there(const struct figure *f, const void *from) {
    return number_at(f->if_kind, (const char *)from + f->if_at) != 0 && (!f->there || f->there(from));
}

static void put_rows(cJSON *document, struct figure_rows rows, const void *from, bool only_predicted) {
    // Objects first: their members' rows may be anywhere.
    for (int objects = 1; objects >= 0; objects--)
        for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
            const char *key;
            cJSON *o = holder_of(document, f->key, &key);
            const void *at = (const char *)from + f->at;
            double x = figure_value(f, from);
            if (objects != (f->kind == FIGURE_OBJECT) || !o || !figure_is_there(f, from)) continue;
            if (only_predicted && !f->predicted) continue;
            switch (f->kind) {
                case FIGURE_DESCRIBED:
                    break;
                case FIGURE_MADE:
                    f->put(o, key, from);
                    break;
                case FIGURE_OBJECT:
                    cJSON_AddObjectToObject(o, key);
                    break;
                case FIGURE_BOOL:
                    cJSON_AddBoolToObject(o, key, x != 0);
                    break;
                case FIGURE_CHARS:
                    json_put_text(o, key, at);
                    break;
                case FIGURE_TEXT:
                    json_put_text(o, key, *(const char *const *)at);
                    break;
                default:
                    json_put(o, key, f->null_if_zero && x == 0 ? NAN : x);
            }
        }
}

void figures_put(cJSON *o, struct figure_rows rows, const void *from) { put_rows(o, rows, from, false); }

void figures_put_predicted(cJSON *o, struct figure_rows rows, const void *from) {
    put_rows(o, rows, from, true);
}

#define NUMBER_MAX 40
static void number_text(char text[NUMBER_MAX], double x) {
    int n = snprintf(text, NUMBER_MAX - 2, isfinite(x) ? "%.17g" : "null", x);
    if (isfinite(x) && !strpbrk(text, ".e")) memcpy(text + n, ".0", 3);
}

int figures_line(char line[FIGURE_LINE_MAX], struct figure_rows rows, const void *from) {
    int n = 0;
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
        char text[NUMBER_MAX];
        double x = figure_value(f, from);
        if (!figure_is_there(f, from)) continue;
        if (f->kind == FIGURE_REAL)
            number_text(text, x);
        else if (f->kind == FIGURE_BOOL)
            snprintf(text, sizeof text, "%s", x != 0 ? "true" : "false");
        else
            snprintf(text, sizeof text, "%.0f", x);
        n += snprintf(line + n, (size_t)(FIGURE_LINE_MAX - n), "%c\"%s\":%s", n ? ',' : '{', f->key, text);
    }
    return n + snprintf(line + n, (size_t)(FIGURE_LINE_MAX - n), "}\n");
}

const char *figure_cell(char text[FIGURE_CELL], const struct figure *f, double x) {
    if (isnan(x)) return strcpy(text, "-");
    if (f->unit && !strcmp(f->unit, "bytes")) return format_bytes(text, x);
    if (x >= 100) return format_count(text, llround(x));
    snprintf(text, FIGURE_CELL, "%.3g", x);
    return text;
}

// ---------------------------------------------------------------- joining
static void put_joined(cJSON *o, const char *path, cJSON *value) {
    const char *key;
    cJSON *holder = holder_of(o, path, &key);
    if (!holder)
        cJSON_Delete(value);
    else if (json_item(holder, key))
        cJSON_ReplaceItemInObjectCaseSensitive(holder, key, value);
    else
        cJSON_AddItemToObject(holder, key, value);
}

static cJSON *number_or_null(double x) { return isfinite(x) ? cJSON_CreateNumber(x) : cJSON_CreateNull(); }

void figures_join(cJSON *document, struct figure_rows rows, const cJSON *ranks) {
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
        bool workers = f->join == JOIN_MEAN_OF_WORKERS || f->join == JOIN_MOST_OF_WORKERS;
        const char *to = f->to ? f->to : f->key;
        double sum = 0, most = -INFINITY, count = 0;
        const cJSON *r;
        if (!f->join) continue;
        cJSON *each = cJSON_CreateArray();
        cJSON_ArrayForEach(r, ranks) {
            double x = figure_number(r, f->key);
            // CJSON: the first element's `prev` is the last element.
            if (f->join == JOIN_FIRST && r->prev->next) break;
            if (isnan(x) || (workers && strcmp(json_text(r, "role", ""), "worker") != 0)) continue;
            sum += x;
            most = fmax(most, x);
            count++;
            cJSON_AddItemToArray(each, cJSON_CreateNumber(x));
        }
        bool largest = f->join == JOIN_MOST || f->join == JOIN_MOST_OF_WORKERS;
        double x = largest ? most : f->join == JOIN_MEAN_OF_WORKERS ? sum / count : sum;
        if (!count) x = f->join == JOIN_MEAN_OF_WORKERS ? NAN : 0;
        bool left_out = !count && (f->join == JOIN_EACH || f->if_kind != FIGURE_DESCRIBED);
        if (f->join == JOIN_EACH && !left_out)
            put_joined(document, to, cJSON_Duplicate(each, 1));
        else if (!left_out)
            put_joined(document, to, number_or_null(x));
        cJSON_Delete(each);
        if (f->join != JOIN_BOTH) continue;
        char *busiest = xasprintf("busiest.%s", strchr(to, '.') + 1);
        put_joined(document, busiest, number_or_null(count ? most : 0));
        free(busiest);
    }
}

void figures_take(cJSON *element, struct figure_rows rows, unsigned in, const cJSON *report) {
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
        const cJSON *v = f->in & in ? json_item(report, f->key) : NULL;
        if (v) cJSON_AddItemToObject(element, f->key, cJSON_Duplicate(v, 1));
    }
}

// ---------------------------------------------------------------- describing
static const char *const type_words[] = {"number",  "object",  "object",  "number", "integer",
                                         "integer", "integer", "boolean", "string", "string or null"};

const struct figure *figure_parent(struct figure_rows rows, const struct figure *f) {
    for (size_t end = strlen(f->key); end-- > 0;) {
        bool ends = f->key[end] == '.' || (end && f->key[end] == '[');
        for (const struct figure *o = rows.rows; ends && o < rows.rows + rows.count; o++)
            if (strlen(o->key) == end && !strncmp(o->key, f->key, end)) return o;
    }
    return NULL;
}

static void describe(const struct figure_document *d, const struct figure *f, cJSON *list) {
    const char *when = f->when, *type = f->type ? f->type : type_words[f->kind];
    for (const struct figure *o = f; !when && (o = figure_parent(d->rows, o));) when = o->when;
    if (!when) when = d->when;
    if (f->excluded_from & d->kind || (d->predicted && !f->predicted)) return;
    cJSON *o = cJSON_CreateObject();
    char *key = xasprintf("%s%s", d->prefix, f->key);
    bool null = f->null_if_zero || f->kind == FIGURE_CHARS;
    char *types = xasprintf("%s%s", type, null && !f->type ? " or null" : "");
    cJSON_AddStringToObject(o, "file", d->file);
    cJSON_AddStringToObject(o, "key", key);
    cJSON_AddStringToObject(o, "type", types);
    json_put_text(o, "unit", f->unit);
    cJSON_AddStringToObject(o, "when", when ? when : "always");
    json_put_text(o, "meaning", f->meaning);
    json_put_text(o, "words", f->compared_as);
    cJSON_AddItemToArray(list, o);
    free(types);
    free(key);
    // Its members follow it, wherever their rows are.
    for (const struct figure *g = d->rows.rows; g < d->rows.rows + d->rows.count; g++)
        if (figure_parent(d->rows, g) == f) describe(d, g, list);
}

void figures_describe(cJSON *list, const struct figure_document *d) {
    for (const struct figure *f = d->rows.rows; f < d->rows.rows + d->rows.count; f++)
        if (!figure_parent(d->rows, f)) describe(d, f, list);
}
