// Token and position embeddings, forward and backward.
#include "kernels/cuda/common/columns.h"
#include "kernels/cuda/common/platform.h"

#define EMBED_THREADS 256

template <typename T>
struct embed_fwd_buffers {
    T *out;
    const int32_t *tokens;
    const T *wte, *wpe;
    uint32_t seq, groups, row_groups;  // groups of V channels: in all, and per row
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

int cuda_op_embed_fwd(struct cuda_ctx *ctx, const struct embed_fwd_args *a) {
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->channels == 0) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide =
            a->channels % lanes<T>::count == 0 && aligned16(a->out) && aligned16(a->wte) && aligned16(a->wpe);
        return with_width<T>(wide, [&](auto width) {
            constexpr int V = decltype(width)::value;
            int64_t groups = rows * (a->channels / V);
            if (groups >= LARGEST_GRID) return cuda_refused(ctx, "more elements than one launch covers");
            struct embed_fwd_buffers<T> p = {
                (T *)a->out, a->tokens, (const T *)a->wte, (const T *)a->wpe, (uint32_t)a->seq,
                    (uint32_t)groups, (uint32_t)(a->channels / V)
            };
            return launch_over<embed_fwd_kernel<T, V>>(ctx, groups, EMBED_THREADS, p);
        });
    });
}

// ---------------------------------------------------------------- the order of the tokens
// Sorts the positions of a batch by token, equal tokens by position: a radix sort, ORDER_BITS bits of the token
// per pass from the lowest on, each pass stable (Knuth, The Art of Computer Programming, volume 3, 5.2.5).
// There are no atomics: a position's new index depends only on counts. So it is the same in every run, and the
// time does not depend on whether tokens are equal.
//
//     count    one block per tile of positions: how many have each digit    counts[tile][digit]
//     place    one block per tile: its positions of digit d follow all those of smaller digits, and those of
//              d in earlier tiles; within the tile, warp by warp, 32 positions at a time, lane by lane
//
// Bytes: in a pass every block reads every tile's counts, 2 KB each. For 32 tiles (32768 positions) that is 2
// MB, from the L2 cache. A vocabulary of up to 2^18 takes two passes of two launches each.
#define ORDER_BITS      9
#define ORDER_DIGITS    (1 << ORDER_BITS)  // also the threads of a block: thread d handles digit d
#define ORDER_WARPS     (ORDER_DIGITS / WARP)
#define ORDER_TILE      1024  // positions: two iterations of each warp
#define ORDER_TILES_MAX 128   // for more positions the tiles are larger

struct order_pass {
    const int32_t *tokens;  // (rows)
    const int32_t *from;    // (rows) positions as the previous pass ordered them; NULL: 0, 1, 2 ..
    int32_t *to;            // (rows)
    int32_t *counts;        // (tiles, ORDER_DIGITS)
    uint32_t rows, tiles, tile_rows;
    int shift;
};

static inline uint32_t order_tile_rows(uint32_t rows) {
    return ORDER_TILE * divide_up(rows, (uint32_t)ORDER_TILE * ORDER_TILES_MAX);
}

// Returns this lane's index among the positions with its digit: after those in `counts` (ORDER_DIGITS, one per
// warp), in lane order. Then adds the warp's lanes to `counts`.
__device__ static inline int32_t order_place(int32_t *counts, int digit, bool there) {
    unsigned lane = threadIdx.x % WARP, same = __match_any_sync(FULL_WARP, there ? digit : -1);
    int leader = __ffs((int)same) - 1;
    int32_t begin = 0;
    if (there && (int)lane == leader) {
        begin = counts[digit];
        counts[digit] = begin + __popc(same);
    }
    begin = __shfl_sync(FULL_WARP, begin, leader);
    return begin + __popc(same & ((1u << lane) - 1));
}

