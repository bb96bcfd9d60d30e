// The part of cuBLASLt that kernels/cuda/host/matmul.c uses, for the emulated device: column-major products
// with transposes, leading dimensions, beta, and the epilogues of a bias, of GELU and of a bias gradient
// (from B). Sums are in fp32, in index order, rounded once.
//
// Refused, because the library refuses it or computes garbage: operands that do not match, pointers less
// aligned than the heuristic was promised, an aux matrix whose rows are no multiples of 8, operands that are
// not in the device's memory, attributes that are not emulated.
//
// Environment
//     EMULATED_CUBLAS_LACKS  epilogues for which there is no algorithm: words out of "bias gelu bgrad"
//     EMULATED_CUBLAS_ASKED  a file that gets a line for each question to the heuristic
#include <cublasLt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "tests/emulation/driver/driver.h"

#define EPILOGUE_HAS(e, flag) (((unsigned)(e) & (unsigned)(flag)) == (unsigned)(flag))

struct description {
    int32_t trans_a, trans_b;  // cublasOperation_t
    uint32_t epilogue;
    int32_t bias_type, aux_type;  // cudaDataType_t, -1: as the output
    void *bias;                   // BGRADB's output
    void *aux;
    int64_t aux_ld;
};

struct matrix {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};

struct preference {
    uint64_t workspace_bytes;
    uint32_t reductions, a_align, b_align, c_align, d_align;
};

// Values that go from the heuristic to the product, in cublasLtMatmulAlgo_t's words.
struct algorithm {
    uint32_t a_align, b_align, c_align, d_align;
    uint64_t workspace_bytes;
};
_Static_assert(sizeof(struct algorithm) <= sizeof(cublasLtMatmulAlgo_t), "the library's room");

static cublasStatus_t refuse(const char *why) {
    char text[256];
    snprintf(text, sizeof text, "cuBLASLt: %s", why);
    emu_note(text);
    return CUBLAS_STATUS_INVALID_VALUE;
}

// ---------------------------------------------------------------- objects

static int handle;  // there is nothing to keep

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    *out = (cublasLtHandle_t)&handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    return h == (cublasLtHandle_t)&handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

size_t cublasLtGetVersion(void) { return 130000; }

const char *cublasLtGetStatusString(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : s == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                              : "CUBLAS_STATUS of the emulation";
}

static cublasStatus_t make(void *out, const void *from, size_t bytes) {
    void *p = malloc(bytes);
    if (!p) return CUBLAS_STATUS_ALLOC_FAILED;
    memcpy(p, from, bytes);
    memcpy(out, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    struct description d = {.trans_a = CUBLAS_OP_N,
                            .trans_b = CUBLAS_OP_N,
                            .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                            .bias_type = -1,
                            .aux_type = -1};
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return refuse("computes in fp32 only");
    return make(out, &d, sizeof d);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    struct matrix m = {type, rows, columns, ld};
    if (ld < (int64_t)rows) return refuse("a leading dimension is less than the rows");
    if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF)
        return refuse("a type that is not emulated");
    return make(out, &m, sizeof m);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t m) {
    free(m);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    struct preference p = {.reductions = CUBLASLT_REDUCTION_SCHEME_MASK,
                           .a_align = 256,
                           .b_align = 256,
                           .c_align = 256,
                           .d_align = 256};
    return make(out, &p, sizeof p);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- attributes

struct field {
    int name;
    size_t at, bytes;
};
#define FIELD(name, type, member) \
    { name, offsetof(type, member), sizeof(((type *)0)->member) }

static cublasStatus_t set(void *object, const struct field *fields, size_t count, int name, const void *value,
                          size_t bytes) {
    for (size_t i = 0; i < count; i++) {
        if (fields[i].name != name) continue;
        if (fields[i].bytes != bytes) return refuse("an attribute of another size");
        memcpy((char *)object + fields[i].at, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return refuse("an attribute that is not emulated");
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    static const struct field fields[] = {
        FIELD(CUBLASLT_MATMUL_DESC_TRANSA, struct description, trans_a),
        FIELD(CUBLASLT_MATMUL_DESC_TRANSB, struct description, trans_b),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, struct description, epilogue),
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, struct description, bias),
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, struct description, bias_type),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, struct description, aux),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, struct description, aux_ld),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, struct description, aux_type),
    };
    return set(d, fields, sizeof fields / sizeof *fields, (int)name, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes) {
    static const struct field fields[] = {
        FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, struct preference, workspace_bytes),
        FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, struct preference, reductions),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, struct preference, a_align),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, struct preference, b_align),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, struct preference, c_align),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, struct preference, d_align),
    };
    return set(p, fields, sizeof fields / sizeof *fields, (int)name, value, bytes);
}

