// A model's directory: an index and two shards, of which the first byte says which one the rest is. A file that opens can
// be read, unit by unit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/hf/hf_dir.h"
#include "shared/model/layout.h"
#include "tests/fuzz/fuzz.h"

static const struct model_spec spec = {.name = "tiny",
                                       .hf_type = "llama",
                                       .traits = {.norm = NORM_RMS, .mlp = MLP_SWIGLU},
                                       .vocab = 4,
                                       .channels = 4,
                                       .layers = 1,
                                       .heads = 2,
                                       .kv_heads = 1,
                                       .head_size = 2,
                                       .ffn = 4,
                                       .max_positions = 8,
                                       .tied = true,
                                       .norm_eps = 1e-5f,
                                       .rope_theta = 10000};

// All tensors of the model in one good file, and an index that names it.
struct good {
    struct layout *layout;
    char *file, *index;
    size_t file_bytes;
};

static void add_part(struct good *g, char **header, const struct hf_part *p, size_t *at) {
    int64_t n = p->shape[0] * (p->dims > 1 ? p->shape[1] : 1);
    char shape[48], *longer;
    snprintf(shape, sizeof shape, p->dims > 1 ? "%lld,%lld" : "%lld", (long long)p->shape[0],
             (long long)p->shape[1]);
    longer = xasprintf("%s%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", *header,
                       (*header)[1] ? "," : "", p->name, shape, *at, *at + (size_t)n * 4);
    free(*header);
    *header = longer;
    longer = xasprintf("%s%s\"%s\":\"a.safetensors\"", g->index, g->index[15] ? "," : "", p->name);
    free(g->index);
    g->index = longer;
    *at += (size_t)n * 4;
}

static void make_good(struct good *g) {
    struct hf_part parts[HF_MAX_PARTS];
    char *header = xstrdup("{"), *closed;
    size_t at = 0;
    g->layout = model_layout_create(&spec, 1);
    g->index = xstrdup("{\"weight_map\":{");
    for (int u = 0; u < g->layout->count; u++)
        for (int t = 0; t < g->layout->units[u].count; t++)
            for (int i = 0, n = hf_parts(&spec, g->layout, u, t, parts); i < n; i++)
                add_part(g, &header, &parts[i], &at);
    closed = xasprintf("%s}", header);
    uint64_t n = strlen(closed);
    g->file = xcalloc(8 + n + at, 1);
    g->file_bytes = 8 + n + at;
    memcpy(g->file, &n, 8);
    memcpy(g->file + 8, closed, n);
    free(header);
    free(closed);
    header = g->index;
    g->index = xasprintf("%s}}", header);
    free(header);
}

FUZZ_TARGET(hf_weights) {
    static struct good good;
    struct fuzz_bytes in = {data, size};
    if (!good.layout) make_good(&good);
    bool index = fuzz_below(&in, 2);
    fuzz_put("model.safetensors.index.json", index ? in.p : (const uint8_t *)good.index,
             index ? in.left : strlen(good.index));
    fuzz_put("a.safetensors", index ? (const uint8_t *)good.file : in.p, index ? good.file_bytes : in.left);
    error_clear();
    struct hf_reader *r = hf_open(fuzz_dir(), &spec, good.layout);
    FUZZ_CHECK(r || error_last()[0], "refused in silence");
    for (int u = 0; r && u < good.layout->count; u++) {
        float *out = xcalloc((unsigned long)good.layout->units[u].n_pad, sizeof *out);
        FUZZ_CHECK(hf_read_unit(r, u, out) == 0, "it opens and cannot be read: %s", error_last());
        free(out);
    }
    if (r) hf_dtype(r);
    hf_close(&r);
    if (size % 16 == 0) free(hf_files_identity(fuzz_dir()));
}
