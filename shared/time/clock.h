// Clocks of several hosts. Processes of one host share CLOCK_MONOTONIC. Clocks of different hosts differ by an
// offset, which round trips bound: all processes enter a barrier (a meeting), and none leaves it before all have
// entered. So
//
//     own clock   | before .. after |            before + offset <= the reference's after
//     reference   | before .. after |            after + offset  >= the reference's before
//
// and many meetings give a narrow interval. Its middle is the offset, half of its width the error: a bound, not an
// estimate. No state.
#ifndef STARRING_SHARED_TIME_CLOCK_H
#define STARRING_SHARED_TIME_CLOCK_H

#include <stdint.h>

struct clock_meeting {
    int64_t before, after;  // of one clock, when it entered and left a meeting
};

// reference's clock = own clock + offset
struct clock_offset {
    int64_t low, high;  // bounds from all meetings so far
};
struct clock_offset clock_offset_unknown(void);
void clock_offset_learn(struct clock_offset *o, struct clock_meeting own, struct clock_meeting reference);
int64_t clock_offset_ns(const struct clock_offset *o);
int64_t clock_offset_error_ns(const struct clock_offset *o);  // never negative

// Returns the same number in all processes that share a clock: a hash of the kernel's boot id, or of the host's
// name without one.
uint64_t clock_host(void);

#endif
