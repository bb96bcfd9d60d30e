// The face of libstarring_cuda.so: one symbol, one table. The program links neither CUDA nor its libraries;
// kernels/cuda_load.c opens the object when a CUDA device is asked for.
//
// Ownership   The table and everything in it is const and lives until the process ends: the object is never
//             unloaded, because CUDA does not survive that.
// Threads     Any, as in kernels/backend.h.
#ifndef STARRING_KERNELS_CUDA_SO_H
#define STARRING_KERNELS_CUDA_SO_H

#include "kernels/backend.h"

#define CUDA_SO_FILE   "libstarring_cuda.so"
#define CUDA_SO_SYMBOL "starring_cuda_so"
#define CUDA_SO_ABI    11  // changes with this header, kernels/backend.h and kernels/backend_impl.h

struct cuda_so {
    int abi;                        // CUDA_SO_ABI
    size_t device_bytes;            // sizeof(struct device): both sides must agree
    const struct backend *backend;  // "cuda"
    // 0 when there is a driver, new enough, and a device of compute capability 8.0 or more; else -1 with a
    // sentence in why.
    int (*probe)(char *why, size_t why_bytes);
    // stream_submit whose function also gets the cudaStream_t, to enqueue CUDA work of its own. It may poll
    // but should not block long.
    void (*submit)(struct stream *s, const char *name, int (*fn)(void *arg, void *cuda_stream), void *arg);
    // Work that is queued on s behind this call begins when the record that e has now has been given to its
    // device; the device itself waits for nothing. Fails s when what was queued before that record has
    // failed.
    void (*follow)(struct stream *s, struct event *e);
    // Fails a stream from outside: what is queued does not run, stream_sync returns -1. Any thread.
    void (*fail)(struct stream *s, const char *text);
    // 1: passed (or never recorded), 0: not yet, -1: its stream has failed. Never blocks.
    int (*event_passed)(struct event *e);
    // Seconds of device time between two events that have passed; negative when they cannot be compared.
    double (*event_seconds)(struct event *from, struct event *to);
    int (*device_index)(struct device *d);
};

// kernels/cuda_load.c: opens the object (once; later calls find it open). NULL with a sentence in *why that
// tells apart: not built, cannot be loaded, no driver. *why is valid until this thread's next call.
const struct cuda_so *cuda_so_open(const char **why);
// The same, and asks the device: also driver too old, no device.
const struct backend *cuda_backend_find(const char **why);

#endif
