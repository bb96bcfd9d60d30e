#include "shared/memory/memory_need.h"

#include <math.h>
#include <string.h>

#include "shared/core/arena.h"

#define MIB 1048576.0

#define PROCESS_BYTES     (16 * MIB)
#define MPI_BYTES         (96 * MIB)
#define GPU_PROCESS_BYTES (256 * MIB)
#define GEMM_THREAD_BYTES (8 * MIB)
#define ATTENTION_BYTES   20.0   // fp32 keys and values twice, and keys once more, per position and channel
#define PAGE_TABLES       512.0  // bytes of memory per byte of page table
#define FRAME_OVERHEAD    1.125

#define CONTEXT_BYTES   (512 * MIB)
#define WORKSPACE_BYTES (96 * MIB)
#define NCCL_BYTES      (256 * MIB)

struct largest {
    double unit, tensor;  // elements
};

static struct largest largest_of(const struct layout *l) {
    struct largest x = {0, 0};
    for (int u = 0; u < l->count; u++) {
        x.unit = fmax(x.unit, (double)l->units[u].n_pad);
        for (int i = 0; i < l->units[u].count; i++)
            x.tensor = fmax(x.tensor, (double)l->units[u].tensors[i].numel);
    }
    return x;
}

static double worker_allowance(const struct job *j) {
    const struct config *c = j->config;
    struct largest most = largest_of(j->layout);
    double element = (double)dtype_size(c->dtype), loading = 4 * most.unit;
    if (c->kind == TOPOLOGY_ZERO) loading += element * most.unit / (c->stage == 3 ? c->workers : 1);
    double bytes = fmax(loading, element * (most.unit + most.tensor));
    if (c->kind == TOPOLOGY_PS)
        bytes = fmax(bytes, fmin((double)c->ps.credit_bytes, element * (double)j->layout->padded));
    if (c->device == DEVICE_CUDA) return bytes;  // batches are page-locked there, in the prediction
    bytes += 4.0 * sizeof(int32_t) * (double)(c->accumulation * c->micro_batch * c->seq);
    return bytes + job_threads(j) *
                       (GEMM_THREAD_BYTES + ATTENTION_BYTES * (double)c->seq * (double)j->spec.head_size);
}

// The score matrices of a slice of attention's backward, as kernels/cuda/host/attention.c cuts the batch: at
// most the bytes of the configuration, but never less than a sequence's.
static double score_bytes(const struct job *j) {
    const struct config *c = j->config;
    double padded = 128 * ceil((double)c->seq / 128), of_one = 2 * j->spec.heads * padded * padded;
    double whole = of_one * (double)c->micro_batch, most = (double)c->cuda.attention_slice_bytes;
    if (c->dtype == DT_F32 || c->cuda.attention == CUDA_ATTENTION_OWN) return 0;  // cuDNN is not asked
    if (most == CUDA_SLICE_WHOLE) return whole;
    if (most == CUDA_SLICE_AUTO) most = (double)CUDA_SLICE_AUTO_BYTES;
    return fmin(whole, fmax(of_one, most));
}

static double server_allowance(const struct config *c, const struct prediction *p) {
    double of_one = (double)p->wire.received_per_step / c->workers;
    return FRAME_OVERHEAD * c->workers * fmin((double)c->ps.credit_bytes, of_one);
}

static double process_bytes(const struct config *c, bool computes) {
    double bytes = PROCESS_BYTES;
    if (c->kind == TOPOLOGY_ZERO && c->collective == RING_MPI) bytes += MPI_BYTES;
    if (computes && c->device == DEVICE_CUDA) bytes += GPU_PROCESS_BYTES;
    return bytes;
}

static void add_worker(const struct job *j, const struct memory_part *part, int local_rank,
                       const struct prediction *p, struct memory_need *n) {
    const struct config *c = j->config;
    double device = (double)mem_device_bytes(p->memory.predicted_bytes);
    n->host.allowed_bytes += worker_allowance(j);
    n->host.predicted_bytes += (double)p->memory.predicted_bytes[MEM_HOST];
    if (part->processes) n->host.allowed_bytes += process_bytes(c, true);
    if (c->device != DEVICE_CUDA) {
        n->host.predicted_bytes += device;
        return;
    }
    int gpus = part->gpus < MEMORY_GPUS_MAX ? part->gpus : MEMORY_GPUS_MAX;
    if (!gpus) return;
    int index = local_rank % gpus;
    struct memory_sum *gpu = &n->gpu[index];
    if (index >= n->gpus) n->gpus = index + 1;
    gpu->predicted_bytes += device;
    gpu->allowed_bytes += WORKSPACE_BYTES + score_bytes(j) + (c->collective == RING_NCCL ? NCCL_BYTES : 0);
    if (part->processes && (!part->role || local_rank > 0)) gpu->allowed_bytes += CONTEXT_BYTES;
}

static int add_workers(const struct job *j, predict_fn predict, const struct memory_part *part, int first,
                       int count, struct memory_need *n) {
    struct prediction p;
    // Units are padded for the number of workers: each worker's share is as large as any other's.
    if (prediction_of_rank(j, predict, "worker", first, &p)) return -1;
    for (int i = 0; i < count; i++) add_worker(j, part, i, &p, n);
    return 0;
}

static int add_servers(const struct job *j, predict_fn predict, int first, int count, struct memory_need *n) {
    for (int i = first; i < first + count; i++) {
        struct prediction p;
        if (prediction_of_rank(j, predict, "server", i, &p)) return -1;
        n->host.predicted_bytes += (double)mem_device_bytes(p.memory.predicted_bytes);
        n->host.allowed_bytes += server_allowance(j->config, &p) + process_bytes(j->config, false);
    }
    return 0;
}

int memory_need_of(const struct job *j, predict_fn predict, const struct memory_part *part,
                   struct memory_need *out) {
    const struct config *c = j->config;
    int rank = part->rank > 0 ? part->rank : 0, rc = 0;
    *out = (struct memory_need){0};
    if (!part->role) {
        rc = add_workers(j, predict, part, 0, c->workers, out);
        if (!rc && c->kind == TOPOLOGY_PS) rc = add_servers(j, predict, 0, c->ps.servers, out);
        // The process that starts the others or holds all ranks, and the star's scheduler.
        out->host.allowed_bytes += process_bytes(c, !part->processes);
        if (c->kind == TOPOLOGY_PS) out->host.allowed_bytes += process_bytes(c, false);
    } else if (!strcmp(part->role, "server")) {
        rc = add_servers(j, predict, rank, part->count, out);
    } else {
        rc = add_workers(j, predict, part, rank, part->count, out);
    }
    out->host.allowed_bytes += out->host.predicted_bytes / PAGE_TABLES;
    return rc;
}
