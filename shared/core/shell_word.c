#include "shared/core/shell_word.h"

#include <string.h>

#include "shared/core/error.h"

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
