// Collectives: eleven primitives over streams, behind one const table. Implementations:
// collective_threads (ranks are threads of one process), collective_mpi (processes), collective_nccl.
//
// Ownership   One struct collective per rank and communicator; destroyed by its rank. Operations of one
//             communicator run in the order enqueued, and every rank enqueues the same sequence. What
//             must overlap (gathers and reductions) uses two communicators on two streams.
// Blocking    Calls only enqueue on the stream; buffers must stay valid until it has run them.
// Errors      A failure, an abort or a peer that does not come within deadline_ms fails the stream;
//             collective_error has the text, which names the operation and the rank missing.
// Reduction   ordered (the default): 16-bit pieces are added in fp32 in rank order and rounded once
//             (ARCHITECTURE.md, Numerics 1); fp64 in rank order; int64 exactly. native: the library's own
//             order.
// Counting    Payload bytes by the ring/all-to-all volume: all_gather, reduce_scatter (N-1)/N of the whole
//             buffer out and in; all_reduce both. A control communicator counts as control bytes. A barrier
//             moves no payload.
// Deadline    0: none. It runs from when an operation begins to wait for its peers.
// send, recv  A send may end only when its receiver has come: two ranks that exchange must order them.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_H

#include "kernels/backend.h"
#include "shared/core/wire_count.h"

enum reduce_mode { REDUCE_ORDERED, REDUCE_NATIVE };

struct collective;

struct collective_ops {
    const char *name;
    // Shapes: size = N ranks, count elements of type dt. In place where send == the rank's own place in recv.
    void (*broadcast)(struct collective *c, struct stream *s, void *buf, size_t count, enum dtype dt,
                      int root);
    void (*scatter)(struct collective *c, struct stream *s, const void *send /*(N*count) at root*/,
                    void *recv /*(count)*/, size_t count, enum dtype dt, int root);
    void (*reduce)(struct collective *c, struct stream *s, const void *send, void *recv /*at root*/,
                   size_t count, enum dtype dt, int root);
    void (*all_reduce)(struct collective *c, struct stream *s, const void *send, void *recv, size_t count,
                       enum dtype dt);
    void (*gather)(struct collective *c, struct stream *s, const void *send, void *recv /*(N*count) at root*/,
                   size_t count, enum dtype dt, int root);
    void (*all_gather)(struct collective *c, struct stream *s, const void *send /*(count)*/,
                       void *recv /*(N*count)*/, size_t count, enum dtype dt);
    void (*reduce_scatter)(struct collective *c, struct stream *s, const void *send /*(N*count)*/,
                           void *recv /*(count); may be the rank's own place in send*/, size_t count,
                           enum dtype dt);
    void (*all_to_all)(struct collective *c, struct stream *s, const void *send /*(N*count)*/,
                       void *recv /*(N*count), not send*/, size_t count, enum dtype dt);
    void (*send)(struct collective *c, struct stream *s, const void *buf, size_t count, enum dtype dt,
                 int to);
    void (*recv)(struct collective *c, struct stream *s, void *buf, size_t count, enum dtype dt, int from);
    void (*barrier)(struct collective *c, struct stream *s);
    void (*abort)(struct collective *c, const char *why);  // any thread; every rank's waits fail soon
    // Whether any rank has aborted, and why. Any thread; never blocks. NULL: cannot be told.
    bool (*aborted)(struct collective *c, char *why, size_t why_bytes);
    void (*destroy)(struct collective *c);
};

struct collective {
    const struct collective_ops *ops;
    int rank, size;
    enum reduce_mode mode;
    bool control;             // count as control bytes
    struct wire_count *wire;  // the rank's counters; not owned
    double deadline_s;
    double busy_s;  // in transfers, waiting for peers included; written by the stream's thread
};

// Bytes of device memory an implementation wants for staging reductions of up to max_count elements a
// rank; given at creation by whoever plans memory (0 for collective_threads).
struct collective_options {
    enum reduce_mode mode;
    bool control;
    struct wire_count *wire;
    double deadline_s;
    void *staging;  // collective_mpi_staging_bytes(...) of device memory, or NULL
    size_t staging_bytes;
    void *host_staging;  // collective_mpi_host_bytes(...) of MEM_HOST, or NULL
    size_t host_staging_bytes;
};

const char *collective_error(struct collective *c);  // "" while nothing has failed
void collective_destroy(struct collective **c);

// ---- collective_threads: a hub shared by the threads, one collective per rank and channel. Native order is
// the same as ordered. A failure of one rank aborts the whole hub.
// Channels 0..COLLECTIVE_CHANNELS-1 are independent communicators.
#define COLLECTIVE_CHANNELS 4
struct threads_hub;
struct threads_hub *threads_hub_create(int size);
void threads_hub_destroy(struct threads_hub **h);  // after every collective of it
int threads_hub_size(const struct threads_hub *h);
void threads_hub_abort(struct threads_hub *h, const char *why);
bool threads_hub_aborted(struct threads_hub *h, char *why, size_t why_bytes);  // why is written when true
struct collective *collective_threads_create(struct threads_hub *h, int rank, int channel,
                                             const struct collective_options *o);

// ---- collective_mpi: MPI_Init_thread(MULTIPLE) once, then one duplicate of MPI_COMM_WORLD a channel;
// every rank creates its channels in the same order. Buffers in device memory that is not the host's pass
// through host staging, which the channels of one stream may share: every operation there, reductions too,
// and instead of the other staging. After a failure mpi_world_close leaves MPI without MPI_Finalize, which
// would wait for the lost: end the process with an error and mpirun ends the job. Reductions need staging: a
// channel created without any refuses them.
struct mpi_world;
int mpi_world_open(struct mpi_world **out, int *rank, int *size);
void mpi_world_close(struct mpi_world **w);
size_t collective_mpi_staging_bytes(int size, size_t max_count, enum dtype dt);
size_t collective_mpi_host_bytes(int size, size_t max_count, enum dtype dt);
struct collective *collective_mpi_create(struct mpi_world *w, int channel,
                                         const struct collective_options *o);

// Where a rank gets its communicators from: the ring does not care which kind they are.
struct collective_source {
    const char *name;  // "local", "mpi", "nccl"
    int rank, size;
    size_t (*staging_bytes)(int size, size_t max_count, enum dtype dt);       // of channels that reduce
    size_t (*host_staging_bytes)(int size, size_t max_count, enum dtype dt);  // of every channel; NULL: none
    struct collective *(*create)(const struct collective_source *src, int channel,
                                 const struct collective_options *o);
    void *impl;               // struct threads_hub * or struct mpi_world *
    bool ordered_16bit_only;  // REDUCE_NATIVE is refused for bf16 and fp16
};
struct collective_source collective_source_threads(struct threads_hub *h, int rank);
struct collective_source collective_source_mpi(struct mpi_world *w, int rank, int size);
// For ranks whose device memory is not the host's.
struct collective_source collective_source_mpi_staged(struct mpi_world *w, int rank, int size);

#endif
