// The operations of the model, the optimizer and the reductions: one line each in OPERATIONS, then what each of
// them computes. The enumeration, names, launches and the backends' tables are made from that list.
//
// To add one   Add its line and its arguments here; ref_NAME in kernels/ref, the definition in the simplest
//              loops; cpu_NAME in kernels/cpu/ops; cuda_op_NAME in kernels/cuda/ops; the bytes it moves in
//              op_work.c; a row of `bench kernels` in shared/bench/bench_operations.c.
//              tests/kernels/test_operations.py demands tests. An optimizer's update is a row of kernels/update.h
//              instead.
#ifndef STARRING_KERNELS_OPERATIONS_H
#define STARRING_KERNELS_OPERATIONS_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/update.h"

// Two operations are in lists of their own: each backend selects the function of the matrix product in another
// way, and attention contains matrix products. OPERATION receives further arguments of those lists after its own.
// clang-format off
//                enumerator     name         arguments
#define OPERATIONS(OPERATION) \
    OPERATIONS_WITH_PRODUCTS(OPERATION) \
    OPERATIONS_WITHOUT_PRODUCTS(OPERATION)
#define OPERATIONS_BUT_MATMUL(OPERATION) \
    OPERATIONS_OF_ATTENTION(OPERATION) \
    OPERATIONS_WITHOUT_PRODUCTS(OPERATION)
