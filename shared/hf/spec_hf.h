// Hugging Face's config.json <-> model_spec.
#ifndef STARRING_SHARED_HF_SPEC_HF_H
#define STARRING_SHARED_HF_SPEC_HF_H

#include "kernels/dtype.h"
#include "shared/model/spec.h"

// Reads a config.json of model_type llama, mistral, qwen2 or gpt2. Keys that change the arithmetic and
// that this program cannot do are errors; keys it does not need are ignored. 0, or -1 after naming file, key,
// value.
int model_spec_read_hf(const char *path, struct model_spec *out);

// The text of a config.json that transformers' AutoModelForCausalLM and model_spec_read_hf read (malloc'd).
char *model_spec_write_hf(const struct model_spec *s, enum dtype dt);

#endif
