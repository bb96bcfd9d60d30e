#include "shared/core/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

#define READ_BYTES ((size_t)1 << 16)  // the first room; files of /proc and /sys do not tell their size

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
    // Asked before it is opened: opening some devices does something. The open file's own kind decides.
    if (stat(path, &st)) return refuse(-1, why, strerror(errno), errno);
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
