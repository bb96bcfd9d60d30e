#include "shared/core/run_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/regular_file.h"

// A million evaluations, or the report of a rank of any model.
#define RUN_FILE_BYTES_MAX ((size_t)256 << 20)

// 0, or -1 with why, in words (malloc'd).
static int replace(const char *dir, const char *name, const char *text, char **why) {
    char *path = xasprintf("%s/%s", dir, name);
    struct new_file n;
    if (new_file_begin(&n, path, true)) fputs(text, n.file);
    *why = new_file_end(&n, true) ? xasprintf("%s: cannot write: %s", path, strerror(errno)) : NULL;
    free(path);
    return *why ? -1 : 0;
}

int run_file_write(const char *dir, const char *name, const char *text) {
    char *why;
    int rc = replace(dir, name, text, &why);
    if (rc) fail("%s", why);
    free(why);
    return rc;
}

void run_file_try(const char *dir, const char *name, const char *text) {
    char *why;
    if (replace(dir, name, text, &why)) warn("%s; the job goes on without that", why);
    free(why);
}

// Where the last whole line ends. -1 with errno.
static off_t end_of_lines(int fd) {
    off_t end = lseek(fd, 0, SEEK_END);
    for (char c = 0; end > 0 && c != '\n'; end -= c != '\n')
        if (pread(fd, &c, 1, end - 1) != 1) return -1;
    return end;
}

static int add_line(int fd, const char *line) {
    size_t size = strlen(line);
    off_t end = end_of_lines(fd);
    if (end < 0 || ftruncate(fd, end)) return -1;
    errno = ENOSPC;  // what a short write means
    if (pwrite(fd, line, size, end) == (ssize_t)size) return 0;
    int why = errno;
    if (ftruncate(fd, end)) why = errno;
    errno = why;
    return -1;
}

void run_file_add(const char *dir, const char *name, const char *line) {
    char *path = xasprintf("%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0 || add_line(fd, line))
        warn("%s: cannot write: %s: a line is missing there; the job goes on", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(path);
}

char *run_file_lines(const char *dir, const char *name) {
    char *text = run_file_read(dir, name, true), *last = text ? strrchr(text, '\n') : NULL;
    if (text) *(last ? last + 1 : text) = 0;
    return text;
}

char *run_file_read(const char *dir, const char *name, bool quiet) {
    char why[FILE_WHY_MAX], *text = run_file_read_up_to(dir, name, RUN_FILE_BYTES_MAX, why);
    if (!text && !quiet) fail("%s/%s: %s", dir, name, why);
    return text;
}

char *run_file_read_up_to(const char *dir, const char *name, size_t limit, char why[FILE_WHY_MAX]) {
    char *path = xasprintf("%s/%s", dir, name);
    size_t length;
    char *text = file_read_whole(path, limit, &length, why);
    free(path);
    return text;
}
