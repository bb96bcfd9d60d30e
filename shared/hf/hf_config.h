// Hugging Face's config.json <-> model_spec.
#ifndef STARRING_SHARED_HF_HF_CONFIG_H
#define STARRING_SHARED_HF_HF_CONFIG_H

#include <cjson/cJSON.h>

#include "kernels/dtype.h"
#include "shared/model/spec.h"

// Reads a config.json of a model_type that families.c has. Keys that change the arithmetic and that this
// program cannot do are errors; keys it does not need are ignored. 0, or -1 after naming file, key, value.
int hf_config_read(const char *path, struct model_spec *out);

// The config.json that transformers' AutoModelForCausalLM and hf_config_read read; the caller deletes it. s
// has the traits of a row of families.c.
cJSON *hf_config_json(const struct model_spec *s, enum dtype dt);

#endif
