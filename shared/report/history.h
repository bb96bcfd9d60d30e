// DIR/history.jsonl: what befell the processes of a job, a row each, in order. Kinds of rows:
//
//     life    the job begins, or begins again after a death (--restart), or another command goes on with it (--resume)
//     away    a worker is missed from that step on, and the job goes on without it (--elastic)
//     back    it is there again
//
// A life begins with all workers, behind the checkpoint that it goes on from: what rows before it say of its steps holds no more.
// Nothing is ever taken out of the file, but a new run in the directory begins another one.
//
// Written by the one process that begins lives: a star's scheduler, of other runs their launcher. It outlives them, so that a
// scheduler that was killed knows how many there were.
#ifndef STARRING_SHARED_REPORT_HISTORY_H
#define STARRING_SHARED_REPORT_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define HISTORY_FILE "history.jsonl"

enum history_kind { HISTORY_LIFE, HISTORY_AWAY, HISTORY_BACK };

struct history_row {
    enum history_kind kind;
    int64_t step;     // 1, 2, ..: from which on it holds; 0: not known
    const char *why;  // of the death before a life, and of an absence; NULL: there was none
    // life:
    int start;               // 1, 2, ..: of the command; its epochs and restarts count from the beginning
    uint32_t epoch;          // of it, 1, 2, ..
    uint64_t job;            // a random number: of a star this epoch's, else of all lives; 0: none
    int restarts;            // used so far, this one's included
    const char *checkpoint;  // path it goes on from; as read: its name. NULL or "": the beginning
    bool counted;            // it is known how many steps were done and are to be done again: lost
    int64_t lost;
    // away and back:
    int worker;
    const char *cause;  // NULL where it is back
};

// A disk that does not take the row costs the job a warning, and what the row would have told.
void history_add(const char *dir, const struct history_row *row);
// Each row that makes sense goes to take, in their order; its texts are valid during the call. Never logs: what is torn is left out.
void history_each(const char *dir, void (*take)(void *ctx, const struct history_row *row), void *ctx);
// The last life, without its texts; start and epoch are 0 where there is none.
struct history_row history_last_life(const char *dir);
// A new run begins in dir.
void history_forget(const char *dir);

#endif
