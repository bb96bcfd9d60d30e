// Where a rank gets its communicators from: one function for each kind.
#include "decentral/nccl/collective_nccl.h"

static size_t no_staging(int size, size_t max_count, enum dtype dt) {
    (void)size, (void)max_count, (void)dt;
    return 0;
}

// ---------------------------------------------------------------- threads of one process

static struct collective *create_threads(const struct collective_source *src, int channel,
                                         const struct collective_options *o) {
    return collective_threads_create(src->impl, src->rank, channel, o);
}

struct collective_source collective_source_threads(struct threads_hub *h, int rank) {
    return (struct collective_source){
        .name = "local",
        .rank = rank,
        .size = h ? threads_hub_size(h) : 0,
        .staging_bytes = no_staging,
        .create = create_threads,
        .impl = h,
    };
}

// ---------------------------------------------------------------- processes

static struct collective *create_mpi(const struct collective_source *src, int channel,
                                     const struct collective_options *o) {
    return collective_mpi_create(src->impl, channel, o);
}

struct collective_source collective_source_mpi(struct mpi_world *w, int rank, int size) {
    return (struct collective_source){
        .name = "mpi",
        .rank = rank,
        .size = size,
        .staging_bytes = collective_mpi_staging_bytes,
        .create = create_mpi,
        .impl = w,
        .ordered_16bit_only = true,
    };
}

struct collective_source collective_source_mpi_staged(struct mpi_world *w, int rank, int size) {
    struct collective_source src = collective_source_mpi(w, rank, size);
    src.staging_bytes = no_staging;
    src.host_staging_bytes = collective_mpi_host_bytes;
    return src;
}

// ---------------------------------------------------------------- GPUs

static struct collective *create_nccl(const struct collective_source *src, int channel,
                                      const struct collective_options *o) {
    return collective_nccl_create(src->impl, channel, o);
}

struct collective_source collective_source_nccl(struct nccl_world *w, int rank, int size) {
    return (struct collective_source){
        .name = "nccl",
        .rank = rank,
        .size = size,
        .staging_bytes = collective_nccl_staging_bytes,
        .create = create_nccl,
        .impl = w,
    };
}
