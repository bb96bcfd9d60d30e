// One file of a run directory, as a whole.
#ifndef STARRING_SHARED_REPORT_RUN_FILE_H
#define STARRING_SHARED_REPORT_RUN_FILE_H

#include <stdbool.h>

// dir/name = text, whole or not at all. 0, or -1 after naming the file.
int run_file_write(const char *dir, const char *name, const char *text);
// The whole of dir/name (malloc'd, NUL-terminated), or NULL; says why unless quiet.
char *run_file_read(const char *dir, const char *name, bool quiet);

#endif
