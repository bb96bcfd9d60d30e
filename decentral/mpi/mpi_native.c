// The reductions that Open MPI carries out itself, by nonblocking calls: only these allow a deadline.
#include <string.h>

#include "decentral/mpi/mpi_impl.h"

// The library's type, or MPI_DATATYPE_NULL: it has none for 16-bit floats.
static MPI_Datatype native_type(enum dtype dt) {
    switch (dt) {
        case DT_F32:
            return MPI_FLOAT;
        case DT_F64:
            return MPI_DOUBLE;
        case DT_I64:
            return MPI_INT64_T;
        default:
            return MPI_DATATYPE_NULL;
    }
}

static int wait_native(struct collective_mpi *m, enum collective_primitive p, int rc, MPI_Request request) {
    for (int i = 1; i < 2 * m->x.impl.head.size; i++) m->requests[i] = MPI_REQUEST_NULL;
    if (rc != MPI_SUCCESS) return mpi_fail(m, collective_name(p), rc);
    m->requests[0] = request;
    return mpi_wait_all(m, collective_name(p), NULL);
}

// The library's blocks must be contiguous and may not overlap its result, which ours does in place: chunks of
// all blocks are packed into staging and the result is copied out of it.
//     staging | chunk for rank 0 | .. | chunk for rank size-1 | result |
static int native_reduce_scatter(struct collective_mpi *m, const struct collective_call *c,
                                 MPI_Datatype type) {
    size_t e = dtype_size(c->dt), size = (size_t)m->x.impl.head.size,
           slot = m->x.staging_bytes / (size + 1) / e;
    for (size_t done = 0; done < c->count; done += slot) {
        size_t n = c->count - done < slot ? c->count - done : slot;
        for (size_t i = 0; i < size; i++)
            memcpy(m->x.staging + i * n * e, (const char *)c->send + (i * c->count + done) * e, n * e);
        MPI_Request request = MPI_REQUEST_NULL;
        int rc = MPI_Ireduce_scatter_block(m->x.staging, m->x.staging + size * n * e, (int)n, type, MPI_SUM,
                                           m->comm, &request);
        if (wait_native(m, c->primitive, rc, request) != 0) return -1;
        memcpy((char *)c->recv + done * e, m->x.staging + size * n * e, n * e);
    }
    return 0;
}

static int native_all_reduce(struct collective_mpi *m, const struct collective_call *c, MPI_Datatype type) {
    size_t e = dtype_size(c->dt), most = MESSAGE_BYTES / e;
    bool all = c->primitive == COLLECTIVE_ALL_REDUCE, root = m->x.impl.head.rank == c->root;
    bool in_place = c->send == c->recv && (all || root);
    for (size_t done = 0; done < c->count; done += most) {
        int n = (int)(c->count - done < most ? c->count - done : most), rc;
        const void *send = in_place ? MPI_IN_PLACE : (const char *)c->send + done * e;
        void *recv = c->recv ? (char *)c->recv + done * e : NULL;
        MPI_Request request = MPI_REQUEST_NULL;
        if (all)
            rc = MPI_Iallreduce(send, recv, n, type, MPI_SUM, m->comm, &request);
        else
            rc = MPI_Ireduce(send, recv, n, type, MPI_SUM, c->root, m->comm, &request);
        if (wait_native(m, c->primitive, rc, request) != 0) return -1;
    }
    return 0;
}

// The library moves the bytes itself: the formula's volume is counted.
int mpi_run_native(struct collective_mpi *m, const struct collective_call *c) {
    MPI_Datatype type = native_type(c->dt);
    if (type == MPI_DATATYPE_NULL)
        return collective_impl_fail(&m->x.impl,
                                    "%s: MPI reduces no %s natively; use the ordered "
                                    "reduction (\"reduce\": \"ordered\") or fp32",
                                    collective_name(c->primitive), dtype_name(c->dt));
    int rc = c->primitive == COLLECTIVE_REDUCE_SCATTER ? native_reduce_scatter(m, c, type)
                                                       : native_all_reduce(m, c, type);
    if (rc != 0) return rc;
    struct collective_plan p = collective_plan_of(c, m->x.impl.head.rank, m->x.impl.head.size);
    struct collective_volume v = collective_native_volume(&p);
    collective_count(m->x.impl.head.wire, m->x.impl.head.control, v.sent, v.received);
    return 0;
}
