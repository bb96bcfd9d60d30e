// Matrix products by cuBLASLt: fp32 accumulation, in fp32 without TF32, accumulation into c with beta = 1.
// matmul_plan.c queries the library. This file decides what the library computes as the epilogue of a product,
// and what a kernel of our own computes after it. If a demanded epilogue (kernels/cuda_choices.h) is not
// supported by the library, our own kernel computes it and a note reports this.
#include <assert.h>
#include <stdio.h>

#include "kernels/cuda/host/matmul_plan.h"

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
    pthread_mutex_lock(&d->matmul_lock);
    struct matmul_plan *p = matmul_plan_of(d, m, &e);
    bool absent = p && p->absent;
    if (absent) *status = cublasLtGetStatusString(p->absent);
    if (p && !absent) e = matmul_plan_run(d, p, m, workspace, s->stream);
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

static void did(atomic_uint *what, unsigned by) { atomic_fetch_or_explicit(what, by, memory_order_relaxed); }

// Once per shape, because the device stores equal notes once.
static void tell(struct cuda_stream *s, const struct matmul_args *m, const char *epilogue,
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
    tell(s, m, "the bias", status);
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

// The product, then our own GELU, as on the host backends.
static int gelu_apart(struct cuda_stream *s, const struct matmul_args *m) {
    bool forward = m->epilogue == EPILOGUE_GELU;
    struct matmul_args product = *m;
    struct gelu_args gelu = matmul_gelu(m);
    product.epilogue = EPILOGUE_NONE;
    product.aux = NULL;
    if (forward) product.c = m->aux;
    did(&cuda_device_of(s)->did.gelu, DEVICE_BY_OWN);
    if (biased(s, &product) != 0) return -1;
    return forward ? cuda_op_gelu_fwd(&s->ctx, &gelu) : cuda_op_gelu_bwd(&s->ctx, &gelu);
}

static int gelu(struct cuda_stream *s, const struct matmul_args *m) {
    struct cuda_device *d = cuda_device_of(s);
    const char *status = "rows of N elements that are no multiple of 8";
    if (!fuses(d, m)) return gelu_apart(s, m);
    enum outcome o = m->n % 8 == 0 ? run(s, m, &status) : RUN_ABSENT;
    if (o == RUN_ABSENT) {
        tell(s, m, m->epilogue == EPILOGUE_GELU ? "GELU" : "GELU's gradient", status);
        return gelu_apart(s, m);
    }
    did(&d->did.gelu, DEVICE_BY_LIBRARY);
    return o == RUN_DONE ? 0 : -1;
}

// ---------------------------------------------------------------- a bias gradient

static int bias_grad_apart(struct cuda_stream *s, const struct matmul_args *m) {
    struct matmul_args product = *m;
    struct bias_grad_args sums = matmul_bias_grad(m);
    const char *status = "";
    product.epilogue = EPILOGUE_NONE;
    product.bias_grad = NULL;
    did(&cuda_device_of(s)->did.bias_grad, DEVICE_BY_OWN);
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
        tell(s, m, "the bias gradient", status);
        return bias_grad_apart(s, m);
    }
    did(&cuda_device_of(s)->did.bias_grad, DEVICE_BY_LIBRARY);
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
