// A recursive-descent reader that builds the cJSON tree itself, so that every error knows its line.
#include "shared/core/relaxed_json.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/name_map.h"
#include "shared/core/regular_file.h"

#define MAX_DEPTH   64  // nesting; configurations have four levels, and the stack stays bounded
#define COMMAS_SAID 5

struct scanner {
    const char *name;  // of the file, for messages
    const char *p;     // next character
    const char *line_start;
    int line;  // 1-based
    int depth;
    int values;  // so far
    int commas;  // that were missing
    bool quiet;
};

static cJSON *read_value(struct scanner *s);

// Describes the character at s->p for a message.
static const char *found(const struct scanner *s, char text[32]) {
    unsigned char ch = (unsigned char)*s->p;
    if (ch == 0) return "the end of the text";
    if (ch == '\n' || ch == '\r') return "the end of the line";
    if (ch < 32 || ch >= 127)
        snprintf(text, 32, "byte 0x%02x", ch);
    else
        snprintf(text, 32, "'%c'", ch);
    return text;
}

static cJSON *refuse(const struct scanner *s, const char *expected) {
    char text[32];
    if (!s->quiet)
        fail("%s:%d:%d: expected %s, got %s", s->name, s->line, (int)(s->p - s->line_start) + 1, expected,
             found(s, text));
    return NULL;
}

static void step_line(struct scanner *s) {
    s->p++;
    s->line++;
    s->line_start = s->p;
}

