// The positions of a batch in the order of their tokens, equal tokens in the order of the positions: a radix
// sort, ORDER_BITS bits of the token at a time from the lowest on, each pass stable (Knuth, The Art of
// Computer Programming, volume 3, 5.2.5). No atomics: where a position goes follows from counts alone, so it
// is the same in every run, and takes the same time when all tokens are equal as when all differ.
//
//     count    one block per tile of positions: how many have each digit    counts[tile][digit]
//     place    one block per tile: its positions of digit d begin behind all those of smaller digits and behind
//              those of d in earlier tiles; then warp by warp, 32 positions by 32, lane by lane
//
// Bytes: a pass reads every tile's counts in every block, 2 KB each: with 32 tiles (32768 positions) 2 MB,
// out of the L2 cache. A vocabulary of up to 2^18 takes two passes of two launches each.
#ifndef STARRING_KERNELS_CUDA_COMMON_TOKEN_ORDER_H
#define STARRING_KERNELS_CUDA_COMMON_TOKEN_ORDER_H

#include "kernels/cuda/common/platform.h"

#define ORDER_BITS      9
#define ORDER_DIGITS    (1 << ORDER_BITS)  // the threads of a block as well: thread d does digit d
#define ORDER_WARPS     (ORDER_DIGITS / WARP)
#define ORDER_TILE      1024  // positions: two turns of each warp
#define ORDER_TILES_MAX 128   // more positions take larger tiles

struct order_pass {
    const int32_t *tokens;  // (rows)
    const int32_t *from;    // (rows) positions as the last pass left them; NULL: 0, 1, 2 ..
    int32_t *to;            // (rows)
    int32_t *counts;        // (tiles, ORDER_DIGITS)
    uint32_t rows, tiles, tile_rows;
    int shift;
};

static inline uint32_t order_tile_rows(uint32_t rows) {
    return ORDER_TILE * divide_up(rows, (uint32_t)ORDER_TILE * ORDER_TILES_MAX);
}

// Of a warp's lanes that have the same digit, in lane order, behind those that `counts` (ORDER_DIGITS, the
// warp's own) has counted: this lane's place; then counts them as well.
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

// Calls at(place, position) for each of the warp's positions of this tile.
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

// counts (ORDER_WARPS, ORDER_DIGITS), shared: the tile's, warp by warp.
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

// The sum of x over the block's threads before this one; slots (ORDER_WARPS) are shared.
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

// Integers that order_positions takes beside the order itself.
static inline int64_t order_workspace(uint32_t rows) {
    return (int64_t)rows + (int64_t)divide_up(rows, order_tile_rows(rows)) * ORDER_DIGITS;
}

// order (rows) = the positions; rows > 0, tokens in [0, vocab). workspace (order_workspace(rows)).
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

#endif
