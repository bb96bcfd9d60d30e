// Attention: cuDNN if it has an engine that repeats bit for bit, else our own kernels; cuda.attention
// (kernels/cuda_choices.h) can demand one of the two. Both use the same lse, so the forward of one can be
// followed by the backward of the other.
//
// Notes       If cuDNN should have a plan but has none, a note tells for which shape and why. In fp32 cuDNN has
//             no attention: there is no note, but device_work reports it.
// Memory      cuDNN's repeatable backward needs B*H*T*T elements. The batch is cut into equal slices that fit
//             in cuda.attention_slice (kernels/cuda_choices.h) where possible. A sequence's results do not
//             depend on the slices.
//                 workspace | sum of dout*out (slice,H,T) fp32 | cuDNN's |
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/attention_graph.h"
#include "kernels/cuda/host/cuda_impl.h"

struct attention_plan {
    struct attention_plan *next;
    struct attention_shape shape;  // batch: that of the whole call
    int64_t slice;                 // sequences per execution
    bool own;                      // cuDNN has no engine: our own kernels run
    struct cudnn_plan plan;
};

// Bytes of the sums of dout*out for one slice of the backward.
static size_t dot_bytes(const struct attention_plan *p) {
    return dev_round((size_t)(p->slice * p->shape.heads * p->shape.seq) * sizeof(float));
}

static bool same_shape(const struct attention_shape *a, const struct attention_shape *b) {
    return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->dt == b->dt && a->backward == b->backward;
}

// The largest divisor of the batch whose score matrices, padded as the engines pad them, take at most `bytes`
// (cuda_choices.h).
static int64_t slice_of(const struct attention_shape *s, int64_t bytes) {
    if (!s->backward || bytes == CUDA_SLICE_WHOLE) return s->batch;
    if (bytes == CUDA_SLICE_AUTO) bytes = CUDA_SLICE_AUTO_BYTES;
    int64_t padded = (s->seq + 127) / 128 * 128;
    int64_t each_bytes = s->heads * padded * padded * 2;
    for (int64_t slice = s->batch; slice > 1; slice--)
        if (s->batch % slice == 0 && slice <= bytes / each_bytes) return slice;
    return 1;
}

// ---------------------------------------------------------------- plans

#define WHY_TEXT GRAPH_WHY_TEXT

static bool cudnn_ready(struct cuda_stream *s, char why[WHY_TEXT]) {
    struct cuda_device *d = cuda_device_of(s);
    char said[CUDNN_WHY_TEXT];
    const char *call = "cudnnCreate";
    if (d->cudnn_missing) snprintf(why, WHY_TEXT, "%s", d->cudnn_missing);
    if (d->cudnn_missing) return false;
    if (s->dnn) return true;
    cudnnStatus_t e = d->cudnn.create(&s->dnn);
    if (e != CUDNN_STATUS_SUCCESS) s->dnn = NULL;
    if (e == CUDNN_STATUS_SUCCESS) {
        call = "cudnnSetStream";
        e = d->cudnn.set_stream(s->dnn, s->stream);
    }
    if (e == CUDNN_STATUS_SUCCESS) return true;
    snprintf(why, WHY_TEXT, "%s fails: %s", call, cudnn_why(&d->cudnn, e, said));
    if (s->dnn) d->cudnn.destroy(s->dnn);
    s->dnn = NULL;
    return false;
}

// Plans p->shape. Returns whether cuDNN has a plan; else why receives the reason, or "" if none was expected.
static bool plan_by_cudnn(struct cuda_stream *s, struct attention_plan *p, char why[WHY_TEXT]) {
    enum cuda_attention wanted = cuda_choices_of(s)->attention;
    struct cudnn_graph g;
    struct attention_shape sliced = p->shape;
    why[0] = 0;
    if (wanted == CUDA_ATTENTION_OWN) return false;
    if (p->shape.dt == DT_F32) {
        if (wanted == CUDA_ATTENTION_CUDNN)
            snprintf(why, WHY_TEXT, "it has no attention in fp32 (--dtype bf16 or fp16)");
        return false;
    }
    if (!cudnn_ready(s, why)) return false;
    sliced.batch = p->slice;
    graph_init(&g, &cuda_device_of(s)->cudnn);
    attention_graph(&g, &sliced);
    bool has = graph_plan(&g, s->dnn, NULL, &p->plan) == 0;
    if (!has) graph_why(&g, why);
    graph_fini(&g);
    cudaGetLastError();  // an engine that was tried and refused may have set an error
    return has;
}

