#include "shared/core/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <search.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/text.h"

const cJSON *json_item(const cJSON *o, const char *key) { return cJSON_GetObjectItemCaseSensitive(o, key); }

double json_number(const cJSON *o, const char *key) {
    const cJSON *v = json_item(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : NAN;
}

const char *json_text(const cJSON *o, const char *key, const char *otherwise) {
    const char *text = cJSON_GetStringValue(json_item(o, key));
    return text ? text : otherwise;
}

void json_put(cJSON *o, const char *key, double x) {
    cJSON_AddItemToObject(o, key, isfinite(x) ? cJSON_CreateNumber(x) : cJSON_CreateNull());
}

void json_put_text(cJSON *o, const char *key, const char *text) {
    cJSON_AddItemToObject(o, key, text && *text ? cJSON_CreateString(text) : cJSON_CreateNull());
}

// Each value except the first follows a comma or an opening bracket, so these are counted. Those inside texts count too:
// for our own documents the bound is at most twice the true number.
int64_t json_values_at_most(const char *text, size_t bytes) {
    int64_t values = 1;
    for (size_t i = 0; i < bytes; i++) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return values;
}

cJSON *json_parse(const char *text, size_t bytes) {
    return json_values_at_most(text, bytes) > JSON_VALUES_MAX ? NULL : cJSON_ParseWithLength(text, bytes);
}

void json_print(FILE *f, const cJSON *root) {
    char *text = cJSON_Print(root);
    fprintf(f, "%s\n", text);
    free(text);
}

int json_file_write(const char *path, const cJSON *root) {
    struct new_file n;
    if (new_file_begin(&n, path, false)) json_print(n.file, root);
    return new_file_end(&n, NEW_FILE_WHOLE) ? fail("%s: cannot write: %s", path, strerror(errno)) : 0;
}

// ---------------------------------------------------------------- relaxed json
// A recursive-descent parser that builds the cJSON tree itself, so that every error names its line.

#define MAX_DEPTH 64  // levels of nesting, which bounds the stack; configurations have four

struct scanner {
    const char *name;  // of the file, for messages
    const char *p;     // next character
    const char *line_start;
    int line;  // 1-based
    int depth;
    int values;  // parsed so far
    bool quiet;
    // The last text without quotes that contains a bracket, for the message about a missing bracket; NULL: none.
    const char *bare;
    int bare_line, bare_column;
};

static cJSON *read_value(struct scanner *s);

static int column(const struct scanner *s) { return (int)(s->p - s->line_start) + 1; }

// Returns the character at p if it is not ASCII, else 0.
static uint32_t wide_character(const char *p) {
    uint32_t code = text_utf8_code(p, &(int){0});
    return code < 0x80 ? 0 : code;
}

// Returns advice if the character at p is one that word processors and web pages write instead of a quote or a blank; else
// NULL. Hjson treats it as a letter, so the parsed name is not the name that a reader sees.
static const char *look_alike(const char *p) {
    static const struct {
        uint32_t first, last;
        const char *advice;
    } rows[] = {
        {0xa0, 0xa0, "a blank"},        {0xab, 0xab, "a plain \""},     {0xbb, 0xbb, "a plain \""},
        {0x2000, 0x200f, "a blank"},    {0x2018, 0x201f, "a plain \""}, {0x2028, 0x202f, "a blank"},
        {0x2032, 0x2036, "a plain \""}, {0x2039, 0x203a, "a plain \""}, {0x205f, 0x2060, "a blank"},
        {0x3000, 0x3000, "a blank"},    {0xfeff, 0xfeff, "a blank"},    {0xff02, 0xff02, "a plain \""}};
    uint32_t code = wide_character(p);
    for (size_t i = 0; code && i < sizeof rows / sizeof *rows; i++)
        if (code >= rows[i].first && code <= rows[i].last) return rows[i].advice;
    return NULL;
}

// Describes the character at s->p for a message.
static const char *found(const struct scanner *s, char text[32]) {
    unsigned char ch = (unsigned char)*s->p;
    uint32_t wide = wide_character(s->p);
    if (ch == 0) return "the end of the text";
    if (ch == '\n' || ch == '\r') return "the end of the line";
    if (wide)
        snprintf(text, 32, "'%.*s' (U+%04X)", text_utf8_length((const unsigned char *)s->p, 4), s->p, wide);
    else if (ch < 32 || ch >= 127)
        snprintf(text, 32, "byte 0x%02x", ch);
    else
        snprintf(text, 32, "'%c'", ch);
    return text;
}

static cJSON *refuse(const struct scanner *s, const char *expected) {
    char text[32], hint[256] = "", means[RELAXED_JSON_MEANT];
    if (s->quiet) return NULL;
    const char *instead = look_alike(s->p);
    if (instead)
        snprintf(hint, sizeof hint, ", which only looks like it: write %s", instead);
    else if (s->bare)
        snprintf(
            hint, sizeof hint,
            "; the text at %d:%d has no quotes, so it ends with its line, behind the bracket in it: %s%s",
            s->bare_line, s->bare_column, *relaxed_json_meant(s->bare, means) ? "write " : "quote it", means);
    fail("%s:%d:%d: expected %s, got %s%s", s->name, s->line, column(s), expected, found(s, text), hint);
    return NULL;
}

static void step_line(struct scanner *s) {
    s->p++;
    s->line++;
    s->line_start = s->p;
}

// Skips white space and comments. Returns false after reporting a comment without end.
static bool skip(struct scanner *s) {
    for (;;) {
        if (*s->p == '\n') {
            step_line(s);
        } else if (*s->p == ' ' || *s->p == '\t' || *s->p == '\r') {
            s->p++;
        } else if (*s->p == '#' || (s->p[0] == '/' && s->p[1] == '/')) {
            s->p += strcspn(s->p, "\r\n");
        } else if (s->p[0] == '/' && s->p[1] == '*') {
            s->p += 2;
            while (*s->p && !(s->p[0] == '*' && s->p[1] == '/')) {
                if (*s->p == '\n')
                    step_line(s);
                else
                    s->p++;
            }
            if (!*s->p) return refuse(s, "'*/' to end the comment") != NULL;
            s->p += 2;
        } else {
            return true;
        }
    }
}

// Parses the four hexadecimal digits after "\u". Returns -1 if there are fewer.
static int read_hex4(const char *p) {
    char digits[5];
    snprintf(digits, sizeof digits, "%.4s", p);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16) : -1;
}

