// The clock of streams, traces and recorded times: monotonic, the same for all processes of a machine.
#ifndef STARRING_KERNELS_QUEUE_CLOCK_H
#define STARRING_KERNELS_QUEUE_CLOCK_H

#include <stdint.h>

int64_t queue_now_ns(void);

#endif
