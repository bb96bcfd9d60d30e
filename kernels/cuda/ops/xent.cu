// Cross-entropy with its gradient in place.
#include "kernels/cuda/common/platform.h"

// Bytes per row of V 16-bit logits with want_grad: 2V read once, 2V written once. At 4.8 TB/s over 132
// multiprocessors that is 5.5 us for V = 50257 and 16.7 us for 151936. The two exponentials per element, 16 per
// clock, take two thirds of that time. So the row is kept in shared memory between the two passes. A block
// uses so little of it that two blocks fit on a multiprocessor: one loads while the other computes or stores.
//
// A row longer than SHARED_EVERYWHERE is cut into 2 or 4 slices, by its length only. On compute capability 9.0
// a cluster of as many blocks processes it, one slice per block. V = 151936 in 16 bits is 297 KB, 74 KB per
// slice, so a multiprocessor with 227 KB holds two, and nothing is read twice. One block for the whole row
// would run alone with 1024 threads, read 70 KB again from the L2 cache, and alternate loads and stores. The
// blocks synchronise once, for the maxima and sums of the slices: 8 numbers from each other's shared memory. On
// 8.0 one block processes the slices one after another and keeps what fits in shared memory. It reads the rest
// again from the L2 cache, the last first: 137 KB for each of 108 rows in progress (33 MB at V = 151936).
//
// Bits: each slice is summed by threads as in a cluster, and slices are combined in order, so a row's bits are
// the same on every device.
#define XENT_THREADS      512
#define XENT_WARPS        (XENT_THREADS / WARP)
#define XENT_SLICES       4
#define XENT_AHEAD        7           // vectors that a thread has in flight: 57 KB per block
#define SHARED_EVERYWHERE (99 << 10)  // limit per block on compute capability 8.6, the smallest of 8.0 and up
// The maxima and sums of warps and slices take a part of SHARED_EVERYWHERE.
#define XENT_SLOTS      (2 * XENT_WARPS * XENT_SLICES)
#define XENT_HELD_BYTES (SHARED_EVERYWHERE - (XENT_SLOTS + 2) * (int)sizeof(float) - 16)

template <typename T>
struct xent_buffers {
    T *logits;
    float *loss;
    const int32_t *targets;
    int64_t vocab, padded, stride;  // padded: columns of a gradient row that are written
    int slices;                     // per row
    int held;                       // vectors that a block's shared memory keeps
    float grad_scale;
    bool want_grad;
};

// A row may begin at any element: | head: up to V - 1 elements | whole vectors | tail: up to V - 1 elements |.
// The first threads process head and tail, one element each: thread t has head[t] and tail[t].
template <typename T>
struct xent_row {
    T *row, *body;            // the first element, the first vector
    int head, vectors, tail;  // counts of elements, vectors, elements
    // This thread's element of the head (end 0) or the tail (end 1); NULL if it has none.
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

// Running maximum and sum of exp(x - max). A larger maximum rescales the earlier sum (Milakov & Gimelshein
// 2018, "Online normalizer calculation for softmax").
struct softmax_sum {
    float max, total;
};

// Adds N more logits. If all so far are -infinity, so is the maximum, and it is not subtracted.
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

// Returns s relative to another maximum of the same row.
__device__ static inline struct softmax_sum softmax_scaled(struct softmax_sum s, float max) {
    return {max, s.max == max ? s.total : s.total * fast_exp(s.max - max)};
}

// Combines a warp (softmax_leave), then the block's warps (softmax_of_warps). slots (2, XENT_WARPS): written by
// softmax_leave, read after a barrier.
__device__ static inline void softmax_leave(struct softmax_sum s, float *slots) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    s = softmax_scaled(s, warp_reduce(s.max, max_of()));
    s.total = warp_reduce(s.total, sum_of());
    if (lane == 0) slots[warp] = s.max;
    if (lane == 0) slots[XENT_WARPS + warp] = s.total;
}
__device__ static inline struct softmax_sum softmax_of_warps(const float *slots) {
    int warps = (int)blockDim.x / WARP, lane = (int)threadIdx.x % WARP;
    struct softmax_sum s = {-INFINITY, 0.0f};
    if (lane < warps) s = {slots[lane], slots[XENT_WARPS + lane]};
    s = softmax_scaled(s, warp_reduce(s.max, max_of()));
    s.total = warp_reduce(s.total, sum_of());
    return s;
}

