// test_kernels_ways.c with AMX's instructions computed in C: the way's panels and tiles, on a processor without them.
#define STARRING_AMX "tests/bits/amx_emulated.h"
#include "kernels/cpu/gemm/amx.c"

#include "tests/bits/test_kernels_ways.c"
