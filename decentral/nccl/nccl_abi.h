// Declarations of the functions of NCCL that decentral/nccl uses. The program loads libnccl.so.2 at run time, so one
// build serves machines with and without NCCL and needs no header of NCCL. Names, values and signatures are those of
// NCCL 2.18, which later versions keep; tests/emulation/test_emulated_headers.c compares them with an installed nccl.h.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_ABI_H
#define STARRING_DECENTRAL_NCCL_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>

#define NCCL_VERSION_CODE 21800  // the version of NCCL that these declarations are from

struct CUstream_st;
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3 } ncclRedOp_t;
typedef enum {
    ncclUint8 = 1,
    ncclInt64 = 4,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9
} ncclDataType_t;

// A newer library reads `size` bytes and uses its defaults for the fields after them.
typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                 \
    {                                                                                           \
        .size = sizeof(ncclConfig_t), .magic = 0xcafebeef, .version = NCCL_VERSION_CODE,        \
        .blocking = INT_MIN, .cgaClusterSize = INT_MIN, .minCTAs = INT_MIN, .maxCTAs = INT_MIN, \
        .netName = NULL, .splitShare = INT_MIN                                                  \
    }

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *out);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t c);
ncclResult_t ncclCommDestroy(ncclComm_t c);
ncclResult_t ncclCommAbort(ncclComm_t c);
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state);
const char *ncclGetErrorString(ncclResult_t e);
const char *ncclGetLastError(ncclComm_t c);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

// Counts are elements. For all_gather and reduce_scatter they are one rank's.
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      struct CUstream_st *s);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      struct CUstream_st *s);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t c, struct CUstream_st *s);
ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t c, struct CUstream_st *s);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t c, struct CUstream_st *s);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t c,
                           struct CUstream_st *s);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t c, struct CUstream_st *s);

#endif
