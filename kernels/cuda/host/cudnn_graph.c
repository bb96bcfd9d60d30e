#include "kernels/cuda/host/cudnn_graph.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// ---------------------------------------------------------------- the library

static int find(void *library, const char *name, void *out) {
    void *p = dlsym(library, name);
    memcpy(out, &p, sizeof p);  // ISO C has no cast from an object pointer to a function's
    return p ? 0 : -1;
}

int cudnn_api_open(struct cudnn_api *api, const char **why) {
    memset(api, 0, sizeof *api);
    // NODELETE: the library stays loaded when the last device closes, because libraries with kernels cannot be
    // unloaded safely.
    void *l = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    *why = api->missing;
    if (!l) {
        const char *error = dlerror();
        snprintf(api->missing, sizeof api->missing,
                 "libcudnn.so.9 cannot be loaded (%.200s): install cuDNN 9 (NVIDIA's packages "
                 "libcudnn9-cuda-*, pip's nvidia-cudnn-cu*), its folder named in LD_LIBRARY_PATH",
                 error ? error : "no reason given");
        return -1;
    }
    int missing = 0;
    missing |= find(l, "cudnnGetVersion", &api->version);
    missing |= find(l, "cudnnCreate", &api->create);
    missing |= find(l, "cudnnDestroy", &api->destroy);
    missing |= find(l, "cudnnSetStream", &api->set_stream);
    missing |= find(l, "cudnnGetErrorString", &api->error_string);
    missing |= find(l, "cudnnGetLastErrorString", &api->last_error);
    missing |= find(l, "cudnnBackendCreateDescriptor", &api->create_descriptor);
    missing |= find(l, "cudnnBackendDestroyDescriptor", &api->destroy_descriptor);
    missing |= find(l, "cudnnBackendSetAttribute", &api->set);
    missing |= find(l, "cudnnBackendGetAttribute", &api->get);
    missing |= find(l, "cudnnBackendFinalize", &api->finalize);
    missing |= find(l, "cudnnBackendExecute", &api->execute);
    if (missing) {
        dlclose(l);
        snprintf(api->missing, sizeof api->missing, "libcudnn.so.9 lacks the backend functions of cuDNN 9");
        return -1;
    }
    api->library = l;
    return 0;
}

void cudnn_api_close(struct cudnn_api *api) {
    if (api->library) dlclose(api->library);
    api->library = NULL;
}

// The usual cause if a sublibrary is missing. NULL: only the library's text is known.
static const char *hint(cudnnStatus_t status) {
    switch (status) {
        case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED:
        case CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH:
        case CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE:
            return "are all of cuDNN's libraries (libcudnn_*.so.9), of one version, where the loader looks?";
        case CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING:
        case CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED:
            return "is CUDA's libnvrtc, with its builtins, where the loader looks (LD_LIBRARY_PATH)?";
        default:
            return NULL;
    }
}

const char *cudnn_why(const struct cudnn_api *api, cudnnStatus_t status, char text[CUDNN_WHY_TEXT]) {
    char said[256] = "";
    const char *look = hint(status);
    api->last_error(said, sizeof said);
    said[sizeof said - 1] = 0;
    for (char *c = said; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' ';
    snprintf(text, CUDNN_WHY_TEXT, "%s%s%s%s%s", api->error_string(status), said[0] ? ": " : "", said,
             look ? "; " : "", look ? look : "");
    return text;
}

// ---------------------------------------------------------------- descriptors

void graph_init(struct cudnn_graph *g, const struct cudnn_api *api) {
    memset(g, 0, sizeof *g);
    g->api = api;
    g->next_uid = 1000;
}

void graph_fini(struct cudnn_graph *g) {
    for (int i = g->owned_count - 1; i >= 0; i--) g->api->destroy_descriptor(g->owned[i]);
    g->owned_count = 0;
}

static void note(struct cudnn_graph *g, cudnnStatus_t status, const char *where) {
    if (g->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    g->status = status;
    g->failed_at = where;
    cudnn_why(g->api, status, g->why);
}

// Keeps the text of the first engine that refuses, because that engine was preferred.
static void note_refusal(struct cudnn_graph *g, cudnnStatus_t status) {
    if (!g->why[0]) cudnn_why(g->api, status, g->why);
}

static cudnnBackendDescriptor_t create(struct cudnn_graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    assert(g->owned_count < GRAPH_DESCRIPTORS_MAX);
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    note(g, g->api->create_descriptor(type, &d), "creating a descriptor");
    if (d) g->owned[g->owned_count++] = d;
    return d;
}

static void set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, const void *value) {
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, g->api->set(d, name, type, 1, value), "setting an attribute");
}

