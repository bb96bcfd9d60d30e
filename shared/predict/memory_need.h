// The memory that a run's ranks on this machine need, on the host and on its GPUs. It is the ledger's prediction,
// which is exact, plus an allowance for what the ledger does not count, which is an upper bound.
//
// Allowance in host memory, of all processes and ranks here. "measured" is the resident size minus the ledger, on
// x86-64 with two cores (glibc 2.36, libzmq 4.3.4, Open MPI 4.1.4):
//
//   per process  16 MiB  program, libraries, stacks        measured 10 to 17 MiB with the threads' scratch
//                +96 MiB under MPI                         22 MiB (demo) to 94 MiB (124 million parameters)
//                +256 MiB with a GPU                       an estimate, not measured
//   per worker   the larger of two: what it holds while loading (4 bytes and, in a ring, one rounded copy for each
//                element of the largest unit), and at the end, where a unit is hashed and a tensor transposed
//                                                          234 MiB for 225 + 10 (gpt2-124m, zero:0, bf16)
//                in a star at least its credits, min(credit_bytes, bytes per step)
//                its batch in tokens, 8 bytes each
//                the records of where time was spent, 7 KB per unit and micro-batch of a step, at most 100 MB
//                per thread of a CPU: 8 MiB of packed blocks and 20 bytes * sequence length * head size for
//                attention's backward                      44 MiB for 8 threads, T 8192, D 32
//   per server   9/8 of the frames that its workers' credits allow in the transport: min(credit_bytes, what one
//                worker sends it per step) * N             151 MiB for 144 + 16 (gpt2-124m, N 2, bf16)
//   both         in a star their bookkeeping: per key, and for a server's own keys per worker; with
//                --record-arrivals or --replay-arrivals also per push (ps/job/ps.h)
//   page tables  1/512 of the prediction: 8 bytes per page of 4 KiB
//
// Allowance on a GPU: 96 MiB of workspaces per rank (32 MiB for cuBLASLt, 8 MiB for our kernels on each of up to
// four streams, attention's sums); in 16 bits the score matrices of cuDNN's attention backward (a slice of them:
// cuda.attention_slice; none if cuda.attention is own); 256 MiB per rank of NCCL; 768 MiB per process for its
// context and the libraries' code (measured on an H100: 606 to 728 MiB). The process that asks needs no context: it
// has one when free memory is read. The numbers of NCCL and of the workspaces are estimates.
#ifndef STARRING_SHARED_PREDICT_MEMORY_NEED_H
#define STARRING_SHARED_PREDICT_MEMORY_NEED_H

#include "shared/core/topology_row.h"
#include "shared/train/session.h"

// Predicts the memory and bytes of one rank: the topology's, from its row, plus a worker's activations and
// workspace. Returns 0, or -1 after logging.
int prediction_of_rank(const struct job *j, const char *role, int rank, struct prediction *out);

#define MEMORY_GPUS_MAX 64

struct memory_sum {
    double predicted_bytes, allowed_bytes;
};

struct memory_need {
    struct memory_sum host;
    int gpus;  // how many GPUs of this machine are used: numbers 0 .. gpus-1
    struct memory_sum gpu[MEMORY_GPUS_MAX];
    // The worker that takes most of its own device, which may be memory of the host. Counts only the ledger.
    struct memory_sum device;
    int device_rank;
    size_t device_classes[MEM_CLASSES];
};

// Which ranks of the run are on this machine.
struct memory_ranks {
    const char *role;  // "worker", "server", or NULL: the whole run
    int rank, count;   // with a role: `count` ranks with the needs of `rank`; rank -1: those of rank 0
    // Each rank is a process: the caller's children, or with a role the caller is one. false: threads
    bool processes;
    int gpus;  // GPUs of this machine; ranks are assigned to them round-robin
};

// Returns the whole run, as `train` starts it on this machine.
struct memory_ranks memory_ranks_of_run(const struct config *c);

// Returns 0, or -1 after logging if the prediction failed.
int memory_need_of(const struct job *j, const struct memory_ranks *part, struct memory_need *out);

#endif
