// The kernel tests' cases on a real device: include this before tests/kernels/test_kernels_<family>.c.
//
// Every buffer that a case allocates keeps its place in host memory. An operation gets a fresh mirror of each
// buffer that its arguments point into, in device memory between guard zones, and when it has run everything
// is copied back and the guards are looked at. So the reference and the comparisons see host memory alone.
//
// Device   The first buffer opens backend "cuda", device 0, and prints what it is. Where there is none, the
//          tests that need it are skipped, with the backend's sentence.
// Threads  One.
// Environment
//   STARRING_TEST_SEED=N    repeats the random numbers of an earlier run; otherwise they begin with the time
//   STARRING_TEST_GUARD=N   bytes of guard before and after each mirror (512). 0: buffers end where their
//                           allocation ends, so that compute-sanitizer sees the first byte read beyond
//   STARRING_TEST_SHORT=1   each case runs once, not twice; for slow tools
#ifndef STARRING_TESTS_DEVICE_OPS_H
#define STARRING_TESTS_DEVICE_OPS_H

#include "kernels/backend.h"

// Runs an operation on the device, with the signature of the host backends' tables; `threads` is not used.
extern const op_fn device_ops[OP_COUNT];

// Host memory that operations may be given; NULL: out of memory. Release also takes NULL.
void *device_buffer(size_t bytes);
void device_buffer_release(void *p);

int device_runs(void);          // how often a case runs; all give the same bits
uint64_t device_seed(void);     // what random numbers begin with
int device_done(void **state);  // closes the device: the teardown of a group of tests

#define KT_OPS          device_ops
#define KT_ALLOC(bytes) device_buffer(bytes)
#define KT_RELEASE(p)   device_buffer_release(p)
#define KT_RUNS         device_runs()
#define KT_SEED         device_seed()
#define KT_TEARDOWN     device_done
// A device may round a product to 16 bits before it adds bias or c (kernels/operations.h).
#define KT_PRODUCTS_ROUNDED true

#endif
