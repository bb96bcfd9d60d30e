// How the head's logits are cut into chunks of rows. A pure function of the sizes and the kind of device, so
// that all ranks and the prediction get the same plan.
//
// Bytes   Each chunk runs three products, and reads and writes the projection's whole gradient (2VC bytes each
//         way in 16 bits). A GPU needs large chunks for both reasons: at 128 MiB a vocabulary of 151936 gives
//         441 rows, so 75 chunks of 32768 tokens, and 75 times 0.9 GB of that traffic for C = 1536. At 1.25 GiB
//         there are 5120 rows and 7 chunks.
//
// Error   In 16 bits each chunk's contribution is rounded once when it is added. With p significant bits (bf16
//         8, fp16 11) a contribution below 2^-p of the sum is lost, so n equal contributions stop adding up at
//         n = 2^p, 256 in bf16. Before that, every addition rounds by up to half a unit of the sum: up to (n/2)
//         2^-p of the result for n contributions of one sign. 75 chunks: 15%. So a micro-batch has at most 16
//         chunks: 3%. Micro-batches multiply n: 7 chunks x 16 micro-batches are 112 additions, 22%, while every
//         other gradient has 16. Then each micro-batch sums its chunks in a separate buffer, which is added to
//         the gradient once, as every other gradient is (`separate`): at most 3% more error than those have. An
//         fp32 accumulator would take 4VC bytes and twice the traffic; the 16-bit buffer takes 2VC, mostly of
//         memory that is unused during the head's backward. With fp32 gradients the error does not matter: the number of
//         chunks has no limit, and no separate buffer is needed. None is needed either if micro-batches are summed in
//         fp32 (grad_buffers.h), because each micro-batch then overwrites its gradient.
#ifndef STARRING_SHARED_MODEL_HEAD_PLAN_H
#define STARRING_SHARED_MODEL_HEAD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

#define HEAD_CHUNKS_MAX 16  // per micro-batch, if gradients have 16 bits

struct head_question {
    int64_t rows;           // R of a micro-batch
    int64_t vocab;          // V
    int64_t micro_batches;  // per step, summed in the gradients themselves
    int64_t logits_bytes;   // limit per chunk; 0: the device's default. HEAD_CHUNKS_MAX has priority
    bool gpu;               // the device has memory of its own
    enum dtype dtype;
};

struct head_plan {
    int64_t rows;    // per chunk; the last may have fewer
    int64_t chunks;  // per micro-batch
    bool separate;   // a micro-batch sums its chunks in a separate buffer
};

struct head_plan head_plan_of(const struct head_question *q);

#endif
