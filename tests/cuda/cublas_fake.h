// A cuBLASLt for tests that only takes notes of what it is asked, with the kernels of our own that may stand
// in for its epilogues. The includer has included the sources that call it, and cmocka. struct notes is what
// the tests turn and read.
#ifndef STARRING_TESTS_CUDA_CUBLAS_FAKE_H
#define STARRING_TESTS_CUDA_CUBLAS_FAKE_H

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cuda_impl.h"

struct description {
    uint32_t epilogue;
    int32_t bias_type;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};

static struct {
    bool no_epilogues;       // the heuristic has nothing for epilogues ..
    cublasStatus_t refusal;  // .. and says so: an empty answer, or this
    bool no_workspace, no_products;
    int live, heuristics, products;
    // The last product:
    struct description how;
    int64_t lda, ldb, ldd;
    const void *a, *b;
    void *d;
    float beta;
    // The last calls of our own kernels:
    int forwards, backwards, bias_grads, bias_rows;
    struct gelu_args gelu;
    struct bias_grad_args sums;
    const void *rows_of, *rows_bias;
} notes;

static void *noted(size_t bytes) {
    notes.live++;
    return calloc(1, bytes);
}
static cublasStatus_t dropped(void *p) {
    notes.live--;
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    assert_true(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F);
    struct description *d = noted(sizeof *d);
    d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d->bias_type = -1;
    *out = (cublasLtMatmulDesc_t)(void *)d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return dropped(d); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    struct description *d = (void *)desc;
    switch (name) {
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            assert_int_equal(bytes, sizeof d->epilogue);
            memcpy(&d->epilogue, value, bytes);
            break;
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
            assert_int_equal(bytes, sizeof d->bias);
            memcpy(&d->bias, value, bytes);
            break;
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
            assert_int_equal(bytes, sizeof d->bias_type);
            memcpy(&d->bias_type, value, bytes);
            break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
            assert_int_equal(bytes, sizeof d->aux);
            memcpy(&d->aux, value, bytes);
            break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
            assert_int_equal(bytes, sizeof d->aux_ld);
            memcpy(&d->aux_ld, value, bytes);
            break;
        default:
            assert_true(name == CUBLASLT_MATMUL_DESC_TRANSA || name == CUBLASLT_MATMUL_DESC_TRANSB);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    (void)type;
    assert_true(columns > 0 && ld >= (int64_t)rows);
    int64_t *m = noted(sizeof *m);
    *m = ld;
    *out = (cublasLtMatrixLayout_t)(void *)m;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t m) { return dropped(m); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = noted(1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return dropped(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes) {
    (void)p, (void)name, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t how,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t q, int wanted,
                                              cublasLtMatmulHeuristicResult_t found[], int *count) {
    (void)h, (void)a, (void)b, (void)c, (void)d, (void)q, (void)wanted;
    const struct description *is = (const void *)how;
    bool gelu = is->epilogue & CUBLASLT_EPILOGUE_GELU || is->epilogue == CUBLASLT_EPILOGUE_DGELU;
    notes.heuristics++;
    // The library looks at the pointers' alignment.
    assert_true(!(is->epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB)) || is->bias);
    assert_true(gelu == (is->aux != NULL));
    *count = notes.no_products || (is->epilogue != CUBLASLT_EPILOGUE_DEFAULT && notes.no_epilogues) ? 0 : 1;
    memset(&found[0], 0, sizeof found[0]);
    return *count ? CUBLAS_STATUS_SUCCESS : notes.refusal;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t how, const void *alpha, const void *pa,
                              cublasLtMatrixLayout_t a, const void *pb, cublasLtMatrixLayout_t b,
                              const void *beta, const void *pc, cublasLtMatrixLayout_t c, void *pd,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s) {
    (void)h, (void)algo, (void)workspace, (void)workspace_bytes, (void)s;
    assert_true(pc == pd && c == d && *(const float *)alpha == 1);
    notes.products++;
    memcpy(&notes.how, how, sizeof notes.how);
    memcpy(&notes.lda, a, sizeof notes.lda);
    memcpy(&notes.ldb, b, sizeof notes.ldb);
    memcpy(&notes.ldd, d, sizeof notes.ldd);
    memcpy(&notes.beta, beta, sizeof notes.beta);
    notes.a = pa;
    notes.b = pb;
    notes.d = pd;
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasLtGetStatusString(cublasStatus_t e) {
    return e == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : e ? "a status" : "success";
}

void *cuda_workspace(struct cuda_stream *s, size_t bytes) {
    static char some;
    (void)s;
    assert_true(bytes >= (size_t)32 << 20);
    return notes.no_workspace ? NULL : &some;
}
int cuda_op_gelu_fwd(struct cuda_ctx *ctx, const struct gelu_args *a) {
    (void)ctx;
    notes.forwards++;
    notes.gelu = *a;
    return 0;
}
int cuda_op_gelu_bwd(struct cuda_ctx *ctx, const struct gelu_args *a) {
    (void)ctx;
    notes.backwards++;
    notes.gelu = *a;
    return 0;
}

int cuda_op_bias_grad(struct cuda_ctx *ctx, const struct bias_grad_args *a) {
    (void)ctx;
    notes.bias_grads++;
    notes.sums = *a;
    return 0;
}
int cuda_op_bias_rows(struct cuda_ctx *ctx, const struct matmul_args *m) {
    (void)ctx;
    notes.bias_rows++;
    notes.rows_of = m->c;
    notes.rows_bias = m->bias;
    return 0;
}

#endif