static char *put_utf8(char *out, uint32_t code) {
    static const uint8_t first[] = {0, 0xc0, 0xe0,
                                    0xf0};  // the first byte's high bits, by the bytes that follow
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *out++ = (char)(first[more] | code >> 6 * more);
    while (more--) *out++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return out;
}

// Parses one escape, with s->p at the backslash, and appends to *out. Returns false after reporting a mistake.
static bool read_escape(struct scanner *s, char **out) {
    static const char plain[] = "\"'\\/bfnrt", value[] = "\"'\\/\b\f\n\r\t";
    const char *at = s->p[1] ? strchr(plain, s->p[1]) : NULL;
    if (at) {
        *(*out)++ = value[at - plain];
        s->p += 2;
        return true;
    }
    int code = s->p[1] == 'u' ? read_hex4(s->p + 2) : -1;
    bool high = code >= 0xd800 && code < 0xdc00;
    int low = high && s->p[6] == '\\' && s->p[7] == 'u' ? read_hex4(s->p + 8) : -1;
    if (code <= 0 || (code >= 0xdc00 && code < 0xe000) || (high && (low < 0xdc00 || low > 0xdfff)))
        return refuse(s, "an escape: \\\" \\' \\\\ \\/ \\b \\f \\n \\r \\t or \\uXXXX") != NULL;
    *out = put_utf8(*out, high ? 0x10000u + ((uint32_t)(code - 0xd800) << 10) + (uint32_t)(low - 0xdc00)
                               : (uint32_t)code);
    s->p += high ? 12 : 6;
    return true;
}

// Parses a string, with s->p at its opening quote. Returns it malloc'd, or NULL after reporting a mistake.
static char *read_string(struct scanner *s) {
    const char quote = *s->p, *end = s->p + 1;
    while (*end && *end != quote && *end != '\n') end += *end == '\\' && end[1] && end[1] != '\n' ? 2 : 1;
    char *text = xcalloc((unsigned long)(end - s->p) + 1, 1), *out = text;
    s->p++;
    while (*s->p != quote) {
        bool ok = true;
        if (*s->p == '\\')
            ok = read_escape(s, &out);
        else if ((unsigned char)*s->p < 32)
            ok = refuse(s, quote == '"' ? "'\"' to end the string" : "\"'\" to end the string") != NULL;
        else
            *out++ = *s->p++;
        if (!ok) {
            free(text);
            return NULL;
        }
    }
    s->p++;
    *out = 0;
    return text;
}