#define OPERATIONS_WITH_PRODUCTS(OPERATION, ...) \
    OPERATION(OP_MATMUL,     matmul,     matmul_args, ##__VA_ARGS__) \
    OPERATIONS_OF_ATTENTION(OPERATION, ##__VA_ARGS__)
#define OPERATIONS_OF_ATTENTION(OPERATION, ...) \
    OPERATION(OP_ATTN_FWD,   attn_fwd,   attn_fwd_args, ##__VA_ARGS__)  \
    OPERATION(OP_ATTN_BWD,   attn_bwd,   attn_bwd_args, ##__VA_ARGS__)
#define OPERATIONS_WITHOUT_PRODUCTS(OPERATION) \
    OPERATION(OP_BIAS_GRAD,  bias_grad,  bias_grad_args) \
    OPERATION(OP_EMBED_FWD,  embed_fwd,  embed_fwd_args) \
    OPERATION(OP_EMBED_BWD,  embed_bwd,  embed_bwd_args) \
    OPERATION(OP_NORM_FWD,   norm_fwd,   norm_fwd_args)  \
    OPERATION(OP_NORM_BWD,   norm_bwd,   norm_bwd_args)  \
    OPERATION(OP_ROPE,       rope,       rope_args)      \
    OPERATION(OP_GELU_FWD,   gelu_fwd,   gelu_args)      \
    OPERATION(OP_GELU_BWD,   gelu_bwd,   gelu_args)      \
    OPERATION(OP_SWIGLU_FWD, swiglu_fwd, swiglu_args)    \
    OPERATION(OP_SWIGLU_BWD, swiglu_bwd, swiglu_args)    \
    OPERATION(OP_ADD,        add,        add_args)       \
    OPERATION(OP_XENT,       xent,       xent_args)      \
    OPERATION(OP_LOSS_SUM,   loss_sum,   loss_sum_args)  \
    OPERATION(OP_SUMSQ,      sumsq,      sumsq_args)     \
    OPERATION(OP_DECIDE,     decide,     decide_args)    \
    UPDATES(UPDATE_OPERATION, OPERATION) \
    OPERATION(OP_ONEBIT_ENCODE, onebit_encode, onebit_encode_args) \
    OPERATION(OP_ONEBIT_SUM, onebit_sum, onebit_sum_args) \
    OPERATION(OP_CODE_ENCODE, code_encode, code_encode_args) \
    OPERATION(OP_CODE_ERROR, code_error, code_error_args) \
    OPERATION(OP_CODE_ADD,   code_add,   code_add_args)  \
    OPERATION(OP_REDUCE,     reduce,     reduce_args)    \
    OPERATION(OP_CAST,       cast,       cast_args)      \
    OPERATION(OP_FILL_ZERO,  fill_zero,  fill_zero_args) \
    OPERATION(OP_BUSY,       busy,       busy_args)
// clang-format on
#define UPDATE_OPERATION(OPERATION, OP, name, states, frozen, variant) OPERATION(OP, name, update_args)

#define OP_ENUMERATOR(OP, name, args_t) OP,
enum op { OPERATIONS(OP_ENUMERATOR) OP_COUNT };
#undef OP_ENUMERATOR
const char *op_name(enum op op);  // "matmul", ...

// The least that an operation moves and computes. bytes counts each tensor that it reads or writes once, even
// if an implementation reads it again. Rows that tokens select are not counted, because the arguments do not
// tell how many differ. Matrix products (of attention, the causal half) have flops only: they move few bytes
// for their flops.
struct op_work {
    double bytes, flops;
};
struct op_work op_work_of(enum op op, const void *args);

// ---------------------------------------------------------------- arguments
// Each operation takes one struct of arguments, copied at launch. Pointers are device memory and must stay
// valid until the operation has run. dt is the storage type (fp32, bf16, fp16); arithmetic is fp32 with one
// rounding at the store. "=" overwrites the output, "+=" adds to it (in 16 bits: load, add in fp32, round
// once). R = rows = B*T; C channels; V vocabulary; H query heads; KV key/value heads; D head size.

// Epilogues. p is the product with its bias, round is to dt, gelu is that of gelu_args.
//     GELU        aux = round(p), c = gelu(p)
//     GELU_GRAD   c = p * gelu'(aux); no bias
//     BIAS_GRAD   besides c: bias_grad(M) = (accumulate: +=) sum over K of op(a); no bias. It is the bias
//                 gradient if c is a weight gradient, a the gradient dy(R,M) and trans_a.
// GELU and GELU_GRAD do not accumulate. Host backends use round(p) for p, so the bits are those of the product
// and then OP_GELU_FWD or _BWD; a device may use p from its accumulator. BIAS_GRAD has on host backends the
// bits of the product and then OP_BIAS_GRAD.
enum matmul_epilogue { EPILOGUE_NONE, EPILOGUE_GELU, EPILOGUE_GELU_GRAD, EPILOGUE_BIAS_GRAD };

// c(M,N) = op(a) op(b) + bias          accumulate: c += op(a) op(b)
// Host backends round the sum once. A device may round the product to dt before it adds bias or c: some
// algorithms of cuBLASLt do (docs/gpu-inside.md). op(a) is a(M,K), or a(K,M) transposed if trans_a; op(b) is
// b(K,N), or b(N,K) transposed if trans_b. All are row-major and of type dt. bias (N) or NULL; not with
// accumulate.
struct matmul_args {
    void *c;  // (M,N)
    const void *a, *b;
    const void *bias;  // (N) or NULL
    void *aux;         // (M,N) of the GELU epilogues, without gaps, as c then; else NULL
    void *bias_grad;   // (M) of EPILOGUE_BIAS_GRAD, with trans_a and no gaps in a; else NULL
    int64_t m, n, k;
    int64_t lda, ldb, ldc;  // elements from one stored row to the next; 0: no gaps. Gaps are not touched
    bool trans_a, trans_b, accumulate;
    enum matmul_epilogue epilogue;
    enum dtype dt;
};

// dbias(N) = or += sum over rows of dy(R,N).
struct bias_grad_args {
    void *dbias;     // (N)
    const void *dy;  // (R,N)
    int64_t rows, n;
    bool accumulate;
    enum dtype dt;
};

// out(B,T,C) = wte[tokens] + wpe[t]    (wpe NULL: no learned positions)
struct embed_fwd_args {
    void *out;              // (B,T,C)
    const int32_t *tokens;  // (B,T), each in [0,V)
    const void *wte;        // (V,C)
    const void *wpe;        // (>=T,C) or NULL
    int64_t batch, seq, channels;
    enum dtype dt;
};

// dwte(V,C) += scatter of dout by token. dwpe(P,C): rows [0,T) = or += sum over the batch; rows [T,P) = 0
// unless accumulating. zero_dwte: set dwte to 0 first (untied embeddings on the first micro-batch; a tied one
// already holds the head's gradient). Each row of dwte is summed in fp32, added to its earlier value, and
// rounded once. Host backends add in the order of the positions. A device may use another order that depends
// only on tokens and shape, so that a frequent token need not be one chain of additions.
struct embed_bwd_args {
    void *dwte;             // (V,C)
    void *dwpe;             // (P,C) or NULL
    const void *dout;       // (B,T,C)
    const int32_t *tokens;  // (B,T)
    void *scratch;          // embed_bwd_scratch_bytes(...)
    int64_t batch, seq, channels, vocab, positions;
    bool zero_dwte, accumulate_dwpe;
    enum dtype dt;
};
size_t embed_bwd_scratch_bytes(int64_t batch, int64_t seq, int64_t channels, int64_t vocab);

enum norm_kind { NORM_RMS, NORM_LAYER };

// sum(R,C) = x + residual   (residual NULL: x is the input itself and sum is not written)
// y(R,C) = norm(sum) * weight + bias
// RMSNorm (Zhang & Sennrich 2019): y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps); no bias, no mean.
// LayerNorm (Ba et al. 2016): y = (x - mean) * rstd * w + b.
struct norm_fwd_args {
    void *y;               // (R,C)
    void *sum;             // (R,C) or NULL
    float *mean;           // (R), LayerNorm only, else NULL
    float *rstd;           // (R)
    const void *x;         // (R,C)
    const void *residual;  // (R,C) or NULL
    const void *weight;    // (C)
    const void *bias;      // (C), LayerNorm only
    int64_t rows, channels;
    float eps;
    enum norm_kind kind;
    enum dtype dt;
};

// dx(R,C) = gradient through the norm + dresidual (NULL: nothing added; may alias dx)
// dweight(C), dbias(C): = or +=, summed over rows in fp32 in a fixed order. dweight NULL: only dx, as for a frozen norm.
struct norm_bwd_args {
    void *dx;               // (R,C)
    void *dweight;          // (C) or NULL
    void *dbias;            // (C) or NULL
    const void *dy;         // (R,C)
    const void *dresidual;  // (R,C) or NULL
    const void *x;          // (R,C) the norm's input (sum of the forward)
    const float *mean;      // (R) or NULL
    const float *rstd;      // (R)
    const void *weight;     // (C)
    void *scratch;          // norm_bwd_scratch_bytes(channels)
    int64_t rows, channels;
    bool accumulate;
    enum norm_kind kind;
    enum dtype dt;
};
size_t norm_bwd_scratch_bytes(int64_t channels);

// Rotary embedding (Su et al. 2021) in place on the q and k heads of qkv(B,T,(H+2KV)*D), row = | q: H*D | k:
// KV*D | v: KV*D |. Half-split pairs (i, i+D/2), as in Hugging Face's LLaMA. cos_sin(T, D/2, 2) is fp32,
// computed by the model. inverse: rotate back (the backward). dbias: also compute the gradient of qkv's bias, =
// or += the sum over rows of the rotated qkv (v is not rotated), as OP_BIAS_GRAD.
struct rope_args {
    void *qkv;
    const float *cos_sin;
    void *dbias;  // ((H+2KV)*D) or NULL
    int64_t batch, seq;
    int32_t heads, kv_heads, head_size;
    bool inverse, accumulate;  // accumulate: dbias +=
    enum dtype dt;
};

// Causal attention with grouped queries; query head h reads key/value head h / (H/KV).
// out(B,T,H*D) = softmax(scale * q k^T, causal) v ; lse(B,H,T) = log-sum-exp of each row, for the
// backward. The T x T matrix is never stored (Dao et al. 2022, algorithm 1).
struct attn_fwd_args {
    void *out;        // (B,T,H*D)
    float *lse;       // (B,H,T)
    const void *qkv;  // (B,T,(H+2KV)*D)
    void *scratch;    // attn_scratch_bytes(...)
    int64_t batch, seq;
    int32_t heads, kv_heads, head_size;
    float scale;
    enum dtype dt;
};

// dqkv = the gradient of qkv; every element is written.
struct attn_bwd_args {
    void *dqkv;        // (B,T,(H+2KV)*D)
    const void *dout;  // (B,T,H*D)
    const void *qkv, *out;
    const float *lse;
    void *scratch;  // attn_scratch_bytes(...)
    int64_t batch, seq;
    int32_t heads, kv_heads, head_size;
    float scale;
    enum dtype dt;
};
size_t attn_scratch_bytes(int64_t batch, int64_t seq, int32_t heads, int32_t kv_heads, int32_t head_size);

// GELU, tanh form (Hendrycks & Gimpel 2016, as GPT-2): y = 0.5 x (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3))).
// forward: y = gelu(x). backward: dx = dy * gelu'(x); dx may alias dy.
struct gelu_args {
    void *y;         // forward: y ; backward: dx      (n)
    const void *x;   // (n)
    const void *dy;  // backward only
    int64_t n;
    enum dtype dt;
};

// SwiGLU (Shazeer 2020): gate_up(R,2F), row = | gate: F | up: F |; y(R,F) = silu(gate) * up.
// backward: dgate_up(R,2F) from dy(R,F). dgate_up may be gate_up itself: each pair is read before it is
// written.
struct swiglu_args {
    void *y;              // forward: y(R,F) ; backward: dgate_up(R,2F)
    const void *gate_up;  // (R,2F)
    const void *dy;       // backward only, (R,F)
    int64_t rows, width;  // R, F
    enum dtype dt;
};

// y = a + b   (n); y may alias a or b.
struct add_args {
    void *y;
    const void *a, *b;
    int64_t n;
    enum dtype dt;
};

// Cross-entropy over logits(R,V): loss[r] = log sum exp - logit[target], in fp32. want_grad replaces the logits
// by their gradient: (softmax - onehot) * grad_scale, rounded once. A target < 0 is ignored: loss 0, gradient
// row 0. Columns from V on are no classes and are never read; want_grad writes zeros to those below `padded`,
// so that products may include them.
struct xent_args {
    void *logits;            // (R,V)
    float *loss;             // (R)
    const int32_t *targets;  // (R)
    int64_t rows, vocab;
    int64_t row_stride;  // as ldc above
    int64_t padded;      // 0: none; else vocab <= padded <= row_stride
    float grad_scale;
    bool want_grad;
    enum dtype dt;
};

// out = sum of loss(R) in double, in an order that depends only on R; accumulate: out +=. Host backends add in
// row order.
struct loss_sum_args {
    double *out;  // (1)
    const float *loss;
    int64_t rows;
    bool accumulate;
};

// out += exact sum of squares of x(n) and its number of non-finite elements (kernels/exact_sum.h). n is a
// multiple of SUMSQ_BLOCK. A block's sum is taken in double, in index order. A block with a non-finite element
// adds only to the count.
struct sumsq_args {
    struct exact_sum *out;
    const void *x;
    int64_t n;
    bool zero_out;  // start from zero, not from out's value
    enum dtype dt;
};

// scalars = update_decide(*sum, loss_scale, clip).
struct decide_args {
    struct update_scalars *scalars;
    const struct exact_sum *sum;
    float loss_scale, clip;  // clip 0: none
};
// The same formula for hosts that decide themselves (the star's scheduler): norm = sqrt(sum)/loss_scale; factor
// = clip > 0 && norm > clip ? clip/(norm + 1e-6) : 1, as torch.nn.utils.clip_grad_norm_ and DeepSpeed;
// grad_scale = (float)(factor/loss_scale).
struct update_scalars update_decide(const struct exact_sum *sum, float loss_scale, float clip);

// ---- 1-bit Adam (Tang et al. 2021, algorithm 1) after its warm-up; kernels/codec.h defines the code.
// n is a multiple of ONEBIT_BLOCK. scalars->skip: nothing is written. An element whose frozen variance v is 0
// had no gradient during the warm-up and is masked: its momentum and errors are 0, and it counts in no scale.
// (In DeepSpeed the user names such elements: exp_avg_mask.)
//
// Encodes the rank's momentum as blocks, and keeps the error of the encoding:
//     x = error + fma(beta1, m, (1-beta1) * (grad * own->grad_scale))    masked: 0
//     out = blocks of x        error = x - value of out                  masked: 0
struct onebit_encode_args {
    struct onebit_block *out;              // (n / ONEBIT_BLOCK)
    float *error;                          // (n)
    const float *m, *v;                    // (n)
    const void *grad;                      // (n) of type dt
    const struct update_scalars *scalars;  // skip
    const struct update_scalars *own;      // grad_scale
    int64_t n;
    float beta1;
    enum dtype dt;
};
// Encodes the mean of the blocks of `ranks` ranks, computed in fp32:
//     x = error + (sum over r = 0..ranks-1 of the values of in[r]) * (1/ranks)   in this order; masked: 0
//     out = blocks of x        error = x - value of out                  masked: 0
// in: (ranks) runs of n / ONEBIT_BLOCK blocks, one after the other. out must not overlap in.
struct onebit_sum_args {
    struct onebit_block *out;       // (n / ONEBIT_BLOCK)
    const struct onebit_block *in;  // (ranks, n / ONEBIT_BLOCK)
    float *error;                   // (n)
    const float *v;                 // (n)
    const struct update_scalars *scalars;
    int64_t n;
    int32_t ranks;
};

// The codes of gradients (kernels/codec.h). n is a multiple of CODE_BLOCK.
// out = code of fma(error, factor, grad)
struct code_encode_args {
    void *out;           // code_bytes(format, n), aligned to 4 bytes
    const float *error;  // (n)
    const void *grad;    // (n) of type dt
    int64_t n;
    struct code_format format;
    float factor;  // growth of the gradients' scale since the error was kept; 1: none
    enum dtype dt;
};
// error = fma(error, factor, grad)
struct code_error_args {
    float *error;      // (n)
    const void *grad;  // (n) of type dt
    int64_t n;
    float factor;
    enum dtype dt;
};
// out = | += | -= the values of the code. For elements that a topk code does not name, = writes 0, += and -=
// change nothing. An index outside n is ignored. On hosts the code need not be aligned.
enum code_use { CODE_SET, CODE_PLUS, CODE_MINUS };
struct code_add_args {
    float *out;        // (n)
    const void *code;  // code_bytes(format, n)
    int64_t n;
    struct code_format format;
    enum code_use use;
};

#define REDUCE_MAX     4096
#define REDUCE_GPU_MAX 256  // the addresses are kernel parameters, of which there are 4 KiB
// How inputs are joined. MIN and MAX: a NaN wins over every number, and of equal inputs the first is kept,
// which orders -0 and +0. LOR: 1 if any input is not zero, else 0.
enum reduction { REDUCTION_SUM, REDUCTION_MIN, REDUCTION_MAX, REDUCTION_PROD, REDUCTION_LOR, REDUCTIONS };

// out(n) = round(in[0] joined with in[1], .., in[count-1]): fp32, in index order, one rounding. out may alias
// one of the inputs exactly. DT_I64: integers; sums and products wrap. DT_F64: double, in index order. The
// array inputs is read between the launch and the operation's end, and must not change until then.
struct reduce_args {
    void *out;
    const void *const *inputs;  // (count) host array of device pointers
    int32_t count;
    int64_t n;
    enum dtype dt;
    enum reduction how;
};

// out(n) of type to = in(n) of type from, one rounding. from/to: fp32, bf16, fp16. factor: out = in * factor in fp32,
// and out may be in; 0: none.
struct cast_args {
    void *out;
    const void *in;
    int64_t n;
    enum dtype from, to;
    float factor;
};

struct fill_zero_args {
    void *out;
    int64_t bytes;
};

// Only takes time: computes for ns + factor * (now - clock[0]) nanoseconds of the device's clock, then sets
// clock[0] = now. Multiply-adds keep all of the device's threads busy (ref: one). So it costs other programs
// what a longer computation would; a sleep would leave them the cores. clock[1] is scratch.
// ns = factor = 0: only sets clock[0]. clock[0] = 0: was never set, and counts as now.
struct busy_args {
    int64_t *clock;  // (2)
    int64_t ns;
    double factor;
};

// ---------------------------------------------------------------- what follows from the arguments
// Elements from one row to the next; 0 means rows without gaps.
static inline int64_t matmul_lda(const struct matmul_args *g) {
    return g->lda ? g->lda : g->trans_a ? g->m : g->k;
}
static inline int64_t matmul_ldb(const struct matmul_args *g) {
    return g->ldb ? g->ldb : g->trans_b ? g->k : g->n;
}
static inline int64_t matmul_ldc(const struct matmul_args *g) { return g->ldc ? g->ldc : g->n; }
// The separate operations that replace an epilogue. They run after the product, which then has no epilogue and
// with EPILOGUE_GELU writes to aux.
static inline struct gelu_args matmul_gelu(const struct matmul_args *g) {
    return (struct gelu_args){g->c, g->aux, g->c, g->m * g->n, g->dt};
}
static inline struct bias_grad_args matmul_bias_grad(const struct matmul_args *g) {
    return (struct bias_grad_args){g->bias_grad, g->a, g->k, g->m, g->accumulate, g->dt};
}
// Whether the arguments are within the contract.
static inline bool matmul_valid(const struct matmul_args *g) {
    bool gelu = g->epilogue == EPILOGUE_GELU || g->epilogue == EPILOGUE_GELU_GRAD;
    bool grad = g->epilogue == EPILOGUE_BIAS_GRAD;
    return g->m > 0 && g->n > 0 && g->k > 0 && matmul_lda(g) >= (g->trans_a ? g->m : g->k) &&
           matmul_ldb(g) >= (g->trans_b ? g->k : g->n) && matmul_ldc(g) >= g->n && gelu == (g->aux != NULL) &&
           !(g->bias && (g->accumulate || g->epilogue == EPILOGUE_GELU_GRAD)) &&
           !(gelu && (g->accumulate || matmul_ldc(g) != g->n)) && grad == (g->bias_grad != NULL) &&
           !(grad && (g->bias || !g->trans_a || matmul_lda(g) != g->m));
}
// The operation that rope does after the rotation if dbias is set.
static inline struct bias_grad_args rope_bias_grad(const struct rope_args *a) {
    int64_t width = (int64_t)(a->heads + 2 * a->kv_heads) * a->head_size;
    return (struct bias_grad_args){a->dbias, a->qkv, a->batch * a->seq, width, a->accumulate, a->dt};
}

static inline int64_t xent_stride(const struct xent_args *a) {
    return a->row_stride ? a->row_stride : a->vocab;
}
// Columns of a gradient row that are written: those of the vocabulary, then zeros.
static inline int64_t xent_written(const struct xent_args *a) { return a->padded ? a->padded : a->vocab; }
static inline bool xent_valid(const struct xent_args *a) {
    return a->vocab > 0 && a->vocab <= xent_written(a) && xent_written(a) <= xent_stride(a);
}

// ---------------------------------------------------------------- running them
struct stream;

// Limit of the bytes of an operation's arguments, which the stream's queue copies.
#define OP_ARGS_MAX_BYTES 416
// Enqueues an operation; args are copied.
void dev_launch(struct stream *s, enum op op, const void *args, size_t args_bytes);

// Typed launches: op_matmul(stream, &(struct matmul_args){...}).
#define OP_LAUNCH(OP, name, args_t)                                                           \
    static_assert(sizeof(struct args_t) <= OP_ARGS_MAX_BYTES, "a queue's slot is too small"); \
    static inline void op_##name(struct stream *s, const struct args_t *a) {                  \
        dev_launch(s, OP, a, sizeof *a);                                                      \
    }
OPERATIONS(OP_LAUNCH)
#undef OP_LAUNCH

// The functions of ref and cpu, callable directly (tests, the star's servers). fn(threads, args) runs the
// operation now, on the calling thread and `threads` threads. Returns 0, or -1 with *why set.
typedef int (*op_fn)(int threads, const void *args, const char **why);
extern const op_fn ref_ops[OP_COUNT];
extern const op_fn cpu_ops[OP_COUNT];

#endif
