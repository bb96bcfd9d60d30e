// Errors of the CUDA runtime, said once with the stream or device that they belong to.
#include "kernels/cuda/host/cuda_impl.h"

int cuda_check(struct cuda_stream *s, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return 0;
    device_fail(s->queue.head.dev, "stream %s: %s: %s (%s)", s->queue.name, what, cudaGetErrorString(e),
                cudaGetErrorName(e));
    return -1;
}

int cuda_device_check(struct cuda_device *d, cudaError_t e, const char *what) {
    if (e == cudaSuccess) return 0;
    device_fail(&d->head, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
    return -1;
}
