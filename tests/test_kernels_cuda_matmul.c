// What the CUDA backend asks of cuBLASLt - leading dimensions, epilogues, the pointers of each call - and
// when it takes our own GELU instead, on a library that only takes notes. (Numbers are tests/emulation's to
// check.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/host/matmul.c"
#include "kernels/cuda/host/matmul_plan.c"

// ---------------------------------------------------------------- the library that takes notes
struct description {
    uint32_t epilogue;
    int32_t bias_type;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};

static struct {
    bool no_epilogues;       // the heuristic has nothing for GELU ..
    cublasStatus_t refusal;  // .. and says so: an empty answer, or this
    bool no_workspace;
    // Of algorithms that were chosen: what the library's check says, what they want, how they add.
    cublasStatus_t check;
    size_t chosen_bytes;
    uint32_t scheme;
    int checks;
    int live, heuristics, products;
    // Of the last product:
    struct description how;
    int64_t lda, ldb, ldd;
    const void *a, *b;
    void *d;
    float beta;
    uint64_t algo;  // its first word; the heuristic's is 0
    size_t workspace_bytes;
    // Of the last GELU:
    int forwards, backwards;
    struct gelu_args gelu;
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
    assert_true(!(is->epilogue & CUBLASLT_EPILOGUE_BIAS) || is->bias);
    assert_true(gelu == (is->aux != NULL));
    *count = gelu && notes.no_epilogues ? 0 : 1;
    memset(&found[0], 0, sizeof found[0]);
    return *count ? CUBLAS_STATUS_SUCCESS : notes.refusal;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
    (void)h, (void)how, (void)a, (void)b, (void)c, (void)d;
    assert_true(algo->data[0] != 0);
    notes.checks++;
    result->workspaceSize = notes.chosen_bytes;
    return notes.check;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t which, void *value,
                                                    size_t bytes, size_t *written) {
    (void)algo;
    assert_true(which == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME && bytes == sizeof notes.scheme);
    memcpy(value, &notes.scheme, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t how, const void *alpha, const void *pa,
                              cublasLtMatrixLayout_t a, const void *pb, cublasLtMatrixLayout_t b,
                              const void *beta, const void *pc, cublasLtMatrixLayout_t c, void *pd,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s) {
    (void)h, (void)workspace, (void)s;
    notes.algo = algo->data[0];
    notes.workspace_bytes = workspace_bytes;
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
const char *cublasLtGetStatusString(cublasStatus_t e) { return e ? "a status" : "success"; }

void *cuda_workspace(struct cuda_stream *s, size_t bytes) {
    static char some;
    (void)s;
    assert_true(bytes >= (size_t)32 << 20);
    return notes.no_workspace ? NULL : &some;
}
int cuda_op_gelu_fwd(struct cuda_ctx *ctx, const void *args) {
    (void)ctx;
    notes.forwards++;
    notes.gelu = *(const struct gelu_args *)args;
    return 0;
}
int cuda_op_gelu_bwd(struct cuda_ctx *ctx, const void *args) {
    (void)ctx;
    notes.backwards++;
    notes.gelu = *(const struct gelu_args *)args;
    return 0;
}

// ---------------------------------------------------------------- the tests
struct rig {
    struct cuda_device d;
    struct cuda_stream s;
};
// Nothing reads or writes here: addresses, each at a multiple of 16.
static _Alignas(16) char memory[5][16];
#define C    ((void *)memory[0])
#define A    ((void *)memory[1])
#define B    ((void *)memory[2])
#define BIAS ((void *)memory[3])
#define AUX  ((void *)memory[4])

static int open_rig(void **state) {
    struct rig *r = calloc(1, sizeof *r);
    memset(&notes, 0, sizeof notes);
    device_init(&r->d.head, &cpu_backend, NULL);
    pthread_mutex_init(&r->d.matmul_lock, NULL);
    r->d.sm_version = 90;
    r->s.head.dev = &r->d.head;
    *state = r;
    return 0;
}
static int close_rig(void **state) {
    struct rig *r = *state;
    cuda_matmuls_free(&r->d);
    pthread_mutex_destroy(&r->d.matmul_lock);
    device_fini(&r->d.head);
    free(r);
    return notes.live == 0 ? 0 : -1;
}

// The up projection of a GPT-2 block and its backward.
static struct matmul_args forward_of(enum dtype dt) {
    return (struct matmul_args){.c = C,
                                .a = A,
                                .b = B,
                                .bias = BIAS,
                                .aux = AUX,
                                .m = 10,
                                .n = 64,
                                .k = 24,
                                .trans_b = true,
                                .epilogue = EPILOGUE_GELU,
                                .dt = dt};
}
static struct matmul_args backward_of(enum dtype dt) {
    return (struct matmul_args){.c = C,
                                .a = A,
                                .b = B,
                                .aux = AUX,
                                .m = 10,
                                .n = 64,
                                .k = 24,
                                .epilogue = EPILOGUE_GELU_GRAD,
                                .dt = dt};
}

static void gelu_goes_with_the_product(void **state) {
    struct rig *r = *state;
    struct matmul_args f = forward_of(DT_BF16), b = backward_of(DT_F16);
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    assert_true(notes.how.aux == AUX && notes.how.aux_ld == 64 && notes.d == C);
    assert_true(notes.how.bias == BIAS && notes.how.bias_type == CUDA_R_16BF);
    f.bias = NULL;
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_GELU_AUX);
    assert_int_equal(cuda_matmul(&r->s, &b), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_DGELU);
    assert_true(notes.how.aux == AUX && notes.how.aux_ld == 64 && notes.d == C && !notes.how.bias);
    b = f;  // the same shape in the other direction
    b.epilogue = EPILOGUE_GELU_GRAD;
    assert_int_equal(cuda_matmul(&r->s, &b), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_DGELU);
    assert_int_equal(notes.products, 4);
    assert_int_equal(notes.forwards + notes.backwards, 0);
}

static void expect_apart(struct rig *r, enum dtype dt) {
    struct matmul_args f = forward_of(dt), b = backward_of(dt);
    int products = notes.products, forwards = notes.forwards, backwards = notes.backwards;
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_BIAS);
    assert_true(notes.d == AUX && notes.how.bias == BIAS && !notes.how.aux);
    assert_int_equal(notes.forwards, forwards + 1);
    assert_true(notes.gelu.y == C && notes.gelu.x == AUX && notes.gelu.n == 640 && notes.gelu.dt == dt);
    assert_int_equal(cuda_matmul(&r->s, &b), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_DEFAULT);
    assert_true(notes.d == C && !notes.how.aux);
    assert_int_equal(notes.backwards, backwards + 1);
    assert_true(notes.gelu.y == C && notes.gelu.dy == C && notes.gelu.x == AUX && notes.gelu.n == 640);
    assert_int_equal(notes.products, products + 2);
}