// ---------------------------------------------------------------- checks

struct product {
    struct description how;
    struct matrix a, b, c, d;
    const void *pa, *pb, *pc;
    void *pd;
    float alpha, beta;
};

static uint64_t inner(const struct product *p) {
    return p->how.trans_a == CUBLAS_OP_N ? p->a.columns : p->a.rows;
}

// NULL, or what the library would not do.
static const char *refusal(const struct product *p) {
    bool ta = p->how.trans_a != CUBLAS_OP_N, tb = p->how.trans_b != CUBLAS_OP_N;
    uint64_t m = ta ? p->a.columns : p->a.rows, n = tb ? p->b.rows : p->b.columns;
    unsigned e = p->how.epilogue;
    if ((tb ? p->b.columns : p->b.rows) != inner(p) || p->d.rows != m || p->d.columns != n ||
        p->c.rows != m || p->c.columns != n)
        return "the operands do not match";
    if (p->a.type != p->b.type || p->a.type != p->d.type || p->c.type != p->d.type)
        return "operands of unlike types";
    if (e != CUBLASLT_EPILOGUE_DEFAULT && e != CUBLASLT_EPILOGUE_BIAS && e != CUBLASLT_EPILOGUE_GELU &&
        e != CUBLASLT_EPILOGUE_GELU_BIAS && e != CUBLASLT_EPILOGUE_GELU_AUX &&
        e != CUBLASLT_EPILOGUE_GELU_AUX_BIAS && e != CUBLASLT_EPILOGUE_DGELU && e != CUBLASLT_EPILOGUE_BGRADB)
        return "an epilogue that is not emulated";
    if ((EPILOGUE_HAS(e, CUBLASLT_EPILOGUE_BIAS) || e == CUBLASLT_EPILOGUE_BGRADB) &&
        (!p->how.bias || (p->how.bias_type >= 0 && p->how.bias_type != (int)p->d.type)))
        return "a bias of no memory or of another type";
    if (EPILOGUE_HAS(e, 128) && (!p->how.aux || p->how.aux_ld < (int64_t)m || p->how.aux_ld % 8 ||
                                 (p->how.aux_type >= 0 && p->how.aux_type != (int)p->d.type)))
        return "an aux matrix of no memory, of another type, or whose leading dimension is no multiple of 8";
    return NULL;
}

static size_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

static size_t extent(const struct matrix *m) {
    return ((size_t)m->ld * (m->columns - 1) + m->rows) * size_of(m->type);
}

static bool aligned(const void *p, uint32_t to) { return to == 0 || (uintptr_t)p % to == 0; }

static bool in_reach(cudaStream_t s, const struct product *p) {
    size_t e = size_of(p->d.type);
    unsigned epilogue = p->how.epilogue;
    return emu_reaches(s, p->pa, extent(&p->a), "cuBLASLt: A") &&
           emu_reaches(s, p->pb, extent(&p->b), "cuBLASLt: B") &&
           emu_reaches(s, p->pd, extent(&p->d), "cuBLASLt: D") &&
           (p->beta == 0 || emu_reaches(s, p->pc, extent(&p->c), "cuBLASLt: C")) &&
           (!EPILOGUE_HAS(epilogue, CUBLASLT_EPILOGUE_BIAS) ||
            emu_reaches(s, p->how.bias, p->d.rows * e, "cuBLASLt: bias")) &&
           (epilogue != CUBLASLT_EPILOGUE_BGRADB ||
            emu_reaches(s, p->how.bias, p->d.columns * e, "cuBLASLt: bias gradient")) &&
           (!EPILOGUE_HAS(epilogue, 128) ||
            emu_reaches(s, p->how.aux, ((size_t)p->how.aux_ld * (p->d.columns - 1) + p->d.rows) * e,
                        "cuBLASLt: aux"));
}

