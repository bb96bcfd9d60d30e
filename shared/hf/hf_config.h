// Reads and writes Hugging Face's config.json, from and to struct model_spec.
#ifndef STARRING_SHARED_HF_HF_CONFIG_H
#define STARRING_SHARED_HF_HF_CONFIG_H

#include <cjson/cJSON.h>

#include "kernels/dtype.h"
#include "shared/model/spec.h"

// Reads a config.json of a model_type in families.c. A key that changes the arithmetic in an unsupported way is an
// error; keys that are not needed are ignored. Returns 0, or -1 after logging file, key and value.
int hf_config_read(const char *path, struct model_spec *out);

// Returns the config.json that transformers' AutoModelForCausalLM and hf_config_read read. The caller deletes it. s
// must have the traits of a row of families.c.
cJSON *hf_config_json(const struct model_spec *s, enum dtype dt);

#endif
