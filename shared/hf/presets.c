// Presets: their shapes are those of the published checkpoints' config.json files on Hugging Face.
// tests/model/test_shared_spec.c checks their parameter counts.
#include "shared/hf/presets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/text.h"
#include "shared/hf/families.h"
#include "shared/hf/hf_adapter.h"
#include "shared/hf/hf_dir.h"

// V, C, L, H, KV, D, F and the positions; beginning and end of text.
#define SIZES(v, c, l, h, kv, d, f, p)                                                            \
    .vocab = v, .channels = c, .layers = l, .heads = h, .kv_heads = kv, .head_size = d, .ffn = f, \
    .max_positions = p, .init_std = 0.02f
#define TOKENS(bos, eos) .bos_token = bos, .eos_token = eos
#define GPT2(c, l, h)                                                                                       \
    .hf_type = "gpt2", SIZES(50257, c, l, h, h, (c) / (h), 4 * (c), 1024), .tied = true, .norm_eps = 1e-5f, \
    TOKENS(50256, 50256)

// The traits are those of the hf_type.
// clang-format off
static const struct {
    struct model_spec spec;
    const char *repository;  // on Hugging Face, with its vocabulary; NULL: its tokens are bytes
} presets[] = {
    // Byte vocabulary, for tests: small, untied, grouped queries.
    {{.name = "tiny", .hf_type = "llama", SIZES(256, 64, 2, 4, 2, 16, 176, 2048),
     .norm_eps = 1e-5f, .rope_theta = 1e4f, TOKENS(-1, -1)}, NULL},
    {{.name = "demo", .hf_type = "llama", SIZES(256, 192, 6, 6, 2, 32, 640, 2048), .tied = true,
     .norm_eps = 1e-5f, .rope_theta = 1e4f, TOKENS(-1, -1)}, NULL},
    {{.name = "gpt2-124m", GPT2(768, 12, 12)}, "openai-community/gpt2"},
    {{.name = "gpt2-1558m", GPT2(1600, 48, 25)}, "openai-community/gpt2-xl"},
    {{.name = "qwen2.5-0.5b", .hf_type = "qwen2", SIZES(151936, 896, 24, 14, 2, 64, 4864, 32768),
     .tied = true, .norm_eps = 1e-6f, .rope_theta = 1e6f, TOKENS(151643, 151643)}, "Qwen/Qwen2.5-0.5B"},
    {{.name = "qwen2.5-1.5b", .hf_type = "qwen2", SIZES(151936, 1536, 28, 12, 2, 128, 8960, 131072),
     .tied = true, .norm_eps = 1e-6f, .rope_theta = 1e6f, TOKENS(151643, 151643)}, "Qwen/Qwen2.5-1.5B"},
    {{.name = "llama-3.2-1b", .hf_type = "llama", SIZES(128256, 2048, 16, 32, 8, 64, 8192, 131072),
     .tied = true, .norm_eps = 1e-5f, .rope_theta = 5e5f, TOKENS(128000, 128001), .rope_scaling = ROPE_LLAMA3,
     .rope_factor = 32.0f, .rope_low_freq_factor = 1.0f, .rope_high_freq_factor = 4.0f,
     .rope_original_positions = 8192}, "meta-llama/Llama-3.2-1B"},
    {{.name = "llama-2-7b", .hf_type = "llama", SIZES(32000, 4096, 32, 32, 32, 128, 11008, 4096),
     .norm_eps = 1e-5f, .rope_theta = 1e4f, TOKENS(1, 2)}, "meta-llama/Llama-2-7b-hf"},
};
// clang-format on
#define PRESETS ((int)(sizeof presets / sizeof *presets))

const char *model_preset_name(int i) { return i < PRESETS ? presets[i].spec.name : NULL; }

const char *model_preset_repository(const char *name) {
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].spec.name, name) == 0) return presets[i].repository;
    return NULL;
}

// Reports a name that is neither a preset nor a path: it may be a model on the hub, or misspelt.
static int unknown(const char *given) {
    const char *slash = strrchr(given, '/'), *base = slash ? slash + 1 : given, *all[PRESETS];
    char names[512] = "";
    for (int i = 0, at = 0; i < PRESETS; i++) {
        const char *name = presets[i].spec.name, *from = presets[i].repository;
        bool is_repository = from && (!strcasecmp(from, given) || !strcasecmp(strrchr(from, '/') + 1, given));
        if (is_repository)
            return fail(
                "model \"%s\" is on the Hugging Face hub, and nothing is downloaded by this program: fetch it by\n"
                "    hf download %s --local-dir %s\nand give --model ./%s. The preset %s has its shape, with random weights",
                given, from, base, base, name);
        all[i] = name;
        at += snprintf(names + at, sizeof names - (size_t)at, "%s%s", i ? " " : "", name);
    }
    bool hub = is_hub_name(given);
    const char *near = text_nearest(given, all, PRESETS);
    char *mean =
        near ? xasprintf(": did you mean %s?", near)
             : xasprintf(
                   ". A model of the Hugging Face hub has to be fetched first: hf download %s --local-dir %s",
                   hub ? given : "OWNER/NAME", hub ? base : "DIR");
    fail("model \"%s\" is neither a preset (%s) nor an existing config.json or directory%s", given, names,
         mean);
    free(mean);
    return -1;
}

int model_spec_load(const char *preset_or_path, struct model_spec *out) {
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].spec.name, preset_or_path) == 0) {
            *out = presets[i].spec;
            out->traits = hf_family_named(out->hf_type, NULL)->traits;
            return 0;
        }
    struct stat st;
    if (stat(preset_or_path, &st) != 0) return unknown(preset_or_path);
    if (hf_look(preset_or_path)) return -1;
    if (!S_ISDIR(st.st_mode)) return hf_config_read(preset_or_path, out);
    bool adapter = hf_is_adapter(preset_or_path);
    char *dir = adapter ? hf_adapter_base(preset_or_path) : without_slashes(preset_or_path);
    char *path = xasprintf("%s/config.json", dir ? dir : "");
    int rc = !dir || hf_look(path) || hf_config_read(path, out) ? -1 : 0;
    if (!rc && adapter) rc = hf_look(dir) || hf_adapter_read(preset_or_path, out) ? -1 : 0;
    free(path);
    free(dir);
    return rc ? rc : hf_settle(preset_or_path, out);
}
