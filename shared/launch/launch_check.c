#include "shared/launch/launch_check.h"

#include "shared/core/error.h"

// What the ranks of a ring talk through, and what they are.
static int check_collective(const struct config *c) {
    static const char *const devices[] = {"auto", "cpu", "cuda", "ref"};
    if (c->collective == RING_MPI && c->launch == LAUNCH_THREADS)
        return fail(
            "--collective mpi: with --launch threads the ranks share one process's memory; use --collective "
            "local, or --launch mpi");
    if (c->collective == RING_THREADS && c->launch == LAUNCH_MPI)
        return fail(
            "--collective local: with --launch mpi the ranks are processes of their own; use --collective "
            "mpi, "
            "or --launch threads");
    if (c->collective == RING_NCCL && c->device != DEVICE_CUDA)
        return fail(
            "--collective nccl: NCCL moves the memory of GPUs, and --device is %s; use --device cuda, or "
            "--collective auto",
            devices[c->device]);
    return 0;
}

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
    if (c->kind != TOPOLOGY_ZERO && c->reduce_native)
        return fail(
            "--topology %s: \"reduce\": \"native\" is the ring's; the star's servers and a single process "
            "always sum in "
            "worker order",
            c->topology);
    return c->kind == TOPOLOGY_ZERO ? check_collective(c) : 0;
}

int launch_check_rank(const struct config *c, const struct rank_env *e) {
    if (c->kind == TOPOLOGY_ZERO && c->workers > REDUCE_MAX)
        return fail("--workers %d: a ring has at most %d ranks; --dry-run predicts any number", c->workers,
                    REDUCE_MAX);
    bool ring = c->kind == TOPOLOGY_ZERO;
    if (ring && c->collective == RING_MPI && c->launch != LAUNCH_MPI && e->kind == RANK_ENV_NONE)
        return fail(
            "--collective mpi: nobody has started this process as a rank; add --launch mpi, start it by "
            "mpirun "
            "-n %d, or use --collective local",
            c->workers);
    if (e->kind == RANK_ENV_NONE) return 0;
    const char *by = rank_env_name(e->kind);
    if (ring && c->collective == RING_THREADS)
        return fail(
            "--collective local: started by %s, the ranks are processes of their own; use --collective mpi, "
            "or "
            "--launch threads",
            by);
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
