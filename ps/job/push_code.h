// The payload of a push of a key: the gradient, or its code (kernels/codec.h), made in ps/worker/push_errors.c and decoded in ps/server/key_pass.c. A job pushes only gradients or only
// codes; initial values and weights are never coded.
#ifndef STARRING_PS_JOB_PUSH_CODE_H
#define STARRING_PS_JOB_PUSH_CODE_H

#include "kernels/exact_sum.h"
#include "shared/config/config.h"
#include "shared/core/unit.h"

// Whether workers push codes.
static inline bool ps_codes(const struct config *c) { return c->ps.code.kind != CODE_NONE; }

// Bytes of a push of n elements. code: of kind CODE_NONE if gradients are not coded.
static inline size_t push_bytes(const struct code_format *code, enum dtype dtype, int64_t n) {
    return code->kind == CODE_NONE ? (size_t)n * dtype_size(dtype) : code_bytes(code, n);
}

// *out receives the sum of squares of a push of n elements, where n is that of a partition and payload has push_bytes.
// Returns 0, or -1 if the operations cannot.
int push_squares(const struct code_format *code, enum dtype dtype, const void *payload, int64_t n,
                 struct exact_sum *out);

// Sums of all keys of each unit: bytes (units). Returns 0, or -1 after logging what is impossible.
int push_bytes_of_units(const struct config *c, const struct layout *l, size_t *bytes);

#endif
