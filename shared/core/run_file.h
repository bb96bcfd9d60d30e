// One file of a run directory, as a whole or as whole lines.
#ifndef STARRING_SHARED_CORE_RUN_FILE_H
#define STARRING_SHARED_CORE_RUN_FILE_H

#include <stdbool.h>

#include "shared/core/regular_file.h"

// dir/name = text, whole or not at all. 0, or -1 after naming the file.
int run_file_write(const char *dir, const char *name, const char *text);
// The same of a file that the job can do without: what cannot be written is warned of.
void run_file_try(const char *dir, const char *name, const char *text);
// The whole of dir/name (malloc'd, NUL-terminated), or NULL; says why unless quiet. At most 256 MiB are read.
char *run_file_read(const char *dir, const char *name, bool quiet);
// The same with another limit, in bytes; never logs.
char *run_file_read_up_to(const char *dir, const char *name, size_t limit, char why[FILE_WHY_MAX]);
// A line more, with its end (shared/core/log_file.h). One that cannot be written is warned of.
void run_file_add(const char *dir, const char *name, const char *line);
// Each whole line of dir/name that is JSON goes to take, in their order. Whether there is such a file; never logs.
struct cJSON;
bool run_file_each(const char *dir, const char *name, void (*take)(void *ctx, const struct cJSON *line),
                   void *ctx);

#endif
