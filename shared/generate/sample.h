// Chooses the next token: pure functions of logits, options and position. No state; any thread.
#ifndef STARRING_SHARED_GENERATE_SAMPLE_H
#define STARRING_SHARED_GENERATE_SAMPLE_H

#include <stdint.h>

struct sample_options {
    double temperature;  // >= 0; 0: the token with the highest logit
    int32_t top_k;       // only the k highest logits can be chosen; 0: all
    uint64_t seed;
};

// Returns the index of the highest of n logits, the lowest index among equals; -1 if one is NaN or the highest is
// infinite.
int32_t sample_argmax(const float *logits, int32_t n);

// Draws from softmax(logits / temperature) over the top_k (ties: lower ids first), with the random number of (seed,
// position). The result is reproducible, in any order of calls. logits (n) fp32, softmax in double. Returns -1 as
// sample_argmax does.
int32_t sample_token(const float *logits, int32_t n, const struct sample_options *o, int64_t position);

#endif
