// Matrix products by cuBLASLt: fp32 accumulation, in fp32 without TF32, accumulation into c with beta = 1.
// A plan is a product's description for cuBLASLt and its algorithm, the first that the library's heuristic names. It
// is kept, so the heuristic is called once per shape. An epilogue that the library does not compute with the product is
// computed after it by a kernel of our own. If a demanded epilogue (kernels/cuda_choices.h) is not
// supported by the library, our own kernel computes it and a note reports this.
//
// Bits    A split K is reduced only in fp32 in the workspace, in a separate step: no atomics, no 16-bit partial
//         sums. A shape always gets the same algorithm, because nothing is timed here.
//
// Plans   A model has about 25 shapes (GPT-2: 5 products forward, 10 backward; those of the logits twice if the
//         last chunk is shorter, weight gradients twice if they accumulate; with whole documents, for each of
//         up to 16 lengths). So a list is fast enough: most comparisons end at the first number, and all
//         together take under a microsecond, while a launch takes several. Each device has its own lock, and
//         each rank its own device.
//
// Locking The device's matmul_lock guards its list and the descriptions in it, which contain the pointers of a call.
//         The functions of plans are called with it held.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cuda_impl.h"
#include "kernels/cuda/host/matmul_layout.h"

// ---------------------------------------------------------------- plans
#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)  // cuBLAS's default on compute capability 9.0

// Everything that a product's algorithm may depend on: the arguments of OP_MATMUL (struct matmul_args), with
// the promised alignment of each pointer instead of the pointer. Compared as bytes, so memset to 0 before it is
// filled.
struct matmul_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t a_align, b_align, c_align;  // bytes; as the library sees them (matmul_layout.h): a is our b
    uint32_t bias_align, aux_align;      // 0: no pointer
    uint8_t trans_a, trans_b, accumulate;
    uint8_t epilogue;  // enum matmul_epilogue
    uint8_t dt;        // enum dtype
};

struct matmul_plan {
    struct matmul_plan *next;
    struct matmul_key key;
    // Not 0: the library does not support the epilogue, for this reason; the members below are unset
    cublasStatus_t absent;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

// The library's bias pointer: an input, or an output of BGRADB.
static const void *bias_of(const struct matmul_args *m) {
    return m->epilogue == EPILOGUE_BIAS_GRAD ? m->bias_grad : m->bias;
}

static struct matmul_key key_of(const struct matmul_args *m) {
    struct matmul_key k;
    memset(&k, 0, sizeof k);
    k.m = m->m;
    k.n = m->n;
    k.k = m->k;
    k.lda = matmul_lda(m);
    k.ldb = matmul_ldb(m);
    k.ldc = matmul_ldc(m);
    k.a_align = matmul_alignment(m->b);  // the library's A is our b
    k.b_align = matmul_alignment(m->a);
    k.c_align = matmul_alignment(m->c);
    k.bias_align = bias_of(m) ? matmul_alignment(bias_of(m)) : 0;
    k.aux_align = m->aux ? matmul_alignment(m->aux) : 0;
    k.trans_a = m->trans_a;
    k.trans_b = m->trans_b;
    k.accumulate = m->accumulate;
    k.epilogue = (uint8_t)m->epilogue;
    k.dt = (uint8_t)m->dt;
    return k;
}

// ---------------------------------------------------------------- plans

static void plan_free(struct matmul_plan *p) {
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->d) cublasLtMatrixLayoutDestroy(p->d);
    if (p->desc) cublasLtMatmulDescDestroy(p->desc);
    free(p);
}

void cuda_matmuls_free(struct cuda_device *d) {
    for (struct matmul_plan *p = d->matmuls, *next; p; p = next) {
        next = p->next;
        plan_free(p);
    }
    d->matmuls = NULL;
}

static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void *value,
                          size_t bytes) {
    return cublasLtMatmulDescSetAttribute(desc, name, value, bytes);
}

// Sets what changes from call to call.
static cublasStatus_t set_pointers(struct matmul_plan *p, const struct matmul_args *m) {
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    const void *bias = bias_of(m);
    if (bias) e = set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (!e && m->aux) e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &m->aux, sizeof m->aux);
    return e;
}

