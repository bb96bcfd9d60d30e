#include "ps/trust/key_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/path.h"

#define FILE_MAX      512  // bytes of a key file: four short lines
#define OPENING       "starring key "
#define OPENING_OF_US OPENING "1\n"
#define OTHERS        0077u
#define OTHERS_WRITE  0022u

// ---------------------------------------------------------------- whose
bool trust_owner_same(struct trust_owner a, struct trust_owner b) {
    return a.role == b.role && a.rank == b.rank;
}

const char *trust_owner_name(struct trust_owner o, char text[TRUST_NAME_MAX]) {
    if (o.role == PS_SCHEDULER)
        snprintf(text, TRUST_NAME_MAX, "%s", ps_role_name(o.role));
    else
        snprintf(text, TRUST_NAME_MAX, "%s %d", ps_role_name(o.role), o.rank);
    return text;
}

// Digits alone, without a zero before others: a rank has one name.
static int read_rank(const char *text, int *rank) {
    size_t n = strspn(text, "0123456789");
    if (!n || n > 5 || text[n] || (n > 1 && text[0] == '0')) return -1;
    *rank = atoi(text);
    return *rank < TRUST_RANKS_MAX ? 0 : -1;
}

int trust_owner_read(const char *text, struct trust_owner *out) {
    static const enum ps_role ranked[] = {PS_SERVER, PS_WORKER};
    *out = (struct trust_owner){PS_SCHEDULER, 0};
    if (!strcmp(text, ps_role_name(PS_SCHEDULER))) return 0;
    for (size_t i = 0; i < sizeof ranked / sizeof *ranked; i++) {
        size_t n = strlen(ps_role_name(ranked[i]));
        out->role = ranked[i];
        if (!strncmp(text, ps_role_name(ranked[i]), n) && text[n] == ' ')
            return read_rank(text + n + 1, &out->rank);
    }
    return -1;
}

char *trust_key_path(const char *dir, struct trust_owner o) {
    char words[TRUST_NAME_MAX];
    trust_owner_name(o, words);
    char *space = strchr(words, ' ');
    if (space) *space = '-';
    return xasprintf("%s/%s.key", dir, words);
}

// ---------------------------------------------------------------- a pair
int trust_pair_make(struct trust_pair *out) {
    if (sodium_init() < 0) return fail("libsodium does not start: no keys can be made");
    crypto_box_keypair(out->public_key, out->secret_key);
    return 0;
}

void trust_pair_forget(struct trust_pair *p) { sodium_memzero(p, sizeof *p); }

// ---------------------------------------------------------------- small files
// A small text file: a plain file of this user's or root's. Its mode may have none of the bits in `forbidden`; `words` say what
// those allow.
struct trust_file {
    const char *path;
    size_t bytes_max;
    unsigned forbidden;
    const char *words;
};

// Checks that the path is a plain file of this user or root, and closed to others as its kind wants it.
static int check_file(const struct trust_file *f, int fd, size_t *bytes) {
    struct stat about;
    if (fstat(fd, &about)) return fail("%s: %s", f->path, strerror(errno));
    if (!S_ISREG(about.st_mode)) return fail("%s: not a plain file", f->path);
    if (about.st_uid != geteuid() && about.st_uid)
        return fail("%s: it is the file of another user (%u): copy it, or run as that user", f->path,
                    (unsigned)about.st_uid);
    if (about.st_mode & f->forbidden)
        return fail("%s: %s (mode %04o): chmod %s '%s'", f->path, f->words, (unsigned)about.st_mode & 07777u,
                    f->forbidden == OTHERS ? "600" : "go-w", f->path);
    if (about.st_size > (off_t)f->bytes_max)
        return fail("%s: %lld bytes: too long for what starring keygen writes", f->path,
                    (long long)about.st_size);
    *bytes = (size_t)about.st_size;
    return 0;
}

// Another user who may write there can put another of this user's files, of an earlier job say, in the place of one. Where
// the sticky bit is set others cannot.
int trust_dir_check(const char *dir) {
    struct stat about;
    if (stat(dir, &about)) return 0;  // opening a file in it tells
    if (about.st_uid != geteuid() && about.st_uid)
        return fail("%s: the directory of another user (%u), who can change who may join: copy it", dir,
                    (unsigned)about.st_uid);
    if (about.st_mode & OTHERS_WRITE && !(about.st_mode & S_ISVTX))
        return fail(
            "%s: others than its owner can write in it (mode %04o), and replace a key: chmod go-w '%s'", dir,
            (unsigned)about.st_mode & 07777u, dir);
    return 0;
}

