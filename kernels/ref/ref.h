// The ref backend's operations: the simplest scalar loops on one thread, the oracle of the tests. They cannot
// fail; without memory they assert.
#ifndef STARRING_KERNELS_REF_REF_H
#define STARRING_KERNELS_REF_REF_H

#include "kernels/backend.h"

#define DECLARE_OPERATION(OP, name, args_t) void ref_##name(const struct args_t *a);
OPERATIONS(DECLARE_OPERATION)
#undef DECLARE_OPERATION

#endif
