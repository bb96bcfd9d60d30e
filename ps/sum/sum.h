// A server's arithmetic on one key: worker gradients are added in fp32 in worker order, then rounded once to the
// run's dtype. With groups (reduce_group) this is done within each group of workers, and the groups' rounded sums are
// added in the same way, in group order. The same bits as OP_REDUCE over the same inputs, whatever part of them came at once.
// Pure; runs on the calling thread.
#ifndef STARRING_PS_SUM_SUM_H
#define STARRING_PS_SUM_SUM_H

#include <stdbool.h>

#include "kernels/backend.h"

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
// The same, rounded once (count 0: what acc holds, which is not scratch then but where out lies in it): elements [begin, begin + n) of the sum go to out, (n) of dtype. acc is
// scratch from then on; out may lie in it: at the address of acc + begin, or below.
void sum_finish(const struct sum_args *a, int64_t begin, int64_t n, void *out);

#endif
