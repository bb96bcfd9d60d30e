// A cuDNN for tests that only keeps what a graph is described with, and an interpreter that runs the kept
// graph on the host: each operation as cuDNN's guide defines it, in double, every tensor in memory by its own
// strides and rounded to its own type.
#ifndef STARRING_TESTS_CUDA_CUDNN_FAKE_H
#define STARRING_TESTS_CUDA_CUDNN_FAKE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cudnn_graph.h"
#include "kernels/dtype.h"

#define FAKE_ATTRIBUTES 8
#define FAKE_VALUES     32

struct fake_attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    int64_t value[FAKE_VALUES];  // numbers, or pointers
};
struct fake_descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    int count;
    struct fake_attribute attributes[FAKE_ATTRIBUTES];
    double *memory;  // of a tensor, while a graph runs
};

static int fake_descriptors;  // live

// Switches that a test sets, and results that it reads. Engines are numbered from 0 in the order in which they
// are offered.
static struct {
    cudnnStatus_t create, set_stream, execute;  // what these calls answer
    cudnnBackendDescriptorType_t refused_type;  // whose finalizing answers ..
    cudnnStatus_t refusal;                      // .. this, unless it is success
    int engines;                                // that each heuristic offers
    unsigned differing;                         // a bit for each engine that does not repeat
    int64_t workspace_bytes;                    // of a plan
    const char *said;                           // the last error's text
    int creates, handles, plans, runs;          // calls of cudnnCreate, live handles, made plans, executions
    const void *workspace;                      // of the last execution
} fake_dnn;

