// The interface of libstarring_cuda.so: one symbol, one table. The program links neither CUDA nor its
// libraries; kernels/cuda_load.c opens the object when a CUDA device is asked for.
//
// Ownership   The table and everything in it is const and valid until the process ends. The object is never
//             unloaded, because CUDA does not survive that.
// Threads     Any, as in kernels/backend.h.
#ifndef STARRING_KERNELS_CUDA_SO_H
#define STARRING_KERNELS_CUDA_SO_H

#include "kernels/backend.h"

#define CUDA_SO_FILE   "libstarring_cuda.so"
#define CUDA_SO_SYMBOL "starring_cuda_so"
#define CUDA_SO_ABI    12  // changes with this header, kernels/backend.h, backend_impl.h and queue/queue.h

struct cuda_so {
    int abi;                        // CUDA_SO_ABI
    size_t device_bytes;            // sizeof(struct device): both sides must agree
    const struct backend *backend;  // "cuda"
    // Returns 0 if there is a new enough driver and a device of compute capability 8.0 or more; else -1 with a
    // sentence in why.
    int (*probe)(char *why, size_t why_bytes);
    // As stream_submit, but the function also gets the cudaStream_t, on which it may enqueue CUDA work. The
    // function may poll, but should not block long.
    void (*submit)(struct stream *s, const char *name, int (*fn)(void *arg, void *cuda_stream), void *arg);
    // Work enqueued on s after this call begins when the work before e's present record has been given to its
    // device. The device of s waits for nothing. If that earlier work has failed, s fails.
    void (*wait_for_submission)(struct stream *s, struct event *e);
    // Fails a stream from outside: queued work does not run, and stream_sync returns -1. Any thread.
    void (*fail)(struct stream *s, const char *text);
    // Seconds of device time between two events that have passed; negative if they cannot be compared.
    double (*event_seconds)(struct event *from, struct event *to);
    int (*device_index)(struct device *d);
};

// Opens the object (kernels/cuda_load.c), once; later calls find it open. Returns NULL with a sentence in *why:
// not built, cannot be loaded, or no driver. *why is valid until this thread's next call.
const struct cuda_so *cuda_so_open(const char **why);
// Opens the object and checks the device too. Further reasons: the driver is too old, there is no device.
const struct backend *cuda_backend_find(const char **why);

#endif
