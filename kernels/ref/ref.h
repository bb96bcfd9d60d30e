// The ref backend's operations: the simplest scalar loops on one thread, the oracle of the tests. They cannot
// fail; without memory they assert.
#ifndef STARRING_KERNELS_REF_REF_H
#define STARRING_KERNELS_REF_REF_H

#include "kernels/backend.h"

#define DECLARE_OPERATION(OP, name, args_t) void ref_##name(const struct args_t *a);
OPERATIONS(DECLARE_OPERATION)
#undef DECLARE_OPERATION

// The loop of every elementwise update. element(a, i, decay) updates the states of element i and returns its
// new p.
typedef float ref_update_fn(const struct update_args *a, int64_t i, float decay);
void ref_update(const struct update_args *a, ref_update_fn *element);

#endif
