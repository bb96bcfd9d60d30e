#include "ps/trust/job_secret.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ps/trust/key_files.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"

static int fill(void *bytes, size_t count) {
    ssize_t got;
    while ((got = getrandom(bytes, count, 0)) < 0 && errno == EINTR) continue;
    return got == (ssize_t)count ? 0 : fail("no random numbers: %s", strerror(errno));
}

int job_secret_make(uint8_t secret[JOB_SECRET_BYTES]) { return fill(secret, JOB_SECRET_BYTES); }

int job_secret_given(uint8_t secret[JOB_SECRET_BYTES]) {
    const char *text = getenv(JOB_SECRET_VARIABLE);
    if (!text || !*text) return 0;
    size_t length = strlen(text);
    if (length < JOB_SECRET_TEXT_MIN)
        return fail("the environment's " JOB_SECRET_VARIABLE
                    " has %zu characters: give every role the same %d or more, or leave it out",
                    length, JOB_SECRET_TEXT_MIN);
    crypto_generichash(secret, JOB_SECRET_BYTES, (const unsigned char *)text, length, NULL, 0);
    return 1;
}

// Only the environment of the children holds it: what setenv adds is not in this process's own /proc/PID/environ.
int job_secret_hand_down(void) {
    uint8_t secret[JOB_SECRET_BYTES];
    char text[2 * JOB_SECRET_BYTES + 1];
    int rc = job_secret_given(secret);
    if (rc == 0 && (rc = job_secret_make(secret)) == 0) {
        sodium_bin2hex(text, sizeof text, secret, sizeof secret);
        if (setenv(JOB_SECRET_VARIABLE, text, 1) != 0)
            rc = fail("cannot hand down " JOB_SECRET_VARIABLE ": %s", strerror(errno));
        sodium_memzero(text, sizeof text);
    }
    job_secret_forget(secret);
    return rc < 0 ? -1 : 0;
}

void job_secret_pair(const uint8_t secret[JOB_SECRET_BYTES], const char *purpose, struct trust_pair *out) {
    uint8_t seed[crypto_box_SEEDBYTES];
    crypto_generichash(seed, sizeof seed, (const unsigned char *)purpose, strlen(purpose), secret,
                       JOB_SECRET_BYTES);
    crypto_box_seed_keypair(out->public_key, out->secret_key, seed);
    sodium_memzero(seed, sizeof seed);
}

void job_secret_forget(uint8_t secret[JOB_SECRET_BYTES]) { sodium_memzero(secret, JOB_SECRET_BYTES); }

int trust_token_make(char token[TRUST_TOKEN_MAX]) {
    uint8_t bytes[JOB_SECRET_BYTES];
    if (fill(bytes, sizeof bytes) != 0) return -1;
    z85_key_text(bytes, token);
    job_secret_forget(bytes);
    return 0;
}

// ---------------------------------------------------------------- in a file: where
#define OPENING "starring job secret 1\n"
#define TEXT    (sizeof OPENING - 1 + Z85_KEY_CHARS + 1)  // bytes of a file
#define OTHERS  0077u
#define TMP     "/tmp"

_Static_assert(JOB_SECRET_BYTES == 32, "a secret is written as a key is");

enum place { PLACE_GIVEN, PLACE_RUN, PLACE_TMP, PLACES };

static bool own_dir(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 && S_ISDIR(about.st_mode) && about.st_uid == geteuid();
}

// This user's directories in /tmp, the n-th of them (malloc'd); NULL: there are no more. Anybody can take the plain name
// first, and then it counts for nothing: others have endings that nobody can foresee, and are known by their owner.
static char *tmp_dir(int n) {
    char *plain = xasprintf(TMP "/starring-%u", (unsigned)geteuid()), *found = NULL;
    struct stat about;
    bool usable = own_dir(plain) || (lstat(plain, &about) != 0 && errno == ENOENT);
    if (usable && n-- == 0) return plain;
    size_t length = strlen(plain) - strlen(TMP "/");
    DIR *d = opendir(TMP);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        if (strncmp(e->d_name, plain + strlen(TMP "/"), length) != 0 || e->d_name[length] != '.') continue;
        char *path = xasprintf(TMP "/%s", e->d_name);
        if (own_dir(path) && n-- == 0)
            found = path;
        else
            free(path);
    }
    if (d) closedir(d);
    free(plain);
    return found;
}

