// The ref backend's operations: the simplest scalar loops, one thread whatever `threads` says; the
// oracle of the tests. They share the signature of op_fn (kernels/operations.h): run now, return 0, or
// -1 with *why set.
#ifndef STARRING_KERNELS_REF_REF_H
#define STARRING_KERNELS_REF_REF_H

#include "kernels/backend.h"

#define DECLARE_OPERATION(OP, name, args_t) \
    int ref_op_##name(int threads, const void *args, const char **why);
OPERATIONS(DECLARE_OPERATION)
#undef DECLARE_OPERATION

#endif