static cublasLtEpilogue_t epilogue_of(const struct matmul_args *m) {
    if (m->epilogue == EPILOGUE_GELU_GRAD) return CUBLASLT_EPILOGUE_DGELU;
    if (m->epilogue == EPILOGUE_BIAS_GRAD) return CUBLASLT_EPILOGUE_BGRADB;
    if (m->epilogue == EPILOGUE_GELU)
        return m->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return m->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t describe(struct matmul_plan *p, const struct matmul_args *m) {
    struct matmul_layout l = matmul_layout_of(m);
    cudaDataType_t type = m->dt == DT_F32 ? CUDA_R_32F : m->dt == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    cublasOperation_t a = l.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N,
                      b = l.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(m);
    cublasStatus_t e = cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!e && bias_of(m)) e = set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (!e && m->aux) e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &l.d.ld, sizeof l.d.ld);
    if (!e) e = set_pointers(p, m);  // the heuristic reads their alignment
    if (!e) e = cublasLtMatrixLayoutCreate(&p->a, type, l.a.rows, l.a.columns, l.a.ld);
    if (!e) e = cublasLtMatrixLayoutCreate(&p->b, type, l.b.rows, l.b.columns, l.b.ld);
    if (!e) e = cublasLtMatrixLayoutCreate(&p->d, type, l.d.rows, l.d.columns, l.d.ld);
    return e;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t q, const struct matmul_key *k) {
    size_t workspace = MATMUL_WORKSPACE_BYTES;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->a_align, sizeof k->a_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->b_align, sizeof k->b_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->c_align, sizeof k->c_align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->c_align, sizeof k->c_align},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        cublasStatus_t e =
            cublasLtMatmulPreferenceSetAttribute(q, wishes[i].name, wishes[i].value, wishes[i].bytes);
        if (e) return e;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// Takes the algorithm that the library's heuristic names first, and its workspace size.
static cublasStatus_t choose(struct cuda_device *d, struct matmul_plan *p) {
    cublasLtMatmulPreference_t q;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t e = cublasLtMatmulPreferenceCreate(&q);
    if (e) return e;
    e = prefer(q, &p->key);
    if (!e)
        e = cublasLtMatmulAlgoGetHeuristic(d->blas, p->desc, p->a, p->b, p->d, p->d, q, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(q);
    if (!e && count == 0) e = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!e) e = found.state;
    if (e) return e;
    p->algo = found.algo;
    p->workspace_bytes = found.workspaceSize;
    return CUBLAS_STATUS_SUCCESS;
}

// Returns the plan for the arguments, a new one at their first use. Returns NULL if there is none; *e: why.
static struct matmul_plan *matmul_plan_of(struct cuda_device *d, const struct matmul_args *m,
                                          cublasStatus_t *e) {
    struct matmul_key key = key_of(m);
    for (struct matmul_plan *p = d->matmuls; p; p = p->next)
        if (memcmp(&p->key, &key, sizeof key) == 0) return p;
    struct matmul_plan *p = calloc(1, sizeof *p);
    *e = CUBLAS_STATUS_ALLOC_FAILED;
    if (!p) return NULL;
    p->key = key;
    *e = describe(p, m);
    if (!*e) *e = choose(d, p);
    if ((m->epilogue != EPILOGUE_NONE || m->bias) &&
        (*e == CUBLAS_STATUS_NOT_SUPPORTED || *e == CUBLAS_STATUS_INVALID_VALUE)) {
        p->absent = *e;
        *e = CUBLAS_STATUS_SUCCESS;
    }
    if (*e) {
        plan_free(p);
        return NULL;
    }
    p->next = d->matmuls;
    d->matmuls = p;
    return p;
}

#define SHAPE_TEXT 160

static const char *shape_of(char text[SHAPE_TEXT], const struct matmul_args *m) {
    snprintf(text, SHAPE_TEXT, "M %lld, N %lld, K %lld, %s%s%s", (long long)m->m, (long long)m->n,
             (long long)m->k, dtype_name(m->dt), m->trans_a ? ", a transposed" : "",
             m->trans_b ? ", b transposed" : "");
    return text;
}

