#include "shared/monitor/csv_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/text.h"

#define LINE_MAX_BYTES 128

struct csv_file {
    int fd;
    char *path;
};

// The lines up to the first of a step above `from`, in bytes; 0 of a file without a whole line.
static off_t kept_bytes(int fd, int64_t from) {
    int copy = dup(fd);
    FILE *in = copy >= 0 ? fdopen(copy, "r") : NULL;
    char line[LINE_MAX_BYTES];
    off_t kept = 0;
    while (in && fgets(line, sizeof line, in) && strchr(line, '\n')) {
        if (kept && from > 0 && strtoll(line, NULL, 10) > from) break;
        kept += (off_t)strlen(line);
    }
    if (in) fclose(in);
    return kept;
}

static int put_line(struct csv_file *f, const char *line) {
    ssize_t n = (ssize_t)strlen(line);
    errno = ENOSPC;  // what a short write means
    return write(f->fd, line, (size_t)n) == n ? 0 : -1;
}

static int start(struct csv_file *f, const char *header, int64_t from) {
    off_t kept = kept_bytes(f->fd, from);
    char line[LINE_MAX_BYTES];
    if (ftruncate(f->fd, kept) || lseek(f->fd, kept, SEEK_SET) != kept) return -1;
    snprintf(line, sizeof line, "step,%s\r\n", header);
    return kept ? 0 : put_line(f, line);
}

struct csv_file *csv_file_open(const char *dir, const char *tag, int64_t from) {
    struct csv_file *f = xcalloc(1, sizeof *f);
    const char *slash = strrchr(tag, '/');
    f->path = xasprintf("%s/%s.csv", dir, tag);
    for (char *p = f->path + strlen(dir) + 1; *p; p++)
        if (*p == '/' || *p == ' ') *p = '_';
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->fd >= 0 && !start(f, slash ? slash + 1 : tag, from)) return f;
    fail("%s: %s", f->path, strerror(errno));
    csv_file_close(&f);
    return NULL;
}

int csv_file_line(struct csv_file *f, int64_t step, double value) {
    char number[32], line[LINE_MAX_BYTES];
    if (isfinite(value) && (double)(float)value == value)
        shortest_f32(number, (float)value);  // a learning rate as it was written: 0.001
    else if (isfinite(value))
        shortest_f64(number, value);
    else
        snprintf(number, sizeof number, "%f", value);  // nan, inf, -inf: as Python writes them
    snprintf(line, sizeof line, "%lld,%s\r\n", (long long)step, number);
    return put_line(f, line);
}

const char *csv_file_path(const struct csv_file *f) { return f->path; }

int csv_file_close(struct csv_file **pf) {
    struct csv_file *f = *pf;
    if (!f) return 0;
    int rc = f->fd >= 0 ? close(f->fd) : 0;
    free(f->path);
    free(f);
    *pf = NULL;
    return rc;
}
