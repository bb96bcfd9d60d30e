// Loads the kernels before they are needed. CUDA loads a kernel at its first launch, and that may wait for all
// work on the device (CUDA C++ Programming Guide, "Lazy Loading"). That work may be a collective which waits
// for a peer, while the peer waits in the same way: a deadlock. Asking for a kernel's attributes loads it; NCCL
// does the same with its own kernels (ncclInitKernelsForDevice).
#include "kernels/cuda/common/platform.h"

int cuda_kernels_load(const char **why) {
    for (const struct kernel_link *k = kernel_link::all(); k; k = k->next) {
        cudaFuncAttributes attributes;
        cudaError_t e = cudaFuncGetAttributes(&attributes, k->kernel);
        if (e == cudaSuccess) continue;
        *why = cudaGetErrorString(e);
        return -1;
    }
    return 0;
}