// ---------------------------------------------------------------- the product

enum outcome { RUN_DONE, RUN_ABSENT, RUN_FAILED };

// Computes the product with its epilogue in one call of the library. RUN_ABSENT: the library does not support
// the epilogue at this shape; *status receives its constant text. RUN_FAILED: ctx.why is set. The plan's
// description contains the pointers of the call, so only one call at a time uses it.
static enum outcome run(struct cuda_stream *s, const struct matmul_args *m, const char **status) {
    struct cuda_device *d = cuda_device_of(s);
    void *workspace = cuda_workspace(s, MATMUL_WORKSPACE_BYTES);
    if (!workspace) {
        s->ctx.why = "no memory for cuBLASLt's workspace";
        return RUN_FAILED;
    }
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    const float one = 1, zero = 0;
    pthread_mutex_lock(&d->matmul_lock);
    struct matmul_plan *p = matmul_plan_of(d, m, &e);
    bool absent = p && p->absent;
    if (absent) *status = cublasLtGetStatusString(p->absent);
    if (p && !absent) e = set_pointers(p, m);
    if (p && !absent && !e)
        e = cublasLtMatmul(d->blas, p->desc, &one, m->b, p->a, m->a, p->b, m->accumulate ? &one : &zero, m->c,
                           p->d, m->c, p->d, &p->algo, workspace, p->workspace_bytes, s->stream);
    pthread_mutex_unlock(&d->matmul_lock);
    if (absent) return RUN_ABSENT;
    if (!e) return RUN_DONE;
    char shape[SHAPE_TEXT];
    snprintf(s->why, sizeof s->why, "%s %s: %s", p ? "cuBLASLt's product" : "cuBLASLt has no algorithm for",
             shape_of(shape, m), cublasLtGetStatusString(e));
    s->ctx.why = s->why;
    return RUN_FAILED;
}

// ---------------------------------------------------------------- choices and notes

static void record_used(atomic_uint *what, unsigned by) {
    atomic_fetch_or_explicit(what, by, memory_order_relaxed);
}

// Once per shape, because the device stores equal notes once.
static void report(struct cuda_stream *s, const struct matmul_args *m, const char *epilogue,
                   const char *status) {
    char shape[SHAPE_TEXT];
    device_note(
        s->queue.head.dev, DEV_NOTE_WARNING,
        "product %s: cuBLASLt has no algorithm with %s in its epilogue (%s); a kernel of our own does "
        "it apart, one more pass over memory",
        shape_of(shape, m), epilogue, status);
}

// ---------------------------------------------------------------- a bias

// If the library cannot add the bias, c is filled with it and the product accumulates: the same sum, rounded
// once.
static int biased(struct cuda_stream *s, const struct matmul_args *m) {
    const char *status = "";
    enum outcome o = run(s, m, &status);
    if (o != RUN_ABSENT) return o == RUN_DONE ? 0 : -1;
    struct matmul_args product = *m;
    report(s, m, "the bias", status);
    product.bias = NULL;
    product.accumulate = true;
    if (cuda_op_bias_rows(&s->ctx, m) != 0) return -1;
    return run(s, &product, &status) == RUN_DONE ? 0 : -1;
}

// ---------------------------------------------------------------- GELU

// auto: fused for 16-bit types on compute capability 9 to 11. A fused GELU saves passes over (M,N): on an H100
// 2.2 of 64.2 ms per step of gpt2-124m (`bench step` with --set cuda.gelu=fused and =apart). Others report:
// before 9 the library runs a slow kernel of its own after the product (llm.c's pull requests 338 and 591:
// slower on an RTX 4090). For an H100 llm.c's pull request 653 made the fusion of both directions the default,
// but disabled it before the merge, "for now" and without a figure (commits 0f11a4e, 00247dc). gelu_fusion is
// still 0 in its train_gpt2.cu. On 12 the library's fused kernel is slower than two kernels (SGLang's pull
// request 34350).
static bool fuses(const struct cuda_device *d, const struct matmul_args *m) {
    if (d->wanted.gelu != CUDA_GELU_AUTO) return d->wanted.gelu == CUDA_GELU_FUSED;
    return m->dt != DT_F32 && d->sm_version >= 90 && d->sm_version < 120;
}

