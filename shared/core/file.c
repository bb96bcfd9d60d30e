#include "shared/core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);
    return n > k && strcmp(name + n - k, suffix) == 0;
}

bool ends_like(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);
    return n > k && !strcasecmp(name + n - k, suffix);
}

char *without_slashes(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    return xasprintf("%.*s", (int)n, path);
}

bool is_hub_name(const char *given) {
    const char *slash = strchr(given, '/');
    if (!slash || strchr(slash + 1, '/') || !slash[1] || slash == given || strchr(".~", *given)) return false;
    char *folder = xasprintf("%.*s", (int)(slash - given), given);
    bool yes = access(folder, F_OK) != 0;
    free(folder);
    return yes;
}

bool has_file(const char *dir, const char *name) {
    char *path = xasprintf("%s/%s", dir, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

void path_first_line(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "re");
    out[0] = 0;
    if (f && fgets(out, (int)size, f)) out[strcspn(out, "\n")] = 0;
    if (f) fclose(f);
}

int dir_make(const char *path) {
    char *part = xstrdup(path);
    int rc = 0;
    for (char *p = part + (*part != 0); !rc; p++) {
        char end = *p;
        if (end && end != '/') continue;
        *p = 0;
        rc = mkdir(part, 0777) && errno != EEXIST ? -1 : 0;
        *p = end;
        if (!end) break;
    }
    free(part);
    return rc;
}

int dir_possible(const char *dir, const char *option) {
    char *path = xstrdup(dir);
    struct stat about;
    while (*path && stat(path, &about)) {
        char *slash = strrchr(path, '/');
        path[!slash ? 0 : slash == path ? 1 : slash - path] = 0;
    }
    const char *found = *path ? path : ".";
    char *tried = xasprintf("%s/.starring-XXXXXX", found);
    int rc = 0;
    if (*path && !S_ISDIR(about.st_mode))
        rc = fail("%s: is a file, not a directory: choose another %s", found, option);
    else if (!mkdtemp(tried))
        rc = fail("%s: nothing can be written in %s: %s; choose another %s", dir, found, strerror(errno),
                  option);
    else
        rmdir(tried);
    free(tried);
    free(path);
    return rc;
}

// ---------------------------------------------------------------- regular file
#define READ_BYTES ((size_t)1 << 16)  // the first buffer; files of /proc and /sys do not report their size

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "is a directory, not a file"
           : S_ISFIFO(mode) ? "is a pipe, not a regular file: write its bytes to a file first"
           : S_ISSOCK(mode) ? "is a socket, not a regular file"
           : S_ISCHR(mode)  ? "is a device, not a regular file"
           : S_ISBLK(mode)  ? "is a block device, not a regular file"
                            : "is not a regular file";
}

static int refuse(int fd, char why[FILE_WHY_MAX], const char *text, int error) {
    if (fd >= 0) close(fd);
    snprintf(why, FILE_WHY_MAX, "%s", text);
    errno = error;
    return -1;
}

int file_open(const char *path, int64_t *bytes, char why[FILE_WHY_MAX]) {
    struct stat st;
    // Check the kind before the open, because opening some devices has an effect, and again after it: the path may name
    // another file by then.
    if (stat(path, &st)) {
        int error = errno;
        bool link = error == ENOENT && !lstat(path, &st);
        return refuse(-1, why, link ? "is a link to a file that is not there" : strerror(error), error);
    }
    if (!S_ISREG(st.st_mode))
        return refuse(-1, why, kind_of(st.st_mode), S_ISDIR(st.st_mode) ? EISDIR : EINVAL);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return refuse(fd, why, strerror(errno), errno);
    if (fstat(fd, &st)) return refuse(fd, why, strerror(errno), errno);
    if (!S_ISREG(st.st_mode)) return refuse(fd, why, kind_of(st.st_mode), EINVAL);
    if (bytes) *bytes = (int64_t)st.st_size;
    return fd;
}

FILE *file_open_stream(const char *path, char why[FILE_WHY_MAX]) {
    int fd = file_open(path, NULL, why);
    if (fd < 0) return NULL;
    FILE *f = fdopen(fd, "r");
    if (!f) refuse(fd, why, strerror(errno), errno);
    return f;
}

static int too_large(int fd, char why[FILE_WHY_MAX], size_t limit) {
    char text[FILE_WHY_MAX];
    snprintf(text, sizeof text, "is too large: at most %zu bytes are read", limit);
    return refuse(fd, why, text, EFBIG);
}

// Returns the descriptor that a path of /dev or /proc names, or -1.
static int descriptor_of(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (!strcmp(path, "/dev/stdin")) return 0;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(folders[i]);
        char *end;
        if (strncmp(path, folders[i], n) != 0 || path[n] < '0' || path[n] > '9') continue;
        long fd = strtol(path + n, &end, 10);
        if (!*end && fd <= INT_MAX) return (int)fd;
    }
    return -1;
}

