// The emulated device, as the tests see it (the kernels see cuda_runtime.h).
//
// Threads  State is a thread's own: any number of threads may launch, each on a device of its own.
#ifndef STARRING_TESTS_EMULATION_EMULATION_H
#define STARRING_TESTS_EMULATION_EMULATION_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// The order in which blocks run, and the threads of a block between barriers, in this thread's later
// launches: 1 as numbered (at first), 2 backwards, more: shuffled by that seed. A kernel's results must
// not depend on it.
void emu_set_order(int order);

// The CUDA kernels, run now and in emulation, with the signature of the host backends' tables;
// `threads` is the order above. No OP_MATMUL (cuBLASLt's): the entry is NULL.
extern const op_fn emu_ops[OP_COUNT];

// How often that thread of a block waited (at barriers and in warp exchanges) that waited most, in this
// thread's launches since this was last asked. Work that one thread does alone shows, whatever the machine's
// speed.
unsigned emu_longest(void);

// Bytes of workspace that this thread's later emu_ops have; 0: as much as a device gives them, the default.
void emu_set_workspace(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
