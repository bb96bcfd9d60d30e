// Matrix products through cuBLASLt: fp32 accumulation, in fp32 without TF32, bias and GELU in the epilogue,
// accumulation with beta = 1. The library's heuristic is asked once a shape.
//
// Bits    Reductions of a split K are allowed in fp32 in the workspace only, added in a separate step: no
//         atomics, no 16-bit partial sums. The same shape takes the same algorithm wherever it is called
//         from: the first that the heuristic names, no timing decides.
//
// Plans   A model has about 25 shapes (GPT-2: 5 products forward, 10 backward, those of the logits twice when
//         the last chunk is shorter, weight gradients twice when they accumulate), so a list will do: most
//         comparisons end at the first number, all of them together are under a microsecond, a launch is
//         several. The lock is a device's own, and a rank has its own device.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cuda_impl.h"
#include "kernels/cuda/host/matmul_layout.h"

#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)  // what cuBLAS takes by itself on compute capability 9.0

// Compared as bytes: made with memset, so that padding is equal too.
struct matmul_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t a_align, b_align, c_align;  // bytes
    uint32_t bias_align, aux_align;      // 0: there is none
    uint8_t trans_a, trans_b, accumulate, epilogue, dt;
};

struct matmul_plan {
    struct matmul_plan *next;
    struct matmul_key key;
    bool absent;  // the library does not do the epilogue for this shape: nothing below is set
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

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
    k.bias_align = m->bias ? matmul_alignment(m->bias) : 0;
    k.aux_align = m->aux ? matmul_alignment(m->aux) : 0;
    k.trans_a = m->trans_a;
    k.trans_b = m->trans_b;
    k.accumulate = m->accumulate;
    k.epilogue = (uint8_t)m->epilogue;
    k.dt = (uint8_t)m->dt;
    return k;
}

static cudaDataType_t type_of(enum dtype dt) {
    return dt == DT_F32 ? CUDA_R_32F : dt == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
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

// What changes from call to call.
static cublasStatus_t set_pointers(struct matmul_plan *p, const struct matmul_args *m) {
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    if (m->bias) e = set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &m->bias, sizeof m->bias);
    if (!e && m->aux) e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &m->aux, sizeof m->aux);
    return e;
}

static cublasLtEpilogue_t epilogue_of(const struct matmul_args *m) {
    if (m->epilogue == EPILOGUE_GELU_GRAD) return CUBLASLT_EPILOGUE_DGELU;
    if (m->epilogue == EPILOGUE_GELU)
        return m->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return m->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t describe(struct matmul_plan *p, const struct matmul_args *m) {
    struct matmul_layout l = matmul_layout_of(m);
    cudaDataType_t type = type_of(m->dt);
    cublasOperation_t a = l.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N,
                      b = l.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(m);
    cublasStatus_t e = cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!e && m->bias) e = set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    if (!e && m->aux) e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &l.d.ld, sizeof l.d.ld);
    if (!e) e = set_pointers(p, m);  // the heuristic looks at their alignment
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
    if (!e) {
        p->algo = found.algo;
        p->workspace_bytes = found.workspaceSize;
    }
    return e;
}

// With the lock held. NULL with *e set.
static struct matmul_plan *plan_of(struct cuda_device *d, const struct matmul_args *m, cublasStatus_t *e) {
    struct matmul_key key = key_of(m);
    for (struct matmul_plan *p = d->matmuls; p; p = p->next)
        if (memcmp(&p->key, &key, sizeof key) == 0) return p;
    struct matmul_plan *p = calloc(1, sizeof *p);
    *e = CUBLAS_STATUS_ALLOC_FAILED;
    if (!p) return NULL;
    p->key = key;
    *e = describe(p, m);
    if (!*e) *e = choose(d, p);
    if (m->epilogue != EPILOGUE_NONE &&
        (*e == CUBLAS_STATUS_NOT_SUPPORTED || *e == CUBLAS_STATUS_INVALID_VALUE)) {
        p->absent = true;
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

// ---------------------------------------------------------------- the operation

enum outcome { RUN_DONE, RUN_ABSENT, RUN_FAILED };

// The plan's description carries the pointers of the call, so one call at a time uses it.
static enum outcome run(struct cuda_stream *s, const struct matmul_args *m) {
    struct cuda_device *d = cuda_device_of(&s->head);
    const float one = 1, zero = 0;
    void *workspace = cuda_workspace(s, MATMUL_WORKSPACE_BYTES);
    if (!workspace) {
        s->ctx.why = "no memory for cuBLASLt's workspace";
        return RUN_FAILED;
    }
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    pthread_mutex_lock(&d->matmul_lock);
    struct matmul_plan *p = plan_of(d, m, &e);
    bool absent = p && p->absent;
    if (p && !absent) e = set_pointers(p, m);
    if (p && !absent && !e)
        e = cublasLtMatmul(d->blas, p->desc, &one, m->b, p->a, m->a, p->b, m->accumulate ? &one : &zero, m->c,
                           p->d, m->c, p->d, &p->algo, workspace, p->workspace_bytes, s->stream);
    pthread_mutex_unlock(&d->matmul_lock);
    if (absent) return RUN_ABSENT;
    if (!e) return RUN_DONE;
    s->ctx.why = p ? cublasLtGetStatusString(e) : "cuBLASLt has no algorithm for this shape";
    return RUN_FAILED;
}

// Where a GELU epilogue pays: 16 bits on compute capability 9 to 11. Before 9 the library puts a slow kernel
// of its own behind the product (llm.c's pull requests 338, 591 and 653: slower on an RTX 4090, faster in
// both directions on an H100), and on 12 its fused kernel loses against two (SGLang's pull request 34350).
// The library's rows of aux are multiples of 8 elements.
static bool fuses(const struct cuda_device *d, const struct matmul_args *m) {
    return m->dt != DT_F32 && m->n % 8 == 0 && d->sm_version >= 90 && d->sm_version < 120;
}

// The product, then our own GELU: as on the host backends.
static int run_apart(struct cuda_stream *s, const struct matmul_args *m) {
    bool forward = m->epilogue == EPILOGUE_GELU;
    struct matmul_args product = *m;
    struct gelu_args gelu = {.y = m->c, .x = m->aux, .dy = m->c, .n = m->m * m->n, .dt = m->dt};
    product.epilogue = EPILOGUE_NONE;
    product.aux = NULL;
    if (forward) product.c = m->aux;
    if (run(s, &product) != RUN_DONE) return -1;
    return forward ? cuda_op_gelu_fwd(&s->ctx, &gelu) : cuda_op_gelu_bwd(&s->ctx, &gelu);
}

int cuda_matmul(struct cuda_stream *s, const struct matmul_args *m) {
    assert(matmul_valid(m));
    assert(m->dt == DT_F32 || m->dt == DT_BF16 || m->dt == DT_F16);
    if (m->epilogue != EPILOGUE_NONE && !fuses(cuda_device_of(&s->head), m)) return run_apart(s, m);
    enum outcome o = run(s, m);
    return o == RUN_ABSENT ? run_apart(s, m) : o == RUN_DONE ? 0 : -1;
}
