// How others see that a rank is computing, not stuck.
#ifndef STARRING_KERNELS_WORK_H
#define STARRING_KERNELS_WORK_H

#include <stdbool.h>

struct device;
struct stream;
// Whether any stream of the device has something that it can do and has not done (of a GPU: that it has not been
// given, or that the host waits for). A stream that waits for another, or for other ranks, is not at work. Any thread.
bool dev_at_work(struct device *d);
// The function that the stream runs begins, or ends, to wait for other ranks. On the stream's thread.
void stream_waits(struct stream *s, bool waits);

#endif