// ---------------------------------------------------------------- the product

static enum dtype dtype_of(cudaDataType_t type) {
    return type == CUDA_R_32F ? DT_F32 : type == CUDA_R_16F ? DT_F16 : DT_BF16;
}

static float load(const void *p, size_t i, cudaDataType_t type) { return dtype_load(dtype_of(type), p, i); }

static void store(void *p, size_t i, cudaDataType_t type, float x) { dtype_store(dtype_of(type), p, i, x); }

// op(matrix) in fp32, column-major without gaps.
static float *unpacked(const struct matrix *m, const void *p, bool transposed) {
    float *out = malloc(m->rows * m->columns * sizeof *out);
    if (!out) abort();
    for (uint64_t j = 0; j < m->columns; j++)
        for (uint64_t i = 0; i < m->rows; i++)
            out[transposed ? i * m->columns + j : j * m->rows + i] =
                load(p, (uint64_t)m->ld * j + i, m->type);
    return out;
}

// GELU in its tanh form, and its derivative.
static float gelu_inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
static float gelu(float x) { return 0.5f * x * (1 + tanhf(gelu_inner(x))); }
static float gelu_slope(float x) {
    float t = tanhf(gelu_inner(x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
}

// One column of D from its sums.
static void finish_column(const struct product *p, uint64_t j, const float *sums) {
    unsigned e = p->how.epilogue;
    for (uint64_t i = 0; i < p->d.rows; i++) {
        float x = p->alpha * sums[i];
        size_t aux = (size_t)p->how.aux_ld * j + i;
        if (p->beta != 0) x += p->beta * load(p->pc, (size_t)p->c.ld * j + i, p->c.type);
        if (EPILOGUE_HAS(e, CUBLASLT_EPILOGUE_BIAS)) x += load(p->how.bias, i, p->d.type);
        if (EPILOGUE_HAS(e, CUBLASLT_EPILOGUE_GELU_AUX)) store(p->how.aux, aux, p->d.type, x);
        if (EPILOGUE_HAS(e, CUBLASLT_EPILOGUE_GELU)) x = gelu(x);
        if (e == CUBLASLT_EPILOGUE_DGELU) x *= gelu_slope(load(p->how.aux, aux, p->d.type));
        store(p->pd, (size_t)p->d.ld * j + i, p->d.type, x);
    }
}

static int run_product(void *arg, const char **why) {
    const struct product *p = arg;
    uint64_t m = p->d.rows, n = p->d.columns, k = inner(p);
    float *a = unpacked(&p->a, p->pa, p->how.trans_a != CUBLAS_OP_N),
          *b = unpacked(&p->b, p->pb, p->how.trans_b != CUBLAS_OP_N), *sums = malloc(m * sizeof *sums);
    (void)why;
    if (!sums) abort();
    for (uint64_t j = 0; j < n; j++) {
        memset(sums, 0, m * sizeof *sums);
        for (uint64_t l = 0; l < k; l++)
            for (uint64_t i = 0; i < m; i++) sums[i] += a[l * m + i] * b[j * k + l];
        finish_column(p, j, sums);
        if (p->how.epilogue != CUBLASLT_EPILOGUE_BGRADB) continue;
        float grad = 0;
        for (uint64_t l = 0; l < k; l++) grad += b[j * k + l];
        store(p->how.bias, j, p->d.type, grad);
    }
    free(a);
    free(b);
    free(sums);
    return 0;
}

// ---------------------------------------------------------------- the calls

static struct product product_of(cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    struct product p = {.alpha = 1};
    memcpy(&p.how, how, sizeof p.how);
    memcpy(&p.a, a, sizeof p.a);
    memcpy(&p.b, b, sizeof p.b);
    memcpy(&p.c, c, sizeof p.c);
    memcpy(&p.d, d, sizeof p.d);
    return p;
}

static bool lacks(unsigned epilogue) {
    const char *list = getenv("EMULATED_CUBLAS_LACKS");
    bool gelu = EPILOGUE_HAS(epilogue, CUBLASLT_EPILOGUE_GELU) || epilogue == CUBLASLT_EPILOGUE_DGELU;
    if (!list) return false;
    return (gelu && strstr(list, "gelu")) ||
           (epilogue == CUBLASLT_EPILOGUE_BGRADB && strstr(list, "bgrad")) ||
           (EPILOGUE_HAS(epilogue, CUBLASLT_EPILOGUE_BIAS) && strstr(list, "bias"));
}

static void note_question(void) {
    const char *path = getenv("EMULATED_CUBLAS_ASKED");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fputs("asked\n", f);
    fclose(f);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t how,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t found[], int *count) {
    struct product p = product_of(how, a, b, c, d);
    struct preference q;
    memcpy(&q, preference, sizeof q);
    const char *why = h != (cublasLtHandle_t)&handle || wanted < 1 ? "an odd question" : refusal(&p);
    *count = 0;
    if (why) return refuse(why);
    note_question();
    if (lacks(p.how.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    struct algorithm algo = {q.a_align, q.b_align, q.c_align, q.d_align,
                             q.workspace_bytes < 4096 ? q.workspace_bytes : 4096};
    memset(found, 0, sizeof *found);
    memcpy(&found->algo, &algo, sizeof algo);
    found->workspaceSize = algo.workspace_bytes;
    found->state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

// The library has kernels for kinds of shapes: here one for each shape, type, transposition and epilogue.
static const void *kernel_of(const struct product *p) {
    static const char kernels[8192];
    const uint64_t what[] = {p->d.rows,       p->d.columns, inner(p),       p->d.type,
                             p->how.epilogue, p->beta != 0, p->how.trans_a, p->how.trans_b};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) h = (h ^ what[i]) * 0x100000001b3u + (h >> 29);
    return &kernels[h % sizeof kernels];
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t how, const void *alpha, const void *pa,
                              cublasLtMatrixLayout_t a, const void *pb, cublasLtMatrixLayout_t b,
                              const void *beta, const void *pc, cublasLtMatrixLayout_t c, void *pd,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *chosen, void *workspace,
                              size_t workspace_bytes, cudaStream_t s) {
    struct product p = product_of(how, a, b, c, d), *kept;
    struct algorithm algo;
    memcpy(&algo, chosen, sizeof algo);
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    p.pa = pa;
    p.pb = pb;
    p.pc = pc;
    p.pd = pd;
    const char *why = h != (cublasLtHandle_t)&handle ? "no handle" : refusal(&p);
    if (!why && (!aligned(pa, algo.a_align) || !aligned(pb, algo.b_align) || !aligned(pc, algo.c_align) ||
                 !aligned(pd, algo.d_align)))
        why = "a pointer is less aligned than was promised when the algorithm was chosen";
    if (!why && workspace_bytes < algo.workspace_bytes) why = "less workspace than the algorithm wants";
    if (why) return refuse(why);
    if (!in_reach(s, &p) ||
        (workspace_bytes && !emu_reaches(s, workspace, workspace_bytes, "cuBLASLt: workspace")))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!(kept = malloc(sizeof *kept))) return CUBLAS_STATUS_ALLOC_FAILED;
    *kept = p;
    struct emu_work w = {
        .name = "cuBLASLt's product", .run = run_product, .drop = free, .arg = kept, .kernel = kernel_of(&p)};
    return emu_submit(s, &w) == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
