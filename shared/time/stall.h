// The moments at which this process stood still: it was stopped (SIGSTOP, a debugger, a computer that slept), or its host gave the cores to
// others. Its peers were not silent then, since nobody listened; and a transfer that it takes part in waited for it.
//
//     looks        |  |  |  |                  |  |  |
//     cpu clock      +1 +1 +1        +1          +1 +1
//     stalls                 >-----------------<
//
// A thread of its own looks at two clocks every STALL_TICK_NS. Where a look comes late, and the process got less than half of
// that time as processor time, it stood still for what it did not get.
//
// A process may run while the one of its threads that moves its part of a transfer waits for a core (more threads than
// cores, of this program or another): the watch asks the kernel how long each thread that was named to it was ready to run
// and did not (/proc/PID/task/TID/schedstat, "time spent waiting on a runqueue"; Linux's Documentation/scheduler/
// sched-stats.rst). Where there is no such file, only the process is watched.
//
// Threads     All functions: any thread. Each of them looks first, so that the thread that wakes first knows of the stall
//             that has just ended. Nothing blocks, but for a lock that is held while a few words are read and written.
// One         A process has one watch, which its ranks (threads of a ring) share.
// Memory      Bounded: of each kind the STALLS longest are kept, and all are counted.
#ifndef STARRING_SHARED_TIME_STALL_H
#define STARRING_SHARED_TIME_STALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/spans.h"

#define STALL_TICK_NS  2000000  // between two looks
#define STALL_LEAST_NS 6000000  // of what counts: a shorter one is a thread that had to wait for its turn
#define STALLS         4096     // kept of a kind
#define STALL_PARTS    8  // threads that are watched: more of them, ranks of a large ring of threads, cost cores

enum stall_kind {
    STALL_PROCESS,  // the process stood still
    STALL_PART,     // it ran, but a thread that takes part in transfers had no core
    STALL_KINDS
};

// ---------------------------------------------------------------- the rules, without clocks
// {0} to begin with. now: CLOCK_MONOTONIC; cpu: processor time that the process has got. Whether a stall has just ended;
// then *out is it.
struct stall_looks {
    int64_t now, cpu;  // at the last look; now 0: there was none
};
bool stall_look(struct stall_looks *s, int64_t now, int64_t cpu, struct span *out);

// The same of a thread. waited: how long it has waited for a core so far; turns: how often it has got one. A wait is told when
// it has ended; of several since the last look each must have been long.
struct stall_turns {
    int64_t waited;
    uint64_t turns;
    bool known;
};
bool stall_look_turns(struct stall_turns *s, int64_t now, int64_t waited, uint64_t turns, struct span *out);

// ---------------------------------------------------------------- of this process
struct stall_watch;
struct stall_watch *stall_watch_open(void);  // NULL after logging
void stall_watch_close(struct stall_watch **w);

// Thread tid of this process takes part in its owner's transfers (a rank: any address that names it), from now until it ends.
// Of more than STALL_PARTS the first are watched.
void stall_part(struct stall_watch *w, const void *owner, pid_t tid);

// Nanoseconds since the watch began in which the process stood still. CLOCK_MONOTONIC less this is a clock that stands
// while the process does. NULL: 0.
int64_t stall_total(struct stall_watch *w);
// Those of a kind that ended after since, oldest first, the longest where there are more than room: of STALL_PART the owner's.
// How many were written.
size_t stall_list(struct stall_watch *w, enum stall_kind kind, const void *owner, int64_t since,
                  struct span *out, size_t room);

#endif
