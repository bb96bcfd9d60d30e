// The models of Hugging Face that this program has: one row per model_type, in families.c.
//
// A row says which traits the model has (shared/model/spec.h), which keys its config.json has, and what its
// tensors are called. A model_type made of traits that are there needs its row and nothing else:
//
//     keys      read by hf_config_read, written by hf_config_json, in the order of the row
//     tensors   read and written by hf_open and hf_writer_create, through hf_parts (hf_dir.h)
#ifndef STARRING_SHARED_HF_FAMILIES_H
#define STARRING_SHARED_HF_FAMILIES_H

#include <stddef.h>

#include "shared/model/spec.h"

#define HF_MAX_PARTS 3

enum hf_key_kind {
    HF_SIZE,         // int32, at least 1. The first key that the file has fills the field
    HF_FLOAT,        // float, finite
    HF_ONLY,         // true or false, of which this program has one: `missing`
    HF_ONE,          // a number that must be 1
    HF_ACTIVATION,   // text, one of `same`; the first of them is written
    HF_DROPOUT,      // a number that has no effect here; 0 is written
    HF_ROPE,         // rope_theta, and rope_scaling or rope_parameters
    HF_WINDOW,       // int32, or null for none
    HF_FULL_LAYERS,  // a list that says of each layer that its attention is full
    HF_KEY_KINDS
};

struct hf_key {
    const char *key;  // NULL ends a list
    enum hf_key_kind kind;
    size_t field;             // offset in struct model_spec
    double missing;           // the value where the file has no such key
    bool follows;             // HF_SIZE: where the file has no such key, other sizes say it (hf_config.c)
    bool unwritten;           // transformers does not need it
    const char *why;          // the reason of a refusal
    const char *const *same;  // HF_ACTIVATION: names of the one function, NULL at the end
};

// A tensor of ours within its unit, and those of theirs that its rows come from: within the layer in a block,
// else after the prefix. Two share the rows evenly; three are q, k and v.
struct hf_tensor {
    const char *ours;  // NULL ends a list
    const char *theirs[HF_MAX_PARTS];
};

struct hf_family {
    const char *type, *architecture;  // "llama", "LlamaForCausalLM"
    struct model_traits traits;
    int32_t positions;  // max_positions where the file has none
    int32_t kv_heads;   // where the file has no such key; 0: as many as heads, which null always means
    int32_t bos, eos;   // where the file has no such key; -1: none
    bool tied;          // likewise
    const struct hf_key *keys;   // of its kind of config.json
    const struct hf_key *extra;  // its own, behind those; NULL: none
    const char *prefix;          // of all names but the head's: files saved without the head lack it
    const char *layers;          // the blocks' list: "<prefix><layers>.3.<theirs>"
    const struct hf_tensor *tensors;
    bool conv1d;  // matrices of the blocks are stored (in, out): ours are the transposes
};

const struct hf_family *hf_family_at(int i);  // row i; NULL past the last
// The row of model_type, or of an element of "architectures" where type is NULL; NULL: none.
const struct hf_family *hf_family_named(const char *type, const char *architecture);
// The row that s is written as: the one it came from if that has its traits, else the first that has them.
const struct hf_family *hf_family_of(const struct model_spec *s);
// The missing feature that a model without a row would need, likewise named; NULL: unknown here.
const char *hf_needs(const char *type, const char *architecture);
// "llama, mistral, qwen2 and gpt2"
void hf_types_text(char *out, size_t bytes);

#endif
