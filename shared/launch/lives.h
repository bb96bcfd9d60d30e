// DIR/lives.jsonl: the lives of a job that may be begun again (--restart), a line each, in order.
//
//   {"start":1,"epoch":2,"job":"8f3a..","started":"2024-01-31T23:59:59Z","resumed_from":"step-120","restarts":1,"steps_lost":2,
//    "why":"worker 1 (pid 77) was killed by signal 9 (Killed)"}
//
// Written by the one process that begins them: a star's scheduler when all roles are there, of other runs their launcher before it
// starts the run. It outlives them, so that a scheduler that was killed knows how many there were.
//
// A command that goes on in the directory of an earlier one (--resume) leaves that one's lines: its own have the next
// number in "start", and its epochs and restarts count from the beginning.
#ifndef STARRING_SHARED_LAUNCH_LIVES_H
#define STARRING_SHARED_LAUNCH_LIVES_H

#include <stdbool.h>
#include <stdint.h>

struct life {
    int start;               // 1, 2, ..: of the command; 0 where there is none
    uint32_t epoch;          // of it, 1, 2, ..; as read: 0 where there is none
    uint64_t job;            // a random number: of a star this epoch's, else of all lives
    int restarts;            // used so far, this one's included
    const char *checkpoint;  // path it goes on from; NULL or "": the beginning. Not read.
    const char *why;         // of the death before; NULL: the first. Not read.
    bool counted;            // it is known how many steps were done and are to be done again: lost. Not read.
    int64_t lost;
};

// Adds a line. A disk that does not take it costs the job a warning, and its count of lives.
void lives_add(const char *dir, const struct life *life);
// The last one. Never logs: what is torn is left out.
struct life lives_last(const char *dir);
// A new run begins in dir.
void lives_forget(const char *dir);

#endif
