// Scratch memory of a thread, kept from one operation to the next: after an operation has run once
// with its largest shapes, nothing is allocated any more. Freed when the thread ends.
#ifndef STARRING_KERNELS_CPU_SCRATCH_H
#define STARRING_KERNELS_CPU_SCRATCH_H

#include <stddef.h>

// At least `bytes` bytes, 256-byte aligned, contents undefined; valid until this thread's next call.
// NULL when the host is out of memory.
void *thread_scratch(size_t bytes);

#endif
