// Files to read: names and folders, opening what a user names, and mapping.
#ifndef STARRING_SHARED_CORE_FILE_H
#define STARRING_SHARED_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

bool ends_with(const char *name, const char *suffix);  // true only if something precedes the suffix
bool ends_like(const char *name, const char *suffix);  // the same, ignoring case
bool has_file(const char *dir, const char *name);      // dir/name exists, as any kind of file
bool same_file(const char *a, const char *b);          // both exist and are the same file
char *without_slashes(const char *path);               // removes slashes at the end, but keeps "/" (malloc'd)
// Returns whether the text is "OWNER/NAME", as the Hugging Face hub names a model or a data set, and no folder OWNER exists.
bool is_hub_name(const char *given);

// Reads the file's first line without its newline, cut to the buffer. "" if there is none.
void path_first_line(const char *path, char *out, size_t size);

// Creates the directory and its missing parents. Returns 0, or -1 with errno.
int dir_make(const char *path);
// Checks that files can be written in the directory, which may not exist yet. Creates and removes a temporary directory
// in it or in the nearest existing parent. Returns 0, or -1 after logging the reason and the option or key that named the
// directory.
int dir_possible(const char *dir, const char *option);

// ---------------------------------------------------------------- opening and reading
// Opens the files that a user names, and only regular ones. A pipe, a terminal or a device could block open() or
// read() forever, or never end.
//
// Errors    why receives the reason, worded to follow a file's name: "no such file", "is a pipe, not a regular
//           file". Nothing is logged: the caller logs it with the file's purpose.
// Threads   Any.

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

// ---------------------------------------------------------------- mapping
// A regular file, mapped read-only. If a page no longer exists when it is read (the file was truncated, or its disk
// failed), the kernel sends SIGBUS. The handler prints a message with the file's name, and the process ends with
// EXIT_RUN_FAILED, as after a failed read. The run cannot continue: its data is lost.
//
// Threads    Any thread may open, close and read.
// Ownership  The caller owns the mapping and calls mapped_file_close.

struct mapped_file {
    const void *base;  // NULL: nothing is mapped (an empty file)
    size_t bytes;
    struct mapping *entry;  // its entry in the handler's list
};

// what: printed before the file's name in the message ("data "), or "". Returns 0, or -1 with why.
int mapped_file_open(struct mapped_file *m, const char *what, const char *path, char why[FILE_WHY_MAX]);
void mapped_file_close(struct mapped_file *m);  // does nothing if nothing is mapped

#endif
