#include "shared/report/run_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"

// A million evaluations, or the report of a rank of any model.
#define RUN_FILE_BYTES_MAX ((size_t)256 << 20)

int run_file_write(const char *dir, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", dir, name);
    char *part = xasprintf("%s/%s.part%d", dir, name, (int)getpid());
    FILE *f = file_create_stream(part);
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
