#include "ps/trust/allow_list.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/trust/z85.h"
#include "shared/core/error.h"

#define OPENING       "starring public keys "
#define OPENING_OF_US OPENING "1\n"
#define ROW_MAX       (TRUST_NAME_MAX + Z85_KEY_CHARS + 2)
#define FILE_MAX      (64 + (size_t)2 * TRUST_RANKS_MAX * ROW_MAX)
#define OTHERS_WRITE  0022u

struct member {
    struct trust_owner owner;
    uint8_t key[TRUST_KEY_BYTES];
};

// Two trees over the same entries: a key is looked up at every connection, a name at every message.
struct allow_list {
    void *by_key, *by_owner;
    struct member **all;
    int count, room;
    int of_role[PS_ROLES];
};

static int compare_keys(const void *a, const void *b) {
    const struct member *x = a, *y = b;
    return memcmp(x->key, y->key, TRUST_KEY_BYTES);
}

static int compare_owners(const void *a, const void *b) {
    const struct member *x = a, *y = b;
    if (x->owner.role != y->owner.role) return x->owner.role < y->owner.role ? -1 : 1;
    return (x->owner.rank > y->owner.rank) - (x->owner.rank < y->owner.rank);
}

struct allow_list *allow_list_create(void) {
    return xcalloc(1, sizeof(struct allow_list));
}

static const struct member *find(void *const *tree, const struct member *e,
                                 int (*compare)(const void *, const void *)) {
    struct member *const *node = tfind(e, tree, compare);
    return node ? *node : NULL;
}

int allow_list_add(struct allow_list *a, struct trust_owner o, const uint8_t key[TRUST_KEY_BYTES]) {
    struct member *e = xcalloc(1, sizeof *e);
    e->owner = o;
    memcpy(e->key, key, TRUST_KEY_BYTES);
    if (find(&a->by_key, e, compare_keys) || find(&a->by_owner, e, compare_owners)) {
        free(e);
        return -1;
    }
    if (a->count == a->room) {
        a->room = a->room ? 2 * a->room : 16;
        a->all = xrealloc(a->all, sizeof(*a->all) * (size_t)a->room);
    }
    if (!tsearch(e, &a->by_key, compare_keys) || !tsearch(e, &a->by_owner, compare_owners)) abort();
    a->all[a->count++] = e;
    a->of_role[o.role]++;
    return 0;
}

static void leave(void *entry) { (void)entry; }

void allow_list_destroy(struct allow_list **list) {
    struct allow_list *a = *list;
    if (!a) return;
    tdestroy(a->by_key, leave);
    tdestroy(a->by_owner, leave);
    for (int i = 0; i < a->count; i++) free(a->all[i]);
    free(a->all);
    free(a);
    *list = NULL;
}

bool allow_list_owner(const struct allow_list *a, const uint8_t key[TRUST_KEY_BYTES],
                      struct trust_owner *out) {
    struct member wanted = {0};
    memcpy(wanted.key, key, TRUST_KEY_BYTES);
    const struct member *e = find(&a->by_key, &wanted, compare_keys);
    if (e) *out = e->owner;
    return e != NULL;
}

const uint8_t *allow_list_key(const struct allow_list *a, struct trust_owner o) {
    const struct member wanted = {.owner = o}, *e = find(&a->by_owner, &wanted, compare_owners);
    return e ? e->key : NULL;
}

int allow_list_count(const struct allow_list *a, enum ps_role role) { return a->of_role[role]; }

// ---------------------------------------------------------------- the file
// "worker 3 KEY"; the line is cut into its parts.
static int parse_line(const char *path, int number, char *line, struct allow_list *a) {
    struct trust_owner o;
    uint8_t key[TRUST_KEY_BYTES];
    char *space = strrchr(line, ' ');
    if (space) *space = 0;
    if (!space || trust_owner_read(line, &o) || z85_key_read(space + 1, key))
        return fail("%s:%d: expected ROLE RANK KEY, as in \"worker 3 ...\"", path, number);
    if (!allow_list_add(a, o, key)) return 0;
    return fail("%s:%d: %s, or its key, is in it twice", path, number, line);
}

static int parse(const char *path, char *text, size_t bytes, struct allow_list *a) {
    if (strncmp(text, OPENING, strlen(OPENING)) || strlen(text) != bytes)
        return fail("%s: not the public keys that starring keygen writes", path);
    if (strncmp(text, OPENING_OF_US, strlen(OPENING_OF_US)))
        return trust_file_other(path, text, "version 1 of public keys");
    int number = 2;
    for (char *line = text + strlen(OPENING_OF_US), *end; *line; line = end + 1, number++) {
        end = strchr(line, '\n');
        if (!end) return fail("%s:%d: the file ends within a line: copy it again", path, number);
        *end = 0;
        if (parse_line(path, number, line, a)) return -1;
    }
    if (!allow_list_key(a, (struct trust_owner){PS_SCHEDULER, 0}))
        return fail("%s: the scheduler's key is not in it", path);
    return 0;
}

struct allow_list *allow_list_read(const char *dir) {
    size_t bytes = 0;
    if (trust_dir_check(dir)) return NULL;
    char *path = xasprintf("%s/" TRUST_PUBLIC, dir);
    const struct trust_file f = {path, FILE_MAX, OTHERS_WRITE,
                                 "others than its owner can change who may join"};
    struct allow_list *a = NULL;
    char *text = trust_file_read(&f, &bytes);
    if (text) a = allow_list_create();
    if (text && parse(path, text, bytes, a)) allow_list_destroy(&a);
    free(text);
    free(path);
    return a;
}

int allow_list_write(const struct allow_list *a, const char *dir) {
    size_t room = strlen(OPENING_OF_US) + (size_t)a->count * ROW_MAX + 1, n = 0;
    char *path = xasprintf("%s/" TRUST_PUBLIC, dir), *text = xcalloc(1, room);
    n += (size_t)snprintf(text, room, OPENING_OF_US);
    for (int i = 0; i < a->count; i++) {
        char name[TRUST_NAME_MAX], key[Z85_KEY_CHARS + 1];
        z85_key_text(a->all[i]->key, key);
        n += (size_t)snprintf(text + n, room - n, "%s %s\n", trust_owner_name(a->all[i]->owner, name), key);
    }
    int rc = trust_file_write(path, text, 0644);
    free(text);
    free(path);
    return rc;
}
