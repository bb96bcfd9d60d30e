// Pointers to the functions of the loaded NCCL, under the names of nccl_abi.h without "nccl".
#ifndef STARRING_DECENTRAL_NCCL_NCCL_API_H
#define STARRING_DECENTRAL_NCCL_NCCL_API_H

#include "decentral/nccl/nccl_abi.h"

struct nccl_api {
    void *library;
    int version;
#define NCCL_FUNCTIONS(f)                                                                                \
    f(GetVersion) f(GetUniqueId) f(CommInitRankConfig) f(CommFinalize) f(CommDestroy) f(CommAbort)       \
        f(CommGetAsyncError) f(GetErrorString) f(GetLastError) f(GroupStart) f(GroupEnd) f(Send) f(Recv) \
            f(Broadcast) f(Reduce) f(AllReduce) f(AllGather) f(ReduceScatter)
#define NCCL_MEMBER(name) __typeof__(&nccl##name) name;
    NCCL_FUNCTIONS(NCCL_MEMBER)
};

#endif
