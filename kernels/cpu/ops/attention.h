// What the two directions of attention share: blocks of BLOCK queries by BLOCK keys, packed in fp32.
#ifndef STARRING_KERNELS_CPU_OPS_ATTENTION_H
#define STARRING_KERNELS_CPU_OPS_ATTENTION_H

#include <stdatomic.h>

#include "kernels/cpu/gemm/gemm_kernel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/spans.h"
#include "kernels/operations.h"

#define BLOCK 96  // queries, keys: a multiple of MR and of NR
_Static_assert(BLOCK % MR == 0 && BLOCK % NR == 0, "a block holds whole panels of both kinds");

// A sum over keys or queries leaves out the blocks that causality makes zero, in steps of ROW_STEP. That is a
// multiple of every MR, so that the terms that are added do not depend on the width of the vectors (zeros
// count: -0 + 0 is not -0, 0 times infinity is NaN).
#define ROW_STEP 12
_Static_assert(ROW_STEP % MR == 0 && BLOCK % ROW_STEP == 0, "a step holds whole panels");
static inline int64_t step_down(int64_t i) { return i / ROW_STEP * ROW_STEP; }

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

// Where one head's vectors lie in a (B,T,row) tensor: element d of time t is start + t*row + d.
struct head_view {
    const void *p;
    int64_t start, row;
};

// Panels of `width` times, element (d, t) at [t/width][d][t%width], for t in [t0, t0 + count).
// Consecutive panels are `panel` floats apart; missing times are zero.
VEC_INLINE void pack_times_a(enum dtype t, struct head_view v, int64_t t0, int64_t count, int64_t size,
                             int64_t panel, float *out) {
    for (int64_t i = 0; i < count; i += MR)
        pack_a(t, v.p, v.start + (t0 + i) * v.row, v.row, 1, lesser(MR, count - i), size,
               out + i / MR * panel);
}

VEC_INLINE void pack_times_b(enum dtype t, struct head_view v, int64_t t0, int64_t count, int64_t size,
                             float *out) {
    for (int64_t i = 0; i < count; i += NR)
        pack_b(t, v.p, v.start + (t0 + i) * v.row, 1, v.row, lesser(NR, count - i), size, out + i * size);
}

// Panels of NR of the head's elements, element (t, d) at [d/NR][t][d%NR]; count times to a panel.
VEC_INLINE void pack_sizes_b(enum dtype t, struct head_view v, int64_t t0, int64_t count, int64_t size,
                             float *out) {
    for (int64_t d = 0; d < size; d += NR)
        pack_b(t, v.p, v.start + t0 * v.row + d, v.row, 1, lesser(NR, size - d), count, out + d * count);
}

// Scratch is carved from one piece, 64-byte aligned; base NULL only measures.
static inline float *carve(float *base, int64_t *floats, int64_t n) {
    float *p = base ? base + *floats : NULL;
    *floats += round_up(n, 16);
    return p;
}

// y(rows, size) of type t from x (rows, ldx), rounded once.
VEC_INLINE void store_rows(enum dtype t, void *y, int64_t start, int64_t row, const float *x, int64_t ldx,
                           int64_t rows, int64_t size) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t d = 0;
        for (; d + VEC <= size; d += VEC) vec_store(t, y, start + r * row + d, vec_load_f32(x + r * ldx + d));
        if (d < size) vec_store_part(t, y, start + r * row + d, size - d, vec_load_f32(x + r * ldx + d));
    }
}

// Heads of sequences, each a task of one thread with that thread's scratch.
struct attention_tasks {
    void (*run)(const void *args, int64_t i, float *scratch);
    const void *args;
    int64_t count, scratch_floats;
    atomic_bool failed;
};

static inline void attention_run_span(const void *arg, int64_t begin, int64_t end) {
    struct attention_tasks *t = (struct attention_tasks *)arg;
    float *scratch = thread_scratch((size_t)t->scratch_floats * sizeof *scratch);
    if (!scratch) t->failed = true;
    for (int64_t i = begin; i < end && scratch; i++) t->run(t->args, i, scratch);
}

// 0, or -1 with *why set.
static inline int attention_run(int threads, struct attention_tasks *t, const char **why) {
    for_spans_dynamic(threads, t->count, 1, attention_run_span, t);
    if (t->failed) *why = "out of host memory for the blocks of attention";
    return t->failed ? -1 : 0;
}

#endif
