#include "shared/offload/disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/offload/disk_lane.h"

// "name another directory with KEY"
static const char *elsewhere(const struct disk_store_options *o, char text[160]) {
    snprintf(text, 160, "name another directory%s%s", o->key ? " with " : "", o->key ? o->key : "");
    return text;
}

static int make_dir(const struct disk_store_options *o) {
    char text[160];
    if (mkdir(o->dir, 0700) == 0 || errno == EEXIST) return 0;
    if (errno == ENOENT)
        return fail(
            "offload to disk: %s is not there, and neither is the directory that it should lie in: mount the disk, or %s",
            o->dir, elsewhere(o, text));
    return fail("offload to disk: cannot make the directory %s: %s; %s", o->dir, strerror(errno),
                elsewhere(o, text));
}

// A file that nobody else can open: without a name, or with one for a moment only.
static int open_nameless(const char *dir) {
    int fd = open(dir, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)) return fd;
    char *path = xasprintf("%s/starring-offload-XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    free(path);
    return fd;
}

// A disk that is too small is found before it is filled: fallocate would take all there is and then fail.
static int check_free(const struct disk_store_options *o, size_t bytes) {
    struct statvfs at;
    char wanted[24], has[24], text[160];
    if (statvfs(o->dir, &at)) return fail("offload to disk: %s: %s", o->dir, strerror(errno));
    double free_bytes = (double)at.f_bavail * (double)at.f_frsize;
    if ((double)bytes <= free_bytes) return 0;
    return fail("offload to disk: %s needs %s (%zu bytes), %s are free there: make room or %s", o->dir,
                format_bytes(wanted, (double)bytes), bytes, format_bytes(has, free_bytes),
                elsewhere(o, text));
}

static int take_room(int fd, const struct disk_store_options *o, size_t bytes) {
    char wanted[24], text[160];
    int rc;
    if (check_free(o, bytes)) return -1;
    do rc = posix_fallocate(fd, 0, (off_t)bytes);
    while (rc == EINTR);
    if (!rc) return 0;
    if (rc == EFBIG)
        return fail(
            "offload to disk: %s takes no file of %s (%zu bytes), by its file system or by the limit of file sizes "
            "(ulimit -f): raise the limit or %s",
            o->dir, format_bytes(wanted, (double)bytes), bytes, elsewhere(o, text));
    return fail("offload to disk: %s cannot hold a file of %s (%zu bytes): %s; make room or %s", o->dir,
                format_bytes(wanted, (double)bytes), bytes, strerror(rc), elsewhere(o, text));
}

int disk_file_create(const struct disk_store_options *o, const char **why_cached) {
    char text[160];
    *why_cached = NULL;
    if (make_dir(o)) return -1;
    int fd = open_nameless(o->dir);
    if (fd < 0)
        return fail("offload to disk: cannot make a file in %s: %s; %s", o->dir, strerror(errno),
                    elsewhere(o, text));
    if (take_room(fd, o, disk_round(o->bytes))) {
        close(fd);
        return -1;
    }
    if (fcntl(fd, F_SETFL, O_DIRECT) != 0) *why_cached = strerror(errno);
    return fd;
}
