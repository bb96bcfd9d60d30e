// Attention: cuDNN where it has an engine that repeats bit for bit, else our own kernels. Both give and take
// the same lse, so a forward of one goes with a backward of the other.
//
// Memory      cuDNN's repeatable backward wants B*H*T*T elements. The batch is cut into equal slices so
//             that this stays under SLICE_BYTES where it can; what each sequence gets does not depend on it.
//                 workspace | sum of dout*out (slice,H,T) fp32 | cuDNN's |
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/attention_graph.h"
#include "kernels/cuda/host/cuda_impl.h"

#define SLICE_BYTES ((int64_t)256 << 20)

struct attention_plan {
    struct attention_plan *next;
    struct attention_shape shape;  // batch: of the whole call
    int64_t slice;                 // sequences an execution handles
    bool own;                      // cuDNN has no engine for it
    struct cudnn_plan plan;
};

static bool same_shape(const struct attention_shape *a, const struct attention_shape *b) {
    return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->dt == b->dt && a->backward == b->backward;
}

// The largest divisor of the batch whose score matrices, padded as the engines pad them, fit.
static int64_t slice_of(const struct attention_shape *s) {
    if (!s->backward) return s->batch;
    int64_t padded = (s->seq + 127) / 128 * 128;
    int64_t each_bytes = s->heads * padded * padded * 2;
    for (int64_t slice = s->batch; slice > 1; slice--)
        if (s->batch % slice == 0 && slice * each_bytes <= SLICE_BYTES) return slice;
    return 1;
}

// ---------------------------------------------------------------- plans

static bool cudnn_ready(struct cuda_stream *s) {
    struct cuda_device *d = cuda_device_of(&s->head);
    if (d->cudnn_missing) return false;
    if (s->dnn) return true;
    if (d->cudnn.create(&s->dnn) != CUDNN_STATUS_SUCCESS) {
        s->dnn = NULL;
        return false;
    }
    if (d->cudnn.set_stream(s->dnn, s->stream) == CUDNN_STATUS_SUCCESS) return true;
    d->cudnn.destroy(s->dnn);
    s->dnn = NULL;
    return false;
}

static struct attention_plan *plan_of(struct cuda_stream *s, const struct attention_shape *shape) {
    const struct cudnn_api *api = &cuda_device_of(&s->head)->cudnn;
    for (struct attention_plan *p = s->attentions; p; p = p->next)
        if (same_shape(&p->shape, shape)) return p;
    struct attention_plan *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->shape = *shape;
    p->slice = slice_of(shape);
    p->own = true;
    if (shape->dt != DT_F32 && cudnn_ready(s)) {
        struct cudnn_graph g;
        struct attention_shape sliced = *shape;
        sliced.batch = p->slice;
        graph_init(&g, api);
        attention_graph(&g, &sliced);
        p->own = graph_plan(&g, s->dnn, NULL, &p->plan) != 0;
        graph_fini(&g);
        cudaGetLastError();  // an engine that was tried and refused may have left something
    }
    p->next = s->attentions;
    s->attentions = p;
    return p;
}

void cuda_attentions_free(struct cuda_stream *s) {
    const struct cudnn_api *api = &cuda_device_of(&s->head)->cudnn;
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

static int no_plan(struct cuda_stream *s) {
    s->ctx.why = "no host memory for its plan";
    return -1;
}

static int run(struct cuda_stream *s, const struct attention_plan *p, struct cudnn_run *r) {
    const struct cudnn_api *api = &cuda_device_of(&s->head)->cudnn;
    if (p->plan.workspace_bytes == 0) r->workspace = NULL;
    r->handle = s->dnn;
    if (cudnn_plan_run(api, &p->plan, r) == CUDNN_STATUS_SUCCESS) return 0;
    s->ctx.why = "cuDNN could not run its plan (CUDNN_LOGLEVEL_DBG=2 says why)";
    return -1;
}

// Bytes from one sequence to the next.
static size_t stride_bytes(const struct attention_shape *s, int64_t heads) {
    return (size_t)(s->seq * heads * s->head_size) * dtype_size(s->dt);
}

// What masked scores become. Engines before 9.10 subtract it from itself where a tile is all masked, which
// infinity does not survive (cuDNN's own front end makes the same difference).
static float masked_score(struct cuda_stream *s) {
    return cuda_device_of(&s->head)->cudnn.version() < 91000 ? -FLT_MAX : -INFINITY;
}

static char *at(const void *p, size_t bytes) { return (char *)(uintptr_t)p + bytes; }

int cuda_attention_forward(struct cuda_stream *s, const struct attn_fwd_args *a) {
    struct attention_shape shape = {a->batch, a->seq, a->heads, a->kv_heads, a->head_size, a->dt, false};
    struct attention_plan *p = plan_of(s, &shape);
    if (!p) return no_plan(s);
    if (p->own) return cuda_op_attn_fwd(&s->ctx, a);
    size_t head_bytes = (size_t)a->head_size * dtype_size(a->dt), k = (size_t)a->heads * head_bytes,
           v = k + (size_t)a->kv_heads * head_bytes;
    float scale = a->scale, masked = masked_score(s);
    void *workspace = cuda_workspace(s, dev_round((size_t)p->plan.workspace_bytes) + DEV_ALIGN);
    if (!workspace) return no_plan(s);
    const int64_t uids[] = {ATTENTION_Q,   ATTENTION_K,     ATTENTION_V,     ATTENTION_OUT,
                            ATTENTION_LSE, ATTENTION_SCALE, ATTENTION_MASKED};
    void *pointers[] = {at(a->qkv, 0), at(a->qkv, k), at(a->qkv, v), a->out, a->lse, &scale, &masked};
    return run(s, p,
               &(struct cudnn_run){.uids = uids, .pointers = pointers, .count = 7, .workspace = workspace});
}

// Sequences [begin, begin + slice).
static int backward_slice(struct cuda_stream *s, const struct attn_bwd_args *a,
                          const struct attention_plan *p, int64_t begin) {
    size_t head_bytes = (size_t)a->head_size * dtype_size(a->dt), k = (size_t)a->heads * head_bytes,
           v = k + (size_t)a->kv_heads * head_bytes;
    size_t qkv = (size_t)begin * stride_bytes(&p->shape, (int64_t)a->heads + 2 * a->kv_heads),
           out = (size_t)begin * stride_bytes(&p->shape, a->heads),
           lse = (size_t)(begin * a->heads * a->seq) * sizeof(float);
    size_t dot_bytes = dev_round((size_t)(p->slice * a->heads * a->seq) * sizeof(float));
    float scale = a->scale, masked = masked_score(s), one = 1;
    char *workspace = cuda_workspace(s, dot_bytes + dev_round((size_t)p->plan.workspace_bytes));
    if (!workspace) return no_plan(s);
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
    return run(s, p,
               &(struct cudnn_run){
                   .uids = uids, .pointers = pointers, .count = 13, .workspace = workspace + dot_bytes});
}

int cuda_attention_backward(struct cuda_stream *s, const struct attn_bwd_args *a) {
    struct attention_shape shape = {a->batch, a->seq, a->heads, a->kv_heads, a->head_size, a->dt, true};
    struct attention_plan *p = plan_of(s, &shape);
    if (!p) return no_plan(s);
    if (p->own) return cuda_op_attn_bwd(&s->ctx, a);
    for (int64_t begin = 0; begin < a->batch; begin += p->slice)
        if (backward_slice(s, a, p, begin) != 0) return -1;
    return 0;
}
