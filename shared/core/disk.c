#include "shared/core/disk.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

// O_NONBLOCK: a pipe in place of a file must not block the open.
static int open_file(const char *path, int flags, mode_t mode) {
    return open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
}

static int exchange(const char *a, const char *b) {
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

static int reserve(int fd, off_t bytes) { return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes); }

const struct disk_ops disk_system = {open_file, write,  reserve, fsync, rename,
                                     exchange,  unlink, mkdir,   rmdir};
static const struct disk_ops *in_use = &disk_system;

const struct disk_ops *disk(void) { return in_use; }
void disk_replace(const struct disk_ops *ops) { in_use = ops; }

int disk_error(char **error, const char *fmt, ...) {
    if (!error || *error) return -1;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(error, fmt, args) < 0) *error = NULL;
    va_end(args);
    return -1;
}

int disk_write(int fd, const char *path, const void *data, size_t bytes, char **error) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = disk()->write(fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC;  // the disk accepted no bytes
        if (n <= 0) return disk_error(error, "%s: cannot write: %s", path, strerror(errno));
        done += (size_t)n;
    }
    return 0;
}

// ---------------------------------------------------------------- a new file
// The functions of a stream that writes through the table too. The stream's cookie is the descriptor.
static ssize_t stream_write(void *fd, const char *data, size_t bytes) {
    return disk_write((int)(intptr_t)fd, "", data, bytes, NULL) ? 0 : (ssize_t)bytes;
}

static int stream_seek(void *fd, off64_t *at, int whence) {
    return (*at = lseek((int)(intptr_t)fd, *at, whence)) < 0 ? -1 : 0;
}

bool new_file_begin(struct new_file *n, const char *path, bool many) {
    char own[16] = "";
    if (many) snprintf(own, sizeof own, "%d", (int)getpid());
    *n = (struct new_file){.path = xstrdup(path), .part = xasprintf("%s.part%s", path, own)};
    // Remove an older file first: a thread that still has it open then writes to the old inode, and if it is a pipe, the
    // open cannot block.
    disk()->unlink(n->part);
    n->fd = disk()->open(n->part, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (n->fd >= 0)
        n->file = fopencookie((void *)(intptr_t)n->fd, "w",
                              (cookie_io_functions_t){.write = stream_write, .seek = stream_seek});
    n->error = n->file ? 0 : errno;
    return n->file != NULL;
}

int new_file_end(struct new_file *n, enum new_file_end how) {
    bool made = n->fd >= 0, good = n->file && how != NEW_FILE_DISCARD && !ferror(n->file);
    int why = n->error ? n->error : errno;
    if (n->file && fclose(n->file) && good) good = false, why = errno;
    if (good && how == NEW_FILE_ON_DISK && disk()->fsync(n->fd)) good = false, why = errno;
    if (made && close(n->fd) && good) good = false, why = errno;
    if (good && disk()->rename(n->part, n->path)) good = false, why = errno;
    if (made && !good) disk()->unlink(n->part);
    free(n->part);
    free(n->path);
    *n = (struct new_file){.fd = -1};
    errno = why;
    return good ? 0 : -1;
}

int new_file_write(const char *path, const char *text, enum new_file_end how, char **error) {
    struct new_file n;
    if (new_file_begin(&n, path, how == NEW_FILE_WHOLE)) fputs(text, n.file);
    return new_file_end(&n, how) ? disk_error(error, "%s: cannot write: %s", path, strerror(errno)) : 0;
}

// ---------------------------------------------------------------- directories
int disk_sync_dir(const char *dir, char **error) {
    int fd = disk()->open(dir, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return disk_error(error, "%s: %s", dir, strerror(errno));
    // Some file systems cannot sync a directory and need not: they return EINVAL.
    int rc = disk()->fsync(fd) != 0 && errno != EINVAL
                 ? disk_error(error, "%s: cannot bring to disk: %s", dir, strerror(errno))
                 : 0;
    close(fd);
    return rc;
}

int disk_make_dir(const char *dir, char **error) {
    if (disk()->mkdir(dir, 0777) == 0 || errno == EEXIST) return 0;
    return disk_error(error, "%s: cannot make this directory: %s", dir, strerror(errno));
}

int disk_remove_dir(const char *dir, char **error) {
    DIR *d = opendir(dir);
    if (!d) return errno == ENOENT ? 0 : disk_error(error, "%s: %s", dir, strerror(errno));
    int rc = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *path = xasprintf("%s/%s", dir, e->d_name);
        if (disk()->unlink(path) != 0 && errno != ENOENT)
            rc = disk_error(error, "%s: cannot remove: %s", path, strerror(errno));
        free(path);
    }
    closedir(d);
    if (rc == 0 && disk()->rmdir(dir) != 0 && errno != ENOENT)
        rc = disk_error(error, "%s: cannot remove: %s", dir, strerror(errno));
    return rc;
}

// ---------------------------------------------------------------- log file
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
    for (const char *line; (line = log_reader_next(&r)) && keep(ctx, line);) end = ftello(r.file);
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
         !f->error &&
         done < bytes;) {  // after a short write the next write fails, and its errno is the reason
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

// ---------------------------------------------------------------- run file
// Enough for a million evaluations, or for the report of a rank of any model.
#define RUN_FILE_BYTES_MAX ((size_t)256 << 20)

static int replace(const char *dir, const char *name, const char *text, char **why) {
    char *path = xasprintf("%s/%s", dir, name);
    int rc = new_file_write(path, text, NEW_FILE_WHOLE, why);
    free(path);
    return rc;
}

int run_file_write(const char *dir, const char *name, const char *text) {
    char *why = NULL;
    int rc = replace(dir, name, text, &why);
    if (rc) fail("%s", why);
    free(why);
    return rc;
}

void run_file_try(const char *dir, const char *name, const char *text) {
    char *why = NULL;
    if (replace(dir, name, text, &why)) warn("%s; the job continues without it", why);
    free(why);
}

void run_file_add(const char *dir, const char *name, const char *line) {
    char *path = xasprintf("%s/%s", dir, name);
    struct log_file f;
    bool lost = log_file_open(&f, path, NULL, NULL) || log_file_add(&f, line, strlen(line));
    if (lost) warn("%s: cannot write: %s: a line is missing there; the job continues", path, strerror(errno));
    log_file_close(&f);
    free(path);
}

bool run_file_each(const char *dir, const char *name, void (*take)(void *ctx, const cJSON *line), void *ctx) {
    char *path = xasprintf("%s/%s", dir, name), why[FILE_WHY_MAX];
    struct log_reader lines;
    bool there = !log_reader_open(&lines, path, why);
    for (const char *line; (line = log_reader_next(&lines));) {
        cJSON *o = cJSON_Parse(line);
        if (o) take(ctx, o);
        cJSON_Delete(o);
    }
    free(path);
    return there;
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
