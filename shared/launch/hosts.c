#include "shared/launch/hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/text.h"

// slots: a number, or NULL: 1. from: the option, or file and line. The login ends up on ssh's command line, where it must not
// look like an option, and in a shell's.
static int add(struct hosts *h, const char *from, char *login, const char *slots) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@:%";
    char *name = strrchr(login, '@') ? strrchr(login, '@') + 1 : login;
    size_t n = strlen(name);
    int count = 1;
    if (*name == '[' && name[n - 1] == ']') {
        name[n - 1] = 0;
        memmove(name, name + 1, n - 1);
    } else if (strchr(name, ':')) {
        return fail("%s: %s: write an IPv6 address in brackets, [%s]", from, login, name);
    }
    if (!*name || *login == '-' || *login == '@' || strspn(login, plain) != strlen(login))
        return fail("%s: \"%s\" is not the name of a host", from, login);
    const char *end = slots ? text_count(slots, &count) : "";
    if (!end || *end || count < 1 || count > HOSTS_RANKS_MAX - h->ranks)
        return fail("%s: %s: %s slots: give a number from 1 on, all together %d at most", from, login, slots,
                    HOSTS_RANKS_MAX);
    for (int i = 0; i < h->count; i++)
        if (!strcmp(h->host[i].login, login))
            return fail("%s: %s comes twice: give it once, with all its slots", from, login);
    h->host = xrealloc(h->host, (size_t)(h->count + 1) * sizeof *h->host);
    struct host *added = &h->host[h->count++];
    *added = (struct host){.login = xstrdup(login), .slots = count, .first = h->ranks};
    added->name = added->login + (name - login);
    h->ranks += count;
    return 0;
}

int hosts_parse(struct hosts *out, const char *list) {
    char *copy = xstrdup(list), *rest = copy, *part;
    int rc = 0;
    *out = (struct hosts){0};
    while (!rc && (part = strsep(&rest, ","))) {
        char *bracket = strrchr(part, ']'), *colon = strchr(bracket ? bracket : part, ':');
        if (colon && strchr(colon + 1, ':')) colon = NULL;  // an address without brackets
        if (colon) *colon = 0;
        rc = add(out, "--hosts", part, colon ? colon + 1 : NULL);
    }
    free(copy);
    return rc;
}

// A line without its comment. The words behind the host's name.
static int add_line(struct hosts *h, const char *from, char *line) {
    static const char blank[] = " \t\r\n";
    char *rest = line, *login = NULL, *slots = NULL, *word;
    while ((word = strsep(&rest, blank))) {
        if (!*word) continue;
        if (!login)
            login = word;
        else if (!strncmp(word, "slots=", 6))
            slots = word + 6;
        else if (strncmp(word, "max_slots=", 10) && strncmp(word, "max-slots=", 10))
            return fail("%s: \"%s\": a line is: HOST slots=N", from, word);
    }
    return login ? add(h, from, login, slots) : 0;
}

int hosts_read(struct hosts *out, const char *path) {
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    int rc = 0;
    *out = (struct hosts){0};
    if (!f) return fail("--hostfile %s: %s", path, strerror(errno));
    for (int number = 1; !rc && getline(&line, &room, f) >= 0; number++) {
        char *from = xasprintf("--hostfile %s, line %d", path, number);
        line[strcspn(line, "#")] = 0;
        rc = add_line(out, from, line);
        free(from);
    }
    if (!rc && ferror(f)) rc = fail("--hostfile %s: %s", path, strerror(errno));
    if (!rc && !out->count) rc = fail("--hostfile %s: no line of it names a host: HOST slots=N", path);
    free(line);
    fclose(f);
    return rc;
}

void hosts_free(struct hosts *h) {
    for (int i = 0; i < h->count; i++) free(h->host[i].login);
    free(h->host);
    *h = (struct hosts){0};
}
