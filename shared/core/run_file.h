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
// A line more, with its end: whole or not at all, and behind whole lines alone, for a death may have torn the last one.
// A line that cannot be written is warned of.
void run_file_add(const char *dir, const char *name, const char *line);
// The whole lines of dir/name (malloc'd), or NULL; never logs.
char *run_file_lines(const char *dir, const char *name);

#endif
