// The device interface: memory, streams, events, copies and every operation of the model, the
// optimizer and the reductions, behind one const table. kernels/ref, kernels/cpu and kernels/cuda
// fill it; the model and the topologies see nothing else of a device.
//
// Ownership   A rank opens one device and owns it; streams, events and memory belong to that device
//             and are released before it is closed.
// Threads     All functions may be called from any thread of the rank. Operations of ONE stream are
//             enqueued by one thread at a time.
// Blocking    dev_launch, dev_copy, stream_host, event_record, stream_wait_event only enqueue (they
//             block only while the stream's queue is full). event_sync, stream_sync block the host.
// Order       Operations of one stream run in order; those of two streams are ordered by events alone.
//             A CPU stream is a real queue with its own thread, so a missing event is a real race.
// Inside      A function that a stream runs (stream_host, stream_submit) may call dev_launch, dev_copy,
//             event_record, stream_wait_event and stream_sync on that same stream: they act at that place
//             of the queue, before what was enqueued later. A failure fails the function's slot.
// Errors      Shapes out of contract are programmer errors (assert). What fails while running (a
//             library's refusal, a host function that returned non-zero) stops the stream's later work
//             from running and is sticky: stream_sync returns -1 and dev_error() has the text.
#ifndef STARRING_KERNELS_BACKEND_H
#define STARRING_KERNELS_BACKEND_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu_kernel.h"
#include "kernels/cuda_choices.h"
#include "kernels/device_report.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/products.h"

// ---------------------------------------------------------------- memory classes
// What a byte of memory is for; the ledger's rows.
enum mem_class {
    MEM_PARAMETER,   // weights the model computes with
    MEM_GRADIENT,    // gradients, full or sharded, and accumulators of them
    MEM_MASTER,      // fp32 copies of the weights
    MEM_OPTIMIZER,   // moments
    MEM_ACTIVATION,  // saved and passing activations, tokens, losses
    MEM_COMM,        // communication buffers: gather slots' staging, receive buffers
    MEM_WORKSPACE,   // scratch of operations
    MEM_SERVER,      // what a server needs beside the classes above
    MEM_HOST,        // page-locked host memory that a device with memory of its own is reached through
    MEM_CLASSES
};
const char *mem_class_name(enum mem_class c);  // "parameter", "gradient", ...

struct mem_usage {
    size_t current_bytes[MEM_CLASSES];
    size_t peak_bytes[MEM_CLASSES];
    uint64_t allocations;  // how many times dev_alloc was called
};

// ---------------------------------------------------------------- operations
// Each operation takes one struct of arguments, copied at launch: pointers are device memory and
// must stay valid until the operation has run. dt is the storage type (fp32, bf16, fp16); arithmetic
// is fp32 with one rounding at the store. "=" overwrites its output, "+=" adds to it (in 16 bits:
// load, add in fp32, round once). R = rows = B*T; C channels; V vocabulary; H query heads; KV
// key/value heads; D head size.
enum op {
    OP_MATMUL,
    OP_BIAS_GRAD,
    OP_EMBED_FWD,
    OP_EMBED_BWD,
    OP_NORM_FWD,
    OP_NORM_BWD,
    OP_ROPE,
    OP_ATTN_FWD,
    OP_ATTN_BWD,
    OP_GELU_FWD,
    OP_GELU_BWD,
    OP_SWIGLU_FWD,
    OP_SWIGLU_BWD,
    OP_ADD,
    OP_XENT,
    OP_LOSS_SUM,
    OP_SUMSQ,
    OP_DECIDE,
    OP_ADAMW,
    OP_REDUCE,
    OP_CAST,
    OP_FILL_ZERO,
    OP_COUNT
};
const char *op_name(enum op op);  // "matmul", ...

// What becomes of p, the product with its bias. GELU: aux = round(p), c = gelu(p). GELU_GRAD, without bias:
// c = p * gelu'(aux). Neither of them accumulates; gelu is gelu_args', round is to dt. Host backends take
// round(p) for p, so that their bits are those of the product and then OP_GELU_FWD or _BWD; a device may use
// p as its accumulator holds it. BIAS_GRAD, without bias: beside c, bias_grad(M) = (accumulate: +=) sum over
// K of op(a), which is the bias gradient where c is a weight gradient, a the gradient dy(R,M) and trans_a.
// Host backends: the product, then OP_BIAS_GRAD, to the bit.
enum matmul_epilogue { EPILOGUE_NONE, EPILOGUE_GELU, EPILOGUE_GELU_GRAD, EPILOGUE_BIAS_GRAD };