// Calls at(place, position) for each position of this tile that the warp handles.
template <typename F>
__device__ static inline void order_warp(const struct order_pass &p, int32_t *counts, F at) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, share = p.tile_rows / ORDER_WARPS;
    uint32_t begin = blockIdx.x * p.tile_rows + warp * share;
    for (uint32_t first = begin; first < begin + share && first < p.rows; first += WARP) {
        uint32_t i = first + lane;
        bool there = i < p.rows;
        int32_t position = there && p.from ? p.from[i] : (int32_t)i;
        int digit = there ? p.tokens[position] >> p.shift & (ORDER_DIGITS - 1) : 0;
        int32_t place = order_place(counts + warp * ORDER_DIGITS, digit, there);
        if (there) at(place, position);
        __syncwarp();
    }
}

// counts (ORDER_WARPS, ORDER_DIGITS), shared: receives the counts of the tile's warps.
__device__ static inline void order_count(const struct order_pass &p, int32_t *counts) {
    for (int i = (int)threadIdx.x; i < ORDER_WARPS * ORDER_DIGITS; i += ORDER_DIGITS) counts[i] = 0;
    __syncthreads();
    order_warp(p, counts, [](int32_t, int32_t) {});
    __syncthreads();
}

__global__ void __launch_bounds__(ORDER_DIGITS) order_count_kernel(struct order_pass p) {
    SHARED_ARRAY(int32_t, counts, ORDER_WARPS * ORDER_DIGITS);
    int digit = (int)threadIdx.x;
    int32_t total = 0;
    order_count(p, counts);
#pragma unroll
    for (int w = 0; w < ORDER_WARPS; w++) total += counts[w * ORDER_DIGITS + digit];
    p.counts[blockIdx.x * ORDER_DIGITS + digit] = total;
}

// Returns the sum of x over the block's threads before this one; slots (ORDER_WARPS) are shared memory.
__device__ static inline int32_t sum_before(int32_t x, int32_t *slots) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int32_t sum = x, before = 0;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int32_t left = __shfl_up_sync(FULL_WARP, sum, step);
        if (lane >= step) sum += left;
    }
    if (lane == WARP - 1) slots[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) before += slots[w];
    return before + sum - x;
}

__global__ void __launch_bounds__(ORDER_DIGITS) order_place_kernel(struct order_pass p) {
    SHARED_ARRAY(int32_t, counts, ORDER_WARPS * ORDER_DIGITS);
    SHARED_ARRAY(int32_t, slots, ORDER_WARPS);
    int digit = (int)threadIdx.x;
    int32_t earlier = 0, total = 0;
#pragma unroll 8
    for (uint32_t t = 0; t < p.tiles; t++) {
        int32_t count = p.counts[t * ORDER_DIGITS + digit];
        total += count;
        earlier += t < blockIdx.x ? count : 0;
    }
    order_count(p, counts);
    int32_t begin = sum_before(total, slots) + earlier;
#pragma unroll
    for (int w = 0; w < ORDER_WARPS; w++) {
        int32_t count = counts[w * ORDER_DIGITS + digit];
        counts[w * ORDER_DIGITS + digit] = begin;
        begin += count;
    }
    __syncthreads();
    order_warp(p, counts, [&](int32_t place, int32_t position) { p.to[place] = position; });
}

// Integers that order_positions needs besides the order itself.
static inline int64_t order_workspace(uint32_t rows) {
    return (int64_t)rows + (int64_t)divide_up(rows, order_tile_rows(rows)) * ORDER_DIGITS;
}

// order (rows) receives the sorted positions. rows > 0, tokens in [0, vocab). workspace
// (order_workspace(rows)).
static inline int order_positions(struct cuda_ctx *ctx, const int32_t *tokens, uint32_t rows, int64_t vocab,
                                  int32_t *order, int32_t *workspace) {
    struct order_pass p = {tokens, NULL, NULL, workspace + rows, rows, 0, order_tile_rows(rows), 0};
    int passes = 1;
    while ((vocab - 1) >> (passes * ORDER_BITS)) passes++;
    p.tiles = divide_up(rows, p.tile_rows);
    struct launch_shape shape = flat_shape(p.tiles, ORDER_DIGITS);
    for (int left = passes; left > 0; left--) {
        p.to = left % 2 ? order : workspace;
        if (launch<order_count_kernel>(ctx, shape, p) != 0) return -1;
        if (launch<order_place_kernel>(ctx, shape, p) != 0) return -1;
        p.from = p.to;
        p.shift += ORDER_BITS;
    }
    return 0;
}

