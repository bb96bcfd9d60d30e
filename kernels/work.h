// How others see that a rank is at work, not stuck.
#ifndef STARRING_KERNELS_WORK_H
#define STARRING_KERNELS_WORK_H

#include <stdbool.h>

struct device;
struct stream;

enum dev_work {
    DEV_RESTS,
    DEV_COMPUTES,  // some stream has something that it can do and has not done (of a GPU: that it has not been
    // given, or that the host waits for); one that waits for another, or for other ranks, has not
    DEV_HOST_WORKS  // none has, and the host is beside the device: in a file, most likely, which may take any time
};
enum dev_work dev_at_work(struct device *d);  // any thread
const char *dev_work_says(enum dev_work w);   // for people: "it is computing"
// The function that the stream runs begins, or ends, to wait for other ranks. On the stream's thread.
void stream_waits(struct stream *s, bool waits);

#endif
