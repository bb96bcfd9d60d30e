// Error checks of CUDA calls, which report the stream or device, and scratch of a stream's operations, outside
// the ledger.
#include <stdlib.h>

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

// An outgrown workspace is kept until the stream ends, because queued work still uses it. Freeing it would wait
// for the whole device, so also for transfers that wait for peers, and a peer may be waiting in the same way.
void *cuda_workspace(struct cuda_stream *s, size_t bytes) {
    struct cuda_device *d = cuda_device_of(s);
    if (s->ctx.workspace_bytes >= bytes) return s->ctx.workspace;
    bytes = dev_round(bytes);
    struct cuda_workspace *w = calloc(1, sizeof *w);
    cudaError_t e = w ? cudaMalloc(&w->memory, bytes) : cudaErrorMemoryAllocation;
    if (e != cudaSuccess) {
        device_fail(s->queue.head.dev, "stream %s: no %zu MiB for the workspace: %s; use a smaller batch",
                    s->queue.name, bytes >> 20, cudaGetErrorString(e));
        cudaGetLastError();
        free(w);
        return NULL;
    }
    w->bytes = bytes;
    w->before = s->workspaces;
    s->workspaces = w;
    s->ctx.workspace = w->memory;
    s->ctx.workspace_bytes = bytes;
    atomic_fetch_add(&d->workspace_bytes, bytes);
    return w->memory;
}

void cuda_workspaces_free(struct cuda_stream *s) {
    struct cuda_device *d = cuda_device_of(s);
    for (struct cuda_workspace *w = s->workspaces, *before; w; w = before) {
        before = w->before;
        cuda_check(s, cudaFree(w->memory), "freeing the workspace");
        atomic_fetch_sub(&d->workspace_bytes, w->bytes);
        free(w);
    }
    s->workspaces = NULL;
}
