// A product's description for cuBLASLt and its algorithm: the first that the library's heuristic names. The
// heuristic is called once per shape.
//
// Bits    A split K is reduced only in fp32 in the workspace, in a separate step: no atomics, no 16-bit partial
//         sums. A shape always gets the same algorithm, because nothing is timed here.
//
// Plans   A model has about 25 shapes (GPT-2: 5 products forward, 10 backward; those of the logits twice if the
//         last chunk is shorter, weight gradients twice if they accumulate; with whole documents, for each of
//         up to 16 lengths). So a list is fast enough: most comparisons end at the first number, and all
//         together take under a microsecond, while a launch takes several. Each device has its own lock, and
//         each rank its own device.
#include "kernels/cuda/host/matmul_plan.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/matmul_layout.h"

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
    cudaDataType_t type = type_of(m->dt);
    cublasOperation_t a = l.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N,
                      b = l.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(m);
    cublasStatus_t e = cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (!e) e = set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!e && bias_of(m)) e = set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
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

static struct matmul_plan *find(struct cuda_device *d, const struct matmul_key *key) {
    for (struct matmul_plan *p = d->matmuls; p; p = p->next)
        if (memcmp(&p->key, key, sizeof *key) == 0) return p;
    return NULL;
}

struct matmul_plan *matmul_plan_of(struct cuda_device *d, const struct matmul_args *m, cublasStatus_t *e) {
    struct matmul_key key = key_of(m);
    struct matmul_plan *p = find(d, &key);
    if (p) return p;
    p = calloc(1, sizeof *p);
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

cublasStatus_t matmul_plan_run(struct cuda_device *d, struct matmul_plan *p, const struct matmul_args *m,
                               void *workspace, cudaStream_t stream) {
    const float one = 1, zero = 0;
    cublasStatus_t e = set_pointers(p, m);
    if (e) return e;
    return cublasLtMatmul(d->blas, p->desc, &one, m->b, p->a, m->a, p->b, m->accumulate ? &one : &zero, m->c,
                          p->d, m->c, p->d, &p->algo, workspace, p->workspace_bytes, stream);
}
