// Hugging Face's config.json <-> model_spec.
#ifndef STARRING_SHARED_HF_HF_CONFIG_H
#define STARRING_SHARED_HF_HF_CONFIG_H

#include "kernels/dtype.h"
#include "shared/model/spec.h"

// Reads a config.json of a model_type that families.c has. Keys that change the arithmetic and that this
// program cannot do are errors; keys it does not need are ignored. 0, or -1 after naming file, key, value.
int hf_config_read(const char *path, struct model_spec *out);

// The text of a config.json that transformers' AutoModelForCausalLM and hf_config_read read (malloc'd). s has
// the traits of a row of families.c.
char *hf_config_text(const struct model_spec *s, enum dtype dt);

#endif
