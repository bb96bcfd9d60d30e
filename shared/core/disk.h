// Files to write: durably as a whole, record by record, and those of a run directory.
//
// Writes files and directories durably. The calls use one table of functions, which only tests replace: by a disk
// that is full, or by a process that dies between two calls.
//
// Errors    A function returns -1 (or NULL) and stores a malloc'd text with file and reason in *error, unless
//           *error already holds a text. Nothing is logged.
// Threads   Any. The table is replaced only while no thread writes.
#ifndef STARRING_SHARED_CORE_DISK_H
#define STARRING_SHARED_CORE_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "shared/core/file.h"

// The system's functions of these names: they return -1 and set errno.
struct disk_ops {
    int (*open)(const char *path, int flags, mode_t mode);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*reserve)(int fd, off_t bytes);  // reserves disk space without changing the file's size
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
// earlier file of the name PATH is unchanged. Every new file is written this way: begin, write, end.
struct new_file {
    int fd;      // for disk_write
    FILE *file;  // the same file as a stream; NULL: it could not be created
    char *path, *part;
    int error;  // errno if it could not be created
};
// many: several processes may write the file at once, each to its own PATH.partPID. Returns whether the file can be
// written to. The caller calls new_file_end in both cases.
bool new_file_begin(struct new_file *n, const char *path, bool many);
enum new_file_end {
    NEW_FILE_DISCARD,  // removes the file
    NEW_FILE_WHOLE,    // renames it to PATH
    NEW_FILE_ON_DISK,  // syncs it to disk, then renames it (the name is durable only after disk_sync_dir)
};
// Returns 0 if the file now has the name PATH. Otherwise returns -1 with the errno of the first failure, and PATH.part is
// removed.
int new_file_end(struct new_file *n, enum new_file_end how);
// Writes the text to the file `path`. With NEW_FILE_WHOLE several processes may write it at once.
int new_file_write(const char *path, const char *text, enum new_file_end how, char **error);

int disk_sync_dir(const char *dir, char **error);
int disk_make_dir(const char *dir, char **error);  // an existing directory is fine; its parent must exist
// Removes a directory's files, then the directory, as far as possible. Returns 0 if the directory no longer exists.
int disk_remove_dir(const char *dir, char **error);

// ---------------------------------------------------------------- files that grow by records
// A file that grows by whole records, mostly lines. All appending and all reading of lines is here. A crash or a
// full disk may cut the last record short: an incomplete record is never read, and is removed before the next
// record is written.
//
// Threads   One at a time per file.
// Errors    -1 with errno; nothing is logged.

struct log_file {
    int fd;     // -1: not open
    off_t end;  // offset of the next record
    int error;  // errno of the first record that was lost; nothing is written after that
};
// Creates the file, or opens it to append. It keeps all complete lines, or those before the first line that `keep`
// rejects (NULL: it keeps all). The rest is cut off.
int log_file_open(struct log_file *f, const char *path, bool (*keep)(void *ctx, const char *line), void *ctx);
// Appends a record as a whole or not at all: if a full disk takes some of its bytes, they are cut off again.
int log_file_add(struct log_file *f, const char *record, size_t bytes);
// Returns -1 if a record was lost or closing failed.
int log_file_close(struct log_file *f);

#define LOG_LINE_MAX 16384
// Reads a file's complete lines, one after the other.
struct log_reader {
    FILE *file;      // NULL: at the end
    int64_t number;  // of the current line: 1, 2, ..
    bool torn;       // at the end: an incomplete last line was skipped
    char line[LOG_LINE_MAX];
};
int log_reader_open(struct log_reader *r, const char *path, char why[FILE_WHY_MAX]);
// Returns the next line without its newline. At the end it closes the file and returns NULL. A line of more than
// LOG_LINE_MAX bytes is returned by several calls.
char *log_reader_next(struct log_reader *r);
void log_reader_close(struct log_reader *r);  // needed only before the end

// ---------------------------------------------------------------- files of a run directory
// Replaces dir/name by text, as a whole or not at all. Returns 0, or -1 after logging the file's name.
int run_file_write(const char *dir, const char *name, const char *text);
// The same for a file that the job does not need: a failure is only a warning.
void run_file_try(const char *dir, const char *name, const char *text);
// Returns the whole of dir/name (malloc'd, NUL-terminated), or NULL after logging, unless quiet. Reads at most 256
// MiB.
char *run_file_read(const char *dir, const char *name, bool quiet);
// The same with a limit in bytes as an argument. Never logs.
char *run_file_read_up_to(const char *dir, const char *name, size_t limit, char why[FILE_WHY_MAX]);
// Appends a line, which includes its newline (log_file_add). A failure is only a warning.
void run_file_add(const char *dir, const char *name, const char *line);
// Calls take for each complete line of dir/name that is JSON, in order. Returns whether the file exists. Never
// logs.
struct cJSON;
bool run_file_each(const char *dir, const char *name, void (*take)(void *ctx, const struct cJSON *line),
                   void *ctx);

#endif
