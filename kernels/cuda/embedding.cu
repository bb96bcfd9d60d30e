// Token and position embeddings: a gather forward; backward, sums over the positions of each token in
// the order of the positions, so that the bits are those of a loop over them.
#include "kernels/cuda/platform.h"

#define EMBED_THREADS 256
#define EMBED_AHEAD   16  // rows a thread has in flight

template <typename T>
struct embed_fwd_buffers {
    T *out;
    const int32_t *tokens;
    const T *wte, *wpe;
    uint32_t seq, groups, row_groups;  // groups of V channels: in all, in a row
};

template <typename T, int V>
__global__ void __launch_bounds__(EMBED_THREADS) embed_fwd_kernel(struct embed_fwd_buffers<T> p) {
    uint32_t i = blockIdx.x * EMBED_THREADS + threadIdx.x;
    if (i >= p.groups) return;
    uint32_t row = i / p.row_groups, group = i % p.row_groups;
    vec<T, V> x = load_vec<T, V>(p.wte + ((int64_t)p.tokens[row] * p.row_groups + group) * V);
    if (p.wpe) {
        vec<T, V> pos = load_vec<T, V>(p.wpe + ((int64_t)(row % p.seq) * p.row_groups + group) * V);
#pragma unroll
        for (int j = 0; j < V; j++) from_f32(__fadd_rn(to_f32(x.v[j]), to_f32(pos.v[j])), &x.v[j]);
    }
    store_vec<T, V>(p.out + (int64_t)i * V, x);
}

int cuda_op_embed_fwd(struct cuda_ctx *ctx, const void *args) {
    const struct embed_fwd_args *a = static_cast<const struct embed_fwd_args *>(args);
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->channels == 0) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide =
            a->channels % lanes<T>::count == 0 && aligned16(a->out) && aligned16(a->wte) && aligned16(a->wpe);
        return with_width<T>(wide, [&](auto width) {
            constexpr int V = decltype(width)::value;
            int64_t groups = rows * (a->channels / V);
            if (groups >= LARGEST_GRID)
                return cuda_refused(ctx, "embed_fwd: more elements than one launch covers");
            struct embed_fwd_buffers<T> p = {
                (T *)a->out, a->tokens, (const T *)a->wte, (const T *)a->wpe, (uint32_t)a->seq,
                    (uint32_t)groups, (uint32_t)(a->channels / V)
            };
            struct launch_shape shape = flat_shape(divide_up(groups, (int64_t)EMBED_THREADS), EMBED_THREADS);
            return launch(ctx, shape, embed_fwd_kernel<T, V>, p);
        });
    });
}

// ---------------------------------------------------------------- grouping positions by token
//     scratch    | end: V | order: B*T |          token v's positions, in order:
//     workspace  | count: V | cursor | kinds |        order[end[v] - count[v] .. end[v])
//                | list: B*T | present: min(V, B*T) |    the tokens there are: present[0 .. *kinds)
// Counts give every token a segment (where it lies, and which place the token has in `present`, depend on
// the race for the counters, what it holds does not); positions drop into their segment in any order; then
// each finds its rank among the segment's positions by counting the smaller ones, which orders the segment.
struct grouping {
    const int32_t *tokens;
    int32_t *end, *order, *count, *cursor, *kinds, *list, *present;
    uint32_t rows, vocab;
};

__device__ static inline uint32_t flat_index(void) { return blockIdx.x * EMBED_THREADS + threadIdx.x; }

__global__ void __launch_bounds__(EMBED_THREADS) embed_count_kernel(struct grouping g) {
    uint32_t r = flat_index();
    if (r < g.rows) atomicAdd(&g.count[g.tokens[r]], 1);
}

__global__ void __launch_bounds__(EMBED_THREADS) embed_segment_kernel(struct grouping g) {
    uint32_t v = flat_index();
    if (v >= g.vocab || !g.count[v]) return;
    g.end[v] = atomicAdd(g.cursor, g.count[v]);  // its begin, so far
    g.present[atomicAdd(g.kinds, 1)] = (int32_t)v;
}

