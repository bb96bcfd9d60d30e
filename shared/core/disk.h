// Writing that survives: files and directories that are on disk when a function says so. The calls go
// through one table of functions, which the tests replace by a disk that is full, or a process that dies between two
// calls; nothing else does.
//
// Errors    -1 (or NULL) with a text that names file and reason in *error (malloc'd; an earlier text is kept). Nothing is
//           logged.
// Threads   Any, but the table is replaced only while nobody writes.
#ifndef STARRING_SHARED_CORE_DISK_H
#define STARRING_SHARED_CORE_DISK_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

// As the system's functions of these names: -1 and errno.
struct disk_ops {
    int (*open)(const char *path, int flags, mode_t mode);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    int (*reserve)(int fd, off_t bytes);  // room on the disk for so many; the file's size stays
    int (*fsync)(int fd);
    int (*rename)(const char *from, const char *to);
    int (*exchange)(const char *a,
                    const char *b);  // both names exist all the time; ENOSYS, EINVAL: cannot be done here
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rmdir)(const char *path);
};
extern const struct disk_ops disk_system;
const struct disk_ops *disk(void);              // the table in use
void disk_replace(const struct disk_ops *ops);  // tests; &disk_system: back

// Keeps the text in *error (NULL: nowhere) unless there is one already; always -1.
int disk_error(char **error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// All bytes, however often write has to be called.
int disk_write(int fd, const char *path, const void *data, size_t bytes, char **error);

// A file that is there when it is whole, and not before: PATH.part until new_file_end. What was there under the name stays
// until then. The one way to write a new file: begin, write, end.
struct new_file {
    int fd;      // to write to with disk_write, or
    FILE *file;  // as a stream; NULL: it could not be made
    char *path, *part;
    int error;  // why it could not
};
// many: several processes may do so at once, each to a PATH.partPID of its own. Whether it is there to write to; new_file_end
// follows in any case.
bool new_file_begin(struct new_file *n, const char *path, bool many);
enum new_file_end {
    NEW_FILE_DISCARD,  // it is not wanted
    NEW_FILE_WHOLE,    // it has its name from now on
    NEW_FILE_ON_DISK,  // likewise, once its bytes are on disk (the name is only after disk_sync_dir of the directory)
};
// 0 if it has its name; else -1 with errno, of whatever went wrong first, and no PATH.part is left.
int new_file_end(struct new_file *n, enum new_file_end how);
// The file path = text. Where it need not be on disk several processes may write it at once.
int new_file_write(const char *path, const char *text, enum new_file_end how, char **error);

int disk_sync_dir(const char *dir, char **error);
int disk_make_dir(const char *dir, char **error);  // exists already: fine. Its parent must be there
// A directory of files and the files, as far as it goes. 0: it is gone (or was not there).
int disk_remove_dir(const char *dir, char **error);

#endif
