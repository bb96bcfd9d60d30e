#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <ftw.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

#define FILES_MAX 32

static struct fuzz_target *targets;
static char dir[96];
static struct {
    char name[64];
    int fd;
} files[FILES_MAX];
static int file_count;

void fuzz_list(struct fuzz_target *t) {
    struct fuzz_target **at = &targets;
    while (*at && strcmp((*at)->name, t->name) < 0) at = (struct fuzz_target **)&(*at)->next;
    t->next = *at;
    *at = t;
}

const struct fuzz_target *fuzz_targets(void) { return targets; }

void fuzz_begin(void) { error_quiet(1); }

void fuzz_found(const char *file, int line, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "%s:%d: FOUND: ", file, line);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

// ---------------------------------------------------------------- bytes
uint8_t fuzz_u8(struct fuzz_bytes *b) {
    if (!b->left) return 0;
    b->left--;
    return *b->p++;
}

uint64_t fuzz_word(struct fuzz_bytes *b, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)fuzz_u8(b) << (8 * i);
    return x;
}

uint64_t fuzz_below(struct fuzz_bytes *b, uint64_t n) {
    int bytes = 1;
    while (bytes < 8 && n > UINT64_C(1) << (8 * bytes)) bytes++;
    return n > 1 ? fuzz_word(b, bytes) % n : 0;
}

int64_t fuzz_number(struct fuzz_bytes *b) {
    uint8_t kind = fuzz_u8(b);
    if (kind < 64) return kind;
    if (kind < 127) return (int64_t)((UINT64_C(1) << (kind - 64)) - 1);
    if (kind < 190) return (int64_t)(UINT64_C(1) << (kind - 127));
    if (kind < 250) return (int64_t)(UINT64_C(1) << (kind - 190)) + 1;
    return (int64_t)fuzz_word(b, kind == 255 ? 8 : kind - 249);
}

char *fuzz_text(struct fuzz_bytes *b) {
    size_t n = b->left ? strnlen((const char *)b->p, b->left) : 0;
    char *text = xcalloc(n + 1, 1);
    if (n) memcpy(text, b->p, n);
    b->p += n < b->left ? n + 1 : n;
    b->left -= n < b->left ? n + 1 : n;
    return text;
}

// ---------------------------------------------------------------- files
static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
    (void)st, (void)kind, (void)where;
    remove(path);
    return 0;
}

static void remove_all(void) {
    if (dir[0]) nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    dir[0] = 0;
}

#ifdef FUZZING
void __sanitizer_set_death_callback(void (*callback)(void));
size_t __sanitizer_get_current_allocated_bytes(void);
size_t fuzz_allocated(void) { return __sanitizer_get_current_allocated_bytes(); }
#else
size_t fuzz_allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}
#endif

const char *fuzz_dir(void) {
    const char *given = getenv("STARRING_FUZZ_DIR");
    if (dir[0]) return dir;
    snprintf(dir, sizeof dir, "%.60s/starring-fuzz-XXXXXX",
             given                      ? given
             : access("/dev/shm", W_OK) ? "/tmp"
                                        : "/dev/shm");
    FUZZ_CHECK(mkdtemp(dir), "%s: cannot be made", dir);
    atexit(remove_all);
#ifdef FUZZING
    __sanitizer_set_death_callback(remove_all);
#endif
    return dir;
}

char *fuzz_path(const char *name) { return xasprintf("%s/%s", fuzz_dir(), name); }

static int file_of(const char *name) {
    for (int i = 0; i < file_count; i++)
        if (strcmp(files[i].name, name) == 0) return files[i].fd;
    char *path = fuzz_path(name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && file_count < FILES_MAX, "%s: cannot be opened", path);
    snprintf(files[file_count].name, sizeof files[0].name, "%s", name);
    files[file_count++].fd = fd;
    free(path);
    return fd;
}

void fuzz_put(const char *name, const void *bytes, size_t n) {
    int fd = file_of(name);
    FUZZ_CHECK(pwrite(fd, bytes, n, 0) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0, "%s: cannot be written",
               name);
}

void fuzz_remove(const char *name) {
    char *path = fuzz_path(name);
    for (int i = 0; i < file_count; i++)
        if (strcmp(files[i].name, name) == 0) {
            close(files[i].fd);
            files[i] = files[--file_count];
            break;
        }
    unlink(path);
    free(path);
}

void fuzz_make_dir(const char *name) {
    char *path = fuzz_path(name);
    mkdir(path, 0700);
    free(path);
}
