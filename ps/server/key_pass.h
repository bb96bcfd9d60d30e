// A server's arithmetic on one key: sums of gradients, and the pass that ends a step. Pure; runs on the calling thread.
//
// Sums        Worker gradients are added in fp32 in worker order, then rounded once to the run's dtype. With groups
//             (reduce_group) this is done within each group of workers, and the groups' rounded sums are added in the same
//             way, in group order. The bits are those of OP_REDUCE, however many inputs are added at a time.
// Pass        The last gradient of a step has arrived. One pass over memory does the rest of the step. The squares
//             of the rounded sum are added to the shard's. If nothing has to be decided first, the optimizer updates
//             masters and moments and publishes the weights, chunk by chunk while the chunk is in the cache:
//
//     [acc] g0 g1 ..  --add, round-->  chunk  --squares-->  sum of the shard
//                                        |
//                                        +--optimizer--> master, moments, weights     (step given)
//                                        +--> the start of acc                        (the update follows later)
//
//             The bits are those of one operation after the other over the whole key.
#ifndef STARRING_PS_SERVER_KEY_PASS_H
#define STARRING_PS_SERVER_KEY_PASS_H

#include "shared/model/optimizer.h"
#include "shared/time/thread_time.h"

struct sum_args {
    float *acc;                // (n)
    const void *const *grads;  // (count) pointers to (n) of dtype, which need not be aligned
    int count;
    int64_t n;
    enum dtype dtype;
    bool first;   // the sum begins with these: acc is not read
    float scale;  // sum_finish: factor of the fp32 sum, before it is rounded; 0 and 1: none
    // Unless CODE_NONE: grads are codes (kernels/codec.h). Only for sum_add, of all n elements, and without groups.
    struct code_format code;
    // Only with groups, which exclude a scale:
    int group;         // workers of a group, more than 1; 0: none
    int first_worker;  // the worker of grads[0]
    float *group_acc;  // (n): sum of the incomplete group; acc: sum of the complete ones
};
// acc = [acc +] grads[0] + grads[1] + ..
void sum_add(const struct sum_args *a);
// Does the same, and rounds once: elements [begin, begin + n) of the sum go to out, (n) of dtype. acc is scratch
// afterwards; out may be inside acc, at the address of acc + begin or below. count 0: only rounds acc, which is then
// scratch only where out overlaps it.
void sum_finish(const struct sum_args *a, int64_t begin, int64_t n, void *out);

#define KEY_PASS_CHUNK 8192  // elements: all that an update touches fits well in a second-level cache

struct key_pass {
    struct sum_args sum;
    struct exact_sum *squares;  // += squares of the rounded sum
    const struct optimizer_config *optimizer;
    struct update_range range;       // of the key; grad is not read
    const struct update_step *step;  // NULL: the rounded gradient is kept at the start of sum.acc
    void *chunk;                     // scratch, KEY_PASS_CHUNK floats
    struct thread_time *spans;       // the thread's, at SERVER_SUM; NULL: none
};
int key_pass_run(const struct key_pass *p);  // 0, or -1 after logging

#endif
