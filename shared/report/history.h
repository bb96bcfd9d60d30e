// DIR/history.jsonl: the starts of a job and its workers' absences, one row each, in order of time. Kinds of rows:
//
//     life    the job starts, restarts after a death (--restart), or another command resumes it (--resume)
//     away    a worker is missing from that step on, and the job continues without it (--elastic)
//     back    the worker has returned
//
// A life (one start of the job) begins with all workers, after the checkpoint that it resumes from. Earlier rows about
// its steps no longer apply. Rows are never removed. A new run in the directory starts a new file.
//
// Written by the one process that starts lives: a star's scheduler, or else the launcher. The file outlives it, so a
// restarted scheduler knows how many lives there were.
#ifndef STARRING_SHARED_REPORT_HISTORY_H
#define STARRING_SHARED_REPORT_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define HISTORY_FILE "history.jsonl"

enum history_kind { HISTORY_START, HISTORY_ABSENT, HISTORY_RETURNED };

struct history_row {
    enum history_kind kind;
    int64_t step;     // 1, 2, ..: first step for which the row is true; 0: unknown
    const char *why;  // reason of the death before a start, or of an absence; NULL: none
    // Only in rows of kind life:
    int start;               // 1, 2, ..: of the command; epochs and restarts count from its beginning
    uint32_t epoch;          // epoch of the start, 1, 2, ..
    uint64_t job;            // a random number: for a star this epoch's, else of all lives; 0: none
    int restarts;            // restarts so far, including this one
    const char *checkpoint;  // path it resumes from; as read: its name. NULL or "": the beginning
    bool counted;            // `lost` is known: how many steps were done and must be done again
    int64_t lost;
    // Only in rows of kind away and back:
    int worker;
    const char *cause;  // NULL in a back row
};

// Appends the row. If the disk fails, it warns and the row is lost.
void history_add(const char *dir, const struct history_row *row);
// Calls take for each valid row, in order; the row's texts are valid during the call. Never logs; skips incomplete
// lines.
void history_each(const char *dir, void (*take)(void *ctx, const struct history_row *row), void *ctx);
// Returns the last life, without its texts; start and epoch are 0 if there is none.
struct history_row history_last_start(const char *dir);
// Deletes the file: a new run begins in dir.
void history_remove(const char *dir);

#endif
