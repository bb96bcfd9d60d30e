// The times at which this process was stalled. It was stopped (SIGSTOP, a debugger, a sleeping computer), or its
// host gave the cores to others. Its peers were not silent then, because this process did not listen; and its
// transfers waited for it.
//
//     readings     |  |  |  |                  |  |  |
//     cpu clock      +1 +1 +1        +1          +1 +1
//     stalls                 >-----------------<
//
// A thread of its own reads two clocks every STALL_TICK_NS. If a reading is late, and the process got less than
// half of the time since the last reading as processor time, the process was stalled for the rest of that time.
//
// A process may run while its thread that moves transfers waits for a core (more threads than cores, of this
// program or another). The watch asks the kernel how long each registered thread was ready to run but had no core
// (/proc/PID/task/TID/schedstat, "time spent waiting on a runqueue"; Linux's
// Documentation/scheduler/sched-stats.rst). If there is no such file, only the process is watched.
//
// Threads     Any thread may call all functions. Each function reads the clocks first, so that the thread that
//             wakes first knows of the stall that has just ended. Nothing blocks, except a lock that is held
//             briefly.
// One         A process has one watch, which its ranks (threads of a ring) share.
// Memory      Bounded: the STALLS longest of each kind are kept, and all are counted.
#ifndef STARRING_SHARED_TIME_STALL_H
#define STARRING_SHARED_TIME_STALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/spans.h"

#define STALL_TICK_NS  2000000  // between two readings
#define STALL_LEAST_NS 6000000  // the shortest stall: a shorter delay is normal scheduling
#define STALLS         4096     // kept per kind
// Threads that are watched, at most: watching more (ranks of a large ring of threads) would cost cores.
#define STALL_THREADS 8

enum stall_kind {
    STALL_PROCESS,  // the process was stalled
    STALL_THREAD,   // it ran, but a thread that takes part in transfers had no core
    STALL_KINDS
};

// ---------------------------------------------------------------- the rules, without clocks
// Starts as {0}. now: CLOCK_MONOTONIC; cpu: processor time that the process has got. Returns whether a stall has
// just ended; *out receives it.
struct stall_reading {
    int64_t now, cpu;  // at the last reading; now 0: none yet
};
bool stall_read(struct stall_reading *s, int64_t now, int64_t cpu, struct span *out);

// The same for a thread. waited: how long it has waited for a core so far; runs: how often it has got one. A wait
// is reported after it has ended. If several have ended since the last reading, their mean must be long.
struct stall_thread_reading {
    int64_t waited;
    uint64_t runs;
    bool known;
};
bool stall_read_thread(struct stall_thread_reading *s, int64_t now, int64_t waited, uint64_t runs,
                       struct span *out);

// ---------------------------------------------------------------- of this process
struct stall_watch;
struct stall_watch *stall_watch_open(void);  // NULL after logging
void stall_watch_close(struct stall_watch **w);

// From now on, until it ends, thread tid of this process takes part in the transfers of owner (a rank: any address
// that identifies it). Only the first STALL_THREADS threads are watched.
void stall_watch_thread(struct stall_watch *w, const void *owner, pid_t tid);

// Returns the nanoseconds since the watch began in which the process was stalled. CLOCK_MONOTONIC minus this is a
// clock that stops with the process. w NULL: 0.
int64_t stall_total(struct stall_watch *w);
// Writes the stalls of a kind that ended after since, oldest first; if there are more than room, the longest ones.
// STALL_THREAD: only the owner's. Returns how many were written.
size_t stall_list(struct stall_watch *w, enum stall_kind kind, const void *owner, int64_t since,
                  struct span *out, size_t room);

#endif
