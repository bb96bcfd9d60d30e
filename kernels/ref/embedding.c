// Token and position embeddings. Sums are fp32 in index order, as operations.h demands.
#include "kernels/ref/ref.h"

void ref_embed_fwd(const struct embed_fwd_args *a) {
    for (int64_t r = 0; r < a->batch * a->seq; r++) {
        for (int64_t c = 0; c < a->channels; c++) {
            float x = dtype_load(a->dt, a->wte, a->tokens[r] * a->channels + c);
            if (a->wpe) x += dtype_load(a->dt, a->wpe, (r % a->seq) * a->channels + c);
            dtype_store(a->dt, a->out, r * a->channels + c, x);
        }
    }
}

static bool seen_before(const int32_t *tokens, int64_t r) {
    for (int64_t i = 0; i < r; i++)
        if (tokens[i] == tokens[r]) return true;
    return false;
}

// Sums all positions of one token; `first` is the token's first position.
static void embed_bwd_token(const struct embed_bwd_args *a, int64_t first) {
    int32_t token = a->tokens[first];
    for (int64_t c = 0; c < a->channels; c++) {
        float total = dtype_load(a->dt, a->dout, first * a->channels + c);
        for (int64_t r = first + 1; r < a->batch * a->seq; r++)
            if (a->tokens[r] == token) total += dtype_load(a->dt, a->dout, r * a->channels + c);
        if (!a->zero_dwte) total += dtype_load(a->dt, a->dwte, token * a->channels + c);
        dtype_store(a->dt, a->dwte, token * a->channels + c, total);
    }
}

void ref_embed_bwd(const struct embed_bwd_args *a) {
    int64_t row_elements = a->channels, rows = a->batch * a->seq;
    if (a->zero_dwte) memset(a->dwte, 0, (size_t)(a->vocab * row_elements) * dtype_size(a->dt));
    for (int64_t r = 0; r < rows; r++)
        if (!seen_before(a->tokens, r)) embed_bwd_token(a, r);
    if (!a->dwpe) return;
    for (int64_t i = 0; i < a->positions * row_elements; i++) {
        if (i >= a->seq * row_elements) {
            if (!a->accumulate_dwpe) dtype_store(a->dt, a->dwpe, i, 0.0f);
            continue;
        }
        float total = dtype_load(a->dt, a->dout, i);
        for (int64_t b = 1; b < a->batch; b++)
            total += dtype_load(a->dt, a->dout, b * a->seq * row_elements + i);
        if (a->accumulate_dwpe) total += dtype_load(a->dt, a->dwpe, i);
        dtype_store(a->dt, a->dwpe, i, total);
    }
}
