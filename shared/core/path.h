// Functions on files and their names.
#ifndef STARRING_SHARED_CORE_PATH_H
#define STARRING_SHARED_CORE_PATH_H

#include <stdbool.h>
#include <stddef.h>

bool ends_with(const char *name, const char *suffix);  // true only if something precedes the suffix
bool ends_like(const char *name, const char *suffix);  // the same, ignoring case
bool has_file(const char *dir, const char *name);      // dir/name exists, as any kind of file
bool same_file(const char *a, const char *b);          // both exist and are the same file
char *without_slashes(const char *path);               // removes slashes at the end, but keeps "/" (malloc'd)
// Whether the text is "OWNER/NAME", as the hub names a model or a data set, and no folder OWNER exists here.
bool is_hub_name(const char *given);

// Reads the file's first line without its newline, as much as fits. "" if there is none.
void path_first_line(const char *path, char *out, size_t size);

// Creates the directory and its missing parents. Returns 0, or -1 with errno.
int dir_make(const char *path);
// Whether files can be written in the directory, which may not exist yet. Creates and removes a temporary directory
// in the nearest existing parent. Returns 0, or -1 after logging the reason and the option or key that chose the
// directory.
int dir_possible(const char *dir, const char *option);

#endif
