// The gradient of a bias: sums over rows, column by column.
#include "kernels/cuda/common/columns.h"

#define BIAS_LANES 32  // vectors of columns side by side
#define BIAS_DEEP  8   // rows read side by side
#define BIAS_AHEAD 4   // rows a thread has in flight: 16 KB a block

// Bytes: dy once, and each part's N sums in fp32 written and read. Blocks enough for 7 to 8 on each of the
// 132 multiprocessors of a large device, and no more, keep the sums within 1/20 of dy: R = 32768, N = 3072 in
// 16 bits is 201 MB of dy, and 85 parts are 2 MB of sums (512 would be 13).
#define BIAS_BLOCKS 1024

template <typename T>
struct bias_buffers {
    const T *dy;   // (R,N)
    float *parts;  // (count,N)
    int64_t rows, n;
};

// Block (x, part): BIAS_LANES vectors of columns, the part's rows; thread (lane, deep) every BIAS_DEEP-th
// row in order, then the threads' sums in order.
template <typename T, int V>
__global__ void __launch_bounds__(BIAS_LANES *BIAS_DEEP) bias_parts_kernel(struct bias_buffers<T> p) {
    SHARED_ARRAY(float, sums, BIAS_DEEP *BIAS_LANES *V);
    int lane = (int)threadIdx.x % BIAS_LANES, deep = (int)threadIdx.x / BIAS_LANES;
    int64_t c = ((int64_t)blockIdx.x * BIAS_LANES + lane) * V, part = blockIdx.y, parts = gridDim.y;
    int64_t row = p.rows * part / parts + deep, end = p.rows * (part + 1) / parts;
    float total[V] = {};
    if (c < p.n) {
        for (; row + (BIAS_AHEAD - 1) * BIAS_DEEP < end; row += BIAS_AHEAD * BIAS_DEEP) {
            vec<T, V> x[BIAS_AHEAD];
#pragma unroll
            for (int k = 0; k < BIAS_AHEAD; k++)
                x[k] = load_vec<T, V>(p.dy + (row + k * BIAS_DEEP) * p.n + c);
#pragma unroll
            for (int k = 0; k < BIAS_AHEAD; k++)
#pragma unroll
                for (int j = 0; j < V; j++) total[j] += to_f32(x[k].v[j]);
        }
        for (; row < end; row += BIAS_DEEP) {
            vec<T, V> x = load_vec<T, V>(p.dy + row * p.n + c);
#pragma unroll
            for (int j = 0; j < V; j++) total[j] += to_f32(x.v[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) sums[(deep * V + j) * BIAS_LANES + lane] = total[j];
    __syncthreads();
    if (deep != 0 || c >= p.n) return;
#pragma unroll
    for (int j = 0; j < V; j++)
        for (int d = 1; d < BIAS_DEEP; d++) total[j] += sums[(d * V + j) * BIAS_LANES + lane];
    store_sums<V>(p.parts + part * p.n + c, total);
}

int cuda_op_bias_grad(struct cuda_ctx *ctx, const void *args) {
    const struct bias_grad_args *a = static_cast<const struct bias_grad_args *>(args);
    if (a->n == 0) return 0;
    int64_t most = column_parts(a->rows, a->n);
    if (most == 0 && a->rows > 0) return cuda_refused(ctx, "bias_grad: a row of sums exceeds the workspace");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide = a->n % lanes<T>::count == 0 && aligned16(a->dy);
        int64_t across = divide_up(a->n, (int64_t)BIAS_LANES * (wide ? lanes<T>::count : 1));
        int64_t parts = lesser(most, divide_up((int64_t)BIAS_BLOCKS, across));
        int rc = with_width<T>(wide, [&](auto width) {
            constexpr int V = decltype(width)::value;
            struct bias_buffers<T> p = {
                (const T *)a->dy, (float *)ctx->workspace, a->rows, a->n
            };
            struct launch_shape shape = {dim3((unsigned)across, (unsigned)parts),
                                         dim3(BIAS_LANES * BIAS_DEEP), 0};
            return parts ? launch<bias_parts_kernel<T, V>>(ctx, shape, p) : 0;
        });
        struct combine_buffers<T> c = {
            (T *)a->dbias, NULL, (const float *)ctx->workspace, a->n, a->n, parts, a->accumulate
        };
        return rc == 0 ? combine_launch(ctx, c) : -1;
    });
}