// The file's first line is not the one that `ours` has.
static int refuse_opening(const char *path, const char *text, const char *ours) {
    size_t n = strcspn(text, "\r\n");
    if (text[n] == '\r') return fail("%s: its lines end as on Windows (CRLF): copy it again, as it is", path);
    return fail("%s: \"%.*s\": this program reads %s", path, n < 64 ? (int)n : 64, text, ours);
}

// The whole file (malloc'd, *bytes long, then a zero), or NULL after logging.
static char *read_file(const struct trust_file *f, size_t *bytes) {
    // A FIFO must not hold the run up.
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        fail("%s: %s%s", f->path, strerror(errno),
             errno == ENOENT ? ": starring keygen makes a directory of keys (docs/security.md)" : "");
        return NULL;
    }
    char *text = NULL;
    size_t n = 0;
    ssize_t got = check_file(f, fd, bytes) ? -1 : 1;
    if (got > 0) text = xcalloc(1, *bytes + 1);
    while (got > 0 && n < *bytes) {
        got = read(fd, text + n, *bytes - n);
        if (got > 0) n += (size_t)got;
        if (got < 0 && errno == EINTR) got = 1;
        if (got < 0) fail("%s: %s", f->path, strerror(errno));
    }
    close(fd);
    *bytes = n;
    if (got >= 0) return text;
    free(text);
    return NULL;
}

// The whole text as a new file of that mode: one that is there is an error.
static int write_file(const char *path, const char *text, unsigned mode) {
    char *error = NULL;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0 && errno == EEXIST)
        return fail(
            "%s is there already: starring keygen replaces no key; choose another directory, or remove this one",
            path);
    if (fd < 0) return fail("%s: %s", path, strerror(errno));
    int rc = disk_write(fd, path, text, strlen(text), &error);
    if (!rc && fsync(fd)) rc = disk_error(&error, "%s: %s", path, strerror(errno));
    close(fd);
    if (rc) {
        unlink(path);
        fail("%s", error);
    }
    free(error);
    return rc;
}

// ---------------------------------------------------------------- a role's file
int trust_key_write(const char *dir, struct trust_owner o, const struct trust_pair *p) {
    char name[TRUST_NAME_MAX], public_text[Z85_KEY_CHARS + 1], secret_text[Z85_KEY_CHARS + 1], text[FILE_MAX];
    char *path = trust_key_path(dir, o);
    z85_key_text(p->public_key, public_text);
    z85_key_text(p->secret_key, secret_text);
    snprintf(text, sizeof text, OPENING_OF_US "role %s\npublic %s\nsecret %s\n", trust_owner_name(o, name),
             public_text, secret_text);
    int rc = write_file(path, text, 0600);
    sodium_memzero(text, sizeof text);
    sodium_memzero(secret_text, sizeof secret_text);
    free(path);
    return rc;
}

// The text that follows `word` on the next line, cut out of the text; NULL: the line is another one or not whole.
static char *line_of(char **rest, const char *word) {
    char *line = *rest, *end = strchr(line, '\n');
    size_t n = strlen(word);
    if (!end || strncmp(line, word, n)) return NULL;
    *end = 0;
    *rest = end + 1;
    return line + n;
}

// A file that was cut short, or edited, is not taken for what is left of it.
static int parse_pair(const char *path, char *text, size_t bytes, struct trust_owner o,
                      struct trust_pair *out) {
    char name[TRUST_NAME_MAX];
    struct trust_owner said;
    uint8_t derived[TRUST_KEY_BYTES];
    if (!strncmp(text, OPENING, strlen(OPENING)) && strncmp(text, OPENING_OF_US, strlen(OPENING_OF_US)))
        return refuse_opening(path, text, "version 1 of key files");
    bool ours = strlen(text) == bytes && line_of(&text, OPENING "1");
    const char *role = ours ? line_of(&text, "role ") : NULL;
    const char *public_text = role ? line_of(&text, "public ") : NULL;
    const char *secret_text = public_text ? line_of(&text, "secret ") : NULL;
    if (!secret_text || *text || trust_owner_read(role, &said) ||
        z85_key_read(public_text, out->public_key) || z85_key_read(secret_text, out->secret_key))
        return fail("%s: damaged, or no key file: copy it again from the directory that starring keygen made",
                    path);
    if (!trust_owner_same(said, o))
        return fail("%s: this is the key of %s, not of %s", path, role, trust_owner_name(o, name));
    if (sodium_init() < 0 || crypto_scalarmult_base(derived, out->secret_key) ||
        sodium_memcmp(derived, out->public_key, sizeof derived))
        return fail("%s: its secret and its public key do not belong together: copy it again", path);
    return 0;
}

