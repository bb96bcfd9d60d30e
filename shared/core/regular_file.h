// The one way to open what a user names. A regular file alone is opened: a pipe, a terminal or a device could
// make open() or read() wait for ever, or give bytes without end.
//
// Errors    The reason goes to why, as words that follow a file's name: "no such file", "is a pipe, not a regular file".
//           Nothing is logged: each caller says what the file is to it.
// Threads   Any.
#ifndef STARRING_SHARED_CORE_REGULAR_FILE_H
#define STARRING_SHARED_CORE_REGULAR_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FILE_WHY_MAX 160

// A descriptor (never 0, 1 or 2's business: close-on-exec) and, where bytes is not NULL, the size of the file. -1 with why
// and errno.
int file_open(const char *path, int64_t *bytes, char why[FILE_WHY_MAX]);
// The same as a stream in mode "r". NULL with why.
FILE *file_open_stream(const char *path, char why[FILE_WHY_MAX]);
// Where path is a pipe that this process was started with (/dev/stdin, or /dev/fd/63 of a shell's <(..)): reads it to its end
// and puts a file of memory in its descriptor's place, so that whoever opens the path from now on, children too, finds a
// regular file. Does nothing with any other path. 0, or -1 with why.
int file_settle(const char *path, size_t limit, char why[FILE_WHY_MAX]);
// A path by which processes that do not inherit the descriptor of `path` (/dev/fd/63) find it while this one lives; another
// path as it is (malloc'd).
char *file_of_others(const char *path);
// The whole file, malloc'd, with a NUL behind it. A file of more than `limit` bytes is not read. NULL with why.
char *file_read_whole(const char *path, size_t limit, size_t *bytes, char why[FILE_WHY_MAX]);

#endif
