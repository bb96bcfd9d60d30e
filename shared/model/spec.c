// Presets, plausibility and arithmetic of model descriptions. Shapes are those of the published
// checkpoints' config.json files on Hugging Face; tests/model/test_shared_spec.c holds their parameter counts.
#include "shared/model/spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/core/error.h"
#include "shared/hf/spec_hf.h"

#define GPT2_PRESET(preset, c, l, h)                                                                 \
    {                                                                                                \
        .name = preset, .family = FAMILY_GPT2, .hf_type = "gpt2", .vocab = 50257, .channels = c,     \
        .layers = l, .heads = h, .kv_heads = h, .head_size = (c) / (h), .ffn = 4 * (c),              \
        .max_positions = 1024, .qkv_bias = true, .tied = true, .norm_eps = 1e-5f, .init_std = 0.02f, \
        .bos_token = 50256, .eos_token = 50256                                                       \
    }

static const struct model_spec presets[] = {
    // Byte vocabulary, for tests: small, untied, grouped queries.
    {.name = "tiny",
     .family = FAMILY_LLAMA,
     .hf_type = "llama",
     .vocab = 256,
     .channels = 64,
     .layers = 2,
     .heads = 4,
     .kv_heads = 2,
     .head_size = 16,
     .ffn = 176,
     .max_positions = 2048,
     .norm_eps = 1e-5f,
     .rope_theta = 10000.0f,
     .init_std = 0.02f,
     .bos_token = -1,
     .eos_token = -1},
    {.name = "demo",
     .family = FAMILY_LLAMA,
     .hf_type = "llama",
     .vocab = 256,
     .channels = 192,
     .layers = 6,
     .heads = 6,
     .kv_heads = 2,
     .head_size = 32,
     .ffn = 640,
     .max_positions = 2048,
     .tied = true,
     .norm_eps = 1e-5f,
     .rope_theta = 10000.0f,
     .init_std = 0.02f,
     .bos_token = -1,
     .eos_token = -1},
    GPT2_PRESET("gpt2-124m", 768, 12, 12),
    GPT2_PRESET("gpt2-1558m", 1600, 48, 25),
    {.name = "qwen2.5-0.5b",
     .family = FAMILY_LLAMA,
     .hf_type = "qwen2",
     .vocab = 151936,
     .channels = 896,
     .layers = 24,
     .heads = 14,
     .kv_heads = 2,
     .head_size = 64,
     .ffn = 4864,
     .max_positions = 32768,
     .qkv_bias = true,
     .tied = true,
     .norm_eps = 1e-6f,
     .rope_theta = 1e6f,
     .init_std = 0.02f,
     .bos_token = 151643,
     .eos_token = 151643},
    {.name = "qwen2.5-1.5b",
     .family = FAMILY_LLAMA,
     .hf_type = "qwen2",
     .vocab = 151936,
     .channels = 1536,
     .layers = 28,
     .heads = 12,
     .kv_heads = 2,
     .head_size = 128,
     .ffn = 8960,
     .max_positions = 131072,
     .qkv_bias = true,
     .tied = true,
     .norm_eps = 1e-6f,
     .rope_theta = 1e6f,
     .init_std = 0.02f,
     .bos_token = 151643,
     .eos_token = 151643},
    {.name = "llama-3.2-1b",
     .family = FAMILY_LLAMA,
     .hf_type = "llama",
     .vocab = 128256,
     .channels = 2048,
     .layers = 16,
     .heads = 32,
     .kv_heads = 8,
     .head_size = 64,
     .ffn = 8192,
     .max_positions = 131072,
     .tied = true,
     .norm_eps = 1e-5f,
     .rope_theta = 500000.0f,
     .rope_scaling = ROPE_LLAMA3,
     .rope_factor = 32.0f,
     .rope_low_freq_factor = 1.0f,
     .rope_high_freq_factor = 4.0f,
     .rope_original_positions = 8192,
     .init_std = 0.02f,
     .bos_token = 128000,
     .eos_token = 128001},
    {.name = "llama-2-7b",
     .family = FAMILY_LLAMA,
     .hf_type = "llama",
     .vocab = 32000,
     .channels = 4096,
     .layers = 32,
     .heads = 32,
     .kv_heads = 32,
     .head_size = 128,
     .ffn = 11008,
     .max_positions = 4096,
     .norm_eps = 1e-5f,
     .rope_theta = 10000.0f,
     .init_std = 0.02f,
     .bos_token = 1,
     .eos_token = 2},
};

const char *model_spec_presets(void) {
    return "tiny demo gpt2-124m gpt2-1558m qwen2.5-0.5b qwen2.5-1.5b llama-3.2-1b llama-2-7b";
}

int model_spec_load(const char *preset_or_path, struct model_spec *out) {
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, preset_or_path) == 0) {
            *out = presets[i];
            return 0;
        }
    struct stat st;
    if (stat(preset_or_path, &st) != 0)
        return fail("model \"%s\" is neither a preset (%s) nor an existing config.json or directory",
                    preset_or_path, model_spec_presets());
    if (!S_ISDIR(st.st_mode)) return model_spec_read_hf(preset_or_path, out);
    char *path = xasprintf("%s/config.json", preset_or_path);
    int rc = model_spec_read_hf(path, out);
    free(path);
    return rc;
}

// Limits that keep every product of two sizes far from overflow; ten times beyond any published model.
#define MAX_WIDTH  (1 << 22)
#define MAX_VOCAB  (1 << 26)
#define MAX_LAYERS (1 << 16)

static int check_range(const struct model_spec *s, const char *what, int64_t value, int64_t max) {
    if (value >= 1 && value <= max) return 0;
    return fail("model %s: %s is %lld, must be between 1 and %lld", s->name, what, (long long)value,
                (long long)max);
}

static int check_rope(const struct model_spec *s) {
    if (s->head_size % 2)
        return fail("model %s: head size %d is odd; rotary embeddings turn pairs, so it must be even",
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
    if (s->family == FAMILY_LLAMA) return check_rope(s);
    if (s->kv_heads != s->heads || (int64_t)s->heads * s->head_size != s->channels)
        return fail(
            "model %s: GPT-2 needs hidden size = heads x head size (%d, %d, %d) and no grouped queries",
            s->name, s->channels, s->heads, s->head_size);
    return 0;
}

struct token_flops model_flops_per_token(const struct model_spec *s, int64_t seq) {
    double c = s->channels, hd = (double)s->heads * s->head_size, kvd = (double)s->kv_heads * s->head_size;
    double ffn_matrices = s->family == FAMILY_LLAMA ? 3.0 : 2.0;
    double block = (hd + 2.0 * kvd) * c + hd * c + ffn_matrices * c * s->ffn;
    double in_matmuls = s->layers * block + (double)s->vocab * c;  // the head's product; a lookup is none
    double attention = 12.0 * s->layers * (double)seq * hd;
    return (struct token_flops){.full = 6.0 * in_matmuls + attention,
                                .causal = 6.0 * in_matmuls + 0.5 * attention};
}

int model_spec_check_seq(const struct model_spec *s, int64_t seq) {
    if (s->family == FAMILY_GPT2 && seq > s->max_positions)
        return fail("--seq %lld: %s has %d learned positions", (long long)seq, s->name, s->max_positions);
    if (s->sliding_window && seq > s->sliding_window)
        return fail(
            "--seq %lld: %s sees a window of %d tokens, and windows are not implemented: a sequence may be "
            "as long as the window",
            (long long)seq, s->name, s->sliding_window);
    return 0;
}
