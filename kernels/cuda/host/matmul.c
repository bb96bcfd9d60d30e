// Matrix products through cuBLASLt: fp32 accumulation, in fp32 without TF32, bias in the epilogue,
// accumulation with beta = 1. The library's heuristic is asked once a shape.
//
// Bits    Reductions of a split K are allowed in fp32 in the workspace only, added in a separate step: no
//         atomics, no 16-bit partial sums. The same shape takes the same algorithm wherever it is called
//         from.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cuda_impl.h"
#include "kernels/cuda/host/matmul_layout.h"

#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)

// Compared as bytes: made with memset, so that padding is equal too.
struct matmul_key {
    int64_t m, n, k;
    uint32_t a_align, b_align, c_align, bias_align;  // bytes; bias_align 0: no bias
    uint8_t trans_a, trans_b, accumulate, dt;
};

struct matmul_plan {
    struct matmul_plan *next;
    struct matmul_key key;
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
    k.a_align = matmul_alignment(m->b);  // the library's A is our b
    k.b_align = matmul_alignment(m->a);
    k.c_align = matmul_alignment(m->c);
    k.bias_align = m->bias ? matmul_alignment(m->bias) : 0;
    k.trans_a = m->trans_a;
    k.trans_b = m->trans_b;
    k.accumulate = m->accumulate;
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

static cublasStatus_t set_bias(struct matmul_plan *p, const void *bias) {
    return set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static cublasStatus_t describe(struct matmul_plan *p, const struct matmul_args *m) {
    struct matmul_layout l = matmul_layout_of(m);
    cudaDataType_t type = type_of(m->dt);
    cublasOperation_t a = l.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N,
                      b = l.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t e = cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (!e && m->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
        if (!e) e = set_bias(p, m->bias);
    }
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
    if (*e) {
        plan_free(p);
        return NULL;
    }
    p->next = d->matmuls;
    d->matmuls = p;
    return p;
}

// ---------------------------------------------------------------- the operation

// The plan's description carries the bias pointer of the call, so one call at a time uses it.
int cuda_matmul(struct cuda_stream *s, const struct matmul_args *m) {
    struct cuda_device *d = cuda_device_of(&s->head);
    const float one = 1, zero = 0;
    assert(m->m > 0 && m->n > 0 && m->k > 0 && !(m->bias && m->accumulate));
    assert(m->dt == DT_F32 || m->dt == DT_BF16 || m->dt == DT_F16);
    void *workspace = cuda_workspace(s, MATMUL_WORKSPACE_BYTES);
    if (!workspace) {
        s->ctx.why = "no memory for cuBLASLt's workspace";
        return -1;
    }
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    pthread_mutex_lock(&d->matmul_lock);
    struct matmul_plan *p = plan_of(d, m, &e);
    if (p && m->bias) e = set_bias(p, m->bias);
    if (p && !e)
        e = cublasLtMatmul(d->blas, p->desc, &one, m->b, p->a, m->a, p->b, m->accumulate ? &one : &zero, m->c,
                           p->d, m->c, p->d, &p->algo, workspace, p->workspace_bytes, s->stream);
    pthread_mutex_unlock(&d->matmul_lock);
    if (!e) return 0;
    s->ctx.why = p ? cublasLtGetStatusString(e) : "cuBLASLt has no algorithm for this shape";
    return -1;
}
