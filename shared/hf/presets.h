// A model by its name: a preset, or a Hugging Face directory.
#ifndef STARRING_SHARED_HF_PRESETS_H
#define STARRING_SHARED_HF_PRESETS_H

#include "shared/model/spec.h"

// The name of preset i; NULL past the last.
const char *model_preset_name(int i);
// Where a preset's vocabulary is published on Hugging Face: "Qwen/Qwen2.5-0.5B"; NULL: nowhere, or no preset.
const char *model_preset_repository(const char *name);
// A preset's name, or a Hugging Face config.json, or a directory holding one, whose weights, where it has some, are looked at
// (hf_settle). 0, or -1 after saying why, and what it is instead.
int model_spec_load(const char *preset_or_path, struct model_spec *out);

#endif
