#include "shared/hf/hf_map.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "shared/core/path.h"

bool hf_is_buffer(const char *name) {
    static const char *const suffixes[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (ends_with(name, suffixes[i])) return true;
    return false;
}

// Rows of our tensor that part i of count fills: all, half, or those of q, k or v.
static int64_t part_rows(const struct model_spec *s, const struct tensor *t, int i, int count) {
    if (count < HF_MAX_PARTS) return t->shape[0] / count;
    return (int64_t)(i == 0 ? s->heads : s->kv_heads) * s->head_size;
}

int hf_parts(const struct model_spec *s, const struct layout *l, int u, int t,
             struct hf_part parts[HF_MAX_PARTS]) {
    static const struct hf_tensor lm_head = {"lm_head", {"lm_head.weight"}};
    const struct tensor *tensor = &l->units[u].tensors[t];
    const char *ours = strrchr(tensor->name, '.') + 1;
    bool block = u > 0 && u < l->count - 1, is_head = strcmp(ours, lm_head.ours) == 0;
    const struct hf_family *family = hf_family_of(s);
    const struct hf_tensor *row = is_head ? &lm_head : family->tensors;
    while (row->ours && strcmp(row->ours, ours)) row++;
    assert(row->ours);

    int count = 0;
    while (count < HF_MAX_PARTS && row->theirs[count]) count++;
    for (int i = 0; i < count; i++) {
        struct hf_part *p = &parts[i];
        char layer[32] = "";
        if (block) snprintf(layer, sizeof layer, "%s.%d.", family->layers, u - 1);
        snprintf(p->name, sizeof p->name, "%s%s%s", is_head ? "" : family->prefix, layer, row->theirs[i]);
        p->rows = part_rows(s, tensor, i, count);
        p->dims = tensor->dims;
        p->transposed = block && family->conv1d && tensor->dims == 2;
        int64_t columns = tensor->shape[1];
        p->shape[0] = p->transposed ? columns : p->rows;
        p->shape[1] = p->transposed ? p->rows : columns;
    }
    return count;
}
