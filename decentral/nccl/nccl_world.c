// A rank's NCCL: the library, the check that each rank has a GPU of its own, events and streams (nccl_engine.h).
#include "decentral/nccl/nccl_impl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda_so.h"
#include "shared/core/error.h"

#define LAUNCH_ORDER         "NCCL_LAUNCH_ORDER_IMPLICIT"
#define LAUNCH_ORDER_VERSION 22600
#define MULTI_RANK_GPU       23000  // NCCL 2.30 knows NCCL_MULTI_RANK_GPU_ENABLE

// ---------------------------------------------------------------- the library
static bool shares_gpus(void) {
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return asked && strcmp(asked, "1") == 0;
}

// NCCL reads LAUNCH_ORDER once; a value set by the user stays. Ranks that are threads and share a GPU also share NCCL's
// order, in which one rank's operations would wait for another rank's. So these ranks leave the variable unset, and the
// device keeps each rank's order (`serial`).
static void request_order(void) {
    if (!shares_gpus()) setenv(LAUNCH_ORDER, "1", 0);
}

static void *open_library(const char **why) {
    static _Thread_local char text[512];
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, request_order);
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
    snprintf(text, sizeof text,
             "NCCL was not found (%.300s): install libnccl2, name its folder "
             "in LD_LIBRARY_PATH, or use another --collective",
             dlerror());
    *why = text;
    return NULL;
}

bool nccl_available(const char **why) { return open_library(why) != NULL; }

