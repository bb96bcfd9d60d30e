// Cross-entropy with its gradient in place, and the sum of the losses.
#include "kernels/cuda/platform.h"

#define XENT_THREADS 1024
#define XENT_VECTORS 7  // a thread holds in registers: 57,344 16-bit logits a row, 28,672 of fp32

template <typename T>
struct xent_buffers {
    T *logits;
    float *loss;
    const int32_t *targets;
    int64_t vocab;
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
    for (int j = 0; j < N; j++) total += __expf(to_f32(x[j]) - base);
    if (max > s->max) s->total *= __expf(s->max - max);
    s->max = max;
    s->total += total;
}

// Over the block; slots (2 WARP).
__device__ static inline struct softmax_sum softmax_join(struct softmax_sum s, float *slots) {
    float max = block_reduce(s.max, slots, -INFINITY, max_of());
    float total = s.max == max ? s.total : s.total * __expf(s.max - max);
    return {max, block_reduce(total, slots + WARP, 0.0f, sum_of())};
}

// What a logit turns into. The fast exponential's error, (max - x) 2^-23 of the result, stays within
// 2^-24 of the row's sum, as the result shrinks faster than the error grows.
struct xent_gradient {
    float max, scale;
    __device__ float operator()(float x) const { return __expf(x - max) * scale; }
};

// HELD: the row's vectors stay in registers between the two passes; else the second pass reads again.
template <typename T, bool HELD>
__global__ void __launch_bounds__(XENT_THREADS) xent_kernel(struct xent_buffers<T> p) {
    SHARED_ARRAY(float, slots, 2 * WARP);
    constexpr int V = lanes<T>::count, HOLD = HELD ? XENT_VECTORS : 1;
    int target = p.targets[blockIdx.x];
    struct xent_row<T> r = xent_split(p.logits + (int64_t)blockIdx.x * p.vocab, (int)p.vocab);
    float logit = target < 0 ? 0.0f : to_f32(r.row[target]);
    struct softmax_sum s = {-INFINITY, 0.0f};
    vec<T, V> held[HOLD];
#pragma unroll
    for (int k = 0; HELD && k < HOLD; k++) {
        int i = (int)threadIdx.x + k * XENT_THREADS;
        if (i < r.vectors) held[k] = load_vec<T, V>(r.body + (int64_t)i * V);
    }
#pragma unroll
    for (int k = 0; HELD && k < HOLD; k++)
        if ((int)threadIdx.x + k * XENT_THREADS < r.vectors) softmax_add<T, V>(&s, held[k].v);
    for (int i = (int)threadIdx.x; !HELD && i < r.vectors; i += XENT_THREADS) {
        vec<T, V> x = load_vec<T, V>(r.body + (int64_t)i * V);
        softmax_add<T, V>(&s, x.v);
    }
    for (int e = 0; e < 2; e++)
        if (T *at = r.end(e)) softmax_add<T, 1>(&s, at);
    s = softmax_join(s,
                     slots);  // its barriers stand between every read of the row above and the writes below
    if (threadIdx.x == 0) p.loss[blockIdx.x] = target < 0 ? 0.0f : logf(s.total) + (s.max - logit);
    if (!p.want_grad) return;
    struct xent_gradient grad = {s.max, target < 0 ? 0.0f : __fdiv_rn(p.grad_scale, s.total)};
    int passes = HELD ? HOLD : divide_up(r.vectors, XENT_THREADS);
#pragma unroll
    for (int k = 0; k < (HELD ? HOLD : passes); k++) {
        int i = (int)threadIdx.x + k * XENT_THREADS, hit = target - r.head - i * V;
        if (i >= r.vectors) continue;
        vec<T, V> x = HELD ? held[HELD ? k : 0] : load_vec<T, V>(r.body + (int64_t)i * V);
        float g[V];
#pragma unroll
        for (int j = 0; j < V; j++) {
            g[j] = target < 0 ? 0.0f : grad(to_f32(x.v[j]));
            if (target >= 0 && j == hit) g[j] -= p.grad_scale;
        }
        store_f32<T, V>(r.body + (int64_t)i * V, g);
    }
    for (int e = 0; e < 2; e++) {
        T *at = r.end(e);
        if (!at) continue;
        float g = target < 0 ? 0.0f : grad(to_f32(*at));
        if (target >= 0 && at - r.row == target) g -= p.grad_scale;
        from_f32(g, at);
    }
}

int cuda_op_xent(struct cuda_ctx *ctx, const void *args) {
    const struct xent_args *a = static_cast<const struct xent_args *>(args);
    if (a->rows == 0) return 0;
    if (a->rows >= LARGEST_GRID) return cuda_refused(ctx, "xent: more rows than one launch covers");
    if (a->vocab >= LARGEST_GRID) return cuda_refused(ctx, "xent: more than 2^31 columns");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        struct xent_buffers<T> p = {
            (T *)a->logits, a->loss, a->targets, a->vocab, a->grad_scale, a->want_grad
        };
        struct launch_shape shape = flat_shape(a->rows, XENT_THREADS);
        bool held = a->vocab <= (int64_t)XENT_THREADS * XENT_VECTORS * lanes<T>::count;
        return held ? launch(ctx, shape, xent_kernel<T, true>, p)
                    : launch(ctx, shape, xent_kernel<T, false>, p);
    });
}

// ---------------------------------------------------------------- loss sum
// In row order, one addition after another: the order is the contract. The block fetches ahead of the
// thread that adds.
__global__ void __launch_bounds__(XENT_THREADS) loss_sum_kernel(struct loss_sum_args a) {
    SHARED_ARRAY(float, losses, XENT_THREADS);
    double total = 0.0;
    float next = threadIdx.x < a.rows ? a.loss[threadIdx.x] : 0.0f;
    for (int64_t first = 0; first < a.rows; first += XENT_THREADS) {
        int64_t ahead = first + XENT_THREADS + threadIdx.x;
        losses[threadIdx.x] = next;
        __syncthreads();
        next = ahead < a.rows ? a.loss[ahead] : 0.0f;
        int count = (int)lesser((int64_t)XENT_THREADS, a.rows - first);
        for (int i = 0; threadIdx.x == 0 && i < count; i++) total = __dadd_rn(total, (double)losses[i]);
        __syncthreads();
    }
    if (threadIdx.x == 0) *a.out = a.accumulate ? __dadd_rn(*a.out, total) : total;
}

int cuda_op_loss_sum(struct cuda_ctx *ctx, const void *args) {
    return launch(ctx, flat_shape(1, XENT_THREADS), loss_sum_kernel,
                  *static_cast<const struct loss_sum_args *>(args));
}
