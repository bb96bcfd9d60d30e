// The ref backend's table: which function runs which operation.
#include "kernels/ref/ref.h"

#define REF_OPERATION(OP, name, args_t) [OP] = ref_op_##name,

const op_fn ref_ops[OP_COUNT] = {OPERATIONS(REF_OPERATION)};
