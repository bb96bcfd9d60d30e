// Whether a process stands still: it has computed nothing at all, as /proc tells, and waits for nothing that a disk does.
// What is stopped (SIGSTOP) or waits for what never comes looks like that; whoever polls, computes or writes does not.
#ifndef STARRING_SHARED_LAUNCH_STILL_H
#define STARRING_SHARED_LAUNCH_STILL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct still {
    uint64_t runs;  // how often any thread of it had run, when it was looked at last
    double
        since_s;  // when that changed last, or it waited for a processor or a disk; 0: it has not been looked at
};

// How long the process has stood still, seconds, at time now: 0 where it has moved since the last look, is gone, or cannot
// be looked at. stopped: whether a signal has stopped it, at this moment.
double still_look(struct still *s, pid_t pid, double now, bool *stopped);

#endif