static cudnnStatus_t fake_create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out) {
    struct fake_descriptor *d = calloc(1, sizeof *d);
    d->type = type;
    *out = d;
    fake_descriptors++;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t fake_destroy(cudnnBackendDescriptor_t d) {
    free(((struct fake_descriptor *)d)->memory);
    free(d);
    fake_descriptors--;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t fake_set(cudnnBackendDescriptor_t p, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
    struct fake_descriptor *d = p;
    if (d->final || d->count == FAKE_ATTRIBUTES || count < 1 || count > FAKE_VALUES)
        return CUDNN_STATUS_BAD_PARAM;
    struct fake_attribute *a = &d->attributes[d->count++];
    bool wide = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_BACKEND_DESCRIPTOR ||
                type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR;
    size_t each = type == CUDNN_TYPE_BOOLEAN ? sizeof(bool) : wide ? sizeof(int64_t) : sizeof(int);
    *a = (struct fake_attribute){.name = name, .count = count};
    for (int64_t i = 0; i < count; i++) memcpy(&a->value[i], (const char *)elements + (size_t)i * each, each);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t fake_finalize(cudnnBackendDescriptor_t p) {
    struct fake_descriptor *d = p;
    if (fake_dnn.refusal != CUDNN_STATUS_SUCCESS && d->type == fake_dnn.refused_type) return fake_dnn.refusal;
    fake_dnn.plans += d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    d->final = true;
    return CUDNN_STATUS_SUCCESS;
}
static const char *fake_error_string(cudnnStatus_t s) {
    return s == CUDNN_STATUS_NOT_INITIALIZED             ? "CUDNN_STATUS_NOT_INITIALIZED"
           : s == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED ? "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"
           : s == CUDNN_STATUS_NOT_SUPPORTED             ? "CUDNN_STATUS_NOT_SUPPORTED"
           : s == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING
               ? "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"
           : s == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED"
                                                : "a status";
}
static void fake_last_error(char *message, size_t max_size) {
    strncpy(message, fake_dnn.said ? fake_dnn.said : "", max_size);
}

static size_t fake_version(void) { return 91300; }
static cudnnStatus_t fake_open(cudnnHandle_t *out) {
    static int somewhere;
    fake_dnn.creates++;
    if (fake_dnn.create != CUDNN_STATUS_SUCCESS) return fake_dnn.create;
    fake_dnn.handles++;
    *out = (cudnnHandle_t)(void *)&somewhere;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t fake_close(cudnnHandle_t h) {
    (void)h;
    fake_dnn.handles--;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t fake_stream(cudnnHandle_t h, cudaStream_t s) {
    (void)h, (void)s;
    return fake_dnn.set_stream;
}

static const int64_t *fake_get(const struct fake_descriptor *d, cudnnBackendAttributeName_t name);

// The questions of planning. An engine's number travels from a configuration to the engine in its value.
static cudnnStatus_t fake_read(cudnnBackendDescriptor_t const p, cudnnBackendAttributeName_t name,
                               cudnnBackendAttributeType_t type, int64_t room, int64_t *count,
                               void *elements) {
    const struct fake_descriptor *d = p;
    struct fake_descriptor *out[FAKE_VALUES];
    (void)type;
    *count = 0;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        if (!d->final) return CUDNN_STATUS_BAD_PARAM;
        *count = fake_dnn.engines < room ? fake_dnn.engines : room;
        memcpy(out, elements, (size_t)*count * sizeof *out);
        for (int i = 0; i < *count; i++) out[i]->attributes[0].value[0] = i;
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        memcpy(out, elements, sizeof *out);
        out[0]->attributes[0].value[0] = d->attributes[0].value[0];
        *count = 1;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        const cudnnBackendNumericalNote_t note = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        *count = fake_dnn.differing >> d->attributes[0].value[0] & 1;
        if (*count) memcpy(elements, &note, sizeof note);
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        memcpy(elements, &fake_dnn.workspace_bytes, sizeof fake_dnn.workspace_bytes);
        *count = 1;
    } else {
        return CUDNN_STATUS_BAD_PARAM;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_execute(cudnnHandle_t h, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    const int64_t *workspace = fake_get(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (!h || !((struct fake_descriptor *)plan)->final || !((struct fake_descriptor *)pack)->final)
        return CUDNN_STATUS_BAD_PARAM;
    memcpy(&fake_dnn.workspace, workspace, sizeof fake_dnn.workspace);
    fake_dnn.runs += fake_dnn.execute == CUDNN_STATUS_SUCCESS;
    return fake_dnn.execute;
}

static const struct cudnn_api fake_cudnn = {.version = fake_version,
                                            .create = fake_open,
                                            .destroy = fake_close,
                                            .set_stream = fake_stream,
                                            .error_string = fake_error_string,
                                            .last_error = fake_last_error,
                                            .create_descriptor = fake_create,
                                            .destroy_descriptor = fake_destroy,
                                            .set = fake_set,
                                            .get = fake_read,
                                            .finalize = fake_finalize,
                                            .execute = fake_execute};

static const int64_t *fake_get(const struct fake_descriptor *d, cudnnBackendAttributeName_t name) {
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name) return d->attributes[i].value;
    return NULL;
}
// A part of an operation; it must have been finished.
static struct fake_descriptor *fake_part(const struct fake_descriptor *d, cudnnBackendAttributeName_t name) {
    const int64_t *v = fake_get(d, name);
    struct fake_descriptor *part = NULL;
    if (v) memcpy(&part, v, sizeof part);
    if (part && !part->final) abort();
    return part;
}

// ---------------------------------------------------------------- tensors

static const int64_t *fake_dims(const struct fake_descriptor *t) {
    return fake_get(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
}
static int64_t fake_uid(const struct fake_descriptor *t) { return *fake_get(t, CUDNN_ATTR_TENSOR_UNIQUE_ID); }
static int64_t fake_extent(const struct fake_descriptor *t) {
    const int64_t *dims = fake_dims(t), *strides = fake_get(t, CUDNN_ATTR_TENSOR_STRIDES);
    int64_t last = 0;
    for (int i = 0; i < 4; i++) last += (dims[i] - 1) * strides[i];
    return last + 1;
}
// at: an index of an output as large or larger. A dimension of 1 goes with all, a smaller one is that of
// key/value heads, each shared by a group.
static double *fake_at(struct fake_descriptor *t, const int64_t out_dims[4], const int64_t at[4]) {
    const int64_t *dims = fake_dims(t), *strides = fake_get(t, CUDNN_ATTR_TENSOR_STRIDES);
    int64_t place = 0;
    for (int i = 0; i < 4; i++) place += at[i] * dims[i] / out_dims[i] * strides[i];
    return &t->memory[place];
}
static double fake_rounded(const struct fake_descriptor *t, double x) {
    int64_t type = *fake_get(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
    return type == CUDNN_DATA_BFLOAT16 ? (double)bf16_to_f32(f32_to_bf16((float)x))
           : type == CUDNN_DATA_HALF   ? (double)f16_to_f32(f32_to_f16((float)x))
                                       : (double)(float)x;
}
static void fake_hold(struct fake_descriptor *t) {
    if (!t->memory) t->memory = calloc((size_t)fake_extent(t), sizeof *t->memory);
}

#define FAKE_EACH(at, dims)                             \
    for (at[0] = 0; at[0] < (dims)[0]; at[0]++)         \
        for (at[1] = 0; at[1] < (dims)[1]; at[1]++)     \
            for (at[2] = 0; at[2] < (dims)[2]; at[2]++) \
                for (at[3] = 0; at[3] < (dims)[3]; at[3]++)

// Between a tensor and the memory that it is bound to: the elements that it names, no gaps.
static void fake_load(struct fake_descriptor *t, enum dtype dt, const void *memory) {
    const int64_t *dims = fake_dims(t);
    int64_t at[4];
    fake_hold(t);
    FAKE_EACH(at, dims) {
        double *x = fake_at(t, dims, at);
        *x = (double)dtype_load(dt, memory, (size_t)(x - t->memory));
    }
}
static void fake_store(struct fake_descriptor *t, enum dtype dt, void *memory) {
    const int64_t *dims = fake_dims(t);
    int64_t at[4];
    FAKE_EACH(at, dims) {
        const double *x = fake_at(t, dims, at);
        dtype_store(dt, memory, (size_t)(x - t->memory), (float)*x);
    }
}

// ---------------------------------------------------------------- operations

static void fake_matmul(const struct fake_descriptor *op) {
    struct fake_descriptor *a = fake_part(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                           *b = fake_part(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                           *c = fake_part(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const int64_t *da = fake_dims(a), *db = fake_dims(b), *dc = fake_dims(c);
    int64_t at[4], inner = da[3];
    if (da[2] != dc[2] || db[3] != dc[3] || db[2] != inner) abort();
    int64_t of_a[4] = {dc[0], dc[1], dc[2], inner}, of_b[4] = {dc[0], dc[1], inner, dc[3]};
    fake_hold(c);
    FAKE_EACH(at, dc) {
        double sum = 0;
        for (int64_t k = 0; k < inner; k++)
            sum += *fake_at(a, of_a, (int64_t[]){at[0], at[1], at[2], k}) *
                   *fake_at(b, of_b, (int64_t[]){at[0], at[1], k, at[3]});
        *fake_at(c, dc, at) = fake_rounded(c, sum);
    }
}

static double fake_function(cudnnPointwiseMode_t mode, double x, double b, double t) {
    switch (mode) {
        case CUDNN_POINTWISE_ADD:
            return x + b;
        case CUDNN_POINTWISE_SUB:
            return x - b;
        case CUDNN_POINTWISE_MUL:
            return x * b;
        case CUDNN_POINTWISE_DIV:
            return x / b;
        case CUDNN_POINTWISE_EXP:
            return exp(x);
        case CUDNN_POINTWISE_LOG:
            return log(x);
        case CUDNN_POINTWISE_CMP_GE:
            return x >= b;
        case CUDNN_POINTWISE_BINARY_SELECT:
            return t != 0 ? x : b;
        default:
            abort();
    }
}

static void fake_pointwise(const struct fake_descriptor *op) {
    struct fake_descriptor *how = fake_part(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
                           *x = fake_part(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
                           *b = fake_part(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                           *t = fake_part(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
                           *y = fake_part(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)*fake_get(how, CUDNN_ATTR_POINTWISE_MODE);
    const int64_t *dims = fake_dims(y), *axis = fake_get(how, CUDNN_ATTR_POINTWISE_AXIS);
    int64_t at[4];
    fake_hold(y);
    FAKE_EACH(at, dims)
    *fake_at(y, dims, at) =
        mode == CUDNN_POINTWISE_GEN_INDEX
            ? (double)at[*axis]
            : fake_rounded(y, fake_function(mode, *fake_at(x, dims, at), b ? *fake_at(b, dims, at) : 0,
                                            t ? *fake_at(t, dims, at) : 0));
}

static void fake_reduce(const struct fake_descriptor *op) {
    struct fake_descriptor *how = fake_part(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                           *x = fake_part(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
                           *y = fake_part(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    bool max = *fake_get(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const int64_t *dims = fake_dims(x);
    int64_t at[4];
    fake_hold(y);
    for (int64_t i = 0; i < fake_extent(y); i++) y->memory[i] = max ? -INFINITY : 0;
    FAKE_EACH(at, dims) {
        double *sum = fake_at(y, dims, at), v = *fake_at(x, dims, at);
        *sum = max ? fmax(*sum, v) : *sum + v;
    }
    for (int64_t i = 0; i < fake_extent(y); i++) y->memory[i] = fake_rounded(y, y->memory[i]);
}

// The same memory, seen otherwise.
static void fake_reshape(const struct fake_descriptor *op) {
    struct fake_descriptor *x = fake_part(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
                           *y = fake_part(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    if (fake_extent(x) != fake_extent(y)) abort();
    fake_hold(y);
    memcpy(y->memory, x->memory, (size_t)fake_extent(x) * sizeof *x->memory);
}

// Runs the operations in the order in which they were described; inputs must hold their numbers.
static void fake_run(const struct cudnn_graph *g) {
    for (int i = 0; i < g->op_count; i++) {
        const struct fake_descriptor *op = g->ops[i];
        if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            fake_matmul(op);
        else if (op->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            fake_pointwise(op);
        else if (op->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            fake_reduce(op);
        else if (op->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            fake_reshape(op);
        else
            abort();
    }
}

// The tensor that the graph's owner binds to memory as uid.
static struct fake_descriptor *fake_tensor(const struct cudnn_graph *g, int64_t uid) {
    for (int i = 0; i < g->owned_count; i++) {
        struct fake_descriptor *d = g->owned[i];
        if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && fake_uid(d) == uid) return d;
    }
    return NULL;
}

#endif
