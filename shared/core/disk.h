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
// The whole file path = text, by way of path.tmp: nothing or all of it, on disk (its name as well only after
// disk_sync_dir of the directory).
int disk_write_file(const char *path, const char *text, char **error);
int disk_sync_dir(const char *dir, char **error);
int disk_make_dir(const char *dir, char **error);  // exists already: fine. Its parent must be there
// A directory of files and the files, as far as it goes. 0: it is gone (or was not there).
int disk_remove_dir(const char *dir, char **error);

#endif