// Combines the slices, in their order.
__device__ static inline struct softmax_sum softmax_of_slices(const struct softmax_sum *part, int slices) {
    struct softmax_sum all = part[0];
#pragma unroll
    for (int s = 1; s < XENT_SLICES; s++)
        if (s < slices) all.max = fmaxf(all.max, part[s].max);
    all.total = softmax_scaled(part[0], all.max).total;
#pragma unroll
    for (int s = 1; s < XENT_SLICES; s++)
        if (s < slices) all.total += softmax_scaled(part[s], all.max).total;
    return all;
}

// A logit's gradient, without the target's term. The fast exponential's error, (max - x) 2^-23 of the result,
// stays within 2^-24 of the row's sum, because the result shrinks faster than the error grows.
struct xent_gradient {
    float max, scale;
    __device__ float operator()(float x) const { return fast_exp(x - max) * scale; }
};

// Vectors [begin, end) of a slice, and whether the slice has the row's head and tail.
struct xent_slice {
    int begin, end;
    bool has[2];
};

__device__ static inline struct xent_slice xent_slice_of(int vectors, int slices, int s) {
    int each = divide_up(vectors, slices);
    return {lesser(s * each, vectors), lesser((s + 1) * each, vectors), {s == 0, s == slices - 1}};
}

// Returns this thread's maximum and sum of a slice. Vector i is kept in held[i - from] if there is room.
template <typename T>
__device__ static inline struct softmax_sum xent_read(const struct xent_buffers<T> &p,
                                                      const struct xent_row<T> &r,
                                                      const struct xent_slice &slice, uint4 *held, int from) {
    constexpr int V = lanes<T>::count;
    struct softmax_sum s = {-INFINITY, 0.0f};
    int threads = (int)blockDim.x;
    for (int first = slice.begin + (int)threadIdx.x; first < slice.end; first += XENT_AHEAD * threads) {
        vec<T, V> x[XENT_AHEAD];
#pragma unroll
        for (int k = 0; k < XENT_AHEAD; k++)
            if (first + k * threads < slice.end)
                x[k] = load_vec<T, V>(r.body + (int64_t)(first + k * threads) * V);
#pragma unroll
        for (int k = 0; k < XENT_AHEAD; k++) {
            int i = first + k * threads;
            if (i >= slice.end) continue;
            if (i - from < p.held) memcpy(&held[i - from], &x[k], sizeof x[k]);
            softmax_add<T, V>(&s, x[k].v);
        }
    }
    for (int e = 0; e < 2; e++) {
        T *at = slice.has[e] ? r.end(e) : NULL;
        if (at) softmax_add<T, 1>(&s, at);
    }
    return s;
}

