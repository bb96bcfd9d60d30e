// A server's arithmetic on one key: sums of gradients, and the pass that ends a step. Pure; runs on the calling thread.
//
// Sums        Worker gradients are added in fp32 in worker order, then rounded once to the run's dtype. With groups
//             (reduce_group) this is done within each group of workers, and the groups' rounded sums are added in the same
//             way, in group order. The same bits as OP_REDUCE over the same inputs, whatever part of them came at once.
// Pass        The last gradient of a step has come: everything that is left to do, in one pass over memory. The squares
//             of the rounded sum join the shard's, and, where nothing has to be decided first, the optimizer updates
//             masters and moments and publishes the weights, chunk by chunk while the chunk is in the cache:
//
//     [acc] g0 g1 ..  --add, round-->  chunk  --squares-->  sum of the shard
//                                        |
//                                        +--optimizer--> master, moments, weights     (step given)
//                                        +--> the start of acc                        (the update comes later)
//
//             The same bits as one operation after the other over the whole key.
#ifndef STARRING_PS_SERVER_KEY_PASS_H
#define STARRING_PS_SERVER_KEY_PASS_H

#include "shared/model/optimizer.h"
#include "shared/time/thread_time.h"

struct sum_args {
    float *acc;                // (n)
    const void *const *grads;  // count of them, each (n) of dtype; they need not be aligned
    int count;
    int64_t n;
    enum dtype dtype;
    bool first;   // the sum starts with these: acc is not read
    float scale;  // sum_finish: of the sum in fp32, before it is rounded; 0 and 1: none
    // Unless of kind CODE_NONE: grads are codes (kernels/codec.h). For sum_add alone, of all n elements; no groups.
    struct code_format code;
    // With groups; then there is no scale:
    int group;         // workers of a group, more than 1; 0: none
    int turn;          // grads[0] is this worker's
    float *group_acc;  // (n): of the group that is not complete; acc: of those that are
};
// acc = [acc +] grads[0] + grads[1] + ..
void sum_add(const struct sum_args *a);
// The same, rounded once (count 0: what acc holds, which is not scratch then but where out lies in it): elements
// [begin, begin + n) of the sum go to out, (n) of dtype. acc is scratch from then on; out may lie in it: at the address of
// acc + begin, or below.
void sum_finish(const struct sum_args *a, int64_t begin, int64_t n, void *out);

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