// c(M,N) = op(a) op(b) + bias          accumulate: c += op(a) op(b)
// op(a) is a(M,K), or a(K,M) transposed when trans_a; op(b) is b(K,N), or b(N,K) transposed when
// trans_b. All row-major, all of type dt. bias (N) or NULL; not with accumulate.
struct matmul_args {
    void *c;  // (M,N)
    const void *a, *b;
    const void *bias;  // (N) or NULL
    void *aux;         // (M,N) of the GELU epilogues, without gaps as c is then; else NULL
    void *bias_grad;   // (M) of EPILOGUE_BIAS_GRAD, with trans_a and no gaps in a; else NULL
    int64_t m, n, k;
    int64_t lda, ldb, ldc;  // elements from a row, as stored, to the next; 0: no gaps. Gaps stay untouched
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

// dwte(V,C) += scatter of dout by token; dwpe(P,C): rows [0,T) = or += sum over the batch, rows
// [T,P) = 0 unless accumulating. zero_dwte: set dwte to 0 first (untied embeddings on the first
// micro-batch; a tied one already holds the head's gradient). Each row of dwte is summed in fp32, added to
// what it held, and rounded once. Host backends add in the order of the positions; a device may add in
// another that depends on tokens and shape alone, so that a frequent token need not be one chain of
// additions.
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
// dweight(C), dbias(C): = or +=, summed over rows in fp32 in a fixed order.
struct norm_bwd_args {
    void *dx;               // (R,C)
    void *dweight;          // (C)
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

// Rotary embedding (Su et al. 2021) in place on the q and k heads of qkv(B,T,(H+2KV)*D), row =
// | q: H*D | k: KV*D | v: KV*D |. Half-split pairs (i, i+D/2), as in Hugging Face's LLaMA.
// cos_sin(T, D/2, 2) fp32, computed by the model. inverse: rotate back (the backward). dbias: also the
// gradient of qkv's bias, = or += the sum over rows of qkv as it becomes (and v as it is), as OP_BIAS_GRAD.
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

// dqkv = ; every element is written.
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
// backward: dgate_up(R,2F) from dy(R,F); may be gate_up itself: each pair is read before it is written.
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

// Cross-entropy over logits(R,V): loss[r] = log sum exp - logit[target], in fp32; and, when
// want_grad, logits become their gradient in place: (softmax - onehot) * grad_scale, rounded once.
// A target < 0 is ignored: loss 0, gradient row 0. Columns V and up are no classes: they are never read, and
// want_grad writes zeros to those below `padded`, so that products may run over them.
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

// out = sum of loss(R) in double, in an order that depends on R alone; accumulate: out +=. Host backends add
// in row order.
struct loss_sum_args {
    double *out;  // (1)
    const float *loss;
    int64_t rows;
    bool accumulate;
};

// out += exact sum of squares of x(n) and its number of non-finite elements (kernels/exact_sum.h).
// n is a multiple of SUMSQ_BLOCK; block sums are taken in double, in index order within a block.
// Blocks that hold a non-finite element add only to the count.
struct sumsq_args {
    struct exact_sum *out;
    const void *x;
    int64_t n;
    bool zero_out;  // start from zero instead of what out holds
    enum dtype dt;
};

// What one step's update is to do; decided once, the same on every rank (ARCHITECTURE.md, Numerics 4).
struct update_scalars {
    float grad_scale;  // multiply gradients by this: clip / loss_scale
    int32_t skip;      // 1: a gradient was not finite; leave everything as it is
    double norm;       // of the unscaled gradient, before clipping; not finite when skip
};

// scalars = update_decide(*sum, loss_scale, clip).
struct decide_args {
    struct update_scalars *scalars;
    const struct exact_sum *sum;
    float loss_scale, clip;  // clip 0: none
};
// The one formula, for hosts that decide themselves (the star's scheduler):
// norm = sqrt(sum)/loss_scale; factor = clip > 0 && norm > clip ? clip/(norm + 1e-6) : 1, as
// torch.nn.utils.clip_grad_norm_ and DeepSpeed; grad_scale = (float)(factor/loss_scale).
struct update_scalars update_decide(const struct exact_sum *sum, float loss_scale, float clip);

// AdamW (Loshchilov & Hutter 2019, algorithm 2) over n elements, elementwise, in this order, with
// explicit fma and correctly rounded / and sqrt, the same bits on every device:
//     g = (float)grad * grad_scale
//     l2_mode: g = fma(weight_decay, p, g)                     ("Adam" with adam_w_mode false)
//     m = fma(beta1, m, (1-beta1)*g)            v = fma(beta2, v, ((1-beta2)*g)*g)
//     denom = sqrt(v) * inv_sqrt_bc2 + eps      (a product, then a sum: two roundings)
//     u = (m * inv_bc1) / denom
//     !l2_mode: u = fma(weight_decay, p, u)
//     p = fma(-lr, u, p)                        weight = round(p)
// where 1-beta is computed in fp32, inv_bc1 = 1/(1-beta1^t), inv_sqrt_bc2 = 1/sqrt(1-beta2^t) in
// double, then rounded. scalars->skip: nothing is written. Parameter groups are runs of elements: group g is
// [ends[g-1], ends[g]), the first begins at 0; one launch covers them all.
#define ADAMW_GROUPS_MAX 24
struct adamw_args {
    float *master, *m, *v;  // (n)
    void *weight;           // (n) of type dt; may equal master in fp32; NULL: not written
    const void *grad;       // (n) of type dt
    const struct update_scalars *scalars;
    int64_t n;
    int64_t ends[ADAMW_GROUPS_MAX];        // (groups) rising; the last is n
    float weight_decay[ADAMW_GROUPS_MAX];  // (groups)
    int32_t groups;                        // at least 1
    float lr, beta1, beta2, eps, inv_bc1, inv_sqrt_bc2;
    bool l2_mode;
    enum dtype dt;
};

#define REDUCE_MAX 256
// out(n) = round(sum over i = 0..count-1 of (float)in[i]): fp32, in index order, one rounding.
// out may alias one of the inputs exactly. DT_I64: integer sums. DT_F64: double, in index order.
// The array inputs is read between the launch and the operation's end, and must stay as it is until then.
struct reduce_args {
    void *out;
    const void *const *inputs;  // (count) host array of device pointers
    int32_t count;
    int64_t n;
    enum dtype dt;
};

// out(n) of type to = in(n) of type from, one rounding. from/to: fp32, bf16, fp16.
struct cast_args {
    void *out;
    const void *in;
    int64_t n;
    enum dtype from, to;
};

struct fill_zero_args {
    void *out;
    int64_t bytes;
};

// ---------------------------------------------------------------- the table
struct device;  // opaque
struct stream;
struct event;

struct device_options {
    int threads;             // CPU: threads an operation may use; 0: one per core
    int index;               // CUDA: which device, below backend_devices()
    const char *label;       // "rank 1": named in errors and traces; copied
    enum cpu_kernel kernel;  // CPU: how matrices are multiplied
    struct cuda_choices cuda;
    bool trace;  // keep spans of every operation for dev_trace_write
};

// Phases of a step, for the split of its time. A stream accounts to the phase it was last given.
enum phase { PHASE_OTHER, PHASE_DATA, PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER, PHASE_COMM, PHASES };

struct stream_times {
    double busy_s[PHASES];  // seconds in operations
    double wait_s[PHASES];  // seconds blocked in stream_wait_event
};

struct backend {
    const char *name;  // "cpu", "ref", "cuda"
    // Device memory is host memory: the host may read and write it while no operation uses it.
    bool host_memory;
    int (*devices)(void);
    int (*open)(struct device **out, const struct device_options *opt);
    void (*close)(struct device *d);
    void *(*alloc)(struct device *d, size_t bytes);  // 256-byte aligned, zeroed; NULL when out of memory
    void (*free)(struct device *d, void *p, size_t bytes);
    void *(*host_alloc)(struct device *d, size_t bytes);  // MEM_HOST: likewise, in host memory
    void (*host_free)(struct device *d, void *p, size_t bytes);
    int (*reach)(struct device *d, struct device *peer);
    int (*facts)(struct device *d, struct device_facts *out);  // NULL: nothing to tell
    struct stream *(*stream_create)(struct device *d, const char *name);
    void (*stream_destroy)(struct stream *s);
    void (*launch)(struct stream *s, enum op op, const void *args, size_t args_bytes);
    void (*copy)(struct stream *s, void *dst, const void *src, size_t bytes);
    void (*host)(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
    void (*submit)(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
    void (*phase)(struct stream *s, enum phase phase);
    int (*sync)(struct stream *s);
    void (*times)(struct stream *s, struct stream_times *out);
    struct event *(*event_create)(struct device *d);
    void (*event_destroy)(struct event *e);
    void (*event_record)(struct event *e, struct stream *s);
    void (*wait_event)(struct stream *s, struct event *e);
    int (*event_sync)(struct event *e);
    int (*event_passed)(struct event *e);
    int (*trace_write)(struct device *d, int pid, void *file);  // FILE *, appends JSON events
    // kernels/products.h; NULL: products are not a matter of choice
    int (*choose_products)(struct device *d, const struct product_choice *choices, int count);
    int (*products)(struct device *d, struct product_use *out, int room);
    int (*tune_product)(struct stream *s, const struct product_key *key, int rounds,
                        struct product_timing *out);
};

// The backend called name ("cpu", "ref"), or NULL and a text in *why.
const struct backend *backend_find(const char *name, const char **why);
// How many devices there are to open: at least 1.
int backend_devices(const struct backend *b);

int dev_open(const struct backend *b, const struct device_options *opt, struct device **out);
void dev_close(struct device **d);
const struct backend *dev_backend(const struct device *d);
const char *dev_label(const struct device *d);
// Whether the host may touch the device's memory; if not, bytes go through dev_copy alone.
bool dev_host_memory(const struct device *d);
// Lets operations of d read and write peer's memory directly. 0, also when they are one device; -1 with
// dev_error(d) untouched when the two cannot (dev_copy between them still works).
int dev_reach(struct device *d, struct device *peer);
const char *dev_error(struct device *d);  // "" while nothing has failed; owned by the device

// Memory: rounded up to 256 bytes, zeroed, counted under its class. NULL: out of memory. MEM_HOST is host
// memory: the host reads and writes it, and copies between it and the device need not wait for the host.
#define DEV_ALIGN 256
static inline size_t dev_round(size_t bytes) { return (bytes + DEV_ALIGN - 1) / DEV_ALIGN * DEV_ALIGN; }
void *dev_alloc(struct device *d, enum mem_class c, size_t bytes);
void dev_free(struct device *d, enum mem_class c, void *p, size_t bytes);  // same class and bytes
void dev_usage(struct device *d, struct mem_usage *out);

struct stream *stream_create(struct device *d, const char *name);
void stream_destroy(struct stream **s);  // runs what is queued, then joins
struct device *stream_device(struct stream *s);
// Host -> device, device -> host, device -> device; bytes.
void dev_copy(struct stream *s, void *dst, const void *src, size_t bytes);
// Runs fn(arg) in stream order on a thread of the stream; it may block. Non-zero fails the stream.
void stream_host(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
// The same without waiting for the device: what was enqueued before may still be running there. fn orders
// its own work by what it calls on the stream (see Inside above).
void stream_submit(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
void stream_phase(struct stream *s, enum phase phase);              // enqueued
int stream_sync(struct stream *s);                                  // 0, or -1 when the stream has failed
void stream_get_times(struct stream *s, struct stream_times *out);  // since creation; after a sync
struct event *event_create(struct device *d);
void event_destroy(struct event **e);
// An event that was never recorded counts as passed. Recording again replaces the earlier record; a
// wait enqueued before the new record waits for the earlier one.
void event_record(struct event *e, struct stream *s);
void stream_wait_event(struct stream *s, struct event *e);
int event_sync(struct event *e);  // 0, or -1 when the recording stream has failed
// Without blocking: 1 when event_sync would return at once, 0 not yet, -1 when the recording stream has
// failed.
int event_passed(struct event *e);
// How often a host thread has waited on the device's streams and events: calls of stream_sync and event_sync.
uint64_t dev_host_waits(struct device *d);
// Appends this device's spans as Chrome trace events, comma-separated; pid = rank.
int dev_trace_write(struct device *d, int pid, void *file);

void dev_launch(struct stream *s, enum op op, const void *args, size_t args_bytes);

// What a stream's queue keeps of an operation's arguments.
#define OP_ARGS_MAX_BYTES 416

#include "kernels/launches.h"

// The functions of ref and cpu, callable directly (tests, the star's servers): fn(threads, args)
// runs op now, on the calling thread and `threads` threads. Returns 0, or -1 with *why set.
typedef int (*op_fn)(int threads, const void *args, const char **why);
extern const op_fn ref_ops[OP_COUNT];
extern const op_fn cpu_ops[OP_COUNT];

#endif
