// Attention: the kernel tests' cases on a real device (tests/device/device_ops.h).
#include "tests/device/device_ops.h"
#include "tests/kernels/test_kernels_attention.c"