static const char triple[] = "'''";

// Skips at most `most` blanks.
static void skip_indent(struct scanner *s, ptrdiff_t most) {
    for (; most > 0 && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r'); most--) s->p++;
}

// Parses the lines between triple quotes. Returns them malloc'd, without the indent of the opening quotes and
// without the last newline. Returns NULL after reporting a mistake.
static char *read_lines(struct scanner *s) {
    const ptrdiff_t indent = s->p - s->line_start;
    const char *end = strstr(s->p + 3, triple);
    if (!end) {
        refuse(s, "''' at the end of the text that begins here");
        return NULL;
    }
    char *text = xcalloc((size_t)(end - s->p), 1), *out = text;
    s->p += 3;
    skip_indent(s, PTRDIFF_MAX);
    bool first = *s->p == '\n';  // nothing follows the opening quotes: their line is not part of the text
    while (s->p < end) {
        if (*s->p == '\n') {
            if (!first) *out++ = '\n';
            first = false;
            step_line(s);
            skip_indent(s, indent);
        } else {
            if (*s->p != '\r') *out++ = *s->p;
            s->p++;
        }
    }
    s->p = end + 3;
    if (out > text && out[-1] == '\n') out--;
    *out = 0;
    return text;
}

static const char *digits(const char *p) {
    while (*p >= '0' && *p <= '9') p++;
    return p;
}

// Returns the position after the JSON number at p, or p if there is none.
static const char *number_end(const char *p) {
    const char *start = p + (*p == '-'), *end = digits(start);
    if (end == start || (*start == '0' && end > start + 1)) return p;
    if (*end == '.' && digits(end + 1) > end + 1) end = digits(end + 1);
    if (*end == 'e' || *end == 'E') {
        start = end + 1 + (end[1] == '+' || end[1] == '-');
        if (digits(start) > start) end = digits(start);
    }
    return end;
}

static const char *trim(const char *begin, const char *end) {
    while (end > begin && (end[-1] == ' ' || end[-1] == '\t')) end--;
    return end;
}

const char *relaxed_json_meant(const char *text, char out[RELAXED_JSON_MEANT]) {
    static const char *const words[][2] = {
        {"true", "true"}, {"false", "false"}, {"none", "null"}, {"null", "null"}};
    char word[48], *to = word, *end;
    const char *from = text, *stop = trim(text, text + strcspn(text, ",}]#\r\n"));
    out[0] = 0;
    if (*text == '(') {
        int n = (int)strcspn(++text, ")\r\n");
        if (text[n] == ')')
            snprintf(out, RELAXED_JSON_MEANT, "a list in brackets, [%.*s]", n < 60 ? n : 60, text);
        return out;
    }
    for (; from < stop && to < word + sizeof word - 1; from++)  // drops the _ of Python's 1_000
        if (*from != '_' || from == text || !isdigit((unsigned char)from[-1])) *to++ = *from;
    *to = 0;
    if (from < stop || !word[0]) return out;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(word, words[i][0])) snprintf(out, RELAXED_JSON_MEANT, "%s", words[i][1]);
    errno = 0;
    double x = strtod(word, &end);
    if (errno == ERANGE && x == 0)
        snprintf(out, RELAXED_JSON_MEANT, "a number that is not so small");
    else if (!*end && isfinite(x))
        snprintf(out, RELAXED_JSON_MEANT, "the number %.15g", x);
    else if (!*end)
        snprintf(out, RELAXED_JSON_MEANT, "a finite number or null, for JSON has no %s", word);
    return out;
}