// ---------------------------------------------------------------- backward
// The backward of the embeddings: sums over the positions of each token, and over the batch for each position.
#define EMBED_AHEAD 8   // rows of dout, and of dwte, that a thread has in flight
#define PIECE_ROWS  64  // rows of dout that a block sums, unless the sums exceed the workspace
#define OPEN_SLICES (EMBED_THREADS / WARP)

template <typename T>
struct embed_bwd_buffers {
    T *dwte, *dwpe;
    const T *dout;
    int64_t channels, batch, seq, positions;
    bool zero_dwte, accumulate_dwpe;
};

// The rows of dout, sorted by token, are cut into pieces of equal length, whatever the tokens are:
//
//     tokens    3 3 3 7 | 7 7 7 7 | 7 7 9 9 | 9 12 ..
//     piece        0         1         2         3
//
// A token that lies within one piece is summed in order and stored to dwte. A longer one leaves one sum per
// piece: the `tail` of the piece where it begins, and the `head` of each later piece. embed_open_kernel adds
// these sums in a tree that depends on their number. So the order of additions depends on the tokens, on B*T
// and on C (which set the pieces' length), never on the device or on timing.
//
//     workspace   | spare order: B*T | counts | first: pieces | last: pieces | sums: (pieces, 2, C) |
//                                                                               2: head, tail
struct pieces {
    const int32_t *tokens, *order;  // (rows)
    int32_t *first, *last;          // (count) the tokens of a piece's first and last row
    float *sums;                    // (count, 2, C), 16-byte aligned
    int32_t rows, piece_rows, count;
};

// Stores the sum of one token in the block's piece. slot: 0 head, 1 tail, -1: the token ends here, store to
// dwte.
template <typename T, int V>
__device__ static inline void embed_flush(const struct embed_bwd_buffers<T> &p, const struct pieces &g,
                                          int64_t c, float *total, T *row, const packed<T, V> &old,
                                          int slot) {
    if (slot >= 0) {
        store_sums<V>(g.sums + ((int64_t)blockIdx.x * 2 + slot) * p.channels + c, total);
        return;
    }
    if (!p.zero_dwte) {
        float before[V];
        unpack<T, V>(old, before);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] = __fadd_rn(total[j], before[j]);
    }
    store_f32<T, V>(row, total);
}

