// Cross-entropy: the kernel tests' cases against the CUDA kernels in emulation; the numbers of
// threads that the cases try are orders of blocks and threads (tests/emulation/emulation.h).
#include "tests/emulation/emulation.h"

#define KT_OPS emu_ops
#include "tests/kernels/test_kernels_xent.c"
