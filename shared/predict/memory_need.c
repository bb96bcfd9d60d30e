#include "shared/predict/memory_need.h"

#include <math.h>
#include <string.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/time/timeline.h"
#include "shared/train/frozen.h"
#include "shared/train/train.h"

#define MIB 1048576.0

#define PROCESS_BYTES     (16 * MIB)
#define GPU_PROCESS_BYTES (256 * MIB)
#define GEMM_THREAD_BYTES (8 * MIB)
#define ATTENTION_BYTES   20.0   // fp32 keys and values twice, and keys once more, per position and channel
#define PAGE_TABLES       512.0  // bytes of memory per byte of page table

#define CONTEXT_BYTES   (768 * MIB)
#define WORKSPACE_BYTES (96 * MIB)

// Refuses sizes that are too large to count (SIZE_TOP): no machine has so much memory.
static int check_sizes(const struct job *j, const char *role, int rank, const struct prediction *p) {
    const struct config *c = j->config;
    bool fits = !size_is_too_large((size_t)p->wire.sent_per_step) &&
                !size_is_too_large((size_t)p->wire.received_per_step);
    for (int k = 0; k < MEM_CLASSES; k++) fits = fits && !size_is_too_large(p->memory.predicted_bytes[k]);
    if (fits) return 0;
    return fail(
        "%s %d: %s with %lld parameters, --batch %lld, --seq %lld and %d workers needs more than 4 EiB, which is beyond "
        "all machines and not counted: give smaller numbers",
        role, rank, j->spec.name, (long long)(j->layout->params + j->layout->frozen),
        (long long)c->micro_batch, (long long)c->seq, c->workers);
}

int prediction_of_rank(const struct job *j, const char *role, int rank, struct prediction *out) {
    *out = (struct prediction){0};
    if (j->config->row->predict(j->config, j->layout, role, rank, out)) return -1;
    if (strcmp(role, "worker") != 0) return check_sizes(j, role, rank, out);
    size_t snapshots = train_predict(j->config, &j->spec, j->layout, rank, out->state_bytes,
                                     config_device(j->config)->gpu, true, out->memory.predicted_bytes);
    out->memory.formula_bytes += frozen_formula(j->config, j->layout);
    // Units are padded for the number of workers, so all workers have equal shares. Only worker 0 takes snapshots.
    if (snapshots)
        out->same_ranks = 1;
    else if (!out->same_ranks)
        out->same_ranks = config_ranks(j->config, role) - rank;
    return check_sizes(j, role, rank, out);
}

static struct topology_allowance topology_allowance_of(const struct config *c, const char *role,
                                                       const struct prediction *p) {
    return c->row->allowance ? c->row->allowance(c, role, p) : (struct topology_allowance){0};
}

static double worker_allowance(const struct job *j, const struct prediction *p) {
    const struct config *c = j->config;
    double unit = 0, tensor = 0;  // elements of the largest unit, and of the largest tensor
    const struct layout *l = layout_of_model(j->layout);
    for (int u = 0; u < l->count; u++) {
        unit = fmax(unit, (double)l->units[u].n_pad);
        for (int i = 0; i < l->units[u].count; i++)
            tensor = fmax(tensor, (double)l->units[u].tensors[i].numel);
    }
    struct topology_allowance topology = topology_allowance_of(c, "worker", p);
    double element = (double)dtype_size(c->dtype);
    double loading = 4 * unit + element * unit * topology.loading_units;
    double bytes = fmax(fmax(loading, element * (unit + tensor)), topology.frame_bytes);
    bytes += (double)timeline_bytes(j->layout, c->accumulation) + (double)p->record_bytes;
    if (config_device(c)->gpu)
        return bytes;  // with a GPU batches are page-locked, and the prediction counts them
    bytes += 4.0 * sizeof(int32_t) * (double)(c->accumulation * c->micro_batch * c->seq);
    return bytes + job_threads(j) *
                       (GEMM_THREAD_BYTES + ATTENTION_BYTES * (double)c->seq * (double)j->spec.head_size);
}

// Bytes of the score matrices of a slice of attention's backward, cut as in kernels/cuda/host/attention.c: at most
// the bytes of the configuration, but at least one sequence's.
static double score_bytes(const struct job *j) {
    const struct config *c = j->config;
    double padded = 128 * ceil((double)c->seq / 128), of_one = 2 * j->spec.heads * padded * padded;
    double whole = of_one * (double)c->micro_batch, most = (double)c->cuda.attention_slice_bytes;
    if (c->dtype == DT_F32 || c->cuda.attention == CUDA_ATTENTION_OWN) return 0;  // cuDNN is not used
    if (most == CUDA_SLICE_WHOLE) return whole;
    if (most == CUDA_SLICE_AUTO) most = (double)CUDA_SLICE_AUTO_BYTES;
    return fmin(whole, fmax(of_one, most));
}

