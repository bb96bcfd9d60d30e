#include "shared/core/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

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
    // Checks the kind before the open, because opening some devices has an effect. The open file's own kind
    // decides.
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
