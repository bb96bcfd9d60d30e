// Cross-entropy with its gradient in place.
#include "kernels/cuda/platform.h"

// Bytes, a row of V 16-bit logits, want_grad: 2V read once, 2V written once. At 4.8 TB/s over 132
// multiprocessors that is 5.5 us for V = 50257 and 16.7 us for 151936; the two exponentials an element, at 16
// a clock, take two thirds of it. So the row is kept in shared memory between the two passes, and a row that
// fits SHARED_EVERYWHERE takes half of the threads, so that two are under way on a multiprocessor: one loads
// while the other computes or stores. What a longer row has beyond its block's shared memory is read again
// from the L2 cache, the last first: of 132 rows under way (40 MB at V = 151936) 77 KB each are read again
// where a block may have 227 KB.
#define XENT_THREADS      1024
#define XENT_AHEAD        7           // vectors a thread has in flight: with 512 threads 57 KB a block
#define SHARED_EVERYWHERE (99 << 10)  // a block's on compute capability 8.6, the least of 8.0 and up

template <typename T>
struct xent_buffers {
    T *logits;
    float *loss;
    const int32_t *targets;
    int64_t vocab, padded, stride;  // padded: columns of a gradient row that are written
    int held;  // vectors of a row that shared memory keeps
    float grad_scale;
    bool want_grad;
};

// A row starts anywhere: | head: up to V - 1 elements | whole vectors | tail: up to V - 1 elements |.
// Element by element the ends belong to the first threads: thread t to head[t] and tail[t].
template <typename T>
struct xent_row {
    T *row, *body;            // the first element, the first vector
    int head, vectors, tail;  // elements, vectors, elements
    // This thread's element of the head (end 0) or the tail (end 1); NULL: it has none.
    __device__ T *end(int which) const {
        if ((int)threadIdx.x >= (which ? tail : head)) return NULL;
        return which ? body + (int64_t)vectors * lanes<T>::count + threadIdx.x : row + threadIdx.x;
    }
};

template <typename T>
__device__ static inline struct xent_row<T> xent_split(T *row, int vocab) {
    constexpr int V = lanes<T>::count;
    int misplaced = (int)(reinterpret_cast<uintptr_t>(row) / sizeof(T) % V);
    struct xent_row<T> r;
    r.row = row;
    r.head = lesser((V - misplaced) % V, vocab);
    r.body = row + r.head;
    r.vectors = (vocab - r.head) / V;
    r.tail = vocab - r.head - r.vectors * V;
    return r;
}

// Running maximum and sum of exp(x - max): a larger maximum scales what was summed before (Milakov &
// Gimelshein 2018, "Online normalizer calculation for softmax").
struct softmax_sum {
    float max, total;
};

// N more logits. While all were -infinity the maximum is too, and is not subtracted.
template <typename T, int N>
__device__ static inline void softmax_add(struct softmax_sum *s, const T *x) {
    float max = s->max, total = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) max = fmaxf(max, to_f32(x[j]));
    float base = max == -INFINITY ? 0.0f : max;
#pragma unroll
    for (int j = 0; j < N; j++) total += fast_exp(to_f32(x[j]) - base);
    if (max > s->max) s->total *= fast_exp(s->max - max);
    s->max = max;
    s->total += total;
}

// Over the block; slots (2 WARP).
__device__ static inline struct softmax_sum softmax_join(struct softmax_sum s, float *slots) {
    float max = block_reduce(s.max, slots, -INFINITY, max_of());
    float total = s.max == max ? s.total : s.total * fast_exp(s.max - max);
    return {max, block_reduce(total, slots + WARP, 0.0f, sum_of())};
}

// What a logit turns into. The fast exponential's error, (max - x) 2^-23 of the result, stays within
// 2^-24 of the row's sum, as the result shrinks faster than the error grows.
struct xent_gradient {
    float max, scale;
    __device__ float operator()(float x) const { return fast_exp(x - max) * scale; }
};

// The row's maximum and sum, over the block. Keeps the first p.held vectors in `held`.
template <typename T>
__device__ static inline struct softmax_sum xent_read(const struct xent_buffers<T> &p,
                                                      const struct xent_row<T> &r, uint4 *held,
                                                      float *slots) {
    constexpr int V = lanes<T>::count;
    struct softmax_sum s = {-INFINITY, 0.0f};
    int threads = (int)blockDim.x;
    for (int first = (int)threadIdx.x; first < r.vectors; first += XENT_AHEAD * threads) {
        vec<T, V> x[XENT_AHEAD];
#pragma unroll
        for (int k = 0; k < XENT_AHEAD; k++)
            if (first + k * threads < r.vectors)
                x[k] = load_vec<T, V>(r.body + (int64_t)(first + k * threads) * V);
#pragma unroll
        for (int k = 0; k < XENT_AHEAD; k++) {
            int i = first + k * threads;
            if (i >= r.vectors) continue;
            if (i < p.held) memcpy(&held[i], &x[k], sizeof x[k]);
            softmax_add<T, V>(&s, x[k].v);
        }
    }
    for (int e = 0; e < 2; e++)
        if (T *at = r.end(e)) softmax_add<T, 1>(&s, at);
    return softmax_join(s, slots);
}