// fp32, and devices where the library's fused kernels are slower than two.
static void gelu_apart_where_it_is_faster(void **state) {
    struct rig *r = *state;
    expect_apart(r, DT_F32);
    r->d.sm_version = 80;
    expect_apart(r, DT_BF16);
    r->d.sm_version = 120;
    expect_apart(r, DT_F16);
}

// Decided once a shape: the library is not asked again.
static void gelu_apart_where_the_library_has_none(void **state) {
    struct rig *r = *state;
    static const cublasStatus_t refusals[] = {CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED,
                                              CUBLAS_STATUS_INVALID_VALUE};
    notes.no_epilogues = true;
    for (int i = 0; i < 3; i++) {
        notes.refusal = refusals[i];
        expect_apart(r, DT_BF16);
        int asked = notes.heuristics;
        assert_int_equal(asked, 4 * (i + 1));
        expect_apart(r, DT_BF16);
        assert_int_equal(notes.heuristics, asked);
        cuda_matmuls_free(&r->d);
    }
}

static void rows_that_are_no_multiples_of_8_go_apart(void **state) {
    struct rig *r = *state;
    struct matmul_args f = forward_of(DT_BF16);
    f.n = 63;
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.forwards, 1);
}

static void leading_dimensions_arrive(void **state) {
    struct rig *r = *state;
    struct matmul_args g = {
        .c = C, .a = A, .b = B, .m = 10, .n = 64, .k = 24, .trans_a = true, .dt = DT_BF16};
    assert_int_equal(cuda_matmul(&r->s, &g), 0);
    assert_true(notes.a == B && notes.b == A && notes.lda == 64 && notes.ldb == 10 && notes.ldd == 64);
    g.lda = 16;
    assert_int_equal(cuda_matmul(&r->s, &g), 0);
    assert_true(notes.lda == 64 && notes.ldb == 16 && notes.ldd == 64);
    g.ldb = 72;
    assert_int_equal(cuda_matmul(&r->s, &g), 0);
    assert_true(notes.lda == 72 && notes.ldb == 16 && notes.ldd == 64);
    g.ldc = 80;
    assert_int_equal(cuda_matmul(&r->s, &g), 0);
    assert_true(notes.lda == 72 && notes.ldb == 16 && notes.ldd == 80 && notes.beta == 0);
    g.accumulate = true;
    assert_int_equal(cuda_matmul(&r->s, &g), 0);
    assert_true(notes.ldd == 80 && notes.beta == 1);
    assert_int_equal(notes.heuristics, 5);
}

// One plan serves all buffers of a shape, with the pointers of each call.
static void pointers_are_the_calls(void **state) {
    struct rig *r = *state;
    struct matmul_args f = forward_of(DT_BF16);
    char other[2][32], *at[2];
    for (int i = 0; i < 2; i++) at[i] = other[i] + (16 - (uintptr_t)other[i] % 16);
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    f.bias = at[0];
    f.aux = at[1];
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_true(notes.how.bias == at[0] && notes.how.aux == at[1]);
    assert_int_equal(notes.heuristics, 1);
    f.aux = at[1] + 2;  // another alignment is another shape
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.heuristics, 2);
}

