#include "shared/config/json_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"

int json_file_write(const char *path, const cJSON *root) {
    char *text = cJSON_Print(root), *part = xasprintf("%s.part", path);
    FILE *f = fopen(part, "wb");
    bool good = f && fputs(text, f) != EOF && fputc('\n', f) != EOF;
    if (f && fclose(f) != 0) good = false;
    good = good && rename(part, path) == 0;
    int rc = good ? 0 : fail("%s: cannot write: %s", path, strerror(errno));
    if (!good && f) unlink(part);
    free(part);
    free(text);
    return rc;
}
