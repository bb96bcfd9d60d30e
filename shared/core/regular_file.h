// Opens the files that a user names, and only regular ones. A pipe, a terminal or a device could block open() or
// read() forever, or never end.
//
// Errors    why receives the reason, worded to follow a file's name: "no such file", "is a pipe, not a regular
//           file". Nothing is logged: the caller logs it with the file's purpose.
// Threads   Any.
#ifndef STARRING_SHARED_CORE_REGULAR_FILE_H
#define STARRING_SHARED_CORE_REGULAR_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FILE_WHY_MAX 160

// Returns a descriptor with close-on-exec. *bytes receives the file's size, unless bytes is NULL. Returns -1 with
// why and errno.
int file_open(const char *path, int64_t *bytes, char why[FILE_WHY_MAX]);
// The same as a stream in mode "r". Returns NULL with why.
FILE *file_open_stream(const char *path, char why[FILE_WHY_MAX]);
// If path is a pipe that this process was started with (/dev/stdin, or /dev/fd/63 of a shell's <(..)): reads it to
// its end and replaces its descriptor by a file in memory. Later opens of the path, also in children, find a
// regular file. Does nothing with other paths. Returns 0, or -1 with why.
int file_settle(const char *path, size_t limit, char why[FILE_WHY_MAX]);
// Returns a path (malloc'd) by which processes that do not inherit the descriptor of `path` (/dev/fd/63) can open
// it while this process runs. Other paths are returned unchanged.
char *file_of_others(const char *path);
// Returns the whole file, malloc'd, with a NUL after it. Refuses a file of more than `limit` bytes. Returns NULL
// with why.
char *file_read_whole(const char *path, size_t limit, size_t *bytes, char why[FILE_WHY_MAX]);

#endif