// The n-th directory of a place (malloc'd); NULL: this machine, or this shell, has none. A user who logs in by another
// way may lack the variable, so what it usually says is looked at too. After su or sudo it may still be another user's.
static char *place_dir(enum place p, int n) {
    const char *given = getenv("XDG_RUNTIME_DIR");
    if (p == PLACE_TMP) return tmp_dir(n);
    if (n > 0 || (p == PLACE_GIVEN && (!given || *given != '/'))) return NULL;
    char *run = p == PLACE_GIVEN ? xstrdup(given) : xasprintf("/run/user/%u", (unsigned)geteuid());
    char *dir = own_dir(run) ? xasprintf("%s/starring", run) : NULL;
    free(run);
    return dir;
}

// The name of the file: the port, and in which network of this host it is one; NULL: the address has no port yet.
static const char *file_name(const char *address, char name[64]) {
    const char *colon = strrchr(address, ':');
    int port = colon ? atoi(colon + 1) : 0;
    struct stat net;
    unsigned long long which = stat("/proc/self/ns/net", &net) == 0 ? (unsigned long long)net.st_ino : 0;
    if (port <= 0 || port > 65535) return NULL;
    snprintf(name, 64, "net-%llu-port-%d", which, port);
    return name;
}

// Whether a directory or a file is this user's and nobody else's.
static int check_own(const char *dir, const char *name, const struct stat *about) {
    const char *slash = *name ? "/" : "";
    if (about->st_uid != geteuid())
        return fail(
            "%s%s%s belongs to another user (%u): have it removed, or set XDG_RUNTIME_DIR to a directory of yours",
            dir, slash, name, (unsigned)about->st_uid);
    if (about->st_mode & OTHERS)
        return fail("%s%s%s: others than its owner can use it (mode %04o): chmod go= '%s%s%s'", dir, slash,
                    name, (unsigned)about->st_mode & 07777u, dir, slash, name);
    return 0;
}

// A descriptor of the place's directory. -1: it is not there; -2 after logging.
static int open_dir(const char *dir, bool make) {
    struct stat about;
    if (make && mkdir(dir, 0700) && errno != EEXIST) return fail("%s: %s", dir, strerror(errno)), -2;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return -1;
    if (fd < 0) {
        int error = errno;
        bool there = lstat(dir, &about) == 0, link = there && S_ISLNK(about.st_mode);
        if (link || !there || check_own(dir, "", &about) == 0)
            fail("%s: %s", dir, link ? "a link, where a directory was expected: remove it" : strerror(error));
        return -2;
    }
    if (fstat(fd, &about) == 0 && check_own(dir, "", &about) == 0) return fd;
    close(fd);
    return -2;
}

// ---------------------------------------------------------------- reading
// Of an open file: 1, or -1 after logging.
static int read_secret(const char *dir, const char *name, int fd, uint8_t secret[JOB_SECRET_BYTES]) {
    char text[TEXT + 2] = "";
    struct stat about;
    if (fstat(fd, &about)) return fail("%s/%s: %s", dir, name, strerror(errno));
    if (check_own(dir, name, &about)) return -1;
    ssize_t got = S_ISREG(about.st_mode) ? read(fd, text, sizeof text - 1) : 0;
    bool whole = got == (ssize_t)TEXT && !strncmp(text, OPENING, strlen(OPENING)) && text[TEXT - 1] == '\n';
    text[TEXT - 1] = 0;
    int rc = whole && z85_key_read(text + strlen(OPENING), secret) == 0 ? 1 : -1;
    sodium_memzero(text, sizeof text);
    return rc > 0 ? 1 : fail("%s/%s: not what a scheduler leaves there: remove it", dir, name);
}