static void no_memory_is_said(void **state) {
    struct rig *r = *state;
    struct matmul_args f = forward_of(DT_BF16);
    notes.no_workspace = true;
    assert_int_equal(cuda_matmul(&r->s, &f), -1);
    assert_non_null(strstr(r->s.ctx.why, "workspace"));
    f = forward_of(DT_F32);
    assert_int_equal(cuda_matmul(&r->s, &f), -1);
    assert_int_equal(notes.products + notes.forwards, 0);
}

// ---------------------------------------------------------------- choices

static struct product_choice choice_for(const struct matmul_args *m) {
    struct product_choice c = {.key = key_of(m), .algo = {{77}}};
    return c;
}

// A chosen algorithm runs where its key fits exactly, with the workspace that it wants; the heuristic is not
// asked. What nobody has chosen is the first heuristic's as ever.
static void chosen_algorithms_run(void **state) {
    struct rig *r = *state;
    struct matmul_args f = forward_of(DT_BF16), b = backward_of(DT_BF16);
    struct product_choice choices[] = {choice_for(&b), choice_for(&f)};
    struct product_use uses[3];
    choices[0].key.k++;
    notes.chosen_bytes = 4096;
    notes.scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    assert_int_equal(cuda_choose_products(&r->d.head, choices, 2), 0);
    memset(choices, 0, sizeof choices);  // the device has its copy
    for (int i = 0; i < 3; i++) assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_true(notes.algo == 77 && notes.workspace_bytes == 4096);
    assert_true(notes.checks == 1 && notes.heuristics == 0);
    assert_int_equal(cuda_matmul(&r->s, &b), 0);
    assert_true(notes.algo == 0 && notes.checks == 1 && notes.heuristics == 1);
    assert_int_equal(cuda_products(&r->d.head, uses, 3), 2);
    assert_true(uses[0].source == PRODUCT_CHOSEN && uses[0].calls == 3 && uses[0].key.trans_b);
    assert_true(uses[1].source == PRODUCT_FIRST && uses[1].calls == 1 && !uses[1].key.trans_b);
    assert_int_equal(cuda_products(&r->d.head, uses, 1), 2);
    assert_int_equal(dev_notes(&r->d.head), 0);
}

// What may not run is replaced by the first heuristic, and said.
static void refused_choices_are_said(void **state) {
    struct rig *r = *state;
    static const struct {
        cublasStatus_t check;
        size_t bytes;
        uint32_t scheme;
        const char *why;
    } cases[] = {
        {CUBLAS_STATUS_NOT_SUPPORTED, 0, CUBLASLT_REDUCTION_SCHEME_NONE, "a status"},
        {CUBLAS_STATUS_SUCCESS, ((size_t)32 << 20) + 1, CUBLASLT_REDUCTION_SCHEME_NONE, "more workspace"},
        {CUBLAS_STATUS_SUCCESS, 0, CUBLASLT_REDUCTION_SCHEME_INPLACE, "adds partial sums"},
        {CUBLAS_STATUS_SUCCESS, 0, CUBLASLT_REDUCTION_SCHEME_MASK & ~3u, "adds partial sums"},
    };
    for (int i = 0; i < 4; i++) {
        struct matmul_args f = forward_of(DT_BF16);
        struct product_choice choice = choice_for(&f);
        struct product_use use;
        enum dev_note_kind kind;
        notes.check = cases[i].check;
        notes.chosen_bytes = cases[i].bytes;
        notes.scheme = cases[i].scheme;
        assert_int_equal(cuda_choose_products(&r->d.head, &choice, 1), 0);
        assert_int_equal(cuda_matmul(&r->s, &f), 0);
        assert_true(notes.algo == 0 && notes.workspace_bytes == 0 && notes.heuristics == i + 1);
        assert_int_equal(cuda_products(&r->d.head, &use, 1), 1);
        assert_int_equal(use.source, PRODUCT_REFUSED);
        assert_true(dev_notes(&r->d.head) > 0);
        const char *said = dev_note(&r->d.head, dev_notes(&r->d.head) - 1, &kind);
        assert_true(kind == DEV_NOTE_WARNING);
        if (!strstr(said, "m 10, n 64, k 24, b transposed, bf16") || !strstr(said, cases[i].why))
            fail_msg("%s: %s", cases[i].why, said);
        cuda_matmuls_free(&r->d);
    }
}

#define RIGGED(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void) {
    const struct CMUnitTest tests[] = {
        RIGGED(gelu_goes_with_the_product),
        RIGGED(gelu_apart_where_it_is_faster),
        RIGGED(gelu_apart_where_the_library_has_none),
        RIGGED(rows_that_are_no_multiples_of_8_go_apart),
        RIGGED(leading_dimensions_arrive),
        RIGGED(pointers_are_the_calls),
        RIGGED(no_memory_is_said),
        RIGGED(chosen_algorithms_run),
        RIGGED(refused_choices_are_said),
    };
    return cmocka_run_group_tests_name("kernels: matmul on cuBLASLt", tests, NULL, NULL);
}
