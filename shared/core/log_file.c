#include "shared/core/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

// Returns the offset after the last complete line, or -1 with errno.
static off_t end_of_lines(int fd) {
    off_t end = lseek(fd, 0, SEEK_END);
    for (char c = 0; end > 0 && c != '\n'; end -= c != '\n')
        if (pread(fd, &c, 1, end - 1) != 1) return -1;
    return end;
}

// Returns the offset after the last accepted line, or -1 with errno.
static off_t end_of_kept(int fd, bool (*keep)(void *ctx, const char *line), void *ctx) {
    int copy = dup(fd);
    struct log_reader r = {.file = copy < 0 ? NULL : fdopen(copy, "r")};
    if (!r.file) return -1;
    off_t end = 0;
    for (const char *line; (line = log_reader_next(&r)) && keep(ctx, line);) end += (off_t)strlen(line) + 1;
    log_reader_close(&r);
    return end;
}

int log_file_open(struct log_file *f, const char *path, bool (*keep)(void *ctx, const char *line),
                  void *ctx) {
    *f = (struct log_file){.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666)};
    f->end = f->fd < 0 ? -1 : keep ? end_of_kept(f->fd, keep, ctx) : end_of_lines(f->fd);
    if (f->end >= 0 && !ftruncate(f->fd, f->end)) return 0;
    int why = errno;
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    errno = why;
    return -1;
}

int log_file_add(struct log_file *f, const char *record, size_t bytes) {
    for (size_t done = 0;
         !f->error && done < bytes;) {  // after a short write the next one fails, with the reason
        ssize_t n = pwrite(f->fd, record + done, bytes - done, f->end + (off_t)done);
        if (n <= 0) f->error = n ? errno : ENOSPC;
        done += n > 0 ? (size_t)n : 0;
        if (f->error && ftruncate(f->fd, f->end)) f->error = errno;
    }
    if (!f->error) f->end += (off_t)bytes;
    errno = f->error;
    return f->error ? -1 : 0;
}

int log_file_close(struct log_file *f) {
    if (f->fd >= 0 && close(f->fd) && !f->error) f->error = errno;
    f->fd = -1;
    errno = f->error;
    return f->error ? -1 : 0;
}

// ---------------------------------------------------------------- reading
int log_reader_open(struct log_reader *r, const char *path, char why[FILE_WHY_MAX]) {
    r->number = 0;
    r->torn = false;
    r->file = file_open_stream(path, why);
    return r->file ? 0 : -1;
}

char *log_reader_next(struct log_reader *r) {
    if (!r->file) return NULL;
    bool any = fgets(r->line, sizeof r->line, r->file) != NULL;
    size_t n = any ? strlen(r->line) : 0;
    r->torn = any && !(n && r->line[n - 1] == '\n') && feof(r->file);
    if (!any || r->torn) {
        log_reader_close(r);
        return NULL;
    }
    if (n && r->line[n - 1] == '\n') r->line[n - 1] = '\0';
    r->number++;
    return r->line;
}

void log_reader_close(struct log_reader *r) {
    if (r->file) fclose(r->file);
    r->file = NULL;
}
