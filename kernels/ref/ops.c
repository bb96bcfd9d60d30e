// The ref backend's table: each operation of ref.h as an op_fn.
#include "kernels/ref/ref.h"

#define AS_OP_FN(OP, name, args_t)                                           \
    static int run_##name(int threads, const void *args, const char **why) { \
        (void)threads;                                                       \
        (void)why;                                                           \
        ref_##name(args);                                                    \
        return 0;                                                            \
    }
OPERATIONS(AS_OP_FN)

#define ENTRY(OP, name, args_t) [OP] = run_##name,
const op_fn ref_ops[OP_COUNT] = {OPERATIONS(ENTRY)};
