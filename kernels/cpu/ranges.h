// Runs an operation over ranges in parallel. The operation must give the same bits wherever the range is cut
// (at multiples of the grain). Then its result does not depend on the number of threads.
#ifndef STARRING_KERNELS_CPU_RANGES_H
#define STARRING_KERNELS_CPU_RANGES_H

#include <stdatomic.h>

#include "kernels/cpu/team.h"

// Processes items [begin, end); args are the operation's arguments.
typedef void (*range_fn)(const void *args, int64_t begin, int64_t end);

#define RANGE_ELEMENTS 8192  // waking a thread does not pay for fewer

struct ranges {
    range_fn fn;
    const void *args;
    int64_t n, grain;
    _Atomic int64_t next;  // for_ranges_dynamic: the first block that no thread has taken
};

static inline void ranges_part(void *arg, int index, int count) {
    const struct ranges *s = arg;
    int64_t begin, end;
    parallel_range(s->n, s->grain, index, count, &begin, &end);
    if (begin < end) s->fn(s->args, begin, end);
}

static inline void ranges_take(void *arg, int index, int count) {
    struct ranges *s = arg;
    (void)index, (void)count;
    for (int64_t begin; (begin = atomic_fetch_add(&s->next, 1) * s->grain) < s->n;)
        s->fn(s->args, begin, begin + s->grain < s->n ? begin + s->grain : s->n);
}

static inline int ranges_threads(int threads, int64_t n, int64_t grain) {
    int64_t blocks = (n + grain - 1) / grain;
    return threads > blocks ? (int)blocks : threads;
}

// Runs fn over [0, n): one contiguous range per thread, cut at multiples of grain.
static inline void for_ranges(int threads, int64_t n, int64_t grain, range_fn fn, const void *args) {
    team_run(ranges_threads(threads, n, grain), ranges_part,
             &(struct ranges){.fn = fn, .args = args, .n = n, .grain = grain});
}

// The same, but a free thread takes the next grain items: for items of unequal cost.
static inline void for_ranges_dynamic(int threads, int64_t n, int64_t grain, range_fn fn, const void *args) {
    team_run(ranges_threads(threads, n, grain), ranges_take,
             &(struct ranges){.fn = fn, .args = args, .n = n, .grain = grain});
}

// The grain for rows of `width` elements each.
static inline int64_t row_grain(int64_t width) {
    return width >= RANGE_ELEMENTS ? 1 : RANGE_ELEMENTS / width;
}

#endif
