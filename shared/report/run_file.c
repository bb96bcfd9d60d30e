#include "shared/report/run_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/files/regular_file.h"

// Recorded arrivals of a long run are the largest file that is read whole.
#define RUN_FILE_BYTES_MAX ((size_t)4 << 30)

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
    char *path = xasprintf("%s/%s", dir, name), why[FILE_WHY_MAX];
    size_t length;
    char *text = file_read_whole(path, RUN_FILE_BYTES_MAX, &length, why);
    if (!text && !quiet) fail("%s: %s", path, why);
    free(path);
    return text;
}
