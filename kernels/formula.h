// FORMULA: a function of scalars that ref, cpu and CUDA kernels share, so that its order of operations is written
// once. It has plain C arithmetic and explicit fmaf: no compiler of the project fuses or reorders (-ffp-contract=off,
// nvcc's -fmad=false), so every backend gets the same bits. The cpu backend vectorises the loops that inline it.
#ifndef STARRING_KERNELS_FORMULA_H
#define STARRING_KERNELS_FORMULA_H

#ifdef __CUDACC__
#define FORMULA __host__ __device__ static inline
#else
#define FORMULA static inline __attribute__((always_inline))
#endif

#endif
