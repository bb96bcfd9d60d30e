// Models by name: a preset, or a Hugging Face directory.
#ifndef STARRING_SHARED_HF_PRESETS_H
#define STARRING_SHARED_HF_PRESETS_H

#include "shared/model/spec.h"

// Returns the name of preset i; NULL after the last.
const char *model_preset_name(int i);
// Returns the Hugging Face repository of a preset's vocabulary: "Qwen/Qwen2.5-0.5B"; NULL: it has none, or is no
// preset.
const char *model_preset_repository(const char *name);
// Loads the description of a model: of a preset, a Hugging Face config.json, a directory with one, or a directory of peft
// with an adapter (the base model's description, with `lora` set). The directory's weights, if any, are checked
// (hf_settle). Returns 0, or -1 after logging the reason, and what the path is instead.
int model_spec_load(const char *preset_or_path, struct model_spec *out);

#endif