// Skips white space and comments; false after naming a comment without end.
static bool skip(struct scanner *s) {
    for (;;) {
        if (*s->p == '\n') {
            step_line(s);
        } else if (*s->p == ' ' || *s->p == '\t' || *s->p == '\r') {
            s->p++;
        } else if (*s->p == '#' || (s->p[0] == '/' && s->p[1] == '/')) {
            while (*s->p && *s->p != '\n') s->p++;
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

// Four hexadecimal digits after "\u"; -1 when they are not.
static int read_hex4(const char *p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char ch = p[i];
        int digit = ch >= '0' && ch <= '9'   ? ch - '0'
                    : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                    : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                             : -1;
        if (digit < 0) return -1;
        v = v * 16 + digit;
    }
    return v;
}

static char *put_utf8(char *out, uint32_t code) {
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xc0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *out++ = (char)(0xe0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    } else {
        *out++ = (char)(0xf0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 0x3f));
        *out++ = (char)(0x80 | (code >> 6 & 0x3f));
        *out++ = (char)(0x80 | (code & 0x3f));
    }
    return out;
}

// One escape, s->p at the backslash; appends to *out. false after naming the mistake.
static bool read_escape(struct scanner *s, char **out) {
    static const char plain[] = "\"\\/bfnrt", value[] = "\"\\/\b\f\n\r\t";
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
        return refuse(s, "an escape: \\\" \\\\ \\/ \\b \\f \\n \\r \\t or \\uXXXX") != NULL;
    *out = put_utf8(*out, high ? 0x10000u + ((uint32_t)(code - 0xd800) << 10) + (uint32_t)(low - 0xdc00)
                               : (uint32_t)code);
    s->p += high ? 12 : 6;
    return true;
}

// A string in double quotes, malloc'd; NULL after naming the mistake.
static char *read_string(struct scanner *s) {
    const char *end = s->p + 1;
    while (*end && *end != '"' && *end != '\n') end += *end == '\\' && end[1] && end[1] != '\n' ? 2 : 1;
    char *text = xcalloc((unsigned long)(end - s->p) + 1, 1), *out = text;
    s->p++;
    while (*s->p != '"') {
        bool ok = true;
        if (*s->p == '\\')
            ok = read_escape(s, &out);
        else if ((unsigned char)*s->p < 32)
            ok = refuse(s, "'\"' to end the string") != NULL;
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

static const char *digits(const char *p) {
    while (*p >= '0' && *p <= '9') p++;
    return p;
}

static cJSON *read_number(struct scanner *s) {
    const char *p = s->p + (*s->p == '-');
    const char *start = p;
    p = digits(p);
    bool ok = p > start && !(*start == '0' && p > start + 1);
    if (ok && *p == '.') {
        start = p + 1;
        p = digits(start);
        ok = p > start;
    }
    if (ok && (*p == 'e' || *p == 'E')) {
        start = p + 1 + (p[1] == '+' || p[1] == '-');
        p = digits(start);
        ok = p > start;
    }
    double v = ok ? strtod(s->p, NULL) : 0;
    if (!ok || !isfinite(v)) return refuse(s, "a finite number such as 12, 0.5 or 5e8");
    s->p = p;
    return cJSON_CreateNumber(v);
}

// After a value: the comma, or the line break that stands for it, or the closing bracket.
// 1: another one may follow; 0: closed (bracket consumed); -1 after naming the mistake.
static int read_separator(struct scanner *s, char closing) {
    const struct scanner behind = *s;
    if (!skip(s)) return -1;
    bool comma = *s->p == ',';
    if (comma) {
        s->p++;
        if (!skip(s)) return -1;
    }
    if (*s->p == closing) {
        s->p++;
        return 0;
    }
    if (!comma && s->line > behind.line && *s->p && !s->quiet && s->commas++ < COMMAS_SAID)
        info("%s:%d:%d: no comma behind this value: read as if there were one", s->name, behind.line,
             (int)(behind.p - behind.line_start) + 1);
    if (comma || (s->line > behind.line && *s->p)) return 1;
    refuse(s, closing == '}' ? "',' or '}'" : "',' or ']'");
    return -1;
}

// One `"name": value`, added to object, whose names so far are in `names`. false after naming the mistake.
static bool read_member(struct scanner *s, cJSON *object, struct name_map *names) {
    if (*s->p != '"') return refuse(s, "a member name in double quotes, or '}'") != NULL;
    struct scanner at = *s;
    char *key = read_string(s);
    if (!key) return false;
    cJSON *value = NULL;
    bool is_new;
    name_map_put(names, key, 0, &is_new);
    if (!is_new) {
        if (!s->quiet)
            fail("%s:%d:%d: \"%.200s\" is given twice in one object: keep one of them", s->name, at.line,
                 (int)(at.p - at.line_start) + 1, key);
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
    if (value) {  // the object takes over the name, which the map goes on using
        cJSON_AddItemToArray(object, value);
        value->string = key;
        return true;
    }
    free(key);
    return false;
}

// An object or an array, s->p at its opening bracket.
static cJSON *read_container(struct scanner *s) {
    bool is_object = *s->p == '{';
    char closing = is_object ? '}' : ']';
    if (s->depth == MAX_DEPTH) return refuse(s, "at most 64 levels of nesting");
    s->depth++;
    s->p++;
    cJSON *box = is_object ? cJSON_CreateObject() : cJSON_CreateArray();
    struct name_map names = {0};
    int more = skip(s) ? 1 : -1;
    if (more == 1 && *s->p == closing) {
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

static bool take_word(struct scanner *s, const char *word) {
    size_t n = strlen(word);
    char after = strncmp(s->p, word, n) ? '_' : s->p[n];
    if ((after >= 'a' && after <= 'z') || (after >= 'A' && after <= 'Z') || (after >= '0' && after <= '9') ||
        after == '_')
        return false;
    s->p += n;
    return true;
}

static cJSON *read_value(struct scanner *s) {
    if (++s->values > RELAXED_JSON_VALUES_MAX) return refuse(s, "no more: at most 524288 values are read");
    if (*s->p == '{' || *s->p == '[') return read_container(s);
    if (*s->p == '"') {
        char *text = read_string(s);
        cJSON *item = text ? cJSON_CreateString(text) : NULL;
        free(text);
        return item;
    }
    if (*s->p == '-' || (*s->p >= '0' && *s->p <= '9')) return read_number(s);
    if (take_word(s, "true")) return cJSON_CreateTrue();
    if (take_word(s, "false")) return cJSON_CreateFalse();
    if (take_word(s, "null")) return cJSON_CreateNull();
    return refuse(s, "a value: {..}, [..], \"a string\", a number, true, false or null");
}

static cJSON *parse(const char *name, const char *text, bool quiet) {
    if (!strncmp(text, "\xef\xbb\xbf", 3)) text += 3;  // a byte order mark
    struct scanner s = {.name = name, .p = text, .line_start = text, .line = 1, .quiet = quiet};
    cJSON *root = skip(&s) ? read_value(&s) : NULL;
    if (root && skip(&s) && !*s.p) return root;
    if (root && *s.p) refuse(&s, "nothing more after the value");
    cJSON_Delete(root);
    return NULL;
}

cJSON *relaxed_json_parse(const char *name, const char *text) { return parse(name, text, false); }

cJSON *relaxed_json_try(const char *text) { return parse("", text, true); }

cJSON *relaxed_json_load(const char *path) {
    char why[FILE_WHY_MAX];
    size_t n = 0;
    char *text = file_read_whole(path, RELAXED_JSON_BYTES_MAX, &n, why);
    cJSON *root = NULL;
    if (!text)
        fail("%s: cannot open: %s", path, why);
    else if (strlen(text) != n)
        fail("%s: a NUL byte at offset %zu: this is no JSON text", path, strlen(text));
    else
        root = relaxed_json_parse(path, text);
    free(text);
    return root;
}
