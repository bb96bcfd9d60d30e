// The names that the CUDA backend, the collectives over NCCL and their tests take from CUDA's headers, with
// what they stand for. Compiled twice (emulation.mk): FACTS names the function, STANDIN is defined with our
// declarations.
#include "tests/emulation/header_facts.h"

#include <string.h>

#ifdef STANDIN
#define HAS_RUNTIME  1
#define HAS_CUBLASLT 1
#define HAS_CUDNN    1
#define HAS_NCCL     1
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "decentral/nccl/nccl_abi.h"
#include "kernels/cuda/host/cudnn_graph.h"
#else
#define HAS_RUNTIME  __has_include(<cuda_runtime_api.h>)
#define HAS_CUBLASLT __has_include(<cublasLt.h>)
#define HAS_CUDNN    __has_include(<cudnn.h>)
#define HAS_NCCL     __has_include(<nccl.h>)
#if HAS_RUNTIME
#include <cuda_runtime_api.h>
#endif
#if HAS_CUBLASLT
#include <cublasLt.h>
#endif
#if HAS_CUDNN
#include "kernels/cuda/host/cudnn_graph.h"
#endif
#if HAS_NCCL
#include <nccl.h>
#endif
#endif

#define VALUE(name) \
    { #name, (long long)(name) }
#define SIZE(type) \
    { "sizeof " #type, (long long)sizeof(type) }
#define PLACE(type, field) \
    { #type "." #field, (long long)offsetof(type, field) }
#define SIGNATURE(name, ...) \
    { #name "()", __builtin_types_compatible_p(__typeof__(name), __VA_ARGS__) }

static const struct fact runtime[] = {
#if HAS_RUNTIME
    VALUE(cudaSuccess),
    VALUE(cudaErrorInvalidValue),
    VALUE(cudaErrorMemoryAllocation),
    VALUE(cudaErrorInvalidConfiguration),
    VALUE(cudaErrorInsufficientDriver),
    VALUE(cudaErrorNoDevice),
    VALUE(cudaErrorInvalidDevice),
    VALUE(cudaErrorPeerAccessUnsupported),
    VALUE(cudaErrorInvalidResourceHandle),
    VALUE(cudaErrorNotReady),
    VALUE(cudaErrorIllegalAddress),
    VALUE(cudaErrorPeerAccessAlreadyEnabled),
    VALUE(cudaErrorHostMemoryAlreadyRegistered),
    VALUE(cudaErrorHostMemoryNotRegistered),
    VALUE(cudaErrorLaunchFailure),
    VALUE(cudaErrorSystemNotReady),
    VALUE(cudaDevAttrMultiProcessorCount),
    VALUE(cudaDevAttrComputeCapabilityMajor),
    VALUE(cudaDevAttrComputeCapabilityMinor),
    VALUE(cudaDevAttrMaxSharedMemoryPerBlockOptin),
    VALUE(cudaMemcpyHostToDevice),
    VALUE(cudaMemcpyDeviceToHost),
    VALUE(cudaMemcpyDeviceToDevice),
    VALUE(cudaMemcpyDefault),
    VALUE(cudaHostAllocPortable),
    VALUE(cudaHostRegisterPortable),
    VALUE(cudaStreamNonBlocking),
    SIZE(cudaError_t),
    PLACE(struct cudaDeviceProp, name),
    SIZE(((struct cudaDeviceProp *)0)->name),
    SIGNATURE(cudaGetDeviceCount, cudaError_t(int *)),
    SIGNATURE(cudaSetDevice, cudaError_t(int)),
    SIGNATURE(cudaGetDevice, cudaError_t(int *)),
    SIGNATURE(cudaDriverGetVersion, cudaError_t(int *)),
    SIGNATURE(cudaRuntimeGetVersion, cudaError_t(int *)),
    SIGNATURE(cudaDeviceGetAttribute, cudaError_t(int *, enum cudaDeviceAttr, int)),
    SIGNATURE(cudaDeviceGetPCIBusId, cudaError_t(char *, int, int)),
    SIGNATURE(cudaGetDeviceProperties, cudaError_t(struct cudaDeviceProp *, int)),
    SIGNATURE(cudaDeviceCanAccessPeer, cudaError_t(int *, int, int)),
    SIGNATURE(cudaDeviceEnablePeerAccess, cudaError_t(int, unsigned int)),
    SIGNATURE(cudaGetErrorName, const char *(cudaError_t)),
    SIGNATURE(cudaGetErrorString, const char *(cudaError_t)),
    SIGNATURE(cudaGetLastError, cudaError_t(void)),
    SIGNATURE(cudaMalloc, cudaError_t(void **, size_t)),
    SIGNATURE(cudaFree, cudaError_t(void *)),
    SIGNATURE(cudaHostAlloc, cudaError_t(void **, size_t, unsigned int)),
    SIGNATURE(cudaFreeHost, cudaError_t(void *)),
    SIGNATURE(cudaHostRegister, cudaError_t(void *, size_t, unsigned int)),
    SIGNATURE(cudaHostUnregister, cudaError_t(void *)),
    SIGNATURE(cudaMemGetInfo, cudaError_t(size_t *, size_t *)),
    SIGNATURE(cudaMemsetAsync, cudaError_t(void *, int, size_t, cudaStream_t)),
    SIGNATURE(cudaMemcpyAsync, cudaError_t(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t)),
    SIGNATURE(cudaStreamCreateWithFlags, cudaError_t(cudaStream_t *, unsigned int)),
    SIGNATURE(cudaStreamDestroy, cudaError_t(cudaStream_t)),
    SIGNATURE(cudaStreamSynchronize, cudaError_t(cudaStream_t)),
    SIGNATURE(cudaStreamWaitEvent, cudaError_t(cudaStream_t, cudaEvent_t, unsigned int)),
    SIGNATURE(cudaEventCreate, cudaError_t(cudaEvent_t *)),
    SIGNATURE(cudaEventDestroy, cudaError_t(cudaEvent_t)),
    SIGNATURE(cudaEventRecord, cudaError_t(cudaEvent_t, cudaStream_t)),
    SIGNATURE(cudaEventQuery, cudaError_t(cudaEvent_t)),
    SIGNATURE(cudaEventSynchronize, cudaError_t(cudaEvent_t)),
    SIGNATURE(cudaEventElapsedTime, cudaError_t(float *, cudaEvent_t, cudaEvent_t)),
#endif

    {NULL, 0}};

static const struct fact cublaslt[] = {
#if HAS_CUBLASLT
    VALUE(CUDA_R_32F),
    VALUE(CUDA_R_16F),
    VALUE(CUDA_R_16BF),
    VALUE(CUBLAS_STATUS_SUCCESS),
    VALUE(CUBLAS_STATUS_NOT_INITIALIZED),
    VALUE(CUBLAS_STATUS_ALLOC_FAILED),
    VALUE(CUBLAS_STATUS_INVALID_VALUE),
    VALUE(CUBLAS_STATUS_EXECUTION_FAILED),
    VALUE(CUBLAS_STATUS_NOT_SUPPORTED),
    VALUE(CUBLAS_OP_N),
    VALUE(CUBLAS_OP_T),
    VALUE(CUBLAS_COMPUTE_32F),
    VALUE(CUBLASLT_EPILOGUE_DEFAULT),
    VALUE(CUBLASLT_EPILOGUE_BIAS),
    VALUE(CUBLASLT_EPILOGUE_GELU),
    VALUE(CUBLASLT_EPILOGUE_GELU_BIAS),
    VALUE(CUBLASLT_EPILOGUE_GELU_AUX),
    VALUE(CUBLASLT_EPILOGUE_GELU_AUX_BIAS),
    VALUE(CUBLASLT_EPILOGUE_DGELU),
    VALUE(CUBLASLT_EPILOGUE_BGRADB),
    VALUE(CUBLASLT_REDUCTION_SCHEME_NONE),
    VALUE(CUBLASLT_REDUCTION_SCHEME_INPLACE),
    VALUE(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE),
    VALUE(CUBLASLT_REDUCTION_SCHEME_MASK),
    VALUE(CUBLASLT_MATMUL_DESC_TRANSA),
    VALUE(CUBLASLT_MATMUL_DESC_TRANSB),
    VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE),
    VALUE(CUBLASLT_MATMUL_DESC_BIAS_POINTER),
    VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER),
    VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD),
    VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE),
    VALUE(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE),
    VALUE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES),
    VALUE(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
    VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
    VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
    VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
    VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES),
    SIZE(cudaDataType_t),
    SIZE(cublasStatus_t),
    SIZE(cublasLtMatmulAlgo_t),
    SIZE(cublasLtMatmulHeuristicResult_t),
    PLACE(cublasLtMatmulHeuristicResult_t, algo),
    PLACE(cublasLtMatmulHeuristicResult_t, workspaceSize),
    PLACE(cublasLtMatmulHeuristicResult_t, state),
    PLACE(cublasLtMatmulHeuristicResult_t, wavesCount),
    SIGNATURE(cublasLtCreate, cublasStatus_t(cublasLtHandle_t *)),
    SIGNATURE(cublasLtDestroy, cublasStatus_t(cublasLtHandle_t)),
    SIGNATURE(cublasLtGetVersion, size_t(void)),
    SIGNATURE(cublasLtGetStatusString, const char *(cublasStatus_t)),
    SIGNATURE(cublasLtMatmulDescCreate,
              cublasStatus_t(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t)),
    SIGNATURE(cublasLtMatmulDescDestroy, cublasStatus_t(cublasLtMatmulDesc_t)),
    SIGNATURE(cublasLtMatmulDescSetAttribute,
              cublasStatus_t(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t)),
    SIGNATURE(cublasLtMatrixLayoutCreate,
              cublasStatus_t(cublasLtMatrixLayout_t *, cudaDataType, uint64_t, uint64_t, int64_t)),
    SIGNATURE(cublasLtMatrixLayoutDestroy, cublasStatus_t(cublasLtMatrixLayout_t)),
    SIGNATURE(cublasLtMatmulPreferenceCreate, cublasStatus_t(cublasLtMatmulPreference_t *)),
    SIGNATURE(cublasLtMatmulPreferenceDestroy, cublasStatus_t(cublasLtMatmulPreference_t)),
    SIGNATURE(cublasLtMatmulPreferenceSetAttribute,
              cublasStatus_t(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *,
                             size_t)),
    SIGNATURE(cublasLtMatmulAlgoGetHeuristic,
              cublasStatus_t(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                             cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *)),
    SIGNATURE(cublasLtMatmul,
              cublasStatus_t(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                             cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *,
                             const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,
                             const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t)),
