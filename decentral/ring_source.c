#include "decentral/ring_source.h"

#include <stdlib.h>

#include "decentral/collective/hub.h"
#include "decentral/mpi/mpi_load.h"
#include "decentral/nccl/collective_nccl.h"
#include "shared/core/error.h"

struct ring_source {
    struct collective_source source;
    struct nccl_meeting *meeting;
    struct nccl_world *nccl;
};

enum ring_collective ring_collective_resolve(enum ring_collective asked, const struct ring_machine *m) {
    const char *why;
    bool alone = m->launch == LAUNCH_THREADS && m->ranks_here == 1,
         shared = m->gpus > 0 && m->ranks_here > m->gpus;
    if (asked != RING_AUTO) return asked;
    if (m->cuda && !alone && !shared && (m->gpus == 0 || nccl_available(&why))) return RING_NCCL;
    return m->launch == LAUNCH_MPI ? RING_MPI : m->launch == LAUNCH_PROCESSES ? RING_SHM : RING_THREADS;
}

// The kinds, by what users call them; for ranks on the host's memory, and on a device's own.
static const struct collective_kind *const kinds[RING_COLLECTIVES][2] = {
    [RING_AUTO] = {&collective_threads_kind, &collective_threads_kind},  // a ring predicted beside a star
    [RING_THREADS] = {&collective_threads_kind, &collective_threads_kind},
    [RING_SHM] = {&collective_shm_kind, &collective_shm_staged_kind},
    [RING_MPI] = {&collective_mpi_kind, &collective_mpi_staged_kind},
    [RING_NCCL] = {&collective_nccl_kind, &collective_nccl_kind},
};

static struct collective_source source_of(enum ring_collective kind, bool device_memory,
                                          const struct ring_place *p, struct nccl_world *nccl) {
    return (struct collective_source){.kind = kinds[kind][device_memory],
                                      .world = kind == RING_NCCL ? (void *)nccl : p->world,
                                      .rank = p->rank,
                                      .size = p->size};
}

struct collective_source ring_source_predicted(enum ring_collective kind, bool cuda, int rank, int size) {
    return source_of(kind, cuda, &(struct ring_place){.rank = rank, .size = size}, NULL);
}

// Each process has looked at its own machine: "auto" may have become different things.
static int agree(struct ring_source *r, enum ring_collective kind, const struct ring_place *p) {
    enum ring_collective first = kind;
    if (nccl_meeting_share(r->meeting, 0, &first, sizeof first) != 0) return -1;
    if (first == kind) return 0;
    fail("rank %d would use --collective %s, rank 0 %s: their machines differ; choose one for all", p->rank,
         engine_rows[kind].name, engine_rows[first].name);
    nccl_meeting_abort(r->meeting, error_last());
    return -1;
}

static int open_nccl(struct ring_source *r, const struct ring_place *p) {
    return nccl_world_open(&r->nccl, &(struct nccl_world_options){.device = p->dev,
                                                                  .rank = p->rank,
                                                                  .size = p->size,
                                                                  .meeting = r->meeting,
                                                                  .deadline_s = p->deadline_s});
}

int ring_source_open(struct ring_source **out, enum ring_collective kind, const struct ring_place *p) {
    bool device_memory = !dev_host_memory(p->dev), processes = p->host != RING_THREADS;
    struct ring_source *r = xcalloc(1, sizeof *r);
    int rc = 0;
    *out = NULL;
    if (kind == RING_NCCL || (processes && device_memory)) {
        struct collective_source under = source_of(p->host, false, p, NULL);
        rc = nccl_meeting_open(&r->meeting, &under, p->deadline_s);
        if (rc == 0 && processes) rc = agree(r, kind, p);
    }
    if (rc == 0 && kind == RING_NCCL) rc = open_nccl(r, p);
    if (rc != 0) {
        ring_source_close(&r);
        return -1;
    }
    r->source = source_of(kind, device_memory, p, r->nccl);
    *out = r;
    return 0;
}

const struct collective_source *ring_source_get(const struct ring_source *r) { return &r->source; }

void ring_source_close(struct ring_source **source) {
    struct ring_source *r = *source;
    if (!r) return;
    nccl_world_close(&r->nccl);
    nccl_meeting_close(&r->meeting);
    free(r);
    *source = NULL;
}
