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

// A pipe in the place of a file is not waited for.
static int open_file(const char *path, int flags, mode_t mode) {
    return open(path, flags | O_CLOEXEC | O_NONBLOCK, mode);
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
        if (n < 0) return disk_error(error, "%s: cannot write: %s", path, strerror(errno));
        if (n == 0)
            return disk_error(error, "%s: cannot write: the file system took none of %zu bytes", path,
                              bytes - done);
        done += (size_t)n;
    }
    return 0;
}

int disk_write_file(const char *path, const char *text, char **error) {
    char *tmp = xasprintf("%s.tmp", path);
    int fd = disk()->open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int rc = fd < 0 ? disk_error(error, "%s: cannot create: %s", tmp, strerror(errno)) : 0;
    if (fd >= 0) {
        rc = disk_write(fd, tmp, text, strlen(text), error);
        if (rc == 0 && disk()->fsync(fd) != 0)
            rc = disk_error(error, "%s: cannot bring to disk: %s", tmp, strerror(errno));
        if (close(fd) != 0 && rc == 0) rc = disk_error(error, "%s: cannot write: %s", tmp, strerror(errno));
        if (rc == 0 && disk()->rename(tmp, path) != 0)
            rc = disk_error(error, "%s: cannot rename to %s: %s", tmp, path, strerror(errno));
        if (rc) disk()->unlink(tmp);
    }
    free(tmp);
    return rc;
}

int disk_sync_dir(const char *dir, char **error) {
    int fd = disk()->open(dir, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return disk_error(error, "%s: %s", dir, strerror(errno));
    // Some file systems have nothing to bring to disk for a directory, and say EINVAL.
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