// Reports the result of planning. Returns -1 with ctx.why if cuDNN was demanded but has no plan.
static int report(struct cuda_stream *s, const struct attention_plan *p, const char *why) {
    struct cuda_device *d = cuda_device_of(s);
    const struct attention_shape *a = &p->shape;
    char shape[160];
    snprintf(shape, sizeof shape, "attention's %s of B %lld, T %lld, H %d, KV %d, D %d in %s",
             a->backward ? "backward" : "forward", (long long)a->batch, (long long)a->seq, a->heads,
             a->kv_heads, a->head_size, dtype_name(a->dt));
    if (p->own && d->wanted.attention == CUDA_ATTENTION_CUDNN) {
        snprintf(s->why, sizeof s->why,
                 "cuda.attention is cudnn, and cuDNN gives no plan for %s: %s; "
                 "--set cuda.attention=auto takes our own kernels there",
                 shape, why);
        s->ctx.why = s->why;
        return -1;
    }
    if (p->own && why[0])
        device_note(&d->head, DEV_NOTE_WARNING,
                    "%s: cuDNN gives no plan: %s; our own kernels run instead, which are slower", shape, why);
    if (p->own || !a->backward) return 0;
    size_t bytes = dot_bytes(p) + dev_round((size_t)p->plan.workspace_bytes);
    pthread_mutex_lock(&d->head.lock);
    if (bytes > d->slice_workspace_bytes) {
        d->slice_workspace_bytes = bytes;
        d->slice_sequences = p->slice;
    }
    pthread_mutex_unlock(&d->head.lock);
    return 0;
}

// Returns NULL with ctx.why set.
static struct attention_plan *plan_of(struct cuda_stream *s, const struct attention_shape *shape) {
    char why[WHY_TEXT];
    for (struct attention_plan *p = s->attentions; p; p = p->next)
        if (same_shape(&p->shape, shape)) return p;
    struct attention_plan *p = calloc(1, sizeof *p);
    s->ctx.why = "no host memory for a plan of attention";
    if (!p) return NULL;
    p->shape = *shape;
    p->slice = slice_of(shape, cuda_choices_of(s)->attention_slice_bytes);
    p->own = !plan_by_cudnn(s, p, why);
    if (report(s, p, why) != 0) {
        free(p);
        return NULL;
    }
    p->next = s->attentions;
    s->attentions = p;
    return p;
}

static void record_used(atomic_uint *what, const struct attention_plan *p) {
    atomic_fetch_or_explicit(what, p->own ? DEVICE_BY_OWN : DEVICE_BY_LIBRARY, memory_order_relaxed);
}

void cuda_attentions_free(struct cuda_stream *s) {
    const struct cudnn_api *api = &cuda_device_of(s)->cudnn;
    for (struct attention_plan *p = s->attentions, *next; p; p = next) {
        next = p->next;
        if (!p->own) cudnn_plan_fini(api, &p->plan);
        free(p);
    }
    s->attentions = NULL;
    if (s->dnn) api->destroy(s->dnn);
    s->dnn = NULL;
}

// ---------------------------------------------------------------- execution

static int no_workspace(struct cuda_stream *s) {
    s->ctx.why = "no device memory for cuDNN's workspace";
    return -1;
}

static int run(struct cuda_stream *s, const struct attention_plan *p, struct cudnn_run *r) {
    const struct cudnn_api *api = &cuda_device_of(s)->cudnn;
    char said[CUDNN_WHY_TEXT];
    if (p->plan.workspace_bytes == 0) r->workspace = NULL;
    r->handle = s->dnn;
    cudnnStatus_t e = cudnn_plan_run(api, &p->plan, r);
    if (e == CUDNN_STATUS_SUCCESS) return 0;
    snprintf(s->why, sizeof s->why, "cuDNN could not run its plan: %s (CUDNN_LOGLEVEL_DBG=2 says more)",
             cudnn_why(api, e, said));
    s->ctx.why = s->why;
    return -1;
}

// Bytes from one sequence to the next.
static size_t stride_bytes(const struct attention_shape *s, int64_t heads) {
    return (size_t)(s->seq * heads * s->head_size) * dtype_size(s->dt);
}

