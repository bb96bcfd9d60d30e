// A file that only grows, by whole records: lines, most of all. The one way to append, and to read lines: a death, or a full
// disk, may tear the last one, and what is torn is never read and goes before the next record is written.
//
// Threads   One at a time for each file.
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
    off_t end;  // where the next record begins
    int error;  // of the first record that was lost: nothing is written behind it
};
// Makes the file, or goes on behind its lines: all whole ones, or those before the first that `keep` does not want (NULL: it
// wants all). What is behind them is cut off.
int log_file_open(struct log_file *f, const char *path, bool (*keep)(void *ctx, const char *line), void *ctx);
// Whole or not at all: one write, and what a full disk took of it is cut off again.
int log_file_add(struct log_file *f, const char *record, size_t bytes);
// -1: some record is lost, or closing failed.
int log_file_close(struct log_file *f);

#define LOG_LINE_MAX 16384
// A file's whole lines, one after the other.
struct log_reader {
    FILE *file;      // NULL: at the end
    int64_t number;  // of the line in hand, 1, 2, ..
    bool torn;       // at the end: a last line that is not whole was left out
    char line[LOG_LINE_MAX];
};
int log_reader_open(struct log_reader *r, const char *path, char why[FILE_WHY_MAX]);
// The next line, without its end; NULL: there are no more, and the file is closed. A line of more than LOG_LINE_MAX bytes comes
// in pieces.
char *log_reader_next(struct log_reader *r);
void log_reader_close(struct log_reader *r);  // before the end

#endif
