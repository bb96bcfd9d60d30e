// A few threads that work on one operation together: what an operation of the cpu backend runs on, and any
// loop of the host that is worth it.
//
// Owner    A team belongs to the thread that calls; its members are created when first wanted, kept for the
//          next call, and joined when that thread ends.
// Waiting  Who has nothing to do looks for TEAM_SPIN_NS whether there is something, then sleeps until woken:
//          about as long as waking takes, so that waiting costs at most twice the better of both. On a
//          machine with other work looking longer is much slower, as the core that is lost to it is the one
//          that a member which was put aside needs; and so is yielding instead of sleeping, as who yields
//          goes to the end of the queue and who is woken to its head (docs/results/).
// Errors   Where no thread can be created a team is smaller, down to the caller alone: what is computed must
//          not depend on how many there are.
#ifndef STARRING_KERNELS_CPU_TEAM_H
#define STARRING_KERNELS_CPU_TEAM_H

#include <stdint.h>

#define TEAM_SPIN_NS 50000

// The part of one of `count` threads; index 0 is the caller's.
typedef void (*team_fn)(void *arg, int index, int count);

// Calls fn on up to `threads` threads, the caller among them, and returns when all have. What the caller
// wrote before is seen by all, and what they wrote by the caller. fn may not call team_run with the same
// thread's team again; threads <= 1 calls it directly.
void team_run(int threads, team_fn fn, void *arg);

// How often members of any team have gone to sleep since the program began: for tests.
uint64_t team_sleeps(void);

// Part `index` of `count` of [0, n), cut at multiples of `grain`: [*begin, *end), possibly empty.
static inline void parallel_range(int64_t n, int64_t grain, int index, int count, int64_t *begin,
                                  int64_t *end) {
    int64_t blocks = (n + grain - 1) / grain;
    *begin = blocks * index / count * grain;
    *end = blocks * (index + 1) / count * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

#endif
