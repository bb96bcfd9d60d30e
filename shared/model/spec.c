// Checks and arithmetic of model descriptions.
#include "shared/model/spec.h"

#include <math.h>

#include "shared/core/error.h"

// Limits that keep every product of two sizes far from overflow; ten times beyond any published model.
#define MAX_WIDTH  (1 << 22)
#define MAX_VOCAB  (1 << 26)
#define MAX_LAYERS (1 << 14)

static int check_range(const struct model_spec *s, const char *what, int64_t value, int64_t max) {
    if (value >= 1 && value <= max) return 0;
    return fail("model %s: %s is %lld, must be between 1 and %lld", s->name, what, (long long)value,
                (long long)max);
}

static int check_rope(const struct model_spec *s) {
    if (s->head_size % 2)
        return fail(
            "model %s: head size %d is odd; rotary embeddings rotate pairs of elements, so it must be even",
            s->name, s->head_size);
    if (!(s->rope_theta > 0.0f) || !isfinite(s->rope_theta))
        return fail("model %s: rope_theta is %g, must be positive", s->name, (double)s->rope_theta);
    if (s->rope_scaling == ROPE_PLAIN) return 0;
    if (!(s->rope_factor > 0.0f) || !isfinite(s->rope_factor))
        return fail("model %s: rope factor is %g, must be positive", s->name, (double)s->rope_factor);
    if (s->rope_scaling == ROPE_LINEAR) return 0;
    if (!(s->rope_low_freq_factor > 0.0f) || !(s->rope_high_freq_factor > s->rope_low_freq_factor) ||
        !isfinite(s->rope_high_freq_factor))
        return fail("model %s: rope low_freq_factor %g and high_freq_factor %g must satisfy 0 < low < high",
                    s->name, (double)s->rope_low_freq_factor, (double)s->rope_high_freq_factor);
    return check_range(s, "rope original_max_position_embeddings", s->rope_original_positions, INT32_MAX);
}

int model_spec_check(const struct model_spec *s) {
    if (check_range(s, "vocabulary size", s->vocab, MAX_VOCAB) ||
        check_range(s, "hidden size", s->channels, MAX_WIDTH) ||
        check_range(s, "number of layers", s->layers, MAX_LAYERS) ||
        check_range(s, "number of attention heads", s->heads, MAX_WIDTH) ||
        check_range(s, "number of key/value heads", s->kv_heads, MAX_WIDTH) ||
        check_range(s, "head size", s->head_size, MAX_WIDTH) ||
        check_range(s, "heads times head size", (int64_t)s->heads * s->head_size, MAX_WIDTH) ||
        check_range(s, "feed-forward size", s->ffn, MAX_WIDTH) ||
        check_range(s, "number of positions", s->max_positions, MAX_VOCAB))
        return -1;
    if (s->heads % s->kv_heads)
        return fail("model %s: %d attention heads cannot share %d key/value heads evenly", s->name, s->heads,
                    s->kv_heads);
    if (!(s->norm_eps > 0.0f) || !isfinite(s->norm_eps))
        return fail("model %s: norm epsilon is %g, must be positive", s->name, (double)s->norm_eps);
    if (!(s->init_std >= 0.0f) || !isfinite(s->init_std))
        return fail("model %s: initializer_range is %g, must not be negative", s->name, (double)s->init_std);
    return s->traits.positions == POSITIONS_ROTARY ? check_rope(s) : 0;
}

const char *lora_tensor(const struct model_spec *s, enum lora_linear l) {
    const char *const names[] = {"wqkv", "wo", s->traits.mlp == MLP_SWIGLU ? "w_gate_up" : "w_up", "w_down"};
    return names[l];
}

struct lora_rows lora_rows_of(const struct model_spec *s, enum lora_linear l, int part) {
    int64_t c = s->channels, hd = (int64_t)s->heads * s->head_size, kvd = (int64_t)s->kv_heads * s->head_size;
    const int64_t rows[LORA_LINEARS] = {hd + 2 * kvd, c, model_up_width(s), c},
                  columns[] = {c, hd, c, s->ffn};
    int parts = s->lora.parts[l] ? s->lora.parts[l] : 1;
    struct lora_rows all = {0, rows[l], columns[l]};
    if (parts == 1) return all;
    if (parts == 2) return (struct lora_rows){part * rows[l] / 2, rows[l] / 2, columns[l]};
    return (struct lora_rows){part ? hd + (part - 1) * kvd : 0, part ? kvd : hd, columns[l]};  // q, k, v
}

// The parameters of a block's adapters.
static double adapter_params(const struct model_spec *s) {
    double n = 0;
    for (int l = 0; l < LORA_LINEARS; l++)
        for (int p = 0; p < s->lora.parts[l]; p++) {
            struct lora_rows of = lora_rows_of(s, l, p);
            if (s->lora.mask[l] >> p & 1) n += (double)s->lora.r * (double)(of.rows + of.columns);
        }
    return n;
}

struct unit_flops model_unit_flops(const struct model_spec *s, int unit, double seq) {
    double c = s->channels, hd = (double)s->heads * s->head_size, kvd = (double)s->kv_heads * s->head_size;
    if (unit == 0) return (struct unit_flops){0};  // a lookup is no product
    bool head = unit > s->layers, frozen = s->lora.r > 0;
    double block = (hd + 2.0 * kvd) * c + hd * c + c * (double)(model_up_width(s) + s->ffn);
    double params = head ? (double)s->vocab * c : block, adapters = head || !frozen ? 0 : adapter_params(s);
    return (struct unit_flops){.products = 2.0 * (params + adapters),
                               .attention = head ? 0 : 4.0 * seq * hd,
                               .gradients = (frozen ? 2.0 : 4.0) * params + 4.0 * adapters};
}

struct token_flops model_flops_per_token(const struct model_spec *s, double seq) {
    struct unit_flops block = model_unit_flops(s, 1, seq), head = model_unit_flops(s, s->layers + 1, seq);
    double products = s->layers * (block.products + block.gradients) + head.products + head.gradients;
    double attention = 3.0 * s->layers * block.attention;
    return (struct token_flops){.full = products + attention, .causal = products + 0.5 * attention};
}

int64_t model_longest_seq(const struct model_spec *s) {
    int64_t longest = s->traits.positions == POSITIONS_LEARNED ? s->max_positions : 0;
    return s->sliding_window && (!longest || s->sliding_window < longest) ? s->sliding_window : longest;
}

int model_spec_check_seq(const struct model_spec *s, int64_t seq) {
    int64_t longest = model_longest_seq(s);
    if (!longest || seq <= longest) return 0;
    if (longest == s->sliding_window)
        return fail(
            "--seq %lld: %s has a sliding window of %d tokens, and windows are not "
            "implemented: a sequence may be at most as long as the window",
            (long long)seq, s->name, s->sliding_window);
    return fail("--seq %lld: %s has %d learned positions", (long long)seq, s->name, s->max_positions);
}
