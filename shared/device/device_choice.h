// Which device a run computes on, asked once before anything starts, so that every process of it and every
// file says the same.
#ifndef STARRING_SHARED_DEVICE_DEVICE_CHOICE_H
#define STARRING_SHARED_DEVICE_DEVICE_CHOICE_H

#include "kernels/backend.h"
#include "shared/config/config.h"

// "auto" becomes a GPU where its backend can be used, else cpu; the first is said in a line. The section of another
// device has no effect (device_rows), which is said where it was asked for.
void device_resolve(struct config *c);
// The backend of c->device ("auto": cpu), which can multiply as cpu.kernel says. NULL after logging the reason.
const struct backend *device_backend(const struct config *c);
// The way that the run's matrix products take on a CPU ("fma"), once device_backend has found it. NULL on another device.
const char *device_cpu_kernel(const struct config *c);
// GPUs of this machine; 0 when c->device is none, or cannot be used here.
int device_gpus(const struct config *c);

#endif
