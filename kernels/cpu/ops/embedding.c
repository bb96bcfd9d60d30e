// Token and position embeddings: a gather forward, an ordered scatter-add backward.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"

static void embed_fwd_range(const void *args, int64_t begin, int64_t end) {
    const struct embed_fwd_args *a = args;
    float x[CHUNK], pos[CHUNK];
    for (int64_t r = begin; r < end; r++) {
        int64_t from = (int64_t)a->tokens[r] * a->channels, t = r % a->seq;
        if (!a->wpe) {
            memcpy(dtype_at_mut(a->dt, a->out, r * a->channels), dtype_at(a->dt, a->wte, from),
                   (size_t)a->channels * dtype_size(a->dt));
            continue;
        }
        for (int64_t c = 0; c < a->channels; c += CHUNK) {
            int64_t n = chunk_min(CHUNK, a->channels - c);
            load_f32(a->dt, x, a->wte, from + c, n);
            load_f32(a->dt, pos, a->wpe, t * a->channels + c, n);
            for (int64_t j = 0; j < n; j++) x[j] += pos[j];
            store_f32(a->dt, a->out, r * a->channels + c, x, n);
        }
    }
}

const char *cpu_embed_fwd(int threads, const struct embed_fwd_args *a) {
    for_ranges(threads, a->batch * a->seq, row_grain(a->channels), embed_fwd_range, a);
    return NULL;
}

// Positions sorted by token, within a token in rising order (a stable counting sort). The positions of token v
// are order[ v ? ends[v-1] : 0 ] .. order[ ends[v] - 1 ].
struct grouped {
    int32_t *ends;   // (V)
    int32_t *order;  // (B*T)
};

static struct grouped grouped_in(const struct embed_bwd_args *a) {
    return (struct grouped){.ends = a->scratch, .order = (int32_t *)a->scratch + a->vocab};
}

static void group_positions(const struct embed_bwd_args *a) {
    struct grouped g = grouped_in(a);
    int64_t rows = a->batch * a->seq;
    assert(rows <= INT32_MAX);
    memset(g.ends, 0, (size_t)a->vocab * sizeof *g.ends);
    for (int64_t r = 0; r < rows; r++) {
        assert(a->tokens[r] >= 0 && a->tokens[r] < a->vocab);
        g.ends[a->tokens[r]]++;
    }
    int32_t begin = 0;
    for (int64_t v = 0; v < a->vocab; v++) {
        int32_t count = g.ends[v];
        g.ends[v] = begin;
        begin += count;
    }
    for (int64_t r = 0; r < rows; r++) g.order[g.ends[a->tokens[r]]++] = (int32_t)r;
}

// A work item is one block of columns of one row of dwte, so that common tokens spread over threads.
#define EMBED_COLUMNS 256

static int64_t column_blocks(const struct embed_bwd_args *a) {
    return (a->channels + EMBED_COLUMNS - 1) / EMBED_COLUMNS;
}

static void embed_bwd_item(const struct embed_bwd_args *a, int64_t token, int64_t c, int64_t n) {
    struct grouped g = grouped_in(a);
    int64_t begin = token ? g.ends[token - 1] : 0, end = g.ends[token], at = token * a->channels + c;
    float total[EMBED_COLUMNS], x[EMBED_COLUMNS];
    if (begin == end) {
        if (a->zero_dwte) memset(dtype_at_mut(a->dt, a->dwte, at), 0, (size_t)n * dtype_size(a->dt));
        return;
    }
    load_f32(a->dt, total, a->dout, g.order[begin] * a->channels + c, n);
    for (int64_t i = begin + 1; i < end; i++) {
        load_f32(a->dt, x, a->dout, g.order[i] * a->channels + c, n);
        for (int64_t j = 0; j < n; j++) total[j] += x[j];
    }
    if (!a->zero_dwte) {
        load_f32(a->dt, x, a->dwte, at, n);
        for (int64_t j = 0; j < n; j++) total[j] += x[j];
    }
    store_f32(a->dt, a->dwte, at, total, n);
}

static void embed_bwd_items(const void *args, int64_t begin, int64_t end) {
    const struct embed_bwd_args *a = args;
    int64_t blocks = column_blocks(a);
    for (int64_t i = begin; i < end; i++) {
        int64_t c = i % blocks * EMBED_COLUMNS;
        embed_bwd_item(a, i / blocks, c, chunk_min(EMBED_COLUMNS, a->channels - c));
    }
}

// Rows [begin, end) of dwpe: the sum over the batch, in order.
static void embed_bwd_positions(const void *args, int64_t begin, int64_t end) {
    const struct embed_bwd_args *a = args;
    float total[CHUNK], x[CHUNK];
    for (int64_t t = begin; t < end; t++) {
        for (int64_t c = 0; c < a->channels; c += CHUNK) {
            int64_t n = chunk_min(CHUNK, a->channels - c), at = t * a->channels + c;
            load_f32(a->dt, total, a->dout, at, n);
            for (int64_t b = 1; b < a->batch; b++) {
                load_f32(a->dt, x, a->dout, b * a->seq * a->channels + at, n);
                for (int64_t j = 0; j < n; j++) total[j] += x[j];
            }
            if (a->accumulate_dwpe) {
                load_f32(a->dt, x, a->dwpe, at, n);
                for (int64_t j = 0; j < n; j++) total[j] += x[j];
            }
            store_f32(a->dt, a->dwpe, at, total, n);
        }
    }
}

// | ends: V | order: B*T |, 32-bit.
size_t embed_bwd_scratch_bytes(int64_t batch, int64_t seq, int64_t channels, int64_t vocab) {
    (void)channels;
    return (size_t)(vocab + batch * seq) * sizeof(int32_t);
}

const char *cpu_embed_bwd(int threads, const struct embed_bwd_args *a) {
    int64_t rows = a->batch * a->seq;
    group_positions(a);
    if (!a->zero_dwte && rows * a->channels < RANGE_ELEMENTS) threads = 1;
    // At most 256 grains: with a large vocabulary most rows are empty.
    int64_t items = a->vocab * column_blocks(a), grain = items / 256 + 1;
    for_ranges_dynamic(threads, items, grain, embed_bwd_items, a);
    if (!a->dwpe) return NULL;
    assert(a->positions >= a->seq);
    for_ranges(threads, a->seq, row_grain(a->channels), embed_bwd_positions, a);
    if (!a->accumulate_dwpe)
        memset(dtype_at_mut(a->dt, a->dwpe, a->seq * a->channels), 0,
               (size_t)((a->positions - a->seq) * a->channels) * dtype_size(a->dt));
    return NULL;
}