int file_settle(const char *path, size_t limit, char why[FILE_WHY_MAX]) {
    struct stat st;
    int fd = descriptor_of(path);
    if (fd < 0 || fstat(fd, &st) || !S_ISFIFO(st.st_mode)) return 0;
    int memory = memfd_create("pipe", MFD_CLOEXEC);
    if (memory < 0) return refuse(-1, why, strerror(errno), errno);
    char block[1 << 12];
    size_t length = 0;
    ssize_t got;
    while ((got = read(fd, block, sizeof block)) != 0) {
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 || write(memory, block, (size_t)got) != got)
            return refuse(memory, why, strerror(errno), errno);
        if ((length += (size_t)got) > limit) return too_large(memory, why, limit);
    }
    bool placed = dup2(memory, fd) == fd;  // without close-on-exec, like the pipe
    return placed ? close(memory) : refuse(memory, why, strerror(errno), errno);
}

char *file_of_others(const char *path) {
    int fd = descriptor_of(path);
    return fd < 0 ? xstrdup(path) : xasprintf("/proc/%d/fd/%d", (int)getpid(), fd);
}

char *file_read_whole(const char *path, size_t limit, size_t *bytes, char why[FILE_WHY_MAX]) {
    int64_t told = 0;
    int fd = file_open(path, &told, why);
    if (fd < 0) return NULL;
    if ((uint64_t)told > limit) {
        too_large(fd, why, limit);
        return NULL;
    }
    size_t room = told > 0 ? (size_t)told + 1 : READ_BYTES, length = 0;
    char *text = xcalloc(room + 1, 1);
    ssize_t got;
    while ((got = read(fd, text + length, room - length)) != 0) {
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            refuse(fd, why, strerror(errno), errno);
            free(text);
            return NULL;
        }
        length += (size_t)got;
        if (length > limit) {
            too_large(fd, why, limit);
            free(text);
            return NULL;
        }
        if (length == room) text = xrealloc(text, (room *= 2) + 1);
    }
    close(fd);
    text[length] = 0;
    *bytes = length;
    return text;
}

// ---------------------------------------------------------------- mapped file
// Entries are never removed from the list but reused, so that the handler may walk it at any time.
struct mapping {
    _Atomic uintptr_t base;  // 0: free
    _Atomic size_t bytes;
    _Atomic(char *) name;  // freed and replaced only while base is 0
    struct mapping *next;
};

static _Atomic(struct mapping *) mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // held for changes of the list
static struct sigaction before;

// ---------------------------------------------------------------- the handler: only async-signal-safe calls
static void put(char *line, size_t room, size_t *at, const char *text) {
    for (; *text && *at + 1 < room; text++) line[(*at)++] = *text;
}

static void on_sigbus(int signal, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t address = (uintptr_t)info->si_addr;
    const struct mapping *m = info->si_code > 0 ? atomic_load(&mappings) : NULL;
    while (m && address - atomic_load(&m->base) >= atomic_load(&m->bytes)) m = m->next;
    if (!m) {  // not one of our mappings: let the signal end the process as it does without a handler
        sigaction(SIGBUS, &before, NULL);
        if (info->si_code <= 0) raise(signal);
        return;
    }
    char line[1200];
    size_t n = 0;
    put(line, sizeof line, &n, "starring: error: ");
    if (*error_label()) {
        put(line, sizeof line, &n, "[");
        put(line, sizeof line, &n, error_label());
        put(line, sizeof line, &n, "] ");
    }
    put(line, sizeof line, &n, atomic_load(&m->name));
    put(line, sizeof line, &n,
        ": was cut short while it was read, or its disk failed: put it back as it was, and start again\n");
    ssize_t said = write(STDERR_FILENO, line, n);
    (void)said;
    _exit(EXIT_RUN_FAILED);
}

// ---------------------------------------------------------------- the list
static void install(void) {
    struct sigaction a = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, &before);
}

static struct mapping *enter(const void *base, size_t bytes, const char *what, const char *path) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    struct mapping *m = atomic_load(&mappings);
    while (m && atomic_load(&m->base)) m = m->next;
    if (!m) {
        m = xcalloc(1, sizeof *m);
        m->next = atomic_load(&mappings);
        atomic_store(&mappings, m);
    }
    free(atomic_load(&m->name));
    atomic_store(&m->name, xasprintf("%s%s", what, path));
    atomic_store(&m->bytes, bytes);
    atomic_store(&m->base, (uintptr_t)base);
    pthread_mutex_unlock(&lock);
    return m;
}

int mapped_file_open(struct mapped_file *m, const char *what, const char *path, char why[FILE_WHY_MAX]) {
    int64_t bytes = 0;
    int fd = file_open(path, &bytes, why);
    *m = (struct mapped_file){0};
    if (fd < 0) return -1;
    void *base = bytes > 0 ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    int error = errno;
    close(fd);
    if (base == MAP_FAILED) {
        snprintf(why, FILE_WHY_MAX, "cannot map: %s", strerror(error));
        return -1;
    }
    if (base) *m = (struct mapped_file){base, (size_t)bytes, enter(base, (size_t)bytes, what, path)};
    return 0;
}

void mapped_file_close(struct mapped_file *m) {
    if (m->base) {
        // Clear the entry before munmap: another mapping may then get the same address.
        pthread_mutex_lock(&lock);
        atomic_store(&m->entry->base, 0);
        atomic_store(&m->entry->bytes, 0);
        pthread_mutex_unlock(&lock);
        munmap((void *)(uintptr_t)m->base, m->bytes);
    }
    *m = (struct mapped_file){0};
}
