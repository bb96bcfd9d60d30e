// Scratch memory of a thread, kept from one operation to the next. Once an operation has run with its largest
// shapes, nothing more is allocated. Freed when the thread ends.
#ifndef STARRING_KERNELS_CPU_SCRATCH_H
#define STARRING_KERNELS_CPU_SCRATCH_H

#include <stddef.h>

// Returns at least `bytes` bytes, 256-byte aligned, contents undefined, valid until this thread's next call.
// Returns NULL if the host is out of memory.
void *thread_scratch(size_t bytes);

#endif