// Of one place: 1; 0: it has none; -1 after logging.
static int find_in(const char *dir, const char *name, uint8_t secret[JOB_SECRET_BYTES]) {
    int at = open_dir(dir, false);
    if (at < 0) return at == -1 ? 0 : -1;
    int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY), rc = 0;
    if (fd >= 0) rc = read_secret(dir, name, fd, secret);
    if (fd < 0 && errno != ENOENT) rc = fail("%s/%s: %s", dir, name, strerror(errno));
    if (fd >= 0) close(fd);
    close(at);
    return rc;
}

int secret_file_find(const char *address, uint8_t secret[JOB_SECRET_BYTES]) {
    char name[64], *dir;
    int found = 0;
    if (!file_name(address, name)) return 0;
    for (int p = 0; p < PLACES && !found; p++)
        for (int n = 0; !found && (dir = place_dir(p, n)); n++) {
            found = find_in(dir, name, secret);
            free(dir);
        }
    return found;
}

// ---------------------------------------------------------------- writing
// Under another name first: who looks for it finds all of it or nothing.
static int write_secret(int at, const char *path, const char *name, const char *text) {
    char *error = NULL, *half = xasprintf("%s.%d", name, (int)getpid());
    unlinkat(at, half, 0);
    int fd = openat(at, half, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int rc = fd < 0 ? disk_error(&error, "%s: %s", path, strerror(errno))
                    : disk_write(fd, path, text, strlen(text), &error);
    if (!rc && renameat(at, half, at, name)) rc = disk_error(&error, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (rc) {
        unlinkat(at, half, 0);
        fail("%s", error);
    }
    free(error);
    free(half);
    return rc;
}

// In the place's directory. 0; -1 after logging; 1: it is gone again, as the last one who left it removed it.
static int leave_in(const char *dir, const char *path, const char *name, const char *text) {
    int at = open_dir(dir, true);
    if (at < 0) return at == -1 ? 1 : -1;
    struct stat about;
    int rc = fstat(at, &about) == 0 && about.st_nlink == 0 ? 1 : write_secret(at, path, name, text);
    close(at);
    return rc;
}

char *secret_file_leave(const char *bound, const uint8_t secret[JOB_SECRET_BYTES]) {
    char name[64], key[Z85_KEY_CHARS + 1], *dir = NULL;
    int rc = 1;
    if (!file_name(bound, name)) return fail("%s: no address with a port", bound), NULL;
    for (int p = 0; p < PLACES && !dir; p++) dir = place_dir(p, 0);
    if (!dir) {  // the plain name in /tmp is taken, and there is no other place
        dir = xasprintf(TMP "/starring-%u.XXXXXX", (unsigned)geteuid());
        if (!mkdtemp(dir)) {
            fail("%s: %s; set XDG_RUNTIME_DIR to a directory of yours", dir, strerror(errno));
            free(dir);
            return NULL;
        }
    }
    z85_key_text(secret, key);
    char *path = xasprintf("%s/%s", dir, name), *text = xasprintf(OPENING "%s\n", key);
    for (int tries = 0; rc > 0 && tries < 100; tries++) rc = leave_in(dir, path, name, text);
    if (rc > 0) fail("%s: somebody keeps removing it", dir);
    sodium_memzero(text, strlen(text));
    sodium_memzero(key, sizeof key);
    free(text);
    free(dir);
    if (!rc) return path;
    free(path);
    return NULL;
}

void secret_file_remove(char **path) {
    if (!*path) return;
    unlink(*path);
    *strrchr(*path, '/') = 0;
    rmdir(*path);  // if nothing else is in it
    free(*path);
    *path = NULL;
}
