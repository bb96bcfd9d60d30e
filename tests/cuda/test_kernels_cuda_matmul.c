// The requests of the CUDA backend to cuBLASLt - leading dimensions, epilogues, the pointers of each call - and
// when it uses our own kernels instead and reports it, on a library that only takes notes. (Numbers are
// tests/emulation's to check.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/host/matmul.c"

#include "tests/cuda/cublas_fake.h"

// ---------------------------------------------------------------- the tests
struct rig {
    struct cuda_device d;
    struct cuda_stream s;
};
// Nothing reads or writes here: addresses, each at a multiple of 16.
static _Alignas(16) char memory[6][16];
#define C    ((void *)memory[0])
#define A    ((void *)memory[1])
#define B    ((void *)memory[2])
#define BIAS ((void *)memory[3])
#define AUX  ((void *)memory[4])
#define GRAD ((void *)memory[5])

static int open_rig(void **state) {
    struct rig *r = calloc(1, sizeof *r);
    memset(&notes, 0, sizeof notes);
    device_init(&r->d.head, &cpu_backend, NULL);
    pthread_mutex_init(&r->d.matmul_lock, NULL);
    r->d.sm_version = 90;
    r->s.queue.head.dev = &r->d.head;
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
    assert_int_equal(dev_notes(&r->d.head), 0);
    assert_int_equal(atomic_load(&r->d.used.gelu), DEVICE_BY_LIBRARY);
}

static void expect_apart(struct rig *r, enum dtype dt) {
    struct matmul_args f = forward_of(dt), b = backward_of(dt);
    int products = notes.products, forwards = notes.forwards, backwards = notes.backwards;
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.how.epilogue,
                     notes.no_epilogues ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS);
    assert_true(notes.d == AUX && notes.beta == notes.no_epilogues && !notes.how.aux);
    assert_true(notes.no_epilogues ? notes.rows_of == AUX && notes.rows_bias == BIAS
                                   : notes.how.bias == BIAS);
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
    assert_int_equal(dev_notes(&r->d.head), 0);
    assert_int_equal(atomic_load(&r->d.used.gelu), DEVICE_BY_OWN);
}

static void gelu_as_it_was_chosen(void **state) {
    struct rig *r = *state;
    struct matmul_args f = forward_of(DT_F32);
    r->d.wanted.gelu = CUDA_GELU_APART;
    expect_apart(r, DT_BF16);
    r->d.wanted.gelu = CUDA_GELU_FUSED;
    r->d.sm_version = 80;
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    assert_int_equal(dev_notes(&r->d.head), 0);
}

static void assert_note(struct rig *r, int i, const char *const *parts) {
    enum dev_note_kind kind;
    const char *text = dev_note(&r->d.head, i, &kind);
    assert_int_equal(kind, DEV_NOTE_WARNING);
    for (; *parts; parts++)
        if (!strstr(text, *parts)) fail_msg("note %d does not say \"%s\": %s", i, *parts, text);
}

// Decided once a shape: the library is not asked again, and people are told once.
static void gelu_apart_where_the_library_has_none(void **state) {
    struct rig *r = *state;
    static const cublasStatus_t refusals[] = {CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED,
                                              CUBLAS_STATUS_INVALID_VALUE};
    notes.no_epilogues = true;
    for (int i = 0; i < 3; i++) {
        notes.refusal = refusals[i];
        expect_apart(r, DT_BF16);
        int asked = notes.heuristics, told = dev_notes(&r->d.head);
        assert_int_equal(asked, 5 * (i + 1));  // the fused ones, a bias, and both products
        expect_apart(r, DT_BF16);
        assert_int_equal(notes.heuristics, asked);
        assert_int_equal(dev_notes(&r->d.head), told);
        cuda_matmuls_free(&r->d);
    }
    assert_int_equal(dev_notes(&r->d.head),
                     6);  // three for each text of the library's, of which two are equal
    assert_note(r, 0,
                (const char *[]){"M 10, N 64, K 24, bf16, b transposed", "GELU in its", "not supported",
                                 "apart", NULL});
    assert_note(r, 1, (const char *[]){"M 10, N 64, K 24, bf16, b transposed", "the bias in its", NULL});
    assert_note(r, 2, (const char *[]){"M 10, N 64, K 24, bf16:", "GELU's gradient in its", NULL});
    assert_note(r, 3, (const char *[]){"GELU in its", "a status", NULL});
}

// The weight gradient of the up projection, whose rows of c are the bias's elements.
static struct matmul_args weight_of(enum dtype dt) {
    return (struct matmul_args){.c = C,
                                .a = A,
                                .b = B,
                                .bias_grad = GRAD,
                                .m = 64,
                                .n = 24,
                                .k = 10,
                                .trans_a = true,
                                .epilogue = EPILOGUE_BIAS_GRAD,
                                .dt = dt};
}

