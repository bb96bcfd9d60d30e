// The arguments of the operations on codes of gradients (codec.h; kernels/operations.h lists them). n is a multiple of
// CODE_BLOCK.
#ifndef STARRING_KERNELS_CODEC_CODE_ARGS_H
#define STARRING_KERNELS_CODEC_CODE_ARGS_H

#include "kernels/codec/codec.h"
#include "kernels/dtype.h"

// out = code of fma(error, factor, grad)
struct code_encode_args {
    void *out;           // code_bytes(format, n), aligned to 4 bytes
    const float *error;  // (n)
    const void *grad;    // (n) of type dt
    int64_t n;
    struct code_format format;
    float factor;  // by which the gradients' scale has grown since the error was kept; 1: not
    enum dtype dt;
};
// error = fma(error, factor, grad)
struct code_error_args {
    float *error;      // (n)
    const void *grad;  // (n) of type dt
    int64_t n;
    float factor;
    enum dtype dt;
};
// out = | += | -= what the code says. Elements that a code of topk does not name: = gives 0, else they stay; one that it
// names outside of n is nobody's. On hosts the code need not be aligned.
enum code_use { CODE_SET, CODE_PLUS, CODE_MINUS };
struct code_add_args {
    float *out;        // (n)
    const void *code;  // code_bytes(format, n)
    int64_t n;
    struct code_format format;
    enum code_use use;
};

#endif