__global__ void __launch_bounds__(EMBED_THREADS) embed_drop_kernel(struct grouping g) {
    uint32_t r = flat_index();
    if (r < g.rows) g.list[atomicAdd(&g.end[g.tokens[r]], 1)] = (int32_t)r;
}

__global__ void __launch_bounds__(EMBED_THREADS) embed_rank_kernel(struct grouping g) {
    uint32_t r = flat_index();
    if (r >= g.rows) return;
    int32_t token = g.tokens[r], end = g.end[token], begin = end - g.count[token], rank = 0;
    for (int32_t i = begin; i < end; i++) rank += g.list[i] < (int32_t)r;
    g.order[begin + rank] = (int32_t)r;
}

static int group_positions(struct cuda_ctx *ctx, const struct grouping &g) {
    struct launch_shape rows = flat_shape(divide_up(g.rows, (uint32_t)EMBED_THREADS), EMBED_THREADS);
    struct launch_shape vocab = flat_shape(divide_up(g.vocab, (uint32_t)EMBED_THREADS), EMBED_THREADS);
    size_t zeroed_bytes = ((size_t)g.vocab + 2) * sizeof(int32_t);  // count, cursor, kinds
    if (cuda_checked(ctx, cudaMemsetAsync(g.count, 0, zeroed_bytes, ctx->stream)) != 0) return -1;
    if (g.rows == 0) return 0;
    if (launch(ctx, rows, embed_count_kernel, g) != 0) return -1;
    if (launch(ctx, vocab, embed_segment_kernel, g) != 0) return -1;
    if (launch(ctx, rows, embed_drop_kernel, g) != 0) return -1;
    return launch(ctx, rows, embed_rank_kernel, g);
}

// ---------------------------------------------------------------- backward
template <typename T>
struct embed_bwd_buffers {
    T *dwte, *dwpe;
    const T *dout;
    int64_t channels, batch, seq, positions;
    bool zero_dwte, accumulate_dwpe;
};