static void expect_own_sums(struct rig *r, const struct matmul_args *m) {
    int before = notes.bias_grads, products = notes.products;
    assert_int_equal(cuda_matmul(&r->s, m), 0);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_DEFAULT);
    assert_int_equal(notes.products, products + 1);
    assert_true(notes.d == C && notes.beta == m->accumulate && !notes.how.bias);
    assert_int_equal(notes.bias_grads, before + 1);
    assert_true(notes.sums.dbias == GRAD && notes.sums.dy == A && notes.sums.rows == 10 &&
                notes.sums.n == 64);
    assert_true(notes.sums.accumulate == m->accumulate && notes.sums.dt == m->dt);
}

// The library's B is our a: BGRADB. It overwrites, so what accumulates is our own kernel's.
static void bias_gradient_as_it_was_chosen(void **state) {
    struct rig *r = *state;
    struct matmul_args m = weight_of(DT_BF16);
    expect_own_sums(r, &m);
    r->d.wanted.bias_grad = CUDA_BIAS_GRAD_KERNEL;
    expect_own_sums(r, &m);
    assert_int_equal(atomic_load(&r->d.used.bias_grad), DEVICE_BY_OWN);
    r->d.wanted.bias_grad = CUDA_BIAS_GRAD_EPILOGUE;
    assert_int_equal(cuda_matmul(&r->s, &m), 0);
    assert_int_equal(notes.bias_grads, 2);
    assert_int_equal(notes.how.epilogue, CUBLASLT_EPILOGUE_BGRADB);
    assert_true(notes.how.bias == GRAD && notes.how.bias_type == CUDA_R_16BF && notes.d == C && notes.b == A);
    assert_int_equal(atomic_load(&r->d.used.bias_grad), DEVICE_BY_LIBRARY | DEVICE_BY_OWN);
    assert_int_equal(dev_notes(&r->d.head), 0);
    m.accumulate = true;
    expect_own_sums(r, &m);
    assert_int_equal(dev_notes(&r->d.head), 1);
    assert_non_null(strstr(dev_note(&r->d.head, 0, NULL), "accumulat"));
}

static void bias_gradient_apart_where_the_library_has_none(void **state) {
    struct rig *r = *state;
    struct matmul_args m = weight_of(DT_F32);
    r->d.wanted.bias_grad = CUDA_BIAS_GRAD_EPILOGUE;
    notes.no_epilogues = true;
    expect_own_sums(r, &m);
    expect_own_sums(r, &m);
    assert_int_equal(dev_notes(&r->d.head), 1);
    assert_note(r, 0,
                (const char *[]){"M 64, N 24, K 10, fp32, a transposed", "the bias gradient in its",
                                 "not supported", NULL});
}

// No algorithm for the product itself is an error that says which.
static void a_refused_product_is_said(void **state) {
    struct rig *r = *state;
    struct matmul_args m = {.c = C, .a = A, .b = B, .m = 10, .n = 64, .k = 24, .dt = DT_BF16};
    notes.no_products = true;
    assert_int_equal(cuda_matmul(&r->s, &m), -1);
    assert_string_equal(r->s.ctx.why, "cuBLASLt has no algorithm for M 10, N 64, K 24, bf16: not supported");
}

static void rows_that_are_no_multiples_of_8_go_apart(void **state) {
    struct rig *r = *state;
    struct matmul_args f = forward_of(DT_BF16);
    f.n = 63;
    assert_int_equal(cuda_matmul(&r->s, &f), 0);
    assert_int_equal(notes.forwards, 1);
    assert_int_equal(dev_notes(&r->d.head), 1);
    assert_note(r, 0, (const char *[]){"N 63", "multiple of 8", NULL});
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

#define RIGGED(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void) {
    const struct CMUnitTest tests[] = {
        RIGGED(gelu_goes_with_the_product),
        RIGGED(gelu_apart_where_it_is_faster),
        RIGGED(gelu_as_it_was_chosen),
        RIGGED(gelu_apart_where_the_library_has_none),
        RIGGED(bias_gradient_as_it_was_chosen),
        RIGGED(bias_gradient_apart_where_the_library_has_none),
        RIGGED(a_refused_product_is_said),
        RIGGED(rows_that_are_no_multiples_of_8_go_apart),
        RIGGED(leading_dimensions_arrive),
        RIGGED(pointers_are_the_calls),
        RIGGED(no_memory_is_said),
    };
    return cmocka_run_group_tests_name("kernels: matmul on cuBLASLt", tests, NULL, NULL);
}
