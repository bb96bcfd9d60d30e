// adapter_config.json of peft 0.21: what kind of adapter a directory has, over which modules of which base model.
//
//     DIR/adapter_config.json         {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", ..],
//                                     "base_model_name_or_path": "models/llama", ..}
//     DIR/adapter_model.safetensors   "base_model.model." + name of the module + ".lora_A.weight" (r, in), ".lora_B.weight" (out, r)
//     DIR/base/                       the base model's directory, or a link to it. If it exists it is used instead of
//                                     base_model_name_or_path
//
// hf_dir.h reads and writes the tensors.
#ifndef STARRING_SHARED_HF_HF_ADAPTER_H
#define STARRING_SHARED_HF_HF_ADAPTER_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "shared/model/spec.h"

#define ADAPTER_CONFIG  "adapter_config.json"
#define ADAPTER_WEIGHTS "adapter_model.safetensors"
#define ADAPTER_PREFIX  "base_model.model."  // before the names of its tensors

// Returns the directory of the adapter's base model (malloc'd), or NULL after fail().
char *hf_adapter_base(const char *dir);
// Sets s->lora, where s is the base model's description. A feature of peft that this program does not have is an error
// that names file and key. Returns 0 or -1.
int hf_adapter_read(const char *dir, struct model_spec *s);
// Returns an adapter_config.json that peft and hf_adapter_read can read. The caller deletes it. base: the value of
// base_model_name_or_path; NULL: none.
cJSON *hf_adapter_json(const struct model_spec *s, const char *base);

#endif
