// The kernels of toys.h.
#include "tests/emulation/toys.h"

#include "kernels/cuda/common/platform.h"

__global__ void reverse_kernel(float *out, const float *in, int with_barrier) {
    SHARED_ARRAY(float, block, TOY_BLOCK);
    block[threadIdx.x] = in[blockIdx.x * TOY_BLOCK + threadIdx.x];
    if (with_barrier) __syncthreads();
    out[blockIdx.x * TOY_BLOCK + threadIdx.x] = block[TOY_BLOCK - 1 - threadIdx.x];
}

// out = what the first round read.
__global__ void reverse_twice_kernel(float *out, const float *in) {
    SHARED_ARRAY(float, block, TOY_BLOCK);
    for (int round = 0; round < 2; round++) {
        block[threadIdx.x] = round ? 0.0f : in[blockIdx.x * TOY_BLOCK + threadIdx.x];
        __syncthreads();
        if (round == 0) out[blockIdx.x * TOY_BLOCK + threadIdx.x] = block[TOY_BLOCK - 1 - threadIdx.x];
    }
}

__global__ void reverse_dynamic_kernel(float *out, const float *in) {
    SHARED_DYNAMIC(float, block);
    block[threadIdx.x] = in[blockIdx.x * TOY_BLOCK + threadIdx.x];
    __syncthreads();
    out[blockIdx.x * TOY_BLOCK + threadIdx.x] = block[TOY_BLOCK - 1 - threadIdx.x];
}

__global__ void barrier_for_some_kernel(float *out) {
    if (threadIdx.x < TOY_BLOCK / 2)
        __syncthreads();
    else
        __syncwarp();
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}

__global__ void leaves_early_kernel(float *out) {
    if (threadIdx.x == TOY_BLOCK - 1) return;
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}

__global__ void shuffle_for_some_kernel(float *out) {
    float x = 1.0f;
    if (threadIdx.x % WARP < WARP / 2) x = __shfl_xor_sync(FULL_WARP, x, 1);
    out[threadIdx.x] = x;
}

__global__ void shuffle_of_some_kernel(float *out) { out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 1); }

__global__ void warp_sums_kernel(float *out, const float *in) {
    float x = in[threadIdx.x], sum = warp_reduce(x, sum_of()), down = x;
    for (int step = WARP / 2; step > 0; step /= 2) down += __shfl_down_sync(FULL_WARP, down, step);
    down = __shfl_sync(FULL_WARP, down, 0);
    unsigned above = __reduce_add_sync(FULL_WARP, x > 0.0f), ballot = __ballot_sync(FULL_WARP, x > 0.0f);
    bool same = down == sum && above == (unsigned)__builtin_popcount(ballot);
    out[threadIdx.x] = same ? sum + 1000.0f * (float)above : -1.0f;
}

__global__ void race_for_order_kernel(float *out, const float *in) {
    if (threadIdx.x == 0) atomicAdd(out, in[blockIdx.x * TOY_BLOCK]);
}

__global__ void beyond_kernel(float *out, const float *in, int n, enum toy toy) {
    SHARED_ARRAY(float, block, TOY_BLOCK);
    int over = threadIdx.x == TOY_BLOCK - 1;
    block[threadIdx.x] = in[toy == TOY_READS_BEYOND && over ? n : (int)threadIdx.x];
    __syncthreads();
    if (toy == TOY_SHARED_BEYOND && over) block[TOY_BLOCK] = 1.0f;
    out[toy == TOY_WRITES_BEYOND && over ? n : (int)threadIdx.x] = block[threadIdx.x];
}

__global__ void cluster_kernel(float *out, const float *in, enum toy toy) {
    SHARED_ARRAY(float, unused, 3);
    SHARED_ARRAY(float, mine, 2);
    float sum = 0.0f;
    if (threadIdx.x == 0) unused[0] = 0.0f;
    if (threadIdx.x == 0) mine[1] = in[blockIdx.x * TOY_BLOCK];
    __syncthreads();
    if (toy == TOY_CLUSTER_TWICE) cluster_arrive();
    if (toy != TOY_CLUSTER_WITHOUT_BARRIER) {
        cluster_arrive();
        cluster_wait();
    }
    for (unsigned b = 0; b < TOY_CLUSTER_BLOCKS; b++) sum += cluster_load(&mine[1], b);
    cluster_arrive();
    out[blockIdx.x * TOY_BLOCK + threadIdx.x] = sum;
    if (toy != TOY_CLUSTER_LEAVES) cluster_wait();
}

__global__ void nothing_kernel(void) {}

int toy_run(enum toy toy, float *out, const float *in, int n, const char **why) {
    struct cuda_ctx ctx = {NULL, 1, NULL, 0, "", 163 << 10, 90};
    struct launch_shape blocks = flat_shape(n / TOY_BLOCK, TOY_BLOCK), one = flat_shape(1, TOY_BLOCK);
    cudaLaunchConfig_t large = {dim3(1), dim3(TOY_BLOCK), (size_t)64 << 10, NULL, NULL, 0};
    int rc = -1;
    switch (toy) {
        case TOY_REVERSE:
            rc = launch<reverse_kernel>(&ctx, blocks, out, in, 1);
            break;
        case TOY_REVERSE_WITHOUT_BARRIER:
            rc = launch<reverse_kernel>(&ctx, blocks, out, in, 0);
            break;
        case TOY_REVERSE_TWICE:
            rc = launch<reverse_twice_kernel>(&ctx, blocks, out, in);
            break;
        case TOY_REVERSE_DYNAMIC:
            blocks.shared_bytes = TOY_BLOCK * sizeof(float);
            rc = launch<reverse_dynamic_kernel>(&ctx, blocks, out, in);
            break;
        case TOY_BARRIER_FOR_SOME:
            rc = launch<barrier_for_some_kernel>(&ctx, one, out);
            break;
        case TOY_LEAVES_EARLY:
            rc = launch<leaves_early_kernel>(&ctx, one, out);
            break;
        case TOY_SHUFFLE_FOR_SOME:
            rc = launch<shuffle_for_some_kernel>(&ctx, one, out);
            break;
        case TOY_SHUFFLE_OF_SOME:
            rc = launch<shuffle_of_some_kernel>(&ctx, one, out);
            break;
        case TOY_WARP_SUMS:
            rc = launch<warp_sums_kernel>(&ctx, one, out, in);
            break;
        case TOY_RACE_FOR_ORDER:
            rc = launch<race_for_order_kernel>(&ctx, blocks, out, in);
            break;
        case TOY_READS_BEYOND:
        case TOY_WRITES_BEYOND:
        case TOY_SHARED_BEYOND:
            rc = launch<beyond_kernel>(&ctx, one, out, in, n, toy);
            break;
        case TOY_CLUSTER:
        case TOY_CLUSTER_LEAVES:
        case TOY_CLUSTER_WITHOUT_BARRIER:
        case TOY_CLUSTER_TWICE:
            blocks.cluster = TOY_CLUSTER_BLOCKS;
            rc = launch<cluster_kernel>(&ctx, blocks, out, in, toy);
            break;
        case TOY_TOO_MANY_THREADS:
            rc = launch<nothing_kernel>(&ctx, flat_shape(1, 1025));
            break;
        case TOY_TOO_MUCH_SHARED:
            rc = cuda_checked(&ctx, cudaLaunchKernelEx(&large, nothing_kernel));
            break;
    }
    if (rc != 0) *why = ctx.why;
    return rc;
}
