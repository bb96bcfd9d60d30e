#include "shared/run/launch_check.h"

#include "shared/core/error.h"

int launch_check(const struct config *c) {
    bool threads = c->launch == LAUNCH_THREADS, mpi = c->launch == LAUNCH_MPI;
    if (c->kind == TOPOLOGY_PS && (threads || mpi))
        return fail(
            "--launch %s: a star's roles are processes of their own; use --launch processes, or start them "
            "one by one (starring scheduler --help)",
            mpi ? "mpi" : "threads");
    if (c->kind == TOPOLOGY_ZERO && c->launch == LAUNCH_PROCESSES)
        return fail(
            "--launch processes: a ring's ranks are threads or MPI processes; use --launch threads or "
            "--launch mpi");
    if (c->kind == TOPOLOGY_LOCAL && mpi)
        return fail("--launch mpi: --topology local is one process; use --topology zero:0 to zero:3");
    if (c->kind == TOPOLOGY_PS && c->consistency != CONSISTENCY_SYNC && c->consistency != CONSISTENCY_ASYNC)
        return fail("--topology %s: not supported yet; use ps:sync or ps:async", c->topology);
    if (c->device == DEVICE_CUDA && c->kind != TOPOLOGY_LOCAL)
        return fail("--device cuda: only --topology local runs on a GPU in this version; use --device cpu");
    return 0;
}

int launch_check_rank(const struct config *c, const struct rank_env *e) {
    if (c->kind == TOPOLOGY_ZERO && c->workers > REDUCE_MAX)
        return fail("--workers %d: a ring has at most %d ranks; --dry-run predicts any number", c->workers,
                    REDUCE_MAX);
    if (e->kind == RANK_ENV_NONE) return 0;
    const char *by = rank_env_name(e->kind);
    if (c->kind == TOPOLOGY_PS)
        return fail(
            "started by %s as rank %d of %d: a star's processes need the scheduler's address. On many "
            "machines run `starring scheduler --bind tcp://0.0.0.0:9000 -c CONFIG`, then `starring server "
            "--scheduler tcp://HOST:9000 -c CONFIG` and `starring worker --scheduler tcp://HOST:9000 -c "
            "CONFIG`; on this one add --launch processes",
            by, e->rank, e->size);
    if (c->kind == TOPOLOGY_LOCAL && e->size > 1)
        return fail("started by %s as rank %d of %d, but --topology local is one process: use zero:0", by,
                    e->rank, e->size);
    if (c->kind == TOPOLOGY_LOCAL) return 0;
    if (!e->mpi_ready)
        return fail(
            "started by %s as rank %d of %d: the ring meets over MPI in this version; use mpirun -n %d, srun "
            "--mpi=pmix, or --launch threads for ranks in one process",
            by, e->rank, e->size, e->size);
    if (c->workers != e->size)
        return fail("--workers %d, but %s started %d ranks: make them equal", c->workers, by, e->size);
    if (!c->out) return fail("started by %s: every rank must know the run directory; give --out DIR", by);
    return 0;
}
