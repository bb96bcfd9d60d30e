// Chooses the device that a run computes on, once before anything starts, so that all its processes and files
// agree.
#ifndef STARRING_SHARED_DEVICE_DEVICE_CHOICE_H
#define STARRING_SHARED_DEVICE_DEVICE_CHOICE_H

#include "kernels/backend.h"
#include "shared/config/config.h"

// "auto" becomes a GPU if its backend can be used, else cpu. A GPU is reported in one line. The section of another
// device (device_rows) has no effect; a warning is printed if it was set.
void device_resolve(struct config *c);
// Returns the backend of c->device ("auto": cpu), which supports cpu.kernel. Returns NULL after logging the reason.
const struct backend *device_backend(const struct config *c);
// Returns the kernel of the run's matrix products on a CPU ("fma"), after device_backend has succeeded. NULL on
// another device.
const char *device_cpu_kernel(const struct config *c);
// Returns the number of GPUs of this machine; 0 if c->device is no GPU, or cannot be used here.
int device_gpus(const struct config *c);

#endif