// Parses true, false, null or a number if a value may end after it. Otherwise the rest of the line is a text.
static cJSON *read_bare(struct scanner *s) {
    const char *end =
        s->p;  // do not look for the line's end: if the whole document is one line, the time would be quadratic
    while (!strchr("\r\n,}]#", *end) && !(*end == '/' && (end[1] == '/' || end[1] == '*'))) end++;
    end = trim(s->p, end);
    static const char *const words[] = {"false", "true", "null"};
    for (int i = 0; i < 3; i++) {
        if ((size_t)(end - s->p) != strlen(words[i]) || strncmp(s->p, words[i], strlen(words[i])) != 0)
            continue;
        s->p = end;
        return i < 2 ? cJSON_CreateBool(i) : cJSON_CreateNull();
    }
    if (end > s->p && number_end(s->p) == end) {
        errno = 0;
        double v = strtod(s->p, NULL);
        if (!isfinite(v) || (errno == ERANGE && v == 0))
            return refuse(s, "a finite number such as 12, 0.5 or 5e8, and none so small that it is 0");
        s->p = end;
        return cJSON_CreateNumber(v);
    }
    if (strchr("\r\n{}[],:", *s->p) || look_alike(s->p))
        return refuse(s, "a value: {..}, [..], a text, a number, true, false or null");
    const char *line_end = trim(s->p, s->p + strcspn(s->p, "\r\n"));
    size_t n = (size_t)(line_end - s->p);
    char *text = xcalloc(n + 1, 1);
    memcpy(text, s->p, n);
    if (strpbrk(text, "{}[]")) {
        s->bare = s->p;
        s->bare_line = s->line;
        s->bare_column = column(s);
    }
    s->p = line_end;
    cJSON *item = cJSON_CreateString(text);
    free(text);
    return item;
}

// Parses a member's name, with or without quotes. Returns it malloc'd, or NULL after reporting a mistake.
static char *read_name(struct scanner *s) {
    if (*s->p == '"' || *s->p == '\'') return read_string(s);
    size_t n = look_alike(s->p) ? 0 : strcspn(s->p, " \t\r\n:{}[],");
    if (!n) {
        refuse(s, "a member's name");
        return NULL;
    }
    char *name = xcalloc(n + 1, 1);
    memcpy(name, s->p, n);
    s->p += n;
    return name;
}

// Skips blanks after a value, and a comma. Returns 1 if another value follows. Returns 0 if the value was the last, after
// skipping the closing bracket (an object without brackets ends with the text). Returns -1 after reporting a mistake.
static int read_separator(struct scanner *s, char closing) {
    if (!skip(s)) return -1;
    if (*s->p == ',') {
        s->p++;
        if (!skip(s)) return -1;
    }
    if (*s->p == closing) {
        s->p += closing != 0;
        return 0;
    }
    if (*s->p && !strchr(",:}]", *s->p)) return 1;
    refuse(s, closing == '}' ? "',' or '}'" : closing ? "',' or ']'" : "a member's name");
    return -1;
}

// Parses one `name: value` and adds it to object. `names` holds the object's names so far. Returns false after
// reporting a mistake.
static bool read_member(struct scanner *s, cJSON *object, struct name_map *names) {
    struct scanner at = *s;
    char *key = read_name(s);
    if (!key) return false;
    cJSON *value = NULL;
    bool is_new;
    name_map_put(names, key, 0, &is_new);
    if (!is_new) {
        if (!s->quiet)
            fail("%s:%d:%d: \"%.200s\" is given twice in one object: keep one of them", s->name, at.line,
                 column(&at), key);
        free(key);
        return false;
    }
    if (skip(s)) {
        if (*s->p != ':') {
            refuse(s, "':' after the member name");
        } else {
            s->p++;
            value = skip(s) ? read_value(s) : NULL;
        }
    }
    if (value) {  // the object takes over the name; the map keeps using it
        cJSON_AddItemToArray(object, value);
        value->string = key;
        return true;
    }
    free(key);
    return false;
}

// Parses an object or an array, with s->p at its opening bracket. rootless: an object without brackets, which ends
// with the text.
static cJSON *read_container(struct scanner *s, bool rootless) {
    bool is_object = rootless || *s->p == '{';
    char closing = rootless ? 0 : is_object ? '}' : ']';
    if (s->depth == MAX_DEPTH) return refuse(s, "at most 64 levels of nesting");
    s->depth++;
    s->p += !rootless;
    cJSON *box = is_object ? cJSON_CreateObject() : cJSON_CreateArray();
    struct name_map names = {0};
    int more = skip(s) ? 1 : -1;
    if (more == 1 && closing && *s->p == closing) {
        s->p++;
        more = 0;
    }
    while (more == 1) {
        bool ok = false;
        if (is_object) {
            ok = read_member(s, box, &names);
        } else {
            cJSON *value = read_value(s);
            ok = value && cJSON_AddItemToArray(box, value);
        }
        more = ok ? read_separator(s, closing) : -1;
    }
    s->depth--;
    name_map_free(&names);
    if (more == 0) return box;
    cJSON_Delete(box);
    return NULL;
}

