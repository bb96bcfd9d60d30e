// Loads the kernels before they are needed. CUDA loads a kernel when it is first launched, which may have to
// wait for everything that the device is doing (CUDA C++ Programming Guide, "Lazy Loading"): for a collective
// that waits for its peers as well, while a peer may be about to load likewise. Asking for a kernel's
// attributes loads it; NCCL does the same with its own (ncclInitKernelsForDevice).
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
