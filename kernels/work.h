// How others see that a rank is computing, not stuck.
#ifndef STARRING_KERNELS_WORK_H
#define STARRING_KERNELS_WORK_H

#include <stdbool.h>

struct device;
// Whether any stream of the device has something that it has not done (of a GPU: that it has not been given, or that
// the host waits for). Any thread.
bool dev_at_work(struct device *d);

#endif