static double process_bytes(const struct config *c, bool computes) {
    double bytes = PROCESS_BYTES;
    if (c->row->collectives) bytes += engine_rows[c->collective].host_mib * MIB;
    if (computes && config_device(c)->gpu) bytes += GPU_PROCESS_BYTES;
    return bytes;
}

// Adds `count` workers with the same needs as `first`.
static int add_workers(const struct job *j, const struct memory_ranks *part, int first, int count,
                       struct memory_need *n) {
    const struct config *c = j->config;
    struct prediction p;
    if (prediction_of_rank(j, "worker", first, &p)) return -1;
    const size_t *predicted = p.memory.predicted_bytes;
    double device = (double)mem_device_bytes(predicted);
    bool gpu = config_device(c)->gpu;
    // 1. The host's memory.
    n->host.allowed_bytes += count * worker_allowance(j, &p);
    n->host.predicted_bytes += count * (double)(predicted[MEM_HOST] + predicted[MEM_OFFLOAD]);
    if (part->processes) n->host.allowed_bytes += count * process_bytes(c, true);
    if (!gpu) n->host.predicted_bytes += count * device;
    // 2. The worker that takes most of its own device.
    if (device > n->device.predicted_bytes) {
        n->device.predicted_bytes = device;
        n->device_rank = first;
        memcpy(n->device_classes, predicted, sizeof n->device_classes);
    }
    // 3. The GPUs, to which ranks are assigned round-robin. With a role, the process that asks is one of its ranks, and already
    //    has its context on the first GPU.
    int gpus = !gpu ? 0 : part->gpus < MEMORY_GPUS_MAX ? part->gpus : MEMORY_GPUS_MAX;
    double engine = engine_rows[c->collective].device_mib * MIB;
    for (int g = 0; g < gpus && g < count; g++) {
        int here = (count - g + gpus - 1) / gpus,
            contexts = part->processes ? here - (part->role && g == 0) : 0;
        n->gpu[g].predicted_bytes += here * device;
        n->gpu[g].allowed_bytes +=
            here * (WORKSPACE_BYTES + score_bytes(j) + engine) + contexts * CONTEXT_BYTES;
    }
    if (gpu) n->gpus = gpus < count ? gpus : count;
    return 0;
}

// Adds ranks of a role that computes nothing (servers, the scheduler): each is a process on the host.
static int add_others(const struct job *j, const char *role, int first, int count, struct memory_need *n) {
    for (int i = first, alike; i < first + count; i += alike) {
        struct prediction p;
        if (prediction_of_rank(j, role, i, &p)) return -1;
        alike = prediction_same_ranks(&p, first + count - i);
        n->host.predicted_bytes += alike * (double)mem_device_bytes(p.memory.predicted_bytes);
        n->host.allowed_bytes += alike * topology_allowance_of(j->config, role, &p).frame_bytes;
        n->host.allowed_bytes += alike * (double)p.record_bytes;
        n->host.allowed_bytes += alike * process_bytes(j->config, false);
    }
    return 0;
}

static int add_ranks(const struct job *j, const struct memory_ranks *part, const char *role, int first,
                     int count, struct memory_need *n) {
    return strcmp(role, "worker") ? add_others(j, role, first, count, n)
                                  : add_workers(j, part, first, count, n);
}

struct memory_ranks memory_ranks_of_run(const struct config *c) {
    if (launch_rows[c->launch].by_others)
        return (struct memory_ranks){"worker", 0, c->workers, .processes = true};
    bool started = c->row->collectives && c->launch == LAUNCH_PROCESSES;
    return (struct memory_ranks){.processes = started || !(c->row->launches >> LAUNCH_THREADS & 1)};
}

int memory_need_of(const struct job *j, const struct memory_ranks *part, struct memory_need *out) {
    const struct config *c = j->config;
    int rank = part->rank > 0 ? part->rank : 0, rc = 0;
    *out = (struct memory_need){0};
    if (!part->role) {
        for (const struct topology_role *r = c->row->roles; r->name && !rc; r++)
            rc = add_ranks(j, part, r->name, 0, config_ranks(c, r->name), out);
        // Add the process that starts the ranks, or in which all ranks are threads.
        out->host.allowed_bytes += process_bytes(c, !part->processes);
    } else {
        rc = add_ranks(j, part, part->role, rank, part->count, out);
    }
    out->host.allowed_bytes += out->host.predicted_bytes / PAGE_TABLES;
    return rc;
}