static void set_desc(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendDescriptor_t value) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

static void set_type(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t value) {
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, &value);
}

static void finalize(struct cudnn_graph *g, cudnnBackendDescriptor_t d, const char *what) {
    if (g->status == CUDNN_STATUS_SUCCESS) note(g, g->api->finalize(d), what);
}

static void add_op(struct cudnn_graph *g, cudnnBackendDescriptor_t op, const char *what) {
    finalize(g, op, what);
    assert(g->op_count < GRAPH_OPS_MAX);
    if (g->status == CUDNN_STATUS_SUCCESS) g->ops[g->op_count++] = op;
}

// ---------------------------------------------------------------- tensors and operations

graph_tensor graph_make_tensor(struct cudnn_graph *g, const struct graph_tensor_spec *s) {
    int64_t alignment_bytes = 16, uid = s->uid ? s->uid : g->next_uid++;
    bool inside = s->uid == 0, by_value = s->by_value;
    cudnnBackendDescriptor_t d = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    if (!d) return NULL;
    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, s->type);
    note(g, g->api->set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s->dims), "a tensor's shape");
    note(g, g->api->set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->strides), "a tensor's strides");
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &uid);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment_bytes);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &inside);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &by_value);
    finalize(g, d, "a tensor");
    return d;
}

void graph_matmul(struct cudnn_graph *g, graph_tensor a, graph_tensor b, graph_tensor c) {
    cudnnBackendDescriptor_t m = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(g, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finalize(g, m, "a matrix product");
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_op(g, op, "a matrix product's operation");
}

void graph_pointwise(struct cudnn_graph *g, const struct graph_pointwise_spec *s) {
    cudnnPointwiseMode_t mode = s->mode;
    cudnnBackendDescriptor_t p = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
    set_type(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, s->math);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) set(g, p, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &s->axis);
    finalize(g, p, "an elementwise function");
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, s->x);
    if (s->b) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, s->b);
    if (s->t) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, s->t);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, s->y);
    add_op(g, op, "an elementwise operation");
}

void graph_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t operator, graph_tensor x, graph_tensor y) {
    cudnnBackendDescriptor_t r = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_type(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &operator);
    finalize(g, r, "a reduction");
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op, "a reduction's operation");
}

void graph_reshape(struct cudnn_graph *g, graph_tensor x, graph_tensor y) {
    cudnnBackendDescriptor_t op = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op, "a reshape");
}

// ---------------------------------------------------------------- plans

#define ENGINES_MAX 16

// Whether an engine's results may differ from run to run. If the engine does not tell, they may.
static bool differs(const struct cudnn_api *api, cudnnBackendDescriptor_t config) {
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = NULL;
    int64_t n = 0;
    bool yes = true;
    if (api->create_descriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) return true;
    if (api->get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine) ==
            CUDNN_STATUS_SUCCESS &&
        api->get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes) == CUDNN_STATUS_SUCCESS) {
        yes = false;
        for (int64_t i = 0; i < n; i++) yes |= notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    }
    api->destroy_descriptor(engine);
    return yes;
}

struct planning {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t device, graph;
};

static int plan_config(struct cudnn_graph *g, const struct planning *q, cudnnBackendDescriptor_t config,
                       struct cudnn_plan *out) {
    const struct cudnn_api *api = g->api;
    cudnnBackendDescriptor_t plan = NULL, device = q->device;
    cudnnHandle_t handle = q->handle;
    int64_t n = 0;
    cudnnStatus_t s = api->create_descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
    if (s != CUDNN_STATUS_SUCCESS) {
        note_refusal(g, s);
        return -1;
    }
    s = api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (s == CUDNN_STATUS_SUCCESS)
        s = device ? api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                              &device)
                   : api->set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (s == CUDNN_STATUS_SUCCESS) s = api->finalize(plan);
    if (s == CUDNN_STATUS_SUCCESS)
        s = api->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                     &out->workspace_bytes);
    if (s == CUDNN_STATUS_SUCCESS) {
        out->desc = plan;
        return 0;
    }
    note_refusal(g, s);
    api->destroy_descriptor(plan);
    return -1;
}

