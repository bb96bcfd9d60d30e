// Writes files and directories durably. The calls use one table of functions, which only tests replace: by a disk
// that is full, or by a process that dies between two calls.
//
// Errors    A function returns -1 (or NULL) and stores a malloc'd text with file and reason in *error, unless
//           *error already holds a text. Nothing is logged.
// Threads   Any. The table is replaced only while no thread writes.
#ifndef STARRING_SHARED_CORE_DISK_H
#define STARRING_SHARED_CORE_DISK_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

// The system's functions of these names: they return -1 and set errno.
struct disk_ops {
    int (*open)(const char *path, int flags, mode_t mode);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*reserve)(int fd, off_t bytes);  // reserves disk space; the file's size stays
    int (*fsync)(int fd);
    int (*rename)(const char *from, const char *to);
    // Swaps two names; both exist at any time. ENOSYS, EINVAL: not supported here.
    int (*exchange)(const char *a, const char *b);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rmdir)(const char *path);
};
extern const struct disk_ops disk_system;
const struct disk_ops *disk(void);              // the table in use
void disk_replace(const struct disk_ops *ops);  // for tests; &disk_system restores the system's

// Stores the text in *error (error NULL: nowhere), unless *error already holds one. Always returns -1.
int disk_error(char **error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Writes all bytes, with as many calls of write as needed.
int disk_write(int fd, const char *path, const void *data, size_t bytes, char **error);

// A new file that gets its name only when it is complete. Until new_file_end its bytes are in PATH.part, and an
// earlier file of that name stays. Every new file is written this way: begin, write, end.
struct new_file {
    int fd;      // for disk_write
    FILE *file;  // the same file as a stream; NULL: it could not be created
    char *path, *part;
    int error;  // errno of the failure to create it
};
// many: several processes may write the file at once, each to its own PATH.partPID. Returns whether the file can be
// written to. The caller calls new_file_end in both cases.
bool new_file_begin(struct new_file *n, const char *path, bool many);
enum new_file_end {
    NEW_FILE_DISCARD,  // removes the file
    NEW_FILE_WHOLE,    // renames it to PATH
    NEW_FILE_ON_DISK,  // syncs it to disk, then renames it (the name is durable only after disk_sync_dir)
};
// Returns 0 if the file has its name. Else returns -1 with the errno of the first failure, and no PATH.part is
// left.
int new_file_end(struct new_file *n, enum new_file_end how);
// Writes the text to the file `path`. With NEW_FILE_WHOLE several processes may write it at once.
int new_file_write(const char *path, const char *text, enum new_file_end how, char **error);

int disk_sync_dir(const char *dir, char **error);
int disk_make_dir(const char *dir, char **error);  // an existing directory is fine; its parent must exist
// Removes a directory's files, then the directory, as far as possible. Returns 0 if the directory no longer exists.
int disk_remove_dir(const char *dir, char **error);

#endif