// Computes the product and then GELU with a kernel of our own, as the host backends do.
static int gelu_separate(struct cuda_stream *s, const struct matmul_args *m) {
    bool forward = m->epilogue == EPILOGUE_GELU;
    struct matmul_args product = *m;
    struct gelu_args gelu = matmul_gelu(m);
    product.epilogue = EPILOGUE_NONE;
    product.aux = NULL;
    if (forward) product.c = m->aux;
    record_used(&cuda_device_of(s)->used.gelu, DEVICE_BY_OWN);
    if (biased(s, &product) != 0) return -1;
    return forward ? cuda_op_gelu_fwd(&s->ctx, &gelu) : cuda_op_gelu_bwd(&s->ctx, &gelu);
}

static int gelu(struct cuda_stream *s, const struct matmul_args *m) {
    struct cuda_device *d = cuda_device_of(s);
    const char *status = "rows of N elements that are no multiple of 8";
    if (!fuses(d, m)) return gelu_separate(s, m);
    enum outcome o = m->n % 8 == 0 ? run(s, m, &status) : RUN_ABSENT;
    if (o == RUN_ABSENT) {
        report(s, m, m->epilogue == EPILOGUE_GELU ? "GELU" : "GELU's gradient", status);
        return gelu_separate(s, m);
    }
    record_used(&d->used.gelu, DEVICE_BY_LIBRARY);
    return o == RUN_DONE ? 0 : -1;
}

// ---------------------------------------------------------------- a bias gradient

static int bias_grad_apart(struct cuda_stream *s, const struct matmul_args *m) {
    struct matmul_args product = *m;
    struct bias_grad_args sums = matmul_bias_grad(m);
    const char *status = "";
    product.epilogue = EPILOGUE_NONE;
    product.bias_grad = NULL;
    record_used(&cuda_device_of(s)->used.bias_grad, DEVICE_BY_OWN);
    if (run(s, &product, &status) != RUN_DONE) return -1;
    return cuda_op_bias_grad(&s->ctx, &sums);
}

// auto: our own kernel, which reads dy once more (2 R N bytes). The epilogue takes 0.7 ms more per step of 61.8
// ms (gpt2-124m on an H100, `bench step --set cuda.bias_grad=epilogue`). The epilogue overwrites, so
// accumulating sums always use our own kernel.
static int bias_grad(struct cuda_stream *s, const struct matmul_args *m) {
    const char *status = "";
    if (cuda_choices_of(s)->bias_grad != CUDA_BIAS_GRAD_EPILOGUE) return bias_grad_apart(s, m);
    if (m->accumulate) {
        device_note(s->queue.head.dev, DEV_NOTE_FACT,
                    "cuda.bias_grad epilogue: cuBLASLt's epilogue overwrites, so gradients that accumulate "
                    "(gradient_accumulation_steps) take our own kernel");
        return bias_grad_apart(s, m);
    }
    enum outcome o = run(s, m, &status);
    if (o == RUN_ABSENT) {
        report(s, m, "the bias gradient", status);
        return bias_grad_apart(s, m);
    }
    record_used(&cuda_device_of(s)->used.bias_grad, DEVICE_BY_LIBRARY);
    return o == RUN_DONE ? 0 : -1;
}

int cuda_matmul(struct cuda_stream *s, const struct matmul_args *m) {
    assert(matmul_valid(m));
    assert(m->dt == DT_F32 || m->dt == DT_BF16 || m->dt == DT_F16);
    switch (m->epilogue) {
        case EPILOGUE_GELU:
        case EPILOGUE_GELU_GRAD:
            return gelu(s, m);
        case EPILOGUE_BIAS_GRAD:
            return bias_grad(s, m);
        case EPILOGUE_NONE:
            break;
    }
    return biased(s, m);
}