// The gradient in the row's place: what was read last comes first, as it is the likeliest in the cache.
template <typename T>
__device__ static inline void xent_write(const struct xent_buffers<T> &p, const struct xent_row<T> &r,
                                         const uint4 *held, struct xent_gradient grad, int target) {
    constexpr int V = lanes<T>::count;
    int threads = (int)blockDim.x, hit = (target - r.head) / V;
    for (int e = 0; e < 2; e++) {
        T *at = r.end(e);
        if (at) from_f32(grad(to_f32(*at)) - (at - r.row == target ? p.grad_scale : 0.0f), at);
    }
    if ((int)threadIdx.x >= r.vectors) return;
#pragma unroll 2
    for (int k = (r.vectors - 1 - (int)threadIdx.x) / threads; k >= 0; k--) {
        int i = (int)threadIdx.x + k * threads;
        T *at = r.body + (int64_t)i * V;
        vec<T, V> x;
        float g[V];
        if (i < p.held)
            memcpy(&x, &held[i], sizeof x);
        else
            x = load_vec<T, V>(at);
#pragma unroll
        for (int j = 0; j < V; j++) g[j] = grad(to_f32(x.v[j]));
        if (i == hit && target >= r.head)
#pragma unroll
            for (int j = 0; j < V; j++) g[j] -= j == (target - r.head) % V ? p.grad_scale : 0.0f;
        store_f32<T, V>(at, g);
    }
}

// Zeros in the columns behind the vocabulary, which nobody reads here: at most a few dozen.
template <typename T>
__device__ static inline void xent_pad(const struct xent_buffers<T> &p, T *row) {
    for (int64_t i = p.vocab + threadIdx.x; i < p.padded; i += blockDim.x) from_f32(0.0f, row + i);
}

template <typename T>
__global__ void __launch_bounds__(XENT_THREADS) xent_kernel(struct xent_buffers<T> p) {
    SHARED_ARRAY(float, slots, 2 * WARP);
    SHARED_DYNAMIC(uint4, held);
    constexpr int V = lanes<T>::count;
    int target = p.targets[blockIdx.x];
    struct xent_row<T> r = xent_split(p.logits + (int64_t)blockIdx.x * p.stride, (int)p.vocab);
    if (p.want_grad) xent_pad(p, r.row);
    if (target < 0) {
        float zero[V] = {};
        if (threadIdx.x == 0) p.loss[blockIdx.x] = 0.0f;
        for (int i = (int)threadIdx.x; p.want_grad && i < r.vectors; i += (int)blockDim.x)
            store_f32<T, V>(r.body + (int64_t)i * V, zero);
        for (int e = 0; p.want_grad && e < 2; e++)
            if (T *at = r.end(e)) from_f32(0.0f, at);
        return;
    }
    float logit = to_f32(r.row[target]);
    // Its barriers stand between every read of the row and the writes below; a block of one warp has none.
    struct softmax_sum s = xent_read(p, r, held, slots);
    __syncwarp();
    if (threadIdx.x == 0) p.loss[blockIdx.x] = logf(s.total) + (s.max - logit);
    struct xent_gradient grad = {s.max, __fdiv_rn(p.grad_scale, s.total)};
    if (p.want_grad) xent_write(p, r, held, grad, target);
}

template <typename T>
static int xent_launch(struct cuda_ctx *ctx, const struct xent_args *a) {
    int64_t vectors = a->vocab / lanes<T>::count, slots_bytes = 2 * WARP * (int64_t)sizeof(float),
            small = SHARED_EVERYWHERE - slots_bytes, row_bytes = vectors * 16;
    int64_t most = greater((int64_t)ctx->shared_bytes - slots_bytes, small) / 16 * 16;
    bool fits = row_bytes <= small;
    int64_t threads = divide_up(divide_up(vectors, (int64_t)XENT_AHEAD), (int64_t)WARP) * WARP;
    threads = greater(lesser(threads, (int64_t)XENT_THREADS / (fits ? 2 : 1)), (int64_t)WARP);
    struct launch_shape shape = flat_shape(a->rows, (unsigned)threads);
    shape.shared_bytes = a->want_grad ? (size_t)lesser(row_bytes, most) : 0;
    struct xent_buffers<T> p = {
        (T *)a->logits, a->loss, a->targets, a->vocab, xent_written(a), xent_stride(a),
            (int)(shape.shared_bytes / 16), a->grad_scale, a->want_grad
    };
    return launch(ctx, shape, xent_kernel<T>, p);
}

int cuda_op_xent(struct cuda_ctx *ctx, const void *args) {
    const struct xent_args *a = static_cast<const struct xent_args *>(args);
    if (a->rows == 0) return 0;
    if (a->rows >= LARGEST_GRID) return cuda_refused(ctx, "xent: more rows than one launch covers");
    if (a->vocab >= LARGEST_GRID) return cuda_refused(ctx, "xent: more than 2^31 columns");
    if (!xent_valid(a)) return cuda_refused(ctx, "xent: columns beyond the row's stride");
    return with_type(ctx, a->dt, [&](auto type) { return xent_launch<decltype(type)>(ctx, a); });
}