static cJSON *read_value(struct scanner *s) {
    if (++s->values > RELAXED_JSON_VALUES_MAX) return refuse(s, "no further values: at most 524288 values are read");
    if (*s->p == '{' || *s->p == '[') return read_container(s, false);
    if (*s->p != '"' && *s->p != '\'') return read_bare(s);
    char *text = strncmp(s->p, triple, 3) ? read_string(s) : read_lines(s);
    cJSON *item = text ? cJSON_CreateString(text) : NULL;
    free(text);
    return item;
}

// Parses the whole text: read_root reads the value, and only blanks and comments may surround it.
static cJSON *read_all(struct scanner *s, cJSON *(*read_root)(struct scanner *s)) {
    cJSON *root = skip(s) ? read_root(s) : NULL;
    if (root && skip(s) && !*s->p) return root;
    if (root && *s->p) refuse(s, "nothing more after the value");
    cJSON_Delete(root);
    return NULL;
}

static struct scanner begin(const char *name, const char *text, bool quiet) {
    if (!strncmp(text, "\xef\xbb\xbf", 3)) text += 3;  // a byte order mark
    return (struct scanner){.name = name, .p = text, .line_start = text, .line = 1, .quiet = quiet};
}

// Parses one value, after which nothing may follow. Rejects a text without quotes, because any input could be one.
static cJSON *read_alone(struct scanner *s) {
    bool bare = *s->p != '"' && *s->p != '\'';
    cJSON *value = read_value(s);
    if (value && skip(s) && !*s->p && !(bare && cJSON_IsString(value))) return value;
    cJSON_Delete(value);
    return NULL;
}

cJSON *relaxed_json_try(const char *text) {
    struct scanner s = begin("", text, true);
    return read_all(&s, read_alone);
}

static cJSON *read_file(struct scanner *s) {
    if (*s->p == '{' || *s->p == '[') return read_value(s);
    if (!*s->p) return refuse(s, "a value: {..}, or the members of one");
    struct scanner alone = *s;  // a copy, so that a failure can be retried; line_start gives a text's indent
    alone.quiet = true;
    cJSON *value = read_alone(&alone);
    if (!value) return read_container(s, true);
    alone.quiet = s->quiet;
    *s = alone;
    return value;
}

cJSON *relaxed_json_parse(const char *name, const char *text) {
    struct scanner s = begin(name, text, false);
    return read_all(&s, read_file);
}

cJSON *relaxed_json_load(const char *path) {
    char why[FILE_WHY_MAX];
    size_t n = 0;
    char *text = file_read_whole(path, RELAXED_JSON_BYTES_MAX, &n, why);
    cJSON *root = NULL;
    if (!text)
        fail("%s: cannot open: %s", path, why);
    else if (n > 1 &&
             (!text[0] || !text[1] || !strncmp(text, "\xff\xfe", 2) || !strncmp(text, "\xfe\xff", 2)))
        fail(
            "%s: text in UTF-16, as PowerShell writes it: convert it by iconv -f UTF-16 -t UTF-8 %s > NEW.json",
            path, path);
    else if (strlen(text) != n)
        fail("%s: a NUL byte at offset %zu: this is no JSON text", path, strlen(text));
    else
        root = relaxed_json_parse(path, text);
    free(text);
    return root;
}

// ---------------------------------------------------------------- name map
struct named {
    const char *name;
    int64_t value;
};

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

int64_t name_map_put(struct name_map *m, const char *name, int64_t value, bool *added) {
    struct named *it = xcalloc(1, sizeof *it), **at;
    *it = (struct named){name, value};
    if (!(at = tsearch(it, &m->tree, by_name))) fail("out of host memory"), exit(EXIT_RUN_FAILED);
    *added = *at == it;
    m->count += *added;
    value = (*at)->value;
    if (!*added) free(it);
    return value;
}

int64_t name_map_get(const struct name_map *m, const char *name) {
    struct named **at = tfind(&(struct named){name, 0}, &m->tree, by_name);
    return at ? (*at)->value : -1;
}

void name_map_free(struct name_map *m) {
    tdestroy(m->tree, free);
    *m = (struct name_map){0};
}
