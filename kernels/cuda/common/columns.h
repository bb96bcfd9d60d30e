// The second pass of column sums: adds the partial sums of blocks of rows, in fp32 in the workspace, in a fixed
// order. How the rows are cut depends only on the shape, never on the device.
//
//     workspace   part 0 | first: n | second: n |     second exists if two sums are computed together
//                 part 1 | ...                        (a norm's weight and bias)
#ifndef STARRING_KERNELS_CUDA_COMMON_COLUMNS_H
#define STARRING_KERNELS_CUDA_COMMON_COLUMNS_H

#include "kernels/cuda/common/platform.h"

#define PARTS_MAX    512  // about four blocks for each multiprocessor of a large device
#define PART_ROWS    4    // a part has at least this many rows
#define PART_FLOATS  ((int64_t)CUDA_WORKSPACE_BYTES / (int64_t)sizeof(float))
#define PART_COLUMNS 32
#define PART_SLICES  32  // with PARTS_MAX parts, 16 loads per thread, all in flight together

// Number of parts for `rows` rows whose partial sums take `width` floats; 0 if not even one fits.
static inline int64_t column_parts(int64_t rows, int64_t width) {
    return lesser(lesser((int64_t)PARTS_MAX, PART_FLOATS / width), divide_up(rows, (int64_t)PART_ROWS));
}

// A thread's V columns of a part. p is 16-byte aligned if V is a multiple of 4.
template <int V>
__device__ static inline void store_sums(float *p, const float *sums) {
    constexpr int N = V % 4 ? 1 : 4;
#pragma unroll
    for (int j = 0; j < V; j += N) store_f32<float, N>(p + j, sums + j);
}

template <int V>
__device__ static inline void load_sums(const float *p, float *sums) {
    constexpr int N = V % 4 ? 1 : 4;
#pragma unroll
    for (int j = 0; j < V; j += N) load_f32<float, N>(p + j, sums + j);
}

template <typename T>
struct combine_buffers {
    T *first, *second;   // (n) each; second may be NULL
    const float *parts;  // (count, width)
    int64_t n, width, count;
    bool accumulate;
};

// A block adds PART_COLUMNS columns. Slice s of its threads adds a run of parts in order; then the slices are
// added in order. blockIdx.y: which of the two sums.
template <typename T>
__global__ void __launch_bounds__(PART_COLUMNS *PART_SLICES) combine_kernel(struct combine_buffers<T> p) {
    SHARED_ARRAY(float, sums, PART_SLICES *(PART_COLUMNS + 1));
    int lane = (int)threadIdx.x % PART_COLUMNS, slice = (int)threadIdx.x / PART_COLUMNS;
    int64_t c = (int64_t)blockIdx.x * PART_COLUMNS + lane;
    const float *from = p.parts + blockIdx.y * p.n + c;
    float total = 0.0f;
    if (c < p.n)
#pragma unroll 16
        for (int64_t k = p.count * slice / PART_SLICES; k < p.count * (slice + 1) / PART_SLICES; k++)
            total += from[k * p.width];
    sums[slice * (PART_COLUMNS + 1) + lane] = total;
    __syncthreads();
    if (slice != 0 || c >= p.n) return;
    for (int s = 1; s < PART_SLICES; s++) total += sums[s * (PART_COLUMNS + 1) + lane];
    T *out = blockIdx.y ? p.second : p.first;
    if (p.accumulate) total += to_f32(out[c]);
    from_f32(total, &out[c]);
}

template <typename T>
static inline int combine_launch(struct cuda_ctx *ctx, const struct combine_buffers<T> &p) {
    struct launch_shape shape = {dim3((unsigned)divide_up(p.n, (int64_t)PART_COLUMNS), p.second ? 2 : 1),
                                 dim3(PART_COLUMNS * PART_SLICES), 0};
    return launch<combine_kernel<T>>(ctx, shape, p);
}

#endif
