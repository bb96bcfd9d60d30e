// The CUDA kernels as a table of host functions: each call on a context and workspace of its own, the
// workspace poisoned and of its exact size. Odd orders run as on compute capability 8.0, even ones as on 9.0.
#include <stdlib.h>

#include "kernels/cuda/kernels.h"
#include "tests/emulation/gpu/emulation.h"

static thread_local size_t workspace_asked;

extern "C" void emu_set_workspace(size_t bytes) { workspace_asked = bytes; }

template <typename A, int (*fn)(struct cuda_ctx *ctx, const A *a)>
static int emulated(int threads, const void *args, const char **why) {
    size_t bytes = workspace_asked ? workspace_asked : CUDA_WORKSPACE_BYTES, poisoned = (size_t)1 << 20;
    struct cuda_ctx ctx = {NULL, 4, malloc(bytes), bytes, "", 163 << 10, 0};
    // Compute capability 8.0 and 9.0 in turn: the tests want equal bits from all orders.
    ctx.sm_version = threads % 2 ? 80 : 90;
    if (!ctx.workspace) abort();
    // As much as the tests' sizes reach: all of it would be most of their time.
    memset(ctx.workspace, 0xff, bytes < poisoned ? bytes : poisoned);
    emu_set_order(threads);
    int rc = fn(&ctx, static_cast<const A *>(args));
    if (rc != 0) *why = ctx.why;
    free(ctx.workspace);
    return rc;
}

#define EMULATED(OP, name, args_t) emulated<struct args_t, cuda_op_##name>,

extern "C" const op_fn emu_ops[OP_COUNT] = {NULL /* OP_MATMUL, the first */, OPERATIONS_BUT_MATMUL(EMULATED)};
