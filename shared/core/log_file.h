// A file that grows by whole records, mostly lines. All appending and all reading of lines is here. A crash or a
// full disk may cut the last record short: an incomplete record is never read, and is removed before the next
// record is written.
//
// Threads   One at a time per file.
// Errors    -1 with errno; nothing is logged.
#ifndef STARRING_SHARED_CORE_LOG_FILE_H
#define STARRING_SHARED_CORE_LOG_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "shared/core/regular_file.h"

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

#endif