// Writes the gradient of a slice in place. The elements that were read last are processed first, because they
// are most likely in the cache.
template <typename T>
__device__ static inline void xent_write(const struct xent_buffers<T> &p, const struct xent_row<T> &r,
                                         const struct xent_slice &slice, const uint4 *held,
                                         struct xent_gradient grad, int target) {
    constexpr int V = lanes<T>::count;
    int threads = (int)blockDim.x, hit = (target - r.head) / V, first = slice.begin + (int)threadIdx.x;
    for (int e = 0; e < 2; e++) {
        T *at = slice.has[e] ? r.end(e) : NULL;
        if (at) from_f32(grad(to_f32(*at)) - (at - r.row == target ? p.grad_scale : 0.0f), at);
    }
    if (first >= slice.end) return;
#pragma unroll 2
    for (int k = (slice.end - 1 - first) / threads; k >= 0; k--) {
        int i = first + k * threads;
        T *at = r.body + (int64_t)i * V;
        vec<T, V> x;
        float g[V];
        if (i - slice.begin < p.held)
            memcpy(&x, &held[i - slice.begin], sizeof x);
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

// Writes zeros to the columns after the vocabulary: at most a few dozen, which no one reads here.
template <typename T>
__device__ static inline void xent_pad(const struct xent_buffers<T> &p, T *row) {
    for (int64_t i = p.vocab + threadIdx.x; i < p.padded; i += blockDim.x) from_f32(0.0f, row + i);
}

// Writes the gradient of an ignored row: zeros.
template <typename T>
__device__ static inline void xent_ignore(const struct xent_row<T> &r, const struct xent_slice &slice) {
    constexpr int V = lanes<T>::count;
    float zero[V] = {};
    for (int i = slice.begin + (int)threadIdx.x; i < slice.end; i += (int)blockDim.x)
        store_f32<T, V>(r.body + (int64_t)i * V, zero);
    for (int e = 0; e < 2; e++) {
        T *at = slice.has[e] ? r.end(e) : NULL;
        if (at) from_f32(0.0f, at);
    }
}

// CLUSTER: block (row, slice); the slices of a row form a cluster. Else a block processes all slices of its
// row.
template <typename T, bool CLUSTER>
__global__ void __launch_bounds__(XENT_THREADS) xent_kernel(struct xent_buffers<T> p) {
    SHARED_ARRAY(float, slots, XENT_SLOTS);
    SHARED_ARRAY(float, joined, 2);
    SHARED_DYNAMIC(uint4, held);
    int slices = CLUSTER ? p.slices : 1;  // shared between blocks
    int64_t row = blockIdx.x / slices;
    int rank = (int)(blockIdx.x % slices), target = p.targets[row];
    struct xent_row<T> r = xent_split(p.logits + row * p.stride, (int)p.vocab);
    // The slice that this block writes and keeps in shared memory.
    struct xent_slice own = xent_slice_of(r.vectors, slices, rank);
    if (p.want_grad && own.has[1]) xent_pad(p, r.row);
    if (target < 0) {
        if (rank == 0 && threadIdx.x == 0) p.loss[row] = 0.0f;
        if (p.want_grad) xent_ignore(r, own);
        return;
    }
    float logit = to_f32(r.row[target]);
    struct softmax_sum part[XENT_SLICES] = {};
    if (CLUSTER) {
        softmax_leave(xent_read(p, r, own, held, own.begin), slots);
        __syncthreads();
        struct softmax_sum s = softmax_of_warps(slots);
        if (threadIdx.x == 0) joined[0] = s.max;
        if (threadIdx.x == 0) joined[1] = s.total;
        cluster_arrive();
        cluster_wait();
#pragma unroll
        for (int k = 0; k < XENT_SLICES; k++)
            if (k < p.slices) part[k] = {cluster_load(&joined[0], k), cluster_load(&joined[1], k)};
        cluster_arrive();
    } else {
        for (int k = 0; k < p.slices; k++)
            softmax_leave(xent_read(p, r, xent_slice_of(r.vectors, p.slices, k), held, 0),
                          slots + k * 2 * XENT_WARPS);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < XENT_SLICES; k++)
            if (k < p.slices) part[k] = softmax_of_warps(slots + k * 2 * XENT_WARPS);
    }
    // Barriers lie between every read of the row above and the writes below.
    struct softmax_sum s = softmax_of_slices(part, p.slices);
    if (rank == 0 && threadIdx.x == 0) p.loss[row] = logf(s.total) + (s.max - logit);
    struct xent_gradient grad = {s.max, __fdiv_rn(p.grad_scale, s.total)};
    if (p.want_grad) xent_write(p, r, own, held, grad, target);
    if (CLUSTER) cluster_wait();  // until the other blocks have read `joined`
}

template <typename T>
static int xent_launch(struct cuda_ctx *ctx, const struct xent_args *a) {
    int64_t vectors = a->vocab / lanes<T>::count, row_bytes = vectors * 16;
    int slices = 1;
    while (slices < XENT_SLICES && row_bytes > (int64_t)slices * XENT_HELD_BYTES) slices *= 2;
    bool cluster = slices > 1 && has_clusters(ctx) && a->rows * slices < LARGEST_GRID;
    int64_t threads = divide_up(divide_up(vectors, (int64_t)XENT_AHEAD), (int64_t)WARP) * WARP;
    threads = greater(lesser(threads, (int64_t)XENT_THREADS), (int64_t)WARP);
    // Two blocks with one slice each per multiprocessor. A whole row that does not fit has a multiprocessor to
    // itself.
    int64_t most = XENT_HELD_BYTES / 16 * 16, spare = ctx->shared_bytes - (SHARED_EVERYWHERE - most);
    if (slices > 1 && !cluster) most = greater(most, spare / 16 * 16);
    int64_t bytes = cluster ? divide_up(vectors, (int64_t)slices) * 16 : row_bytes;
    struct launch_shape shape = flat_shape(cluster ? a->rows * slices : a->rows, (unsigned)threads);
    shape.shared_bytes = a->want_grad ? (size_t)lesser(bytes, most) : 0;
    shape.cluster = cluster ? (unsigned)slices : 0;
    struct xent_buffers<T> p = {
        (T *)a->logits, a->loss, a->targets, a->vocab, xent_written(a), xent_stride(a), slices,
            (int)(shape.shared_bytes / 16), a->grad_scale, a->want_grad
    };
    return cluster ? launch<xent_kernel<T, true>>(ctx, shape, p)
                   : launch<xent_kernel<T, false>>(ctx, shape, p);
}

int cuda_op_xent(struct cuda_ctx *ctx, const struct xent_args *a) {
    if (a->rows == 0) return 0;
    if (a->rows >= LARGEST_GRID) return cuda_refused(ctx, "xent: more rows than one launch covers");
    if (a->vocab >= LARGEST_GRID) return cuda_refused(ctx, "xent: more than 2^31 columns");
    if (!xent_valid(a)) return cuda_refused(ctx, "xent: columns beyond the row's stride");
    return with_type(ctx, a->dt, [&](auto type) { return xent_launch<decltype(type)>(ctx, a); });
}

// ---------------------------------------------------------------- the sum of the losses
// One block: its threads add every LOSS_THREADS-th row, then their sums are added in pairs. The block's size is
// a constant, so the order of additions depends only on the number of rows. A step has one such sum over some
// ten thousand rows; more blocks would hardly be faster.
#define LOSS_THREADS 1024
#define LOSS_AHEAD   8  // loads that a thread has in flight

__global__ void __launch_bounds__(LOSS_THREADS) loss_sum_kernel(struct loss_sum_args a) {
    SHARED_ARRAY(double, slots, WARP);
    double total = 0.0;
    for (int64_t first = threadIdx.x; first < a.rows; first += LOSS_AHEAD * LOSS_THREADS) {
        float loss[LOSS_AHEAD];
#pragma unroll
        for (int k = 0; k < LOSS_AHEAD; k++) {
            int64_t row = first + (int64_t)k * LOSS_THREADS;
            loss[k] = row < a.rows ? a.loss[row] : 0.0f;
        }
        // Zeros after the last row change nothing, because the total is never -0.
#pragma unroll
        for (int k = 0; k < LOSS_AHEAD; k++) total = __dadd_rn(total, (double)loss[k]);
    }
    total = block_reduce(total, slots, 0.0, sum_of());
    if (threadIdx.x == 0) *a.out = a.accumulate ? __dadd_rn(*a.out, total) : total;
}

int cuda_op_loss_sum(struct cuda_ctx *ctx, const struct loss_sum_args *a) {
    return launch<loss_sum_kernel>(ctx, flat_shape(1, LOSS_THREADS), *a);
}
