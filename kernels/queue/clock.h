// The clock of streams, traces and recorded times: monotonic, the same for all processes of a machine.
#ifndef STARRING_KERNELS_QUEUE_CLOCK_H
#define STARRING_KERNELS_QUEUE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t queue_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
