// Stands in for CUDA's header of this name in C sources, where it is missing; the kernels, which are C++, see
// tests/emulation/gpu/cuda_runtime.h.
#include <cuda_runtime_api.h>
