// The vendors' promise: the dense 16-bit matrix rate of a GPU, the denominator of MFU as the literature uses
// it.
#ifndef STARRING_SHARED_DEVICE_DATASHEET_H
#define STARRING_SHARED_DEVICE_DATASHEET_H

#include "kernels/dtype.h"

// Flops a second of bf16 and fp16 products with fp32 accumulation, without sparsity, for the device of this
// name (as cudaGetDeviceProperties gives it); *source: where the figure is from. 0: not in the table, *source
// says why. Constant texts.
double datasheet_flops(const char *device_name, enum dtype dt, const char **source);

#endif
