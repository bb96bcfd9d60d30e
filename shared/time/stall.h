// When this process stood still: it was stopped (SIGSTOP, a debugger, a computer that slept), or its host gave the cores to
// others. Its peers were not silent then, since nobody listened; and a transfer that it takes part in waited for it.
//
//     looks        |  |  |  |                  |  |  |
//     cpu clock      +1 +1 +1        +1          +1 +1
//     stalls                 >-----------------<
//
// A thread of its own looks at two clocks every STALL_TICK_NS. Where a look comes late, and the process got less than half of
// that time as processor time, it stood still for what it did not get.
//
// Threads     All functions: any thread. Each of them looks first, so that whoever wakes first knows of the stall that has
//             just ended. Nothing blocks, but for a lock that is held for as long as a few words are written.
// Memory      Bounded: the last STALLS are kept, and all are counted.
#ifndef STARRING_SHARED_TIME_STALL_H
#define STARRING_SHARED_TIME_STALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STALL_TICK_NS  2000000  // between two looks
#define STALL_LEAST_NS 6000000  // of what counts: a shorter one is a thread that had to wait for its turn
#define STALLS         4096     // kept

// Nanoseconds of CLOCK_MONOTONIC.
struct stall {
    int64_t begin, end;
};

// ---------------------------------------------------------------- the rule, without clocks
// {0} to begin with. now: CLOCK_MONOTONIC; cpu: processor time that the process has got. Whether a stall has just ended;
// then *out is it.
struct stall_looks {
    int64_t now, cpu;  // at the last look; now 0: there was none
};
bool stall_look(struct stall_looks *s, int64_t now, int64_t cpu, struct stall *out);

// ---------------------------------------------------------------- of this process
struct stall_watch;
struct stall_watch *stall_watch_create(void);  // NULL after logging
void stall_watch_destroy(struct stall_watch **w);

// Nanoseconds since the watch began in which the process stood still. CLOCK_MONOTONIC less this is a clock that stands
// while the process does. NULL: 0.
int64_t stall_total(struct stall_watch *w);
// How much of [begin, end) it stood still, as far as stalls are kept. NULL: 0.
int64_t stall_within(struct stall_watch *w, int64_t begin, int64_t end);
// Those that ended after since, oldest first, the longest where there are more than room. How many were written.
size_t stall_list(struct stall_watch *w, int64_t since, struct stall *out, size_t room);

#endif
