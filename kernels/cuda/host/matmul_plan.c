// A product's description for cuBLASLt, and which algorithm it takes: one that was chosen by measurement
// (dev_choose_products) or the first that the library's heuristic names. Asked once per shape.
//
// Bits    Reductions of a split K are allowed in fp32 in the workspace only, added in a separate step: no
//         atomics, no 16-bit partial sums. The same shape takes the same algorithm wherever it is called
//         from: nothing is timed here.
//
// Plans   A model has about 25 shapes (GPT-2: 5 products forward, 10 backward, those of the logits twice when
//         the last chunk is shorter, weight gradients twice when they accumulate; of whole documents for each of up to 16
//         lengths), so a list is fast enough: most comparisons end at the first number, and all of them together take under a
//         microsecond, a launch several. Each device has its own lock, and each rank its own device.
#include "kernels/cuda/host/matmul_plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/matmul_layout.h"

// The library's bias pointer: an input, or an output of BGRADB.
static const void *bias_of(const struct matmul_args *m) {
    return m->epilogue == EPILOGUE_BIAS_GRAD ? m->bias_grad : m->bias;
}

static struct product_key key_of(const struct matmul_args *m) {
    struct product_key k;
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
    free(d->choices);
    d->choices = NULL;
    d->choice_count = 0;
}

static cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void *value,
                          size_t bytes) {
    return cublasLtMatmulDescSetAttribute(desc, name, value, bytes);
}

// The part that changes from call to call.
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

static cublasStatus_t prefer(cublasLtMatmulPreference_t q, const struct product_key *k) {
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

cublasStatus_t matmul_plan_ask(struct cuda_device *d, const struct matmul_plan *p,
                               cublasLtMatmulHeuristicResult_t *found, int room, int *count) {
    cublasLtMatmulPreference_t q;
    *count = 0;
    cublasStatus_t e = cublasLtMatmulPreferenceCreate(&q);
    if (e) return e;
    e = prefer(q, &p->key);
    if (!e)
        e = cublasLtMatmulAlgoGetHeuristic(d->blas, p->desc, p->a, p->b, p->d, p->d, q, room, found, count);
    cublasLtMatmulPreferenceDestroy(q);
    return e;
}

// ---------------------------------------------------------------- the algorithm

static cublasStatus_t take_first(struct cuda_device *d, struct matmul_plan *p) {
    cublasLtMatmulHeuristicResult_t found;
    int count;
    cublasStatus_t e = matmul_plan_ask(d, p, &found, 1, &count);
    if (!e && count == 0) e = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!e) e = found.state;
    if (!e) {
        p->algo = found.algo;
        p->workspace_bytes = found.workspaceSize;
    }
    return e;
}

const char *matmul_algo_refused(const cublasLtMatmulAlgo_t *algo, size_t workspace_bytes) {
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t written = 0;
    if (workspace_bytes > MATMUL_WORKSPACE_BYTES) return "it wants more workspace than there is";
    if (cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                             sizeof scheme, &written) != CUBLAS_STATUS_SUCCESS)
        return "the library does not say how it adds";
    if (scheme != CUBLASLT_REDUCTION_SCHEME_NONE && scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        return "it adds partial sums in another way than in fp32 in the workspace";
    return NULL;
}

static const struct product_choice *choice_of(const struct cuda_device *d, const struct product_key *key) {
    for (int i = 0; i < d->choice_count; i++)
        if (memcmp(&d->choices[i].key, key, sizeof *key) == 0) return &d->choices[i];
    return NULL;
}

static void note_refused(struct cuda_device *d, const struct product_key *k, const char *why) {
    device_note(&d->head, DEV_NOTE_WARNING,
                "product (m %lld, n %lld, k %lld%s%s, %s): the algorithm that was chosen for it is refused "
                "(%s); the library's first one instead: measure again with `starring bench tune`",
                (long long)k->m, (long long)k->n, (long long)k->k, k->trans_a ? ", a transposed" : "",
                k->trans_b ? ", b transposed" : "", dtype_name((enum dtype)k->dt), why);
}

// The algorithm that was chosen for the plan, if there is one and it will run.
static void take_choice(struct cuda_device *d, struct matmul_plan *p) {
    const struct product_choice *c = choice_of(d, &p->key);
    cublasLtMatmulHeuristicResult_t checked;
    if (!c) return;
    _Static_assert(sizeof c->algo == sizeof p->algo, "the library's words");
    memset(&checked, 0, sizeof checked);
    memcpy(&p->algo, &c->algo, sizeof p->algo);
    cublasStatus_t e = cublasLtMatmulAlgoCheck(d->blas, p->desc, p->a, p->b, p->d, p->d, &p->algo, &checked);
    const char *why = e ? cublasLtGetStatusString(e) : matmul_algo_refused(&p->algo, checked.workspaceSize);
    p->workspace_bytes = checked.workspaceSize;
    p->source = why ? PRODUCT_REFUSED : PRODUCT_CHOSEN;
    if (why) note_refused(d, &p->key, why);
}

struct matmul_plan *matmul_plan_find(struct cuda_device *d, const struct product_key *key) {
    for (struct matmul_plan *p = d->matmuls; p; p = p->next)
        if (memcmp(&p->key, key, sizeof *key) == 0) return p;
    return NULL;
}

struct matmul_plan *matmul_plan_of(struct cuda_device *d, const struct matmul_args *m, cublasStatus_t *e) {
    struct product_key key = key_of(m);
    struct matmul_plan *p = matmul_plan_find(d, &key);
    if (p) return p;
    p = calloc(1, sizeof *p);
    *e = CUBLAS_STATUS_ALLOC_FAILED;
    if (!p) return NULL;
    p->key = key;
    *e = describe(p, m);
    if (!*e) take_choice(d, p);
    if (!*e && p->source != PRODUCT_CHOSEN) *e = take_first(d, p);
    if ((m->epilogue != EPILOGUE_NONE || m->bias) &&
        (*e == CUBLAS_STATUS_NOT_SUPPORTED || *e == CUBLAS_STATUS_INVALID_VALUE)) {
        p->source = PRODUCT_ABSENT;
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
                               const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                               cudaStream_t stream) {
    const float one = 1, zero = 0;
    cublasStatus_t e = set_pointers(p, m);
    if (e) return e;
    return cublasLtMatmul(d->blas, p->desc, &one, m->b, p->a, m->a, p->b, m->accumulate ? &one : &zero, m->c,
                          p->d, m->c, p->d, algo, workspace, workspace_bytes, stream);
}

// ---------------------------------------------------------------- what others ask of the list

int cuda_products(struct device *head, struct product_use *out, int room) {
    struct cuda_device *d = (struct cuda_device *)head;
    int count = 0, at = 0;
    pthread_mutex_lock(&d->matmul_lock);
    for (struct matmul_plan *p = d->matmuls; p; p = p->next) count++;
    for (struct matmul_plan *p = d->matmuls; p; p = p->next, at++)  // newest first
        if (count - 1 - at < room) out[count - 1 - at] = (struct product_use){p->key, p->source, p->calls};
    pthread_mutex_unlock(&d->matmul_lock);
    return count;
}

int cuda_choose_products(struct device *head, const struct product_choice *choices, int count) {
    struct cuda_device *d = (struct cuda_device *)head;
    assert(!d->matmuls && !d->choices && "chosen once, before the first product");
    if (count == 0) return 0;
    d->choices = calloc((size_t)count, sizeof *choices);
    if (!d->choices) return -1;
    memcpy(d->choices, choices, (size_t)count * sizeof *choices);
    d->choice_count = count;
    return 0;
}
