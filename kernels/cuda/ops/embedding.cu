// Token and position embeddings, forward: a gather.
#include "kernels/cuda/common/platform.h"

#define EMBED_THREADS 256

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
            return launch<embed_fwd_kernel<T, V>>(ctx, shape, p);
        });
    });
}
