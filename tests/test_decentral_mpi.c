// The collectives over Open MPI: the same cases as the local ones, and its failures. Not started by mpirun,
// this program starts itself through it, once for each job below, and looks at the outcome.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// clang-format off
#include <cmocka.h>
// clang-format on
#include <sys/wait.h>

#include "shared/core/error.h"
#include "tests/collective_cases.h"
#include "tests/zero_cases.h"

#define DONE "rank outcome as expected"

// What a rank of a job has.
struct mpi_rank {
    struct mpi_world *world;
    int rank, size;
    struct device *dev;
    struct stream *s;
    struct wire_count wire;
};

static struct collective *open_channel(struct mpi_rank *r, int channel, struct collective_options o) {
    o.wire = &r->wire;
    return collective_mpi_create(r->world, channel, &o);
}

// ---------------------------------------------------------------- jobs, run by every rank; 0 or -1

// Small staging, so that reductions go in several chunks.
static int job_cases(struct mpi_rank *r) {
    char staging[4 * 4096];
    int rc = 0;
    for (int i = 0; i < 3 && !rc; i++) {
        struct collective_options o = {.deadline_s = 60, .mode = i == 2 ? REDUCE_NATIVE : REDUCE_ORDERED};
        if (i != 1) o.staging = staging;
        if (i != 1) o.staging_bytes = sizeof staging;
        struct collective *c = open_channel(r, i, o);
        if (!c) return -1;
        rc = cases_run(c, r->s, 40003, (uint64_t)i);
        stream_sync(r->s);
        collective_destroy(&c);
    }
    return rc;
}

static int expect_failure(struct collective *c, struct stream *s, const char *part) {
    if (stream_sync(s) == 0) return -1;
    if (strstr(collective_error(c), part)) return 0;
    fprintf(stderr, "\"%s\" does not mention \"%s\"\n", collective_error(c), part);
    return -1;
}

static int job_native_16bit_is_refused(struct mpi_rank *r) {
    uint16_t x[8] = {0};
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = 60, .mode = REDUCE_NATIVE});
    c->ops->all_reduce(c, r->s, x, x, 8, DT_BF16);
    int rc = expect_failure(c, r->s, "no bf16 natively");
    stream_destroy(&r->s);
    collective_destroy(&c);
    return rc;
}

// Rank 1 stays away until the others have had their deadline.
static int job_missing(struct mpi_rank *r) {
    float x = 0, y;
    struct collective *c =
        open_channel(r, 0, (struct collective_options){.deadline_s = r->rank == 1 ? 30 : 0.3});
    if (r->rank == 1) {
        c->ops->barrier(c, r->s);
        usleep(1000000);
        return expect_failure(c, r->s, "aborted by rank");
    }
    c->ops->all_reduce(c, r->s, &x, &y, 1, DT_F32);
    return expect_failure(c, r->s, "did not come");
}

static int job_mismatch(struct mpi_rank *r) {
    float x[8] = {0};
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 2});
    c->ops->broadcast(c, r->s, x, r->rank == 1 ? 7 : 6, DT_F32, 0);
    if (r->rank == 1) return expect_failure(c, r->s, "rank 0 sent 24 bytes where rank 1 expects 28");
    return 0;
}

static int job_abort(struct mpi_rank *r) {
    float x = 0, y;
    struct collective *c = open_channel(r, 0, (struct collective_options){0});  // no deadline
    if (r->rank == 2) {
        usleep(50000);
        c->ops->abort(c, "rank 2 gives up");
        c->ops->barrier(c, r->s);
        return expect_failure(c, r->s, "rank 2 gives up");
    }
    c->ops->all_reduce(c, r->s, &x, &y, 1, DT_F32);
    return expect_failure(c, r->s, "aborted by rank 2: rank 2 gives up");
}

// Rank 1 is gone without a word.
static int job_dead(struct mpi_rank *r) {
    float x = 0, y;
    struct collective *c = open_channel(r, 0, (struct collective_options){.deadline_s = 0.3});
    c->ops->barrier(c, r->s);
    if (stream_sync(r->s) != 0) return -1;
    if (r->rank == 1) _exit(7);
    c->ops->all_reduce(c, r->s, &x, &y, 1, DT_F32);
    return expect_failure(c, r->s, "rank 1 did not come");
}

// All stages over MPI against the scalar reference.
static int job_zero(struct mpi_rank *r) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    int rc = 0;
    for (int stage = 0; stage < 4 && !rc; stage++) {
        struct zero_case c = {.world = r->size,
                              .stage = stage,
                              .dtype = types[stage % 3],
                              .tied = stage % 2 == 1,
                              .steps = 5,
                              .micro = 1};
        struct zero_reference *ref = zero_reference_create(&c);
        struct collective_source src = collective_source_mpi(r->world, r->rank, r->size);
        rc = zero_case_rank(&c, ref, &src);
        zero_reference_destroy(&ref);
    }
    return rc;
}

static const struct job {
    const char *name;
    int (*run)(struct mpi_rank *r);
    bool
        broken;  // ends as a failed job does, after every rank that lives has said that it saw what it should
    int speakers;
} jobs[] = {
    {"cases", job_cases, false, 3},      {"native_16bit_is_refused", job_native_16bit_is_refused, false, 3},
    {"zero", job_zero, false, 3},        {"missing", job_missing, true, 3},
    {"mismatch", job_mismatch, true, 1}, {"abort", job_abort, true, 3},
    {"dead", job_dead, true, 0},
};

// A broken job's ranks leave together through exit status 3, so that mpirun ends none before it has spoken.
static int run_as_rank(const char *name) {
    struct mpi_rank r = {0};
    error_quiet(1);
    if (mpi_world_open(&r.world, &r.rank, &r.size) != 0) return 1;
    if (dev_open(backend_find("cpu", &(const char *){NULL}), &(struct device_options){.threads = 1}, &r.dev))
        return 1;
    r.s = stream_create(r.dev, "comm");
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        if (strcmp(jobs[i].name, name) != 0) continue;
        int rc = jobs[i].run(&r);
        if (rc == 0) printf("%d: " DONE "\n", r.rank);
        fflush(stdout);
        if (jobs[i].broken) {
            usleep(1500000);
            mpi_world_close(&r.world);
            _exit(rc == 0 ? 3 : 1);
        }
        if (r.s) stream_destroy(&r.s);
        dev_close(&r.dev);
        mpi_world_close(&r.world);
        return rc == 0 ? 0 : 1;
    }
    return 1;
}