static int open_api(struct nccl_api *api) {
    const char *why = "";
    api->library = open_library(&why);
    if (!api->library) return fail("%s", why);
#define NCCL_FIND(name)                                                                         \
    {                                                                                           \
        void *p = dlsym(api->library, "nccl" #name);                                            \
        if (!p) return fail("libnccl.so.2 has no nccl" #name ": NCCL 2.18 or newer is needed"); \
        memcpy(&api->name, &p, sizeof p);                                                       \
    }
    NCCL_FUNCTIONS(NCCL_FIND)
    if (api->GetVersion(&api->version) != ncclSuccess) return fail("NCCL does not report its version");
    return 0;
}

// ---------------------------------------------------------------- the ranks' devices
struct gpu_address {
    char host[64], bus_id[32];
};

static int check_sharing(const struct nccl_world *w, int a, int b, const struct gpu_address *p,
                         int nccl_version) {
    if (nccl_version >= MULTI_RANK_GPU && shares_gpus()) return 0;
    if (w->o.rank != 0) return -1;  // only rank 0 logs
    return fail(
        "ranks %d and %d share one GPU (%s of %s), which NCCL %d.%d %s; give each rank its own, or use "
        "--collective local (ranks as threads) or mpi (as processes)",
        a, b, p->bus_id, p->host, nccl_version / 10000, nccl_version / 100 % 100,
        nccl_version >= MULTI_RANK_GPU ? "allows only with NCCL_MULTI_RANK_GPU_ENABLE=1" : "does not allow");
}

int nccl_check_devices(const struct nccl_world *w, int nccl_version) {
    struct gpu_address gpus[REDUCE_GPU_MAX];
    struct device_facts facts;
    memset(gpus, 0, sizeof gpus);
    if (dev_facts(w->o.device, &facts) != 0) return fail("NCCL: %s", dev_error(w->o.device));
    struct gpu_address *mine = &gpus[w->o.rank];
    gethostname(mine->host, sizeof mine->host - 1);
    snprintf(mine->bus_id, sizeof mine->bus_id, "%s", facts.bus_id);
    for (int i = 0; i < w->o.size; i++)
        if (ring_bootstrap_broadcast(w->o.bootstrap, i, &gpus[i], sizeof gpus[i]) != 0) return -1;
    for (int i = 0; i < w->o.size; i++)
        for (int k = i + 1; k < w->o.size; k++)
            if (memcmp(&gpus[i], &gpus[k], sizeof gpus[i]) == 0 &&
                check_sharing(w, i, k, &gpus[i], nccl_version) != 0)
                return -1;
    return 0;
}

// ---------------------------------------------------------------- opening and closing
// Creates all channels' events here, because nothing is created on the device after the first communicator.
static int prepare_order(struct nccl_world *w) {
    const char *asked = getenv(LAUNCH_ORDER);
    w->serial = w->api->version < LAUNCH_ORDER_VERSION || !asked || strtoll(asked, NULL, 0) == 0;
    if (w->serial && w->o.rank == 0 && w->api->version >= LAUNCH_ORDER_VERSION && !shares_gpus())
        warn(LAUNCH_ORDER "=%s is set: NCCL's operations run one after the other", asked);
    w->order = event_create(w->o.device);
    w->sums = stream_create(w->o.device, "sums");
    bool made = w->order && w->sums;
    for (int i = 0; i < 2 * COLLECTIVE_CHANNELS; i++) {
        struct nccl_buffers *b = &w->buffers[i / 2];
        b->filled[i % 2] = event_create(w->o.device);
        b->summed[i % 2] = event_create(w->o.device);
        made = made && b->filled[i % 2] && b->summed[i % 2];
    }
    for (int i = 0; i < COLLECTIVE_CHANNELS * NCCL_ENTRIES; i++) {
        struct nccl_event_pair *e = &w->events[i / NCCL_ENTRIES][i % NCCL_ENTRIES];
        e->start = event_create(w->o.device);
        e->done = event_create(w->o.device);
        made = made && e->start && e->done;
    }
    return made ? 0 : fail("NCCL: %s", dev_error(w->o.device));
}

void nccl_world_close(struct nccl_world **world) {
    struct nccl_world *w = *world;
    if (!w) return;
    stream_destroy(&w->setup);
    event_destroy(&w->order);
    stream_destroy(&w->sums);
    for (int i = 0; i < 2 * COLLECTIVE_CHANNELS; i++) {
        event_destroy(&w->buffers[i / 2].filled[i % 2]);
        event_destroy(&w->buffers[i / 2].summed[i % 2]);
    }
    for (int i = 0; i < COLLECTIVE_CHANNELS * NCCL_ENTRIES; i++) {
        event_destroy(&w->events[i / NCCL_ENTRIES][i % NCCL_ENTRIES].start);
        event_destroy(&w->events[i / NCCL_ENTRIES][i % NCCL_ENTRIES].done);
    }
    if (w->one) w->so->backend->free(w->o.device, w->one, DEV_ALIGN);
    free(w->api);  // the library is not closed: threads of its own may still run
    free(w);
    *world = NULL;
}

int nccl_world_open(struct nccl_world **out, const struct nccl_world_options *o) {
    const char *why = "";
    *out = NULL;
    if (strcmp(dev_backend(o->device)->name, "cuda") != 0)
        return fail("NCCL needs --device cuda; this rank computes on %s", dev_backend(o->device)->name);
    if (o->size > REDUCE_GPU_MAX) return fail("%d ranks; at most %d are possible", o->size, REDUCE_GPU_MAX);
    struct nccl_world *w = xcalloc(1, sizeof *w);
    w->o = *o;
    w->api = xcalloc(1, sizeof *w->api);
    w->so = cuda_so_open(&why);
    int rc = w->so ? open_api(w->api) : fail("%s", why);
    if (rc == 0) rc = nccl_check_devices(w, w->api->version);
    if (rc == 0) {
        w->setup = stream_create(o->device, "nccl");
        // Not in the ledger, like all of NCCL's own memory.
        w->one = w->so->backend->alloc(o->device, DEV_ALIGN);
        if (!w->setup || !w->one) rc = fail("NCCL: %s", dev_error(o->device));
    }
    if (rc == 0) rc = prepare_order(w);
    if (rc != 0) {
        nccl_world_close(&w);
        return -1;
    }
    *out = w;
    return 0;
}
