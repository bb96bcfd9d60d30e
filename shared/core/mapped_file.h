// A regular file, mapped read-only. A page of it that is no longer there when it is read (the file was cut short, its disk
// failed) makes the kernel send SIGBUS; then a message names the file and the process ends with EXIT_RUN_FAILED, as it
// would if the reading had been a call that failed. Nothing else can be done at that place: the bytes are gone, and with
// them what the run is about.
//
// Threads    Open and close from any thread, pages from any.
// Ownership  The caller owns the mapping: mapped_file_close.
#ifndef STARRING_SHARED_CORE_MAPPED_FILE_H
#define STARRING_SHARED_CORE_MAPPED_FILE_H

#include <stddef.h>

#include "shared/core/regular_file.h"

struct mapped_file {
    const void *base;  // NULL: nothing is mapped (an empty file is nothing)
    size_t bytes;
    struct mapping *entry;  // in the list that the handler searches
};

// what: "data ", before the file's name in the message, or "". 0, or -1 with why.
int mapped_file_open(struct mapped_file *m, const char *what, const char *path, char why[FILE_WHY_MAX]);
void mapped_file_close(struct mapped_file *m);  // nothing is done with an empty one

#endif
