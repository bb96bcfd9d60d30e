// Rows of figures: writes values to a document, joins ranks' values, and describes the rows.
#include "shared/report/figure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/json.h"

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

void figures_put(cJSON *document, struct figure_rows rows, const void *from) {
    // Objects first: their members' rows may be anywhere.
    for (int objects = 1; objects >= 0; objects--)
        for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
            const char *key;
            cJSON *o = holder_of(document, f->key, &key);
            const void *at = (const char *)from + f->at;
            double x = figure_value(f, from);
            if (objects != (f->kind == FIGURE_OBJECT) || !o || !figure_is_there(f, from)) continue;
            switch (f->kind) {
                case FIGURE_TOLD:
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

const char *figure_number_text(char text[FIGURE_NUMBER_MAX], double x) {
    if (!isfinite(x)) return memcpy(text, "null", 5);
    int n = snprintf(text, FIGURE_NUMBER_MAX - 2, "%.17g", x);
    if (!strpbrk(text, ".e")) memcpy(text + n, ".0", 3);
    return text;
}

int figures_line(char line[FIGURE_LINE_MAX], struct figure_rows rows, const void *from) {
    int n = 0;
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
        char text[FIGURE_NUMBER_MAX];
        double x = figure_value(f, from);
        if (!figure_is_there(f, from)) continue;
        if (f->kind == FIGURE_REAL)
            figure_number_text(text, x);
        else if (f->kind == FIGURE_BOOL)
            snprintf(text, sizeof text, "%s", x != 0 ? "true" : "false");
        else
            snprintf(text, sizeof text, "%.0f", x);
        n += snprintf(line + n, (size_t)(FIGURE_LINE_MAX - n), "%c\"%s\":%s", n ? ',' : '{', f->key, text);
    }
    return n + snprintf(line + n, (size_t)(FIGURE_LINE_MAX - n), "}\n");
}

// ---------------------------------------------------------------- joining
static void put_joined(cJSON *o, const char *path, double x) {
    const char *key;
    cJSON *holder = holder_of(o, path, &key);
    if (holder) json_put(holder, key, x);
}

void figures_join(cJSON *document, struct figure_rows rows, const cJSON *ranks) {
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++) {
        bool workers = f->join == JOIN_MEAN_OF_WORKERS || f->join == JOIN_MOST_OF_WORKERS;
        const char *to = f->to ? f->to : f->key;
        double sum = 0, most = -INFINITY, count = 0;
        const cJSON *r;
        if (!f->join) continue;
        cJSON_ArrayForEach(r, ranks) {
            double x = figure_number(r, f->key);
            if (f->join == JOIN_FIRST && r->prev->next) break;  // the first element's prev is the last
            if (isnan(x) || (workers && strcmp(json_text(r, "role", ""), "worker") != 0)) continue;
            sum += x;
            most = fmax(most, x);
            count++;
        }
        bool largest = f->join == JOIN_MOST || f->join == JOIN_MOST_OF_WORKERS;
        double x = largest ? most : f->join == JOIN_MEAN_OF_WORKERS ? sum / count : sum;
        put_joined(document, to, count ? x : f->join == JOIN_MEAN_OF_WORKERS ? NAN : 0);
        if (f->join != JOIN_BOTH) continue;
        char *busiest = xasprintf("busiest.%s", strchr(to, '.') + 1);
        put_joined(document, busiest, count ? most : 0);
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

static const struct figure *find(struct figure_rows rows, const char *key, size_t length) {
    for (const struct figure *f = rows.rows; f < rows.rows + rows.count; f++)
        if (strlen(f->key) == length && !strncmp(f->key, key, length)) return f;
    return NULL;
}

// Returns the row of the object or list that contains f, or NULL if f is at the top or that object has no row.
static const struct figure *above(struct figure_rows rows, const struct figure *f) {
    for (size_t end = strlen(f->key); end-- > 0;) {
        const struct figure *o =
            f->key[end] == '.' || (end && f->key[end] == '[') ? find(rows, f->key, end) : NULL;
        if (o) return o;
    }
    return NULL;
}

static void tell(const struct figure_told *t, const struct figure *f, cJSON *list) {
    const char *when = f->when, *type = f->type ? f->type : type_words[f->kind];
    for (const struct figure *o = f; !when && (o = above(t->rows, o));) when = o->when;
    if (!when) when = t->when;
    if (f->lack & t->lack) return;
    cJSON *o = cJSON_CreateObject();
    char *key = xasprintf("%s%s", t->prefix, f->key);
    bool null = f->null_if_zero || f->kind == FIGURE_CHARS;
    char *types = xasprintf("%s%s", type, null && !f->type ? " or null" : "");
    cJSON_AddStringToObject(o, "file", t->file);
    cJSON_AddStringToObject(o, "key", key);
    cJSON_AddStringToObject(o, "type", types);
    json_put_text(o, "unit", f->unit);
    cJSON_AddStringToObject(o, "when", when ? when : "always");
    json_put_text(o, "meaning", f->meaning);
    json_put_text(o, "words", f->words);
    cJSON_AddItemToArray(list, o);
    free(types);
    free(key);
    // Its members follow it, wherever their rows are.
    for (const struct figure *g = t->rows.rows; g < t->rows.rows + t->rows.count; g++)
        if (above(t->rows, g) == f) tell(t, g, list);
}

void figures_tell(cJSON *list, const struct figure_told *t) {
    for (const struct figure *f = t->rows.rows; f < t->rows.rows + t->rows.count; f++)
        if (!above(t->rows, f) && (!t->in || f->in & t->in)) tell(t, f, list);
}
