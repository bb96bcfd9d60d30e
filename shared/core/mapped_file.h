// A regular file, mapped read-only. If a page no longer exists when it is read (the file was truncated, or its disk
// failed), the kernel sends SIGBUS. The handler prints a message with the file's name, and the process ends with
// EXIT_RUN_FAILED, as after a failed read. The run cannot continue: its data is lost.
//
// Threads    Any thread may open, close and read.
// Ownership  The caller owns the mapping and calls mapped_file_close.
#ifndef STARRING_SHARED_CORE_MAPPED_FILE_H
#define STARRING_SHARED_CORE_MAPPED_FILE_H

#include <stddef.h>

#include "shared/core/regular_file.h"

struct mapped_file {
    const void *base;  // NULL: nothing is mapped (an empty file)
    size_t bytes;
    struct mapping *entry;  // its entry in the handler's list
};

// what: printed before the file's name in the message ("data "), or "". Returns 0, or -1 with why.
int mapped_file_open(struct mapped_file *m, const char *what, const char *path, char why[FILE_WHY_MAX]);
void mapped_file_close(struct mapped_file *m);  // does nothing if nothing is mapped

#endif
