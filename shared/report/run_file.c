#include "shared/report/run_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"

int run_file_write(const char *dir, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", dir, name);
    char *part = xasprintf("%s/%s.part%d", dir, name, (int)getpid());
    FILE *f = fopen(part, "w");
    int rc = 0;
    if (!f) {
        rc = fail("%s: %s", part, strerror(errno));
    } else {
        bool bad = fputs(text, f) < 0;
        if (fclose(f) || bad || rename(part, path)) {
            rc = fail("%s: cannot write: %s", path, strerror(errno));
            unlink(part);
        }
    }
    free(part);
    free(path);
    return rc;
}

// Not what would block (a pipe) or holds no bytes of its own (a directory).
static FILE *open_file(const char *path) {
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return NULL;
    if (!fstat(fd, &about) && S_ISREG(about.st_mode)) return fdopen(fd, "r");
    close(fd);
    errno = S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
    return NULL;
}

char *run_file_read(const char *dir, const char *name, bool quiet) {
    char *path = xasprintf("%s/%s", dir, name);
    FILE *f = open_file(path);
    char *text = NULL;
    if (f) {
        size_t length = 0, room = 1 << 16;
        text = xcalloc(room + 1, 1);
        for (size_t got; (got = fread(text + length, 1, room - length, f)) > 0;) {
            length += got;
            if (length == room) text = xrealloc(text, (room *= 2) + 1);
        }
        text[length] = 0;
        fclose(f);
    } else if (!quiet) {
        fail("%s: %s", path, strerror(errno));
    }
    free(path);
    return text;
}
