// A model of a few thousand parameters whose sizes divide nothing.
#ifndef STARRING_TESTS_MODEL_SMALL_MODEL_H
#define STARRING_TESTS_MODEL_SMALL_MODEL_H

#include "shared/model/spec.h"

// All traits of one kind, or all of the other.
static inline struct model_spec small_model(bool gpt, int layers) {
    struct model_traits traits = {.norm = gpt ? NORM_LAYER : NORM_RMS,
                                  .positions = gpt ? POSITIONS_LEARNED : POSITIONS_ROTARY,
                                  .mlp = gpt ? MLP_GELU : MLP_SWIGLU,
                                  .qkv_bias = true,
                                  .out_bias = gpt,
                                  .mlp_bias = gpt};
    return (struct model_spec){.name = "deep",
                               .traits = traits,
                               .vocab = 29,
                               .channels = 24,
                               .layers = layers,
                               .heads = 3,
                               .kv_heads = gpt ? 3 : 1,
                               .head_size = 8,
                               .ffn = 40,
                               .max_positions = 16,
                               .tied = gpt,
                               .norm_eps = 1e-5f,
                               .rope_theta = 10000.0f,
                               .rope_factor = 1.0f,
                               .init_std = 0.2f,
                               .bos_token = -1,
                               .eos_token = -1};
}

#endif
