// cuDNN's graph API (its C backend descriptors, cudnn_graph.h) as a few functions: tensors, four kinds of
// operations, a plan. cuDNN is loaded when it is first needed, so that a machine without it can use our own
// attention.
//
// Ownership   A graph owns its descriptors until graph_fini; a plan outlives its graph.
// Threads     One thread at a time for each object; the api is const once loaded.
// Errors      The first failure stays in graph->status and makes later calls do nothing; graph->failed_at tells
//             where. graph_plan then returns -1, as it does if no engine supports the graph; graph_why returns
//             the reason.
#ifndef STARRING_KERNELS_CUDA_HOST_CUDNN_GRAPH_H
#define STARRING_KERNELS_CUDA_HOST_CUDNN_GRAPH_H

#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cudnn_api {
    void *library;
    size_t (*version)(void);
    cudnnStatus_t (*create)(cudnnHandle_t *handle);
    cudnnStatus_t (*destroy)(cudnnHandle_t handle);
    cudnnStatus_t (*set_stream)(cudnnHandle_t handle, cudaStream_t stream);
    const char *(*error_string)(cudnnStatus_t status);
    void (*last_error)(char *message, size_t max_size);
    cudnnStatus_t (*create_descriptor)(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out);
    cudnnStatus_t (*destroy_descriptor)(cudnnBackendDescriptor_t d);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, const void *elements);
    cudnnStatus_t (*get)(cudnnBackendDescriptor_t const d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *elements);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t d);
    cudnnStatus_t (*execute)(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t variant_pack);
    char missing[512];  // reason of a failed cudnn_api_open
};

// Loads libcudnn.so.9 (9.0 or later). Returns 0, or -1 with *why (stored in api) if it is missing or too old.
int cudnn_api_open(struct cudnn_api *api, const char **why);
void cudnn_api_close(struct cudnn_api *api);
// Returns text: "CUDNN_STATUS_NOT_SUPPORTED: last message of cuDNN on this thread" in one line, and what to
// check, if known.
#define CUDNN_WHY_TEXT 448
const char *cudnn_why(const struct cudnn_api *api, cudnnStatus_t status, char text[CUDNN_WHY_TEXT]);

#define GRAPH_DESCRIPTORS_MAX 160
#define GRAPH_OPS_MAX         32

struct cudnn_graph {
    const struct cudnn_api *api;
    cudnnBackendDescriptor_t owned[GRAPH_DESCRIPTORS_MAX];
    int owned_count;
    cudnnBackendDescriptor_t ops[GRAPH_OPS_MAX];
    int op_count;
    int64_t next_uid;  // for tensors that the caller does not name
    cudnnStatus_t status;
    const char *failed_at;
    // Results of graph_plan: engines that the heuristics named, how many of them may differ from run to run, and how
    // many others refused.
    int offered, differing, refused;
    char why[CUDNN_WHY_TEXT];  // why status is an error, or else why the first engine refused
};

typedef cudnnBackendDescriptor_t graph_tensor;

// A tensor of four dimensions. uid > 0: bound to memory at execution (to a host scalar if by_value). uid 0:
// exists only inside the graph.
struct graph_tensor_spec {
    int64_t dims[4], strides[4];  // strides in elements
    cudnnDataType_t type;
    int64_t uid;
    bool by_value;
};

struct graph_pointwise_spec {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    graph_tensor x, b, t, y;  // y = f(x), f(x, b) or t ? x : b
    int64_t axis;             // of GEN_INDEX, else 0
};

void graph_init(struct cudnn_graph *g, const struct cudnn_api *api);
void graph_fini(struct cudnn_graph *g);
graph_tensor graph_make_tensor(struct cudnn_graph *g, const struct graph_tensor_spec *s);
void graph_matmul(struct cudnn_graph *g, graph_tensor a, graph_tensor b, graph_tensor c);
void graph_pointwise(struct cudnn_graph *g, const struct graph_pointwise_spec *s);
void graph_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t op, graph_tensor x, graph_tensor y);
void graph_reshape(struct cudnn_graph *g, graph_tensor x, graph_tensor y);

struct cudnn_plan {
    cudnnBackendDescriptor_t desc;
    int64_t workspace_bytes;
};

// Plans by the first engine that supports the graph and repeats bit for bit. device: a finalized
// CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, to plan for a device that need not be present; else NULL with the
// handle.
int graph_plan(struct cudnn_graph *g, cudnnHandle_t handle, cudnnBackendDescriptor_t device,
               struct cudnn_plan *out);
// Why graph_plan failed, to print. Returns text.
#define GRAPH_WHY_TEXT (CUDNN_WHY_TEXT + 192)
const char *graph_why(const struct cudnn_graph *g, char text[GRAPH_WHY_TEXT]);
// How many engines the library's heuristic knows for the graph that repeat bit for bit. The device need not be
// present.
int graph_engines(struct cudnn_graph *g, cudnnBackendDescriptor_t device);
void cudnn_plan_fini(const struct cudnn_api *api, struct cudnn_plan *p);

struct cudnn_run {
    cudnnHandle_t handle;
    const int64_t *uids;
    void *const *pointers;  // device memory, or host scalars for tensors by value
    int count;
    void *workspace;  // at least plan->workspace_bytes; NULL if that is 0
};
// Enqueues the plan on the handle's stream.
cudnnStatus_t cudnn_plan_run(const struct cudnn_api *api, const struct cudnn_plan *p,
                             const struct cudnn_run *r);

#endif