int trust_key_read(const char *dir, struct trust_owner o, struct trust_pair *out) {
    size_t bytes = 0;
    char *path = trust_key_path(dir, o);
    const struct trust_file f = {path, FILE_MAX, OTHERS, "others than its owner can read a secret key"};
    char *text = read_file(&f, &bytes);
    int rc = text ? parse_pair(path, text, bytes, o, out) : -1;
    if (rc) trust_pair_forget(out);
    if (text) sodium_memzero(text, bytes);
    free(text);
    free(path);
    return rc;
}

// ---------------------------------------------------------------- which one is here
// The rank in "worker-3.key"; -1: another file's name.
static int rank_in_name(const char *name, enum ps_role role) {
    size_t n = strlen(ps_role_name(role)), all = strlen(name);
    char digits[TRUST_NAME_MAX];
    int rank;
    if (strncmp(name, ps_role_name(role), n) || name[n] != '-' || !ends_with(name, ".key")) return -1;
    snprintf(digits, sizeof digits, "%.*s", (int)(all - n - 1 - strlen(".key")), name + n + 1);
    return read_rank(digits, &rank) ? -1 : rank;
}

int trust_key_only(const char *dir, enum ps_role role) {
    DIR *d = opendir(dir);
    int found = -1, count = 0;
    if (!d)
        return fail("%s: %s: starring keygen makes a directory of keys (docs/security.md)", dir,
                    strerror(errno));
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        int rank = rank_in_name(e->d_name, role);
        if (rank < 0) continue;
        found = rank;
        count++;
    }
    closedir(d);
    const char *name = ps_role_name(role);
    if (!count)
        return fail("%s: no key of a %s is in it: copy %s-R.key and " TRUST_PUBLIC " here", dir, name, name);
    if (count > 1)
        return fail("%s has the keys of %d %ss: say with --rank R which one this is", dir, count, name);
    return found;
}

// ---------------------------------------------------------------- the list of public keys
#define LIST_OPENING       "starring public keys "
#define LIST_OPENING_OF_US LIST_OPENING "1\n"
#define ROW_MAX            (TRUST_NAME_MAX + Z85_KEY_CHARS + 2)
#define LIST_MAX           (64 + (size_t)2 * TRUST_RANKS_MAX * ROW_MAX)

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
    if (strncmp(text, LIST_OPENING, strlen(LIST_OPENING)) || strlen(text) != bytes)
        return fail("%s: not the public keys that starring keygen writes", path);
    if (strncmp(text, LIST_OPENING_OF_US, strlen(LIST_OPENING_OF_US)))
        return refuse_opening(path, text, "version 1 of public keys");
    int number = 2;
    for (char *line = text + strlen(LIST_OPENING_OF_US), *end; *line; line = end + 1, number++) {
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
    const struct trust_file f = {path, LIST_MAX, OTHERS_WRITE,
                                 "others than its owner can change who may join"};
    struct allow_list *a = NULL;
    char *text = read_file(&f, &bytes);
    if (text) a = allow_list_create();
    if (text && parse(path, text, bytes, a)) allow_list_destroy(&a);
    free(text);
    free(path);
    return a;
}

int allow_list_write(const struct allow_list *a, const char *dir) {
    size_t room = strlen(LIST_OPENING_OF_US) + (size_t)a->count * ROW_MAX + 1, n = 0;
    char *path = xasprintf("%s/" TRUST_PUBLIC, dir), *text = xcalloc(1, room);
    n += (size_t)snprintf(text, room, LIST_OPENING_OF_US);
    for (int i = 0; i < a->count; i++) {
        char name[TRUST_NAME_MAX], key[Z85_KEY_CHARS + 1];
        z85_key_text(a->all[i]->key, key);
        n += (size_t)snprintf(text + n, room - n, "%s %s\n", trust_owner_name(a->all[i]->owner, name), key);
    }
    int rc = write_file(path, text, 0644);
    free(text);
    free(path);
    return rc;
}

// ---------------------------------------------------------------- Z85
void z85_key_text(const uint8_t key[32], char text[Z85_KEY_CHARS + 1]) { zmq_z85_encode(text, key, 32); }

int z85_key_read(const char *text, uint8_t key[32]) {
    return strlen(text) == Z85_KEY_CHARS && zmq_z85_decode(key, text) ? 0 : -1;
}
