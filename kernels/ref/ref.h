// The ref backend's operations: the simplest scalar loops, one thread whatever `threads` says; the
// oracle of the tests. They share the signature of op_fn (kernels/backend.h): run now, return 0, or
// -1 with *why set.
#ifndef STARRING_KERNELS_REF_REF_H
#define STARRING_KERNELS_REF_REF_H

#include "kernels/backend.h"

int ref_op_matmul(int threads, const void *args, const char **why);
int ref_op_bias_grad(int threads, const void *args, const char **why);
int ref_op_embed_fwd(int threads, const void *args, const char **why);
int ref_op_embed_bwd(int threads, const void *args, const char **why);
int ref_op_norm_fwd(int threads, const void *args, const char **why);
int ref_op_norm_bwd(int threads, const void *args, const char **why);
int ref_op_rope(int threads, const void *args, const char **why);
int ref_op_attn_fwd(int threads, const void *args, const char **why);
int ref_op_attn_bwd(int threads, const void *args, const char **why);
int ref_op_gelu_fwd(int threads, const void *args, const char **why);
int ref_op_gelu_bwd(int threads, const void *args, const char **why);
int ref_op_swiglu_fwd(int threads, const void *args, const char **why);
int ref_op_swiglu_bwd(int threads, const void *args, const char **why);
int ref_op_add(int threads, const void *args, const char **why);
int ref_op_xent(int threads, const void *args, const char **why);
int ref_op_loss_sum(int threads, const void *args, const char **why);
int ref_op_sumsq(int threads, const void *args, const char **why);
int ref_op_decide(int threads, const void *args, const char **why);
int ref_op_adamw(int threads, const void *args, const char **why);
int ref_op_reduce(int threads, const void *args, const char **why);
int ref_op_cast(int threads, const void *args, const char **why);
int ref_op_fill_zero(int threads, const void *args, const char **why);

#endif
