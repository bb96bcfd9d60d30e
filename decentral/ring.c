// See the header.
#include "decentral/ring.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/nccl/collective_nccl.h"
#include "decentral/ring_source.h"
#include "decentral/zero/zero.h"
#include "decentral/zero/zero_memory.h"
#include "shared/core/error.h"
#include "shared/device/device_choice.h"

static struct zero_options options_of(const struct config *c, const struct layout *l) {
    return (struct zero_options){.stage = c->stage,
                                 .layout = l,
                                 .dtype = c->dtype,
                                 .optimizer = c->optimizer,
                                 .reduce = c->reduce_native ? REDUCE_NATIVE : REDUCE_ORDERED,
                                 .accumulation = c->accumulation,
                                 .deadline_s = (double)c->deadline_ms * 1e-3};
}

// ---------------------------------------------------------------- before anything starts

void ring_resolve(struct config *c, bool mpi, int ranks_here) {
    struct ring_machine m = {.mpi = mpi,
                             .cuda = c->device == DEVICE_CUDA,
                             .ranks_here = mpi ? ranks_here : c->workers,
                             .gpus = device_gpus(c)};
    c->collective = ring_collective_resolve(c->collective, &m);
}

// A library's own sum needs a library that has one, for this type.
static int check_native(const struct config *c) {
    if (c->workers > 1 && c->collective == RING_THREADS)
        return fail(
            "\"reduce\": \"native\": ranks that are threads have no library whose sum could be taken; use "
            "--launch "
            "mpi or --collective nccl, or leave \"reduce\" out");
    if (c->workers > 1 && c->collective == RING_MPI && c->dtype != DT_F32)
        return fail(
            "\"reduce\": \"native\": Open MPI has no sum of %s; use --dtype fp32, or leave \"reduce\" out",
            config_dtype_name(c->dtype));
    return 0;
}

int ring_check(const struct config *c) {
    const char *why = "";
    if (c->reduce_native && check_native(c)) return -1;
    if (c->collective != RING_NCCL || nccl_available(&why)) return 0;
    return fail("--collective nccl: %s", why);
}

int ring_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *memory,
                 struct wire_prediction *wire) {
    struct collective_source source =
        ring_source_predicted(c->collective, c->device == DEVICE_CUDA, rank, c->workers);
    struct zero_options z = options_of(c, l);
    z.device_memory = c->device == DEVICE_CUDA;
    z.source = &source;
    return zero_predict(&z, memory, wire);
}

// ---------------------------------------------------------------- a rank

struct rank {
    const struct job *job;
    struct ring_place place;
    struct ring_source *source;  // as long as the topology
    pthread_t thread;
    int rc;
    char *why;        // of rc -1, malloc'd
    double failed_s;  // when
};

static struct topology *create(void *ctx, struct device *dev, struct stream *compute) {
    struct rank *r = ctx;
    struct zero_options z = options_of(r->job->config, r->job->layout);
    r->place.dev = z.dev = dev;
    r->place.deadline_s = z.deadline_s;
    if (ring_source_open(&r->source, r->job->config->collective, &r->place) != 0) return NULL;
    z.compute = compute;
    z.source = ring_source_get(r->source);
    return zero_create(&z);
}

static void end(void *ctx) { ring_source_close(&((struct rank *)ctx)->source); }

static int run(struct rank *r, int local_rank) {
    return session_run(&(struct session_options){.job = r->job,
                                                 .rank = r->place.rank,
                                                 .local_rank = local_rank,
                                                 .create = create,
                                                 .end = end,
                                                 .ctx = r},
                       NULL);
}

int ring_run_rank(const struct job *j, struct mpi_world *world, int rank, int local_rank) {
    struct rank r = {.job = j, .place = {.world = world, .rank = rank, .size = j->config->workers}};
    return run(&r, local_rank);
}

static void *thread_main(void *arg) {
    struct rank *r = arg;
    r->rc = run(r, r->place.rank);
    if (!r->rc) return NULL;
    r->why = xstrdup(error_last());
    r->failed_s = now_seconds();
    threads_hub_abort(r->place.hub, r->why);  // the others must not wait for this rank
    return NULL;
}

// The rank whose failure the others' are consequences of, or NULL. It told them why before it left; where
// none did in these words, the first to leave.
static const struct rank *first_to_fail(const struct rank *ranks, int count, struct threads_hub *hub) {
    const struct rank *first = NULL;
    char why[512] = "";
    bool told = threads_hub_aborted(hub, why, sizeof why);
    for (int i = 0; i < count; i++) {
        if (!ranks[i].rc) continue;
        if (told && !strncmp(ranks[i].why, why, sizeof why - 1)) return &ranks[i];
        if (!first || ranks[i].failed_s < first->failed_s) first = &ranks[i];
    }
    return first;
}

int ring_run_threads(const struct job *j) {
    int n = j->config->workers, started = 0, rc = 0;
    struct threads_hub *hub = threads_hub_create(n);
    struct rank *ranks = xcalloc((size_t)n, sizeof *ranks);
    for (; started < n; started++) {
        struct rank *r = &ranks[started];
        *r = (struct rank){.job = j, .place = {.hub = hub, .rank = started, .size = n}};
        if (pthread_create(&r->thread, NULL, thread_main, r)) break;
    }
    if (started < n) {
        rc = fail("cannot start the thread of rank %d of %d: lower --workers", started, n);
        threads_hub_abort(hub, error_last());
    }
    for (int i = 0; i < started; i++) pthread_join(ranks[i].thread, NULL);
    const struct rank *first = first_to_fail(ranks, started, hub);
    if (first && !rc) error_take_over(first->why);
    if (first) rc = -1;
    for (int i = 0; i < started; i++) free(ranks[i].why);
    free(ranks);
    threads_hub_destroy(&hub);
    return rc;
}