// A block does a row of dwte that has positions: V columns a thread, all positions of the token in order.
// That is one chain of loads, so its latency counts where a token is frequent (4% of 32768 positions are 1300
// rows): a warp's lanes fetch the next WARP positions at once and ahead, and EMBED_AHEAD rows are under way.
// What the row held is loaded before.
//
// Bytes: dout once; the rows of dwte that change, read (unless zeroed, by a fill before) and written once.
template <typename T, int V>
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_bwd_kernel(struct embed_bwd_buffers<T> p, struct grouping g) {
    if ((int32_t)blockIdx.x >= *g.kinds) return;
    int64_t token = g.present[blockIdx.x];
    int32_t count = g.count[token];
    const int32_t *order = g.order + (g.end[token] - count);
    int lane = (int)threadIdx.x % WARP;
    for (int64_t base = 0; base < p.channels; base += (int64_t)blockDim.x * V) {
        int64_t c = base + (int64_t)threadIdx.x * V;
        bool inside = c < p.channels;
        T *out = p.dwte + token * p.channels + c;
        float total[V] = {};
        vec<T, V> old = {};
        if (inside && !p.zero_dwte) old = load_vec<T, V>(out);
        int32_t next = lane < count ? order[lane] : 0;
        for (int32_t first = 0; first < count; first += WARP) {
            int32_t position = next, ahead = first + WARP + lane;
            next = ahead < count ? order[ahead] : 0;
            for (int32_t i = 0; i < WARP && first + i < count; i += EMBED_AHEAD) {
                vec<T, V> x[EMBED_AHEAD];
#pragma unroll
                for (int k = 0; k < EMBED_AHEAD; k++) {
                    int64_t row = __shfl_sync(FULL_WARP, position, i + k);
                    if (inside && first + i + k < count) x[k] = load_vec<T, V>(p.dout + row * p.channels + c);
                }
#pragma unroll
                for (int k = 0; k < EMBED_AHEAD; k++)
#pragma unroll
                    for (int j = 0; j < V; j++)
                        if (first + i + k < count)  // starts as the first addend, not as zero plus it: -0
                            total[j] =
                                first + i + k ? __fadd_rn(total[j], to_f32(x[k].v[j])) : to_f32(x[k].v[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < V && !p.zero_dwte; j++) total[j] = __fadd_rn(total[j], to_f32(old.v[j]));
        if (inside) store_f32<T, V>(out, total);
    }
}

// A block does a row of dwpe: the sum over the batch, in order; zero behind the sequence.
template <typename T, int V>
__global__ void __launch_bounds__(EMBED_THREADS) embed_positions_kernel(struct embed_bwd_buffers<T> p) {
    int64_t t = blockIdx.x;
    if (t >= p.seq && p.accumulate_dwpe) return;
    for (int64_t c = (int64_t)threadIdx.x * V; c < p.channels; c += (int64_t)blockDim.x * V) {
        float total[V] = {}, x[V];
#pragma unroll 8
        for (int64_t b = 0; b < (t < p.seq ? p.batch : 0); b++) {
            load_f32<T, V>(p.dout + (b * p.seq + t) * p.channels + c, x);
#pragma unroll
            for (int j = 0; j < V; j++) total[j] = b ? __fadd_rn(total[j], x[j]) : x[j];
        }
        T *out = p.dwpe + t * p.channels + c;
        if (p.accumulate_dwpe) {
            load_f32<T, V>(out, x);
#pragma unroll
            for (int j = 0; j < V; j++) total[j] = __fadd_rn(total[j], x[j]);
        }
        store_f32<T, V>(out, total);
    }
}

template <typename T, int V>
static int embed_bwd_run(struct cuda_ctx *ctx, const struct embed_bwd_args *a, const struct grouping &g) {
    struct embed_bwd_buffers<T> p = {
        (T *)a->dwte, (T *)a->dwpe,
            (const T *)a->dout, a->channels, a->batch, a->seq, a->positions, a->zero_dwte, a->accumulate_dwpe
    };
    int64_t warps = divide_up(a->channels, (int64_t)V * WARP);
    unsigned threads = (unsigned)lesser(warps * WARP, (int64_t)EMBED_THREADS);
    if (a->zero_dwte) {
        size_t bytes = (size_t)(a->vocab * a->channels) * sizeof(T);
        if (cuda_checked(ctx, cudaMemsetAsync(a->dwte, 0, bytes, ctx->stream)) != 0) return -1;
    }
    int64_t kinds = lesser(g.rows, g.vocab);
    if (kinds && launch(ctx, flat_shape(kinds, threads), embed_bwd_kernel<T, V>, p, g) != 0) return -1;
    return a->dwpe && a->positions
               ? launch(ctx, flat_shape(a->positions, threads), embed_positions_kernel<T, V>, p)
               : 0;
}

int cuda_op_embed_bwd(struct cuda_ctx *ctx, const void *args) {
    const struct embed_bwd_args *a = static_cast<const struct embed_bwd_args *>(args);
    int64_t rows = a->batch * a->seq;
    if (a->vocab == 0 || a->channels == 0) return 0;
    if ((uint64_t)(a->vocab + 2 + rows + lesser(rows, a->vocab)) > ctx->workspace_bytes / sizeof(int32_t))
        return cuda_refused(
            ctx, "embed_bwd: vocabulary plus twice the positions exceed the workspace (8 MiB of integers)");
    int32_t *end = (int32_t *)a->scratch, *count = (int32_t *)ctx->workspace, *cursor = count + a->vocab;
    struct grouping g = {a->tokens,  end,        end + a->vocab,    count,          cursor,
                         cursor + 1, cursor + 2, cursor + 2 + rows, (uint32_t)rows, (uint32_t)a->vocab};
    if (group_positions(ctx, g) != 0) return -1;
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide = a->channels % lanes<T>::count == 0 && aligned16(a->dwte) && aligned16(a->dwpe) &&
                    aligned16(a->dout);
        return with_width<T>(wide,
                             [&](auto width) { return embed_bwd_run<T, decltype(width)::value>(ctx, a, g); });
    });
}
