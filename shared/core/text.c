#include "shared/core/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shared/core/error.h"

#define NAME_MAX_LENGTH 64

size_t edit_distance(const char *word, const char *name) {
    // row[i % 3][j]: distance of the first i characters of word from the first j of name
    size_t row[3][NAME_MAX_LENGTH + 1], n = strnlen(name, NAME_MAX_LENGTH), i = 0;
    for (size_t j = 0; j <= n; j++) row[0][j] = j;
    for (; word[i]; i++) {
        const size_t *before = row[(i + 2) % 3], *above = row[i % 3];
        size_t *here = row[(i + 1) % 3];
        here[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t best = above[j] + (word[i] != name[j]);
            if (here[j] + 1 < best) best = here[j] + 1;
            if (above[j + 1] + 1 < best) best = above[j + 1] + 1;
            bool swapped = i && j && word[i] == name[j - 1] && word[i - 1] == name[j];
            if (swapped && before[j - 1] + 1 < best) best = before[j - 1] + 1;
            here[j + 1] = best;
        }
    }
    return row[i % 3][n];
}

const char *text_nearest(const char *word, const char *const *names, size_t count) {
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        size_t d = edit_distance(word, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

#define FEW_BYTES 10000  // fewer are printed as bytes: they would be 0.00 MiB

const char *format_bytes(char text[24], double bytes) {
    static const char *const unit[] = {"MiB", "GiB", "TiB", "PiB"};
    if (bytes < FEW_BYTES) {
        snprintf(text, 24, "%.0f B", bytes);
        return text;
    }
    double x = bytes / (1 << 20);
    int i = 0;
    while (x >= 999.5 && i < 3) {
        x /= 1024;
        i++;
    }
    int decimals = x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2;
    snprintf(text, 24, "%.*f %s", decimals, x, unit[i]);
    return text;
}

int text_bytes(const char *text, int64_t *out) {
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end), factor = 1;
    bool number = strchr("0123456789.", *text) && *text && !memchr(text, 'x', (size_t)(end - text));
    end += strspn(end, " ");
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (unit) {
        bool decimal = !strcasecmp(++end, "b");
        for (const char *u = units; u <= unit; u++) factor *= decimal ? 1000 : 1024;
        if (*end && !decimal && strcasecmp(end, "i") != 0 && strcasecmp(end, "ib") != 0) return -1;
    } else if (*end && strcasecmp(end, "b") != 0) {
        return -1;
    }
    if (!number || (!unit && value != floor(value)) || !(value * factor >= 1 && value * factor <= 0x1p50))
        return -1;
    *out = (int64_t)(value * factor);
    return 0;
}

const char *format_count(char text[32], int64_t n) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    int out = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0 && digits[i - 1] != '-') text[out++] = ',';
        text[out++] = digits[i];
    }
    text[out] = 0;
    return text;
}

const char *format_params(char text[96], int64_t trained, int64_t frozen) {
    char a[32], b[32];
    if (frozen)
        snprintf(text, 96, "%s of %s parameters trained", format_count(a, trained),
                 format_count(b, trained + frozen));
    else
        snprintf(text, 96, "%s parameters", format_count(a, trained));
    return text;
}

const char *format_left(char text[32], double seconds) {
    int minutes = (int)fmin(seconds / 60, 1e8);
    if (minutes < 60)
        snprintf(text, 32, "%d:%02d left", minutes, (int)seconds % 60);
    else
        snprintf(text, 32, "%d h %02d min left", minutes / 60, minutes % 60);
    return text;
}

const char *format_utc(char text[32], time_t t) {
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return text;
}

void shortest_f32(char text[32], float x) {
    int digits = 1;
    do {
        snprintf(text, 32, "%.*g", digits++, (double)x);
    } while (strtof(text, NULL) != x && digits <= 9);
}

void shortest_f64(char text[32], double x) {
    int digits = 1;
    do {
        snprintf(text, 32, "%.*g", digits++, x);
    } while (strtod(text, NULL) != x && digits <= 17);
}

char *shell_word(const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@%";
    size_t n = strlen(text);
    if (n && strspn(text, plain) == n) return xstrdup(text);
    char *out = xcalloc(4 * n + 3, 1), *p = out;
    *p++ = '\'';
    for (const char *s = text; *s; s++) {
        if (*s == '\'') {
            memcpy(p, "'\\''", 4);
            p += 4;
        } else {
            *p++ = *s;
        }
    }
    *p = '\'';
    return out;
}

const char *program_word(char text[PROGRAM_WORD]) {
    char *word = shell_word(program_invocation_name);
    snprintf(text, PROGRAM_WORD, "%s", word);
    free(word);
    return text;
}

const char *text_count(const char *text, int *out) {
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 9) return NULL;
    *out = atoi(text);
    return text + digits;
}

void text_add(char **text, const char *fmt, ...) {
    char *more = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&more, fmt, ap) < 0) more = NULL;
    va_end(ap);
    char *all = xasprintf("%s%s", *text ? *text : "", more ? more : "");
    free(more);
    free(*text);
    *text = all;
}

const char *text_shorten(char *out, size_t size, const char *text) {
    size_t length = strlen(text), room = size - sizeof " ..", head = room / 2;
    snprintf(out, size, "%s", text);
    if (length < size) return out;
    while (head > 0 && text[head] != ' ') head--;
    const char *tail = text + length - (room - head);
    while (*tail && *tail != ' ') tail++;
    snprintf(out, size, "%.*s%s..%s", (int)head, text, head ? " " : "", tail);
    return out;
}

int text_utf8_length(const unsigned char *s, int64_t n) {
    int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (length > n) return 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

uint32_t text_utf8_code(const char *text, int *length) {
    const unsigned char *s = (const unsigned char *)text;
    *length = text_utf8_length(s, (int64_t)strnlen(text, 4));
    uint32_t code = *length > 1 ? *s & (0x7fu >> *length) : *length ? *s : 0;
    for (int i = 1; i < *length; i++) code = code << 6 | (s[i] & 0x3f);
    return code;
}

// ---------------------------------------------------------------- version
const char *starring_revision = NULL;
