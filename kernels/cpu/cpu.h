// The cpu backend's operations, each run on the calling thread and `threads` threads. They
// share the signature of op_fn (kernels/backend.h): run now, return 0, or -1 with *why set to a
// constant text.
#ifndef STARRING_KERNELS_CPU_CPU_H
#define STARRING_KERNELS_CPU_CPU_H

#include "kernels/backend.h"

int cpu_op_matmul(int threads, const void *args, const char **why);
// bf16 as CPU_KERNEL_PAIRS, by fp32 fma and by the instruction: the same bits; other types as cpu_op_matmul.
int cpu_op_matmul_pairs(int threads, const void *args, const char **why);
int cpu_op_matmul_pairs_fast(int threads, const void *args, const char **why);
int cpu_op_bias_grad(int threads, const void *args, const char **why);
int cpu_op_embed_fwd(int threads, const void *args, const char **why);
int cpu_op_embed_bwd(int threads, const void *args, const char **why);
int cpu_op_norm_fwd(int threads, const void *args, const char **why);
int cpu_op_norm_bwd(int threads, const void *args, const char **why);
int cpu_op_rope(int threads, const void *args, const char **why);
int cpu_op_attn_fwd(int threads, const void *args, const char **why);
int cpu_op_attn_bwd(int threads, const void *args, const char **why);
int cpu_op_gelu_fwd(int threads, const void *args, const char **why);
int cpu_op_gelu_bwd(int threads, const void *args, const char **why);
int cpu_op_swiglu_fwd(int threads, const void *args, const char **why);
int cpu_op_swiglu_bwd(int threads, const void *args, const char **why);
int cpu_op_add(int threads, const void *args, const char **why);
int cpu_op_xent(int threads, const void *args, const char **why);
int cpu_op_loss_sum(int threads, const void *args, const char **why);
int cpu_op_sumsq(int threads, const void *args, const char **why);
int cpu_op_decide(int threads, const void *args, const char **why);
int cpu_op_adamw(int threads, const void *args, const char **why);
int cpu_op_reduce(int threads, const void *args, const char **why);
int cpu_op_cast(int threads, const void *args, const char **why);
int cpu_op_fill_zero(int threads, const void *args, const char **why);

// cpu_ops (kernels/backend.h) with another matrix product.
extern const op_fn cpu_ops_pairs[OP_COUNT], cpu_ops_pairs_fast[OP_COUNT];

#endif