// Block (piece, columns): thread t has V columns, and adds the piece's rows one after another. All blocks do
// the same amount of work. A warp's lanes load 32 positions and tokens together, and the next 32 in advance.
//
// Bytes: dout once; the changed rows of dwte read (unless zeroed by an earlier fill) and written once; per
// piece at most 8 C bytes of sums, written and read in the L2 cache (its dout is 128 C bytes in 16 bits). In
// flight per multiprocessor (of 132, B*T = 32768, C = 768): four blocks of 96 threads with at least 128 bytes
// each, 49 KB; 4.8 TB/s over 700 ns need 25 KB.
template <typename T, int V>
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_pieces_kernel(struct embed_bwd_buffers<T> p, struct pieces g) {
    int32_t begin = (int32_t)blockIdx.x * g.piece_rows, end = lesser(begin + g.piece_rows, g.rows);
    int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    bool inside = c < p.channels;
    int lane = (int)threadIdx.x % WARP;
    int32_t position = begin + lane < g.rows ? g.order[begin + lane] : 0;
    int32_t token = begin + lane < g.rows ? g.tokens[position] : -1;
    // begun: the present token began before this piece. fresh: the next row is the first one of its token in
    // this piece.
    bool begun = begin > 0 && g.tokens[g.order[begin - 1]] == __shfl_sync(FULL_WARP, token, 0), fresh = true;
    float total[V] = {};
    if (blockIdx.y == 0 && threadIdx.x == 0) {
        g.first[blockIdx.x] = token;
        g.last[blockIdx.x] = g.tokens[g.order[end - 1]];
    }
    for (int32_t base = begin; base < end; base += WARP) {
        int32_t ahead = base + WARP + lane;
        int32_t next_position = ahead < g.rows ? g.order[ahead] : 0;
        int32_t next_token = ahead < g.rows ? g.tokens[next_position] : -1;
        int32_t behind = __shfl_down_sync(FULL_WARP, token, 1), after = __shfl_sync(FULL_WARP, next_token, 0);
        unsigned ends = __ballot_sync(FULL_WARP, token != (lane == WARP - 1 ? after : behind));
        for (int k0 = 0; k0 < WARP && base + k0 < end; k0 += EMBED_AHEAD) {
            packed<T, V> x[EMBED_AHEAD], old[EMBED_AHEAD];
#pragma unroll
            for (int k = 0; k < EMBED_AHEAD; k++) {
                int64_t row = __shfl_sync(FULL_WARP, position, k0 + k);
                int64_t of = __shfl_sync(FULL_WARP, token, k0 + k);
                if (!inside || base + k0 + k >= end) continue;
                x[k] = load_packed<T, V>(p.dout + row * p.channels + c);
                if (!p.zero_dwte && ends >> (k0 + k) & 1)
                    old[k] = load_packed<T, V>(p.dwte + of * p.channels + c);
            }
#pragma unroll
            for (int k = 0; k < EMBED_AHEAD; k++) {
                int64_t of = __shfl_sync(FULL_WARP, token, k0 + k);
                bool ended = ends >> (k0 + k) & 1;
                if (!inside || base + k0 + k >= end) continue;
                float term[V];
                unpack<T, V>(x[k], term);
#pragma unroll
                for (int j = 0; j < V; j++)  // the sum starts as the first term: zero plus it would lose -0
                    total[j] = fresh ? term[j] : __fadd_rn(total[j], term[j]);
                fresh = ended;
                if (!ended && base + k0 + k < end - 1) continue;
                embed_flush<T, V>(p, g, c, total, p.dwte + of * p.channels + c, old[k],
                                  begun   ? 0
                                  : ended ? -1
                                          : 1);
                begun = false;
            }
        }
        position = next_position;
        token = next_token;
    }
}

// Block (columns, piece): for the token that begins in the piece and continues after it, adds the sums of all
// pieces that contain it. Each warp adds a run of them in order, then the warps' sums are added in order.
template <typename T, int V>
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_open_kernel(struct embed_bwd_buffers<T> p, struct pieces g) {
    SHARED_ARRAY(int32_t, slots, WARP);
    SHARED_ARRAY(float, sums, OPEN_SLICES *WARP *V);
    int32_t piece = (int32_t)blockIdx.y, token = g.last[piece];
    if (piece + 1 >= g.count || g.first[piece + 1] != token) return;
    if (piece > 0 && g.first[piece] == token && g.last[piece - 1] == token) return;
    int32_t reached = 0;
#pragma unroll 4
    for (int32_t q = piece + 1 + (int32_t)threadIdx.x; q < g.count; q += EMBED_THREADS)
        reached += g.first[q] == token;
    int32_t parts = 1 + block_reduce(reached, slots, 0, sum_of());
    int lane = (int)threadIdx.x % WARP, slice = (int)threadIdx.x / WARP;
    int64_t c = ((int64_t)blockIdx.x * WARP + lane) * V;
    int32_t begin = (int32_t)((int64_t)parts * slice / OPEN_SLICES);
    int32_t end = (int32_t)((int64_t)parts * (slice + 1) / OPEN_SLICES);
    float total[V] = {}, x[V];
    if (c < p.channels)
#pragma unroll 8
        for (int32_t k = begin; k < end; k++) {
            // The tail of the first piece, the heads of the others.
            load_sums<V>(g.sums + (k ? (int64_t)(piece + k) * 2 : (int64_t)piece * 2 + 1) * p.channels + c,
                         x);
#pragma unroll
            for (int j = 0; j < V; j++) total[j] = k > begin ? __fadd_rn(total[j], x[j]) : x[j];
        }
    if (begin < end)
#pragma unroll
        for (int j = 0; j < V; j++) sums[(slice * V + j) * WARP + lane] = total[j];
    __syncthreads();
    if (slice != OPEN_SLICES - 1 || c >= p.channels) return;
    // The last slice is never empty. The sum starts with the first slice that is not empty.
    bool any = false;
    for (int s = 0; s < OPEN_SLICES; s++) {
        if ((int64_t)parts * s / OPEN_SLICES == (int64_t)parts * (s + 1) / OPEN_SLICES) continue;
#pragma unroll
        for (int j = 0; j < V; j++) {
            float sum = sums[(s * V + j) * WARP + lane];
            total[j] = any ? __fadd_rn(total[j], sum) : sum;
        }
        any = true;
    }
    T *out = p.dwte + (int64_t)token * p.channels + c;
    if (!p.zero_dwte) {
        load_f32<T, V>(out, x);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] = __fadd_rn(total[j], x[j]);
    }
    store_f32<T, V>(out, total);
}

