// test_kernels_micro_kernels.c by AMX alone, with its instructions computed where the processor has none.
#define STARRING_AMX "tests/bits/amx_trapped.h"
#include "kernels/cpu/gemm/amx.c"

#include "tests/bits/test_kernels_micro_kernels.c"
