#include "shared/core/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"

#define MAGIC           UINT64_C(0x474e495252415453)  // "STARRING"
#define FILE_NAME       "starring"
#define LINK_PREFIX     "/memfd:" FILE_NAME
#define SEALS           (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define BOOT_MAX        40
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

struct segment_head {
    uint64_t magic, cookie, bytes;
};

struct segment_address {
    int64_t pid;
    int fd;
    uint64_t bytes, cookie;
    char boot[BOOT_MAX];
};

size_t segment_pages(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

// Reads the id of the kernel's current boot. "-": it cannot be read.
static void boot_id(char out[BOOT_MAX]) {
    path_first_line("/proc/sys/kernel/random/boot_id", out, BOOT_MAX);
    if (!out[0]) snprintf(out, BOOT_MAX, "-");
}

// ---------------------------------------------------------------- the owner
static int create_failed(struct segment *s, const char *what) {
    int error = errno;
    size_t bytes = s->bytes;
    segment_close(s);
    return fail("shared memory of %zu bytes: %s: %s; give --medium tcp to do without it", bytes, what,
                strerror(error));
}

int segment_create(struct segment *s, size_t bytes) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    *s = (struct segment){.bytes = segment_pages(bytes), .fd = -1};
    // Every page will be written. Without this check, the kernel would kill the process if the request exceeds the machine's
    // memory.
    errno = ENOMEM;
    if (pages > 0 && page_bytes > 0 && s->bytes / (size_t)page_bytes >= (size_t)pages)
        return create_failed(s, "more than this machine's memory");
    s->fd = memfd_create(FILE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->fd < 0) return create_failed(s, "memfd_create");
    if (ftruncate(s->fd, (off_t)s->bytes) || fcntl(s->fd, F_ADD_SEALS, SEALS))
        return create_failed(s, "setting its size");
    void *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (base == MAP_FAILED) return create_failed(s, "mapping it");
    s->base = base;
    if (s->bytes >= 2 * HUGE_PAGE_BYTES) madvise(base, s->bytes, MADV_HUGEPAGE);
    if (getrandom(&s->cookie, sizeof s->cookie, 0) != (ssize_t)sizeof s->cookie)
        return create_failed(s, "no random number");
    struct segment_head head = {MAGIC, s->cookie, s->bytes};
    memcpy(base, &head, sizeof head);
    return 0;
}

void segment_name(const struct segment *s, char out[SEGMENT_NAME_MAX]) {
    char boot[BOOT_MAX];
    boot_id(boot);
    snprintf(out, SEGMENT_NAME_MAX, "%lld %d %zu %016" PRIx64 " %s", (long long)getpid(), s->fd, s->bytes,
             s->cookie, boot);
}

// ---------------------------------------------------------------- the peer
static int parse(const char *name, struct segment_address *p) {
    long long pid;
    int end = 0;
    int n = sscanf(name, "%lld %d %" SCNu64 " %" SCNx64 " %39s%n", &pid, &p->fd, &p->bytes, &p->cookie,
                   p->boot, &end);
    p->pid = pid;
    bool good = n == 5 && !name[end] && pid > 0 && p->fd >= 0 && p->bytes >= SEGMENT_HEAD;
    return good && p->bytes % (uint64_t)sysconf(_SC_PAGESIZE) == 0 && p->bytes <= SIZE_MAX / 2 ? 0 : -1;
}

static int refuse(struct segment *s, char why[SEGMENT_WHY_MAX], const char *text) {
    segment_close(s);
    snprintf(why, SEGMENT_WHY_MAX, "%s", text);
    return -1;
}

// Opens the descriptor only if it is a memfd of this program: opening another program's pipe or device may have an effect.
static int open_descriptor(const struct segment_address *p, enum segment_use use) {
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)p->pid, p->fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return -1;
    target[n] = 0;
    if (strncmp(target, LINK_PREFIX, strlen(LINK_PREFIX)) != 0) {
        errno = ENOENT;
        return -1;
    }
    return open(path, (use == SEGMENT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
}

int segment_open(struct segment *s, const char *name, enum segment_use use, char why[SEGMENT_WHY_MAX]) {
    struct segment_address p = {0};
    struct stat file;
    char boot[BOOT_MAX], text[SEGMENT_WHY_MAX];
    *s = (struct segment){.fd = -1};
    if (parse(name, &p) != 0) return refuse(s, why, "the segment's name is not one");
    boot_id(boot);
    if (strcmp(boot, p.boot) != 0) return refuse(s, why, "they run on different machines");
    s->fd = open_descriptor(&p, use);
    if (s->fd < 0) {
        snprintf(text, sizeof text,
                 "process %lld and its memory cannot be reached: %s (another container, another user?)",
                 (long long)p.pid, strerror(errno));
        return refuse(s, why, text);
    }
    int seals = fcntl(s->fd, F_GET_SEALS);
    if (fstat(s->fd, &file) || (uint64_t)file.st_size != p.bytes || seals < 0 || (seals & SEALS) != SEALS)
        return refuse(s, why, "the memory found there has another size: it is not the one that was named");
    int protection = use == SEGMENT_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, p.bytes, protection, MAP_SHARED, s->fd, 0);
    if (base == MAP_FAILED) {
        snprintf(text, sizeof text, "mapping %llu bytes: %s", (unsigned long long)p.bytes, strerror(errno));
        return refuse(s, why, text);
    }
    s->base = base;
    s->bytes = p.bytes;
    s->cookie = p.cookie;
    struct segment_head head;
    memcpy(&head, base, sizeof head);
    if (head.magic != MAGIC || head.cookie != p.cookie || head.bytes != p.bytes)
        return refuse(s, why, "the memory found there has another cookie: it is not the one that was named");
    return 0;
}

int segment_adopt(struct segment *s, int fd) {
    struct stat file;
    *s = (struct segment){.fd = fd};
    int seals = fcntl(fd, F_GET_SEALS);
    bool ours =
        !fstat(fd, &file) && file.st_size >= (off_t)SEGMENT_HEAD && seals >= 0 && (seals & SEALS) == SEALS;
    void *base =
        ours ? mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED)
        return fail("descriptor %d is no shared memory of this job: %s", fd, strerror(errno));
    s->base = base;
    s->bytes = (size_t)file.st_size;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return 0;
}

int segment_map_at(const struct segment *s, void *at, size_t offset, size_t bytes) {
    int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
    if (mmap(at, bytes, PROT_READ, flags, s->fd, (off_t)offset) == MAP_FAILED)
        return fail("mapping %zu bytes of shared memory: %s", bytes, strerror(errno));
    return 0;
}

bool segment_holds(const struct segment *s, uint64_t offset, uint64_t bytes) {
    return offset >= SEGMENT_HEAD && offset <= s->bytes && bytes <= s->bytes - offset;
}

void segment_close(struct segment *s) {
    if (s->base) munmap(s->base, s->bytes);
    if (s->fd >= 0) close(s->fd);
    *s = (struct segment){.fd = -1};
}
