// The Hugging Face models that this program supports: one row per model_type, in families.c.
//
// A row has the model's traits (shared/model/spec.h), the keys of its config.json, and the names of its tensors. A
// model_type made of existing traits needs only its row:
//
//     keys      read by hf_config_read, written by hf_config_json, in the order of the row
//     tensors   read and written by hf_open and hf_writer_create, by way of hf_parts (hf_dir.h)
#ifndef STARRING_SHARED_HF_FAMILIES_H
#define STARRING_SHARED_HF_FAMILIES_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "kernels/dtype.h"
#include "shared/model/spec.h"

#define HF_MAX_PARTS 3
#define HF_NAME_MAX  96

enum hf_key_kind {
    HF_SIZE,        // int32, at least 1. If several keys set one field, the first that the file has counts
    HF_FLOAT,       // float, finite
    HF_ONLY,        // true or false; only the value `missing` is supported
    HF_ONE,         // a number that must be 1
    HF_ACTIVATION,  // text, one of `same`; the first of them is written
    HF_DROPOUT,     // a number that is ignored, because this program has no dropout; 0 is written
    HF_ROPE,        // rope_theta, and rope_scaling or rope_parameters
    HF_WINDOW,      // int32, or null for none
    HF_FULL_LAYERS  // a list of the layers' attention types: each must be full attention
};

struct hf_key {
    const char *key;  // NULL ends a list
    enum hf_key_kind kind;
    size_t field;             // offset in struct model_spec
    double missing;           // value if the file has no such key
    bool follows;             // HF_SIZE: without the key the size is computed from other sizes (hf_config.c)
    bool unwritten;           // not written, because transformers does not need it
    const char *why;          // printed if the value is refused: the reason
    const char *const *same;  // HF_ACTIVATION: names of the same function, NULL at the end
};

// A tensor of ours within its unit, and the Hugging Face tensors that make up its rows. In a block their names
// are relative to the layer, else to the prefix. If there are two, each is half of the rows; three are q, k and v.
struct hf_tensor {
    const char *ours;  // NULL ends a list
    const char *theirs[HF_MAX_PARTS];
};

struct hf_family {
    const char *type, *architecture;  // "llama", "LlamaForCausalLM"
    struct model_traits traits;
    // The next five are used if the file has no such key.
    int32_t positions;  // max_positions
    int32_t kv_heads;   // 0: as many as heads, as null in the file means
    int32_t bos, eos;   // -1: none
    bool tied;
    const struct hf_key *keys;   // keys that it shares with other families, such as those of LLaMA
    const struct hf_key *extra;  // its own further keys; NULL: none
    const char *prefix;  // of all names except the head's; absent in files that were saved without the head
    const char *layers;  // name of the list of blocks: "<prefix><layers>.3.<theirs>"
    const struct hf_tensor *tensors;
    bool conv1d;       // matrices of the blocks are stored as (in, out); ours are the transposes
    const char *lora;  // peft's default target modules, joined by commas
};

const struct hf_family *hf_family_at(int i);  // row i; NULL after the last
// Returns the row of model_type, or of an element of "architectures" if type is NULL. Returns NULL if there is
// none.
const struct hf_family *hf_family_named(const char *type, const char *architecture);
// Returns the row as which model s is written: the row that it was read from, if that still has the model's traits; else
// the first row with these traits.
const struct hf_family *hf_family_of(const struct model_spec *s);
// Returns the feature that this program lacks for a known model without a row (arguments as above). NULL: unknown.
const char *hf_needs(const char *type, const char *architecture);
// Sets the linear layers that get an adapter. targets: as peft's target_modules. "q_proj,v_proj" means each module of a
// block that has such a name, or whose name ends with it after a dot (GPT-2's "c_proj" means "attn.c_proj" and
// "mlp.c_proj"); "all-linear" means all; NULL means peft's default for the family. where: the file's key with the names,
// for messages. Returns 0, or -1 after fail() with `where` and the possible names.
int hf_lora_targets(const struct model_spec *s, const char *targets, const char *where,
                    struct lora_spec *out);
// Writes the name of the i-th module of a block that has an adapter: "self_attn.q_proj". Returns false after the last.
bool hf_lora_module(const struct model_spec *s, int i, char name[HF_NAME_MAX]);
// Writes "llama, mistral, qwen2 and gpt2".
void hf_types_text(char *out, size_t bytes);

// ---------------------------------------------------------------- config.json (hf_config.c)
// Reads a config.json of a model_type in the table. A key that changes the arithmetic in an unsupported way is an
// error; keys that are not needed are ignored. Returns 0, or -1 after logging file, key and value.
int hf_config_read(const char *path, struct model_spec *out);

// Returns the config.json that transformers' AutoModelForCausalLM and hf_config_read read. The caller deletes it. s
// must have the traits of a row of families.c.
cJSON *hf_config_json(const struct model_spec *s, enum dtype dt);

#endif
