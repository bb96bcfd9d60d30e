#include "shared/core/disk.h"

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
        if (n == 0) errno = ENOSPC;  // the disk took no bytes
        if (n <= 0) return disk_error(error, "%s: cannot write: %s", path, strerror(errno));
        done += (size_t)n;
    }
    return 0;
}

// ---------------------------------------------------------------- a new file
// The stream writes through the table too. Its cookie is the descriptor.
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
    // Removes an older file first: a thread that still has it open writes to the old inode, and a pipe cannot block
    // the open.
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
