// Whether the ranks' GPUs are such that NCCL can serve them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

#define MULTI_RANK_GPU 23000  // NCCL 2.30 knows NCCL_MULTI_RANK_GPU_ENABLE

struct place {
    char host[64], bus_id[32];
};

static int sharing(const struct nccl_world *w, int a, int b, const struct place *p, int nccl_version) {
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (nccl_version >= MULTI_RANK_GPU && asked && strcmp(asked, "1") == 0) return 0;
    if (w->o.rank != 0) return -1;  // said once
    return fail(
        "ranks %d and %d share one GPU (%s of %s), which NCCL %d.%d %s; give each rank its own, or use "
        "--collective local (ranks as threads) or mpi (as processes)",
        a, b, p->bus_id, p->host, nccl_version / 10000, nccl_version / 100 % 100,
        nccl_version >= MULTI_RANK_GPU ? "allows only with NCCL_MULTI_RANK_GPU_ENABLE=1" : "does not allow");
}

int nccl_check_devices(const struct nccl_world *w, int nccl_version) {
    struct place places[REDUCE_MAX];
    struct device_facts facts;
    memset(places, 0, sizeof places);
    if (dev_facts(w->o.device, &facts) != 0) return fail("NCCL: %s", dev_error(w->o.device));
    struct place *mine = &places[w->o.rank];
    gethostname(mine->host, sizeof mine->host - 1);
    snprintf(mine->bus_id, sizeof mine->bus_id, "%s", facts.bus_id);
    for (int i = 0; i < w->o.size; i++)
        if (w->o.rendezvous.share(w->o.rendezvous.ctx, i, &places[i], sizeof places[i]) != 0) return -1;
    for (int i = 0; i < w->o.size; i++)
        for (int k = i + 1; k < w->o.size; k++)
            if (memcmp(&places[i], &places[k], sizeof places[i]) == 0 &&
                sharing(w, i, k, &places[i], nccl_version) != 0)
                return -1;
    return 0;
}
