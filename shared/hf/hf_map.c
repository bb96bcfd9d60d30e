#include "shared/hf/hf_map.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

// One row: our name within a unit -> the Hugging Face name within the layer (or after the prefix).
struct name_row {
    const char *ours;
    const char *theirs[HF_MAX_PARTS];
    bool conv1d;
};

static const struct name_row llama_block[] = {
    {"norm1", {"input_layernorm.weight"}, false},
    {"wqkv", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, false},
    {"bqkv", {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}, false},
    {"wo", {"self_attn.o_proj.weight"}, false},
    {"norm2", {"post_attention_layernorm.weight"}, false},
    {"w_gate_up", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, false},
    {"w_down", {"mlp.down_proj.weight"}, false},
    {NULL, {NULL}, false},
};
static const struct name_row llama_outer[] = {
    {"wte", {"embed_tokens.weight"}, false},
    {"norm", {"norm.weight"}, false},
    {NULL, {NULL}, false},
};
static const struct name_row gpt2_block[] = {
    {"norm1", {"ln_1.weight"}, false},
    {"norm1_b", {"ln_1.bias"}, false},
    {"wqkv", {"attn.c_attn.weight"}, true},
    {"bqkv", {"attn.c_attn.bias"}, false},
    {"wo", {"attn.c_proj.weight"}, true},
    {"bo", {"attn.c_proj.bias"}, false},
    {"norm2", {"ln_2.weight"}, false},
    {"norm2_b", {"ln_2.bias"}, false},
    {"w_up", {"mlp.c_fc.weight"}, true},
    {"b_up", {"mlp.c_fc.bias"}, false},
    {"w_down", {"mlp.c_proj.weight"}, true},
    {"b_down", {"mlp.c_proj.bias"}, false},
    {NULL, {NULL}, false},
};
static const struct name_row gpt2_outer[] = {
    {"wte", {"wte.weight"}, false},   {"wpe", {"wpe.weight"}, false}, {"norm", {"ln_f.weight"}, false},
    {"norm_b", {"ln_f.bias"}, false}, {NULL, {NULL}, false},
};

const char *hf_prefix(const struct model_spec *s) {
    return s->family == FAMILY_GPT2 ? "transformer." : "model.";
}

bool hf_is_buffer(const char *name) {
    static const char *const suffixes[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t k = strlen(suffixes[i]);
        if (n >= k && strcmp(name + n - k, suffixes[i]) == 0) return true;
    }
    return false;
}

// Rows of our tensor that part i fills.
static int64_t part_rows(const struct model_spec *s, const char *ours, const struct tensor *t, int i) {
    if (s->family == FAMILY_GPT2) return t->shape[0];
    if (strcmp(ours, "w_gate_up") == 0) return s->ffn;
    if (strcmp(ours, "wqkv") == 0 || strcmp(ours, "bqkv") == 0)
        return (int64_t)(i == 0 ? s->heads : s->kv_heads) * s->head_size;
    return t->shape[0];
}

int hf_parts(const struct model_spec *s, const struct layout *l, int u, int t,
             struct hf_part parts[HF_MAX_PARTS]) {
    const struct tensor *tensor = &l->units[u].tensors[t];
    const char *ours = strrchr(tensor->name, '.') + 1;
    bool gpt2 = s->family == FAMILY_GPT2, block = u > 0 && u < l->count - 1;
    const struct name_row *row = block ? gpt2 ? gpt2_block : llama_block : gpt2 ? gpt2_outer : llama_outer;
    static const struct name_row lm_head = {"lm_head", {"lm_head.weight"}, false};
    while (row->ours && strcmp(row->ours, ours)) row++;
    bool is_head = !row->ours;
    if (is_head) row = &lm_head;
    assert(strcmp(row->ours, ours) == 0);

    int count = 0;
    for (; count < HF_MAX_PARTS && row->theirs[count]; count++) {
        struct hf_part *p = &parts[count];
        char layer[32] = "";
        if (block) snprintf(layer, sizeof layer, "%s.%d.", gpt2 ? "h" : "layers", u - 1);
        snprintf(p->name, sizeof p->name, "%s%s%s", is_head ? "" : hf_prefix(s), layer, row->theirs[count]);
        p->rows = part_rows(s, ours, tensor, count);
        p->dims = tensor->dims;
        p->transposed = row->conv1d;
        int64_t columns = tensor->shape[1];
        p->shape[0] = row->conv1d ? columns : p->rows;
        p->shape[1] = row->conv1d ? p->rows : columns;
    }
    return count;
}