// A block computes a row of dwpe: the sum over the batch in order, or zero from the end of the sequence on.
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

// ---------------------------------------------------------------- host side
// Lays out the pieces in the workspace, after the memory of order_positions. Returns false if not even one
// fits.
static bool lay_out_pieces(const struct cuda_ctx *ctx, const struct embed_bwd_args *a, struct pieces *g) {
    int64_t rows = a->batch * a->seq, ints = (int64_t)(ctx->workspace_bytes / sizeof(int32_t));
    if (rows > ints) return false;
    int64_t taken = order_workspace((uint32_t)rows), each = 2 * a->channels + 2;
    int64_t most = (ints - taken - 4) / each;  // 4: the sums begin at a multiple of 16 bytes
    if (most < 1) return false;
    g->rows = (int32_t)rows;
    g->piece_rows = (int32_t)greater((int64_t)PIECE_ROWS, divide_up(rows, most));
    g->count = divide_up(g->rows, g->piece_rows);
    g->tokens = a->tokens;
    g->order = (const int32_t *)a->scratch;
    g->first = (int32_t *)ctx->workspace + taken;
    g->last = g->first + g->count;
    g->sums = (float *)ctx->workspace + divide_up(taken + 2 * g->count, (int64_t)4) * 4;
    return true;
}

template <typename T, int V>
static int embed_bwd_run(struct cuda_ctx *ctx, const struct embed_bwd_args *a, const struct pieces &g) {
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
    unsigned across = (unsigned)divide_up(a->channels, (int64_t)threads * V);
    struct launch_shape pieces = {dim3((unsigned)g.count, across), dim3(threads), 0};
    struct launch_shape open = {dim3((unsigned)warps, (unsigned)g.count), dim3(EMBED_THREADS), 0};
    if (g.rows && launch<embed_pieces_kernel<T, V>>(ctx, pieces, p, g) != 0) return -1;
    if (g.count > 1 && launch<embed_open_kernel<T, V>>(ctx, open, p, g) != 0) return -1;
    return a->dwpe && a->positions
               ? launch<embed_positions_kernel<T, V>>(ctx, flat_shape(a->positions, threads), p)
               : 0;
}

int cuda_op_embed_bwd(struct cuda_ctx *ctx, const struct embed_bwd_args *a) {
    struct pieces g = {};
    if (a->vocab == 0 || a->channels == 0) return 0;
    if (a->batch * a->seq > 0) {
        if (!lay_out_pieces(ctx, a, &g))
            return cuda_refused(ctx,
                                "embed_bwd: the positions and two rows of sums exceed the workspace (8 MiB)");
        if (order_positions(ctx, a->tokens, (uint32_t)g.rows, a->vocab, (int32_t *)a->scratch,
                            (int32_t *)ctx->workspace) != 0)
            return -1;
    }
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide = a->channels % lanes<T>::count == 0 && aligned16(a->dwte) && aligned16(a->dwpe) &&
                    aligned16(a->dout);
        return with_width<T>(wide,
                             [&](auto width) { return embed_bwd_run<T, decltype(width)::value>(ctx, a, g); });
    });
}