#endif

    {NULL, 0}};

// The functions are looked up by name at run time: what the installed header declares must fit struct
// cudnn_api.
#ifdef STANDIN
#define MEMBER(function, member) \
    { #function "()", 1 }
#else
#define MEMBER(function, member) SIGNATURE(function, __typeof__(*((struct cudnn_api *)0)->member))
#endif

static const struct fact cudnn[] = {
#if HAS_CUDNN
    VALUE(CUDNN_STATUS_SUCCESS),
    VALUE(CUDNN_STATUS_NOT_INITIALIZED),
    VALUE(CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH),
    VALUE(CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED),
    VALUE(CUDNN_STATUS_BAD_PARAM),
    VALUE(CUDNN_STATUS_NOT_SUPPORTED),
    VALUE(CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING),
    VALUE(CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE),
    VALUE(CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED),
    VALUE(CUDNN_STATUS_EXECUTION_FAILED),
    VALUE(CUDNN_DATA_FLOAT),
    VALUE(CUDNN_DATA_HALF),
    VALUE(CUDNN_DATA_INT32),
    VALUE(CUDNN_DATA_BFLOAT16),
    VALUE(CUDNN_DATA_BOOLEAN),
    VALUE(CUDNN_REDUCE_TENSOR_ADD),
    VALUE(CUDNN_REDUCE_TENSOR_MAX),
    VALUE(CUDNN_POINTWISE_ADD),
    VALUE(CUDNN_POINTWISE_MUL),
    VALUE(CUDNN_POINTWISE_DIV),
    VALUE(CUDNN_POINTWISE_SUB),
    VALUE(CUDNN_POINTWISE_EXP),
    VALUE(CUDNN_POINTWISE_LOG),
    VALUE(CUDNN_POINTWISE_CMP_GE),
    VALUE(CUDNN_POINTWISE_GEN_INDEX),
    VALUE(CUDNN_POINTWISE_BINARY_SELECT),
    VALUE(CUDNN_HEUR_MODE_FALLBACK),
    VALUE(CUDNN_HEUR_MODE_A),
    VALUE(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC),
    VALUE(CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_TENSOR_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_MATMUL_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR),
    VALUE(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR),
    VALUE(CUDNN_TYPE_HANDLE),
    VALUE(CUDNN_TYPE_DATA_TYPE),
    VALUE(CUDNN_TYPE_BOOLEAN),
    VALUE(CUDNN_TYPE_INT64),
    VALUE(CUDNN_TYPE_VOID_PTR),
    VALUE(CUDNN_TYPE_HEUR_MODE),
    VALUE(CUDNN_TYPE_NUMERICAL_NOTE),
    VALUE(CUDNN_TYPE_POINTWISE_MODE),
    VALUE(CUDNN_TYPE_BACKEND_DESCRIPTOR),
    VALUE(CUDNN_TYPE_REDUCTION_OPERATOR_TYPE),
    VALUE(CUDNN_TYPE_CHAR),
    VALUE(CUDNN_ATTR_POINTWISE_MODE),
    VALUE(CUDNN_ATTR_POINTWISE_MATH_PREC),
    VALUE(CUDNN_ATTR_POINTWISE_AXIS),
    VALUE(CUDNN_ATTR_ENGINEHEUR_MODE),
    VALUE(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
    VALUE(CUDNN_ATTR_ENGINEHEUR_RESULTS),
    VALUE(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP),
    VALUE(CUDNN_ATTR_ENGINECFG_ENGINE),
    VALUE(CUDNN_ATTR_EXECUTION_PLAN_HANDLE),
    VALUE(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG),
    VALUE(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE),
    VALUE(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP),
    VALUE(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
    VALUE(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
    VALUE(CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
    VALUE(CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
    VALUE(CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
    VALUE(CUDNN_ATTR_OPERATIONGRAPH_HANDLE),
    VALUE(CUDNN_ATTR_OPERATIONGRAPH_OPS),
    VALUE(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
    VALUE(CUDNN_ATTR_TENSOR_DATA_TYPE),
    VALUE(CUDNN_ATTR_TENSOR_DIMENSIONS),
    VALUE(CUDNN_ATTR_TENSOR_STRIDES),
    VALUE(CUDNN_ATTR_TENSOR_UNIQUE_ID),
    VALUE(CUDNN_ATTR_TENSOR_IS_VIRTUAL),
    VALUE(CUDNN_ATTR_TENSOR_IS_BY_VALUE),
    VALUE(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
    VALUE(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS),
    VALUE(CUDNN_ATTR_VARIANT_PACK_WORKSPACE),
    VALUE(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE),
    VALUE(CUDNN_ATTR_MATMUL_COMP_TYPE),
    VALUE(CUDNN_ATTR_OPERATION_MATMUL_ADESC),
    VALUE(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
    VALUE(CUDNN_ATTR_OPERATION_MATMUL_CDESC),
    VALUE(CUDNN_ATTR_OPERATION_MATMUL_DESC),
    VALUE(CUDNN_ATTR_REDUCTION_OPERATOR),
    VALUE(CUDNN_ATTR_REDUCTION_COMP_TYPE),
    VALUE(CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
    VALUE(CUDNN_ATTR_OPERATION_REDUCTION_YDESC),
    VALUE(CUDNN_ATTR_OPERATION_REDUCTION_DESC),
    VALUE(CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
    VALUE(CUDNN_ATTR_OPERATION_RESHAPE_YDESC),
    VALUE(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION),
    SIZE(cudnnBackendDescriptor_t),
    SIZE(cudnnBackendAttributeName_t),
    MEMBER(cudnnGetVersion, version),
    MEMBER(cudnnCreate, create),
    MEMBER(cudnnDestroy, destroy),
    MEMBER(cudnnSetStream, set_stream),
    MEMBER(cudnnGetLastErrorString, last_error),
    MEMBER(cudnnBackendCreateDescriptor, create_descriptor),
    MEMBER(cudnnBackendDestroyDescriptor, destroy_descriptor),
    MEMBER(cudnnBackendSetAttribute, set),
    MEMBER(cudnnBackendGetAttribute, get),
    MEMBER(cudnnBackendFinalize, finalize),
    MEMBER(cudnnBackendExecute, execute),
#endif

    {NULL, 0}};

// ncclConfig_t grows with NCCL's versions, by fields at its end.
static const struct fact nccl[] = {
#if HAS_NCCL
    VALUE(ncclSuccess),
    VALUE(ncclUnhandledCudaError),
    VALUE(ncclInvalidArgument),
    VALUE(ncclInvalidUsage),
    VALUE(ncclInProgress),
    VALUE(ncclSum),
    VALUE(ncclProd),
    VALUE(ncclMax),
    VALUE(ncclMin),
    VALUE(ncclUint8),
    VALUE(ncclInt64),
    VALUE(ncclFloat16),
    VALUE(ncclFloat32),
    VALUE(ncclFloat64),
    VALUE(ncclBfloat16),
    SIZE(ncclUniqueId),
    PLACE(ncclConfig_t, size),
    PLACE(ncclConfig_t, magic),
    PLACE(ncclConfig_t, version),
    PLACE(ncclConfig_t, blocking),
    PLACE(ncclConfig_t, cgaClusterSize),
    PLACE(ncclConfig_t, minCTAs),
    PLACE(ncclConfig_t, maxCTAs),
    PLACE(ncclConfig_t, netName),
    PLACE(ncclConfig_t, splitShare),
    SIGNATURE(ncclGetVersion, ncclResult_t(int *)),
    SIGNATURE(ncclGetUniqueId, ncclResult_t(ncclUniqueId *)),
    SIGNATURE(ncclCommInitRankConfig, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *)),
    SIGNATURE(ncclCommFinalize, ncclResult_t(ncclComm_t)),
    SIGNATURE(ncclCommDestroy, ncclResult_t(ncclComm_t)),
    SIGNATURE(ncclCommAbort, ncclResult_t(ncclComm_t)),
    SIGNATURE(ncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t *)),
    SIGNATURE(ncclGetErrorString, const char *(ncclResult_t)),
    SIGNATURE(ncclGetLastError, const char *(ncclComm_t)),
    SIGNATURE(ncclGroupStart, ncclResult_t(void)),
    SIGNATURE(ncclGroupEnd, ncclResult_t(void)),
    SIGNATURE(ncclSend,
              ncclResult_t(const void *, size_t, ncclDataType_t, int, ncclComm_t, struct CUstream_st *)),
    SIGNATURE(ncclRecv, ncclResult_t(void *, size_t, ncclDataType_t, int, ncclComm_t, struct CUstream_st *)),
    SIGNATURE(ncclBroadcast, ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t,
                                          struct CUstream_st *)),
    SIGNATURE(ncclReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int,
                                       ncclComm_t, struct CUstream_st *)),
    SIGNATURE(ncclAllReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                          ncclComm_t, struct CUstream_st *)),
    SIGNATURE(ncclAllGather,
              ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, struct CUstream_st *)),
    SIGNATURE(ncclReduceScatter, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                                              ncclComm_t, struct CUstream_st *)),
#endif

    {NULL, 0}};

// The values that the initializer of ncclConfig_t sets: no constants.
static size_t nccl_config(struct fact *out, size_t room) {
#if HAS_NCCL
    const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const struct fact facts[] = {
        VALUE(config.magic),      VALUE(config.blocking), VALUE(config.cgaClusterSize),
        VALUE(config.minCTAs),    VALUE(config.maxCTAs),  VALUE(config.netName == NULL),
        VALUE(config.splitShare),
    };
    size_t count = sizeof facts / sizeof *facts;
    memcpy(out, facts, (count < room ? count : room) * sizeof *facts);
    return count;
#else
    (void)out;
    (void)room;
    return 0;
#endif
}

size_t FACTS(enum header which, struct fact *out, size_t room) {
    const struct fact *const lists[] = {[HEADER_RUNTIME] = runtime,
                                        [HEADER_CUBLASLT] = cublaslt,
                                        [HEADER_CUDNN] = cudnn,
                                        [HEADER_NCCL] = nccl};
    size_t count = 0;
    for (const struct fact *f = lists[which]; f->name; f++, count++)
        if (count < room) out[count] = *f;
    if (which == HEADER_NCCL && count <= room) count += nccl_config(out + count, room - count);
    return count;
}
