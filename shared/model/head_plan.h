// How the head's logits are cut into chunks of rows: a pure function of sizes and the kind of device, so that
// all ranks and the prediction come to the same plan.
//
// Bytes   A chunk's three products run once a chunk, and each chunk reads and writes the projection's whole
//         gradient (2VC bytes each way in 16 bits). A GPU needs large chunks for both: at 128 MiB a
//         vocabulary of 151936 gives 441 rows, 75 chunks of 32768 tokens and 75 times 0.9 GB of that traffic
//         for C = 1536; at 1.25 GiB 5120 rows and 7 chunks.
//
// Error   In 16 bits each chunk's share is rounded once as it is added. With p significant bits (bf16 8, fp16
//         11) a share below 2^-p of the sum is lost, so that n equal shares stop adding up at n = 2^p, 256 in
//         bf16, and before that every addition rounds by up to half a unit of the sum: up to (n/2) 2^-p of
//         the result for n shares of one sign. 75 chunks: 15%. So a micro-batch has at most 16: 3%.
//         Micro-batches multiply n: 7 chunks x 16 are 112 additions, 22%, where every other gradient has 16.
//         There each micro-batch adds its chunks in a buffer of its own, which is added to the gradient once,
//         as every other gradient is (`apart`): at most 3% more than those have. An fp32 accumulator would
//         take 4VC bytes for this and twice the traffic; the 16-bit buffer takes 2VC, mostly of memory that
//         stands idle during the head's backward. In fp32 nothing of this matters: any number of chunks, none
//         apart. Nor where micro-batches are added in fp32 (grad_sum.h): each writes its gradient anew.
#ifndef STARRING_SHARED_MODEL_HEAD_PLAN_H
#define STARRING_SHARED_MODEL_HEAD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

#define HEAD_CHUNKS_MAX 16  // of a micro-batch, where gradients have 16 bits

struct head_question {
    int64_t rows;           // R of a micro-batch
    int64_t vocab;          // V
    int64_t micro_batches;  // of a step, added in the gradients themselves
    int64_t logits_bytes;   // a chunk's, at most; 0: the device's own. HEAD_CHUNKS_MAX comes first
    bool gpu;               // the device's memory is not the host's
    enum dtype dtype;
};

struct head_plan {
    int64_t rows;    // of a chunk; the last may have fewer
    int64_t chunks;  // of a micro-batch
    bool apart;      // a micro-batch adds its chunks in a buffer of its own
};

struct head_plan head_plan_of(const struct head_question *q);

#endif
