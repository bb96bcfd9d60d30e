// Matrix products through cuBLASLt: fp32 accumulation, in fp32 without TF32, bias and GELU in the epilogue,
// accumulation with beta = 1. matmul_plan.c has what is asked of the library.
#include <assert.h>

#include "kernels/cuda/host/matmul_plan.h"

// ---------------------------------------------------------------- the operation

enum outcome { RUN_DONE, RUN_ABSENT, RUN_FAILED };

// The plan's description carries the pointers of the call, so one call at a time uses it.
static enum outcome run(struct cuda_stream *s, const struct matmul_args *m) {
    struct cuda_device *d = cuda_device_of(&s->head);
    void *workspace = cuda_workspace(s, MATMUL_WORKSPACE_BYTES);
    if (!workspace) {
        s->ctx.why = "no memory for cuBLASLt's workspace";
        return RUN_FAILED;
    }
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    pthread_mutex_lock(&d->matmul_lock);
    struct matmul_plan *p = matmul_plan_of(d, m, &e);
    bool absent = p && p->source == PRODUCT_ABSENT;
    if (p) p->calls++;
    if (p && !absent) e = matmul_plan_run(d, p, m, &p->algo, workspace, p->workspace_bytes, s->stream);
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
