#include "shared/core/mapped_file.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/core/error.h"

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
    if (!m) {  // not one of our mappings: as without a handler
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
        // Clears the entry first: another mapping may get the same address.
        pthread_mutex_lock(&lock);
        atomic_store(&m->entry->base, 0);
        atomic_store(&m->entry->bytes, 0);
        pthread_mutex_unlock(&lock);
        munmap((void *)(uintptr_t)m->base, m->bytes);
    }
    *m = (struct mapped_file){0};
}
