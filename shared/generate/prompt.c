#include "shared/generate/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define SEPARATORS ", \t\r\n"
#define BYTES_MAX  ((size_t)16 << 20)  // more than any model can use at once

// Returns a flag's value, or all of standard input, NUL-terminated. *bytes receives the length without that NUL.
static char *value_of(const char *flag, const char *value, size_t *bytes) {
    if (strcmp(value, "-") != 0) {
        *bytes = strlen(value);
        return xstrdup(value);
    }
    size_t room = 4096, got;
    char *text = xcalloc(room + 1, 1);
    *bytes = 0;
    while (*bytes <= BYTES_MAX && (got = fread(text + *bytes, 1, room - *bytes, stdin)) > 0) {
        *bytes += got;
        if (*bytes == room) text = xrealloc(text, (room *= 2) + 1);
    }
    text[*bytes] = 0;
    if (!ferror(stdin) && *bytes <= BYTES_MAX) return text;
    if (ferror(stdin))
        fail("%s -: standard input could not be read: %s", flag, strerror(errno));
    else
        fail("%s -: standard input has more than %zu bytes: give its end alone, as by tail -c 4096", flag,
             BYTES_MAX);
    free(text);
    return NULL;
}

static int take_ids(struct prompt *p, const char *text, size_t bytes, int32_t vocab) {
    const char *end = text + bytes;
    for (const char *at = text; (at += strspn(at, SEPARATORS)) < end;) {
        char *after;
        errno = 0;
        long id = strtol(at, &after, 10);
        size_t word = strcspn(at, SEPARATORS);
        if (errno || after == at || after != at + word)
            return fail("--prompt-ids: \"%.*s\" is not a token id; expected whole numbers, as in 15496,11",
                        word < 32 ? (int)word : 32, at);
        if (id < 0 || id >= vocab)
            return fail("--prompt-ids: %ld: the model's tokens are 0 to %d", id, vocab - 1);
        p->ids[p->count++] = (int32_t)id;
        at = after;
    }
    return 0;
}

int prompt_read(struct prompt *p, const char *text, const char *ids, int32_t vocab) {
    const char *flag = text ? "--prompt" : "--prompt-ids";
    size_t bytes;
    int rc = 0;
    *p = (struct prompt){.bytes = text != NULL};
    char *value = value_of(flag, text ? text : ids, &bytes);
    if (!value) return -1;
    p->ids = xcalloc(bytes + 1, sizeof *p->ids);  // no more ids than characters
    for (size_t i = 0; text && i < bytes; i++) p->ids[p->count++] = (unsigned char)value[i];
    if (!text) rc = take_ids(p, value, bytes, vocab);
    free(value);
    if (!rc && p->count == 0) rc = fail("%s: is empty; at least one token is needed to go on from", flag);
    return rc;
}

void prompt_free(struct prompt *p) {
    free(p->ids);
    *p = (struct prompt){0};
}