// Asks one of the library's heuristics for at most ENGINES_MAX engines, best first. Returns their number; the
// caller destroys the descriptors.
static int engines_by(struct cudnn_graph *g, cudnnBackendHeurMode_t mode, const struct planning *q,
                      cudnnBackendDescriptor_t *configs) {
    const struct cudnn_api *api = g->api;
    int64_t n = 0;
    int made = 0;
    cudnnBackendDescriptor_t heuristics = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, q->graph);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
    if (q->device) set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, q->device);
    if (g->status != CUDNN_STATUS_SUCCESS) return 0;
    cudnnStatus_t s = api->finalize(heuristics);
    if (s != CUDNN_STATUS_SUCCESS) {
        note_refusal(g, s);
        return 0;
    }
    while (made < ENGINES_MAX &&
           api->create_descriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[made]) == CUDNN_STATUS_SUCCESS)
        made++;
    s = api->get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &n, configs);
    if (s != CUDNN_STATUS_SUCCESS) {
        note_refusal(g, s);
        n = 0;
    }
    while (made > n) api->destroy_descriptor(configs[--made]);
    return made;
}

static int plan_by(struct cudnn_graph *g, cudnnBackendHeurMode_t mode, const struct planning *q,
                   struct cudnn_plan *out) {
    cudnnBackendDescriptor_t configs[ENGINES_MAX];
    int rc = -1, n = engines_by(g, mode, q, configs);
    for (int i = 0; i < n && rc != 0; i++) {
        g->offered++;
        if (differs(g->api, configs[i])) {
            g->differing++;
            continue;
        }
        rc = plan_config(g, q, configs[i], out);
        g->refused += rc != 0;
    }
    for (int i = 0; i < n; i++) g->api->destroy_descriptor(configs[i]);
    return rc;
}

static cudnnBackendDescriptor_t finish_graph(struct cudnn_graph *g, cudnnHandle_t handle) {
    cudnnBackendDescriptor_t graph = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    note(
        g,
        g->api->set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->op_count, g->ops),
        "the graph's operations");
    if (handle) set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    finalize(g, graph, "the graph");
    return g->status == CUDNN_STATUS_SUCCESS ? graph : NULL;
}

int graph_engines(struct cudnn_graph *g, cudnnBackendDescriptor_t device) {
    cudnnBackendDescriptor_t configs[ENGINES_MAX];
    struct planning q = {.device = device, .graph = finish_graph(g, NULL)};
    if (!q.graph) return 0;
    int same = 0, n = engines_by(g, CUDNN_HEUR_MODE_A, &q, configs);
    for (int i = 0; i < n; i++) same += !differs(g->api, configs[i]);
    for (int i = 0; i < n; i++) g->api->destroy_descriptor(configs[i]);
    return same;
}

int graph_plan(struct cudnn_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t device,
               struct cudnn_plan *out) {
    struct planning q = {.handle = handle, .device = device, .graph = finish_graph(g, handle)};
    if (!q.graph) return -1;
    if (plan_by(g, CUDNN_HEUR_MODE_A, &q, out) == 0) return 0;
    if (plan_by(g, CUDNN_HEUR_MODE_FALLBACK, &q, out) == 0) return 0;
    if (!g->failed_at) g->failed_at = "finding an engine";
    return -1;
}

const char *graph_why(const struct cudnn_graph *g, char text[GRAPH_WHY_TEXT]) {
    if (g->status != CUDNN_STATUS_SUCCESS)
        snprintf(text, GRAPH_WHY_TEXT, "it fails at %s: %s", g->failed_at, g->why);
    else if (g->offered == 0)
        snprintf(text, GRAPH_WHY_TEXT, "its heuristics name no engine%s%s", g->why[0] ? ": " : "", g->why);
    else if (g->refused == 0)
        snprintf(text, GRAPH_WHY_TEXT, "none of its %d engines repeats its results bit for bit", g->offered);
    else
        snprintf(
            text, GRAPH_WHY_TEXT,
            "of its %d engines %d do not repeat their results bit for bit and %d refuse, the first with %s",
            g->offered, g->differing, g->refused, g->why);
    return text;
}

void cudnn_plan_fini(const struct cudnn_api *api, struct cudnn_plan *p) {
    if (p->desc) api->destroy_descriptor(p->desc);
    p->desc = NULL;
}

cudnnStatus_t cudnn_plan_run(const struct cudnn_api *api, const struct cudnn_plan *p,
                             const struct cudnn_run *r) {
    cudnnBackendDescriptor_t pack = NULL;
    void *workspace = r->workspace;
    cudnnStatus_t s = api->create_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (s != CUDNN_STATUS_SUCCESS) return s;
    s = api->set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, r->count, r->uids);
    if (s == CUDNN_STATUS_SUCCESS)
        s = api->set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, r->count, r->pointers);
    if (s == CUDNN_STATUS_SUCCESS)
        s = api->set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (s == CUDNN_STATUS_SUCCESS) s = api->finalize(pack);
    if (s == CUDNN_STATUS_SUCCESS) s = api->execute(r->handle, p->desc, pack);
    api->destroy_descriptor(pack);
    return s;
}
