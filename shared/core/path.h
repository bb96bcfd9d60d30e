// Questions about files and their names.
#ifndef STARRING_SHARED_CORE_PATH_H
#define STARRING_SHARED_CORE_PATH_H

#include <stdbool.h>
#include <stddef.h>

bool ends_with(const char *name, const char *suffix);  // and has something before it
bool ends_like(const char *name, const char *suffix);  // likewise, in letters of either case
bool has_file(const char *dir, const char *name);      // dir/name exists, whatever it is
bool same_file(const char *a, const char *b);          // both exist and are one file
char *without_slashes(const char *path);               // at its end, "/" apart (malloc'd)
// "OWNER/NAME", as the hub calls a model or a data set, where no folder OWNER is here
bool is_hub_name(const char *given);

// The file's first line without its end, as far as it fits; "": there is none.
void path_first_line(const char *path, char *out, size_t size);

// Makes the directory and those that it lies in, where they are not there. 0, or -1 with errno.
int dir_make(const char *path);
// Whether files could be written in the directory, which may still have to be made: a directory is made where it would
// lie, and removed. 0, or -1 after saying why not and naming the option or key that chose it.
int dir_possible(const char *dir, const char *option);

#endif
