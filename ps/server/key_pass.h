// The last gradient of a step has come for a key: everything that is left to do, in one pass over memory. The
// gradients are added in worker order and rounded once, the squares of the result join the shard's sum, and, where
// nothing has to be decided first, the optimizer updates masters and moments and publishes the weights, chunk by
// chunk while the chunk is in the cache:
//
//     [acc] g0 g1 ..  --add, round-->  chunk  --squares-->  sum of the shard
//                                        |
//                                        +--optimizer--> master, moments, weights     (step given)
//                                        +--> the start of acc                        (the update comes later)
//
// The same bits as one operation after the other over the whole key. Pure; runs on the calling thread.
#ifndef STARRING_PS_SERVER_KEY_PASS_H
#define STARRING_PS_SERVER_KEY_PASS_H

#include "ps/sum/sum.h"
#include "shared/model/optimizer.h"
#include "shared/time/thread_time.h"

#define KEY_PASS_CHUNK 8192  // elements: with all that an update touches, well inside a second-level cache

struct key_pass {
    struct sum_args sum;
    struct exact_sum *squares;  // += those of the rounded sum
    const struct optimizer_config *optimizer;
    struct update_range range;       // of the key; grad is not read
    const struct update_step *step;  // NULL: the rounded gradient is kept at the start of sum.acc
    void *chunk;                     // scratch, KEY_PASS_CHUNK floats
    struct thread_time *spans;       // is at SERVER_SUM; or NULL
};
int key_pass_run(const struct key_pass *p);  // 0, or -1 after logging

#endif
