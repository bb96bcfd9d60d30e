// Clocks of several hosts. Processes of one host share CLOCK_MONOTONIC. Clocks of different hosts differ by an
// offset, which round trips bound: all processes enter a barrier, and none leaves it before all have entered. So
//
//     own clock   | before .. after |            before + offset <= the reference's after
//     reference   | before .. after |            after + offset  >= the reference's before
//
// and many barriers give a narrow interval. Its middle is the offset, half of its width the error: a bound, not an
// estimate. No state.
#ifndef STARRING_SHARED_TIME_CLOCK_H
#define STARRING_SHARED_TIME_CLOCK_H

#include <stdint.h>

struct clock_barrier {
    int64_t before, after;  // times of one process's clock: when it entered the barrier, and when it left
};

// reference's clock = own clock + offset
struct clock_offset {
    int64_t low, high;  // bounds from all barriers so far
};
struct clock_offset clock_offset_unknown(void);
void clock_offset_learn(struct clock_offset *o, struct clock_barrier own, struct clock_barrier reference);
int64_t clock_offset_ns(const struct clock_offset *o);
int64_t clock_offset_error_ns(const struct clock_offset *o);  // never negative

// Returns the same number in all processes that share a clock: a hash of the kernel's boot id, or of the host's
// name if the kernel gives no boot id.
uint64_t clock_host(void);

#endif
