// Chooses the device that a run computes on, once before anything starts, so that all its processes and files
// agree.
#ifndef STARRING_SHARED_DEVICE_DEVICE_CHOICE_H
#define STARRING_SHARED_DEVICE_DEVICE_CHOICE_H

#include "kernels/backend.h"
#include "shared/config/config.h"

// Replaces the device "auto" by a GPU if its backend can be used, else by cpu. Prints a line if it is a GPU. The
// configuration's section of another device (device_rows) has no effect; prints a warning if it was set.
void device_resolve(struct config *c);
// Returns the backend of c->device ("auto": cpu) after checking that it supports cpu.kernel, or NULL after logging why not.
const struct backend *device_backend(const struct config *c);
// Returns the name of the kernel of matrix products on a CPU ("fma"), after device_backend has succeeded. NULL on other
// devices.
const char *device_cpu_kernel(const struct config *c);
// Returns the number of GPUs of this machine; 0 if c->device is no GPU, or cannot be used here.
int device_gpus(const struct config *c);

#endif