// The value of masked scores. Engines before 9.10 subtract it from itself if a tile is all masked, which gives
// NaN for infinity (cuDNN's own front end distinguishes these versions too).
static float masked_score(struct cuda_stream *s) {
    return cuda_device_of(s)->cudnn.version() < 91000 ? -FLT_MAX : -INFINITY;
}

static char *at(const void *p, size_t bytes) { return (char *)(uintptr_t)p + bytes; }

int cuda_attention_forward(struct cuda_stream *s, const struct attn_fwd_args *a) {
    struct attention_shape shape = {a->batch, a->seq, a->heads, a->kv_heads, a->head_size, a->dt, false};
    struct attention_plan *p = plan_of(s, &shape);
    if (!p) return -1;
    record_used(&cuda_device_of(s)->used.attention_forward, p);
    if (p->own) return cuda_op_attn_fwd(&s->ctx, a);
    size_t head_bytes = (size_t)a->head_size * dtype_size(a->dt), k = (size_t)a->heads * head_bytes,
           v = k + (size_t)a->kv_heads * head_bytes;
    float scale = a->scale, masked = masked_score(s);
    void *workspace = cuda_workspace(s, dev_round((size_t)p->plan.workspace_bytes) + DEV_ALIGN);
    if (!workspace) return no_workspace(s);
    const int64_t uids[] = {ATTENTION_Q,   ATTENTION_K,     ATTENTION_V,     ATTENTION_OUT,
                            ATTENTION_LSE, ATTENTION_SCALE, ATTENTION_MASKED};
    void *pointers[] = {at(a->qkv, 0), at(a->qkv, k), at(a->qkv, v), a->out, a->lse, &scale, &masked};
    return run(s, p,
               &(struct cudnn_run){.uids = uids, .pointers = pointers, .count = 7, .workspace = workspace});
}

// Runs the backward of sequences [begin, begin + slice).
static int backward_slice(struct cuda_stream *s, const struct attn_bwd_args *a,
                          const struct attention_plan *p, int64_t begin) {
    size_t head_bytes = (size_t)a->head_size * dtype_size(a->dt), k = (size_t)a->heads * head_bytes,
           v = k + (size_t)a->kv_heads * head_bytes;
    size_t qkv = (size_t)begin * stride_bytes(&p->shape, (int64_t)a->heads + 2 * a->kv_heads),
           out = (size_t)begin * stride_bytes(&p->shape, a->heads),
           lse = (size_t)(begin * a->heads * a->seq) * sizeof(float);
    size_t dots = dot_bytes(p);
    float scale = a->scale, masked = masked_score(s), one = 1;
    char *workspace = cuda_workspace(s, dots + dev_round((size_t)p->plan.workspace_bytes));
    if (!workspace) return no_workspace(s);
    const int64_t uids[] = {ATTENTION_Q,    ATTENTION_K,     ATTENTION_V,     ATTENTION_OUT, ATTENTION_LSE,
                            ATTENTION_DOUT, ATTENTION_DQ,    ATTENTION_DK,    ATTENTION_DV,  ATTENTION_DOT,
                            ATTENTION_ONE,  ATTENTION_SCALE, ATTENTION_MASKED};
    void *pointers[] = {at(a->qkv, qkv),
                        at(a->qkv, qkv + k),
                        at(a->qkv, qkv + v),
                        at(a->out, out),
                        at(a->lse, lse),
                        at(a->dout, out),
                        at(a->dqkv, qkv),
                        at(a->dqkv, qkv + k),
                        at(a->dqkv, qkv + v),
                        workspace,
                        &one,
                        &scale,
                        &masked};
    return run(
        s, p,
        &(struct cudnn_run){.uids = uids, .pointers = pointers, .count = 13, .workspace = workspace + dots});
}

int cuda_attention_backward(struct cuda_stream *s, const struct attn_bwd_args *a) {
    struct attention_shape shape = {a->batch, a->seq, a->heads, a->kv_heads, a->head_size, a->dt, true};
    struct attention_plan *p = plan_of(s, &shape);
    if (!p) return -1;
    record_used(&cuda_device_of(s)->used.attention_backward, p);
    if (p->own) return cuda_op_attn_bwd(&s->ctx, a);
    for (int64_t begin = 0; begin < a->batch; begin += p->slice)
        if (backward_slice(s, a, p, begin) != 0) return -1;
    return 0;
}
