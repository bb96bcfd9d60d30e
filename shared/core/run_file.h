// One file of a run directory, as a whole or as complete lines.
#ifndef STARRING_SHARED_CORE_RUN_FILE_H
#define STARRING_SHARED_CORE_RUN_FILE_H

#include <stdbool.h>

#include "shared/core/regular_file.h"

// Replaces dir/name by text, as a whole or not at all. Returns 0, or -1 after logging the file's name.
int run_file_write(const char *dir, const char *name, const char *text);
// The same for a file that the job does not need: a failure is only a warning.
void run_file_try(const char *dir, const char *name, const char *text);
// Returns the whole of dir/name (malloc'd, NUL-terminated), or NULL after logging, unless quiet. Reads at most 256
// MiB.
char *run_file_read(const char *dir, const char *name, bool quiet);
// The same with another limit in bytes. Never logs.
char *run_file_read_up_to(const char *dir, const char *name, size_t limit, char why[FILE_WHY_MAX]);
// Appends a line, which includes its newline (shared/core/log_file.h). A failure is only a warning.
void run_file_add(const char *dir, const char *name, const char *line);
// Calls take for each complete line of dir/name that is JSON, in order. Returns whether the file exists. Never
// logs.
struct cJSON;
bool run_file_each(const char *dir, const char *name, void (*take)(void *ctx, const struct cJSON *line),
                   void *ctx);

#endif
