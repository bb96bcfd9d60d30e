// A few threads that work on one operation together. The cpu backend's operations use teams, and so do long
// loops of the host.
//
// Owner    A team belongs to the calling thread. Its members are created when first needed, kept for the next
//          call, and joined when that thread ends.
// Waiting  A member without work polls for TEAM_SPIN_NS, then sleeps until it is woken. Waking a thread takes about as long
//          as TEAM_SPIN_NS, so this costs at most twice the better of polling and sleeping. Longer polling is much slower
//          on a machine with other work, because it occupies the core that a preempted member needs. Yielding
//          instead of sleeping is slower too: a yielding thread goes to the end of the scheduler's queue, a
//          woken one to its head (docs/results/).
// Errors   If a thread cannot be created, the team is smaller; the caller may be its only thread. Results must
//          therefore not depend on the number of threads.
#ifndef STARRING_KERNELS_CPU_TEAM_H
#define STARRING_KERNELS_CPU_TEAM_H

#include <stdint.h>

#define TEAM_SPIN_NS 50000

// The work of thread `index` of `count`; index 0 is the caller.
typedef void (*team_fn)(void *arg, int index, int count);

// Calls fn on up to `threads` threads, the caller included, and returns when all calls have returned. The
// threads see what the caller wrote before, and the caller sees what they wrote. fn must not call team_run.
// threads <= 1 calls fn directly.
void team_run(int threads, team_fn fn, void *arg);

// How often members of all teams have gone to sleep since the program began, for tests.
uint64_t team_sleeps(void);

// Range `index` of `count` ranges of [0, n), cut at multiples of `grain`: [*begin, *end), possibly empty.
static inline void parallel_range(int64_t n, int64_t grain, int index, int count, int64_t *begin,
                                  int64_t *end) {
    int64_t blocks = (n + grain - 1) / grain;
    *begin = blocks * index / count * grain;
    *end = blocks * (index + 1) / count * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

#endif
