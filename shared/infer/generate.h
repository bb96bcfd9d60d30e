// Generates text from weights, token by token. Each token is a forward pass over the window, which holds the last
// tokens of prompt and continuation. There is no cache of keys and values: the code is simple and uses the same
// arithmetic as training.
//
//     prompt and continuation   t0 t1 t2 .. t(n-1)
//     window of W, n <= W       t0 .. t(n-1)            position of t(i) is i
//     window of W, n >  W       t(n-W) .. t(n-1)        position of t(i) is i-(n-W): the window slides by one
//                                                       for each token, and positions count from its start
//
// The sequence is padded on the right to a multiple of GENERATE_STEP tokens, so that a device sees few shapes.
// Attention is causal, so tokens on the right do not change a token.
//
// Ownership  A generator owns its weights and its model. One thread uses it.
#ifndef STARRING_SHARED_INFER_GENERATE_H
#define STARRING_SHARED_INFER_GENERATE_H

#include "kernels/backend.h"
#include "shared/model/spec.h"

#define GENERATE_STEP 16  // tokens: sequences are padded to a multiple of it

struct hf_reader;

struct generator_options {
    const struct model_spec *spec;
    const struct layout *layout;  // padded for one rank
    struct device *dev;
    struct stream *compute;
    enum dtype dtype;
    int64_t window;  // 1 .. spec->max_positions
};

struct generator;

// bytes[] receives the device memory by class that generator_create allocates. Needs no device.
void generator_predict(const struct generator_options *o, size_t bytes[MEM_CLASSES]);
// Returns NULL after logging. The caller owns spec and layout; they outlive the generator.
struct generator *generator_create(const struct generator_options *o, struct hf_reader *weights);
void generator_destroy(struct generator **g);

// Writes the logits (V, fp32) of the token after tokens (n >= 1, each in [0, V)). Returns 0, or -1 after logging.
int generator_logits(struct generator *g, const int32_t *tokens, int64_t n, float *logits);

struct sample_options {
    double temperature;  // >= 0; 0: the token with the highest logit
    int32_t top_k;       // only the k highest logits can be chosen; 0: all
    uint64_t seed;
};

struct generate_options {
    const int32_t *prompt;
    int64_t prompt_count;  // >= 1
    int64_t count;         // the most tokens to append
    struct sample_options sample;
    const int32_t *end;  // generation ends after one of these tokens
    int end_count;
    // Called for each token; a non-zero result ends the generation without an error. NULL: not called.
    int (*on_token)(void *ctx, int32_t token);
    void *ctx;
};

// Returns whether token is one of o->end.
bool is_end_token(const struct generate_options *o, int32_t token);
// Appends up to count tokens to out (count). Returns how many, or -1 after logging.
int64_t generate(struct generator *g, const struct generate_options *o, int32_t *out);

// ---------------------------------------------------------------- the next token
// Pure functions of logits, options and position. No state; any thread.
// Returns the index of the highest of n logits, the lowest index among equals; -1 if one is NaN or the highest is
// infinite.
int32_t sample_argmax(const float *logits, int32_t n);

// Draws from softmax(logits / temperature) over the top_k (ties: lower ids first), with the random number of (seed,
// position). The result is reproducible, in any order of calls. logits (n) fp32, softmax in double. Returns -1 as
// sample_argmax does.
int32_t sample_token(const float *logits, int32_t n, const struct sample_options *o, int64_t position);

#endif
