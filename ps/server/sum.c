#include "ps/server/sum.h"

#include "kernels/cpu/sum_block.h"

#define GRADS_AT_ONCE 32

void sum_add(const struct sum_args *a) {
    sum_block(&(struct sum_block){.out = a->acc,
                                  .start = a->first ? NULL : a->acc,
                                  .in = a->grads,
                                  .count = a->count,
                                  .n = a->n,
                                  .from = a->dtype,
                                  .to = DT_F32});
}

void sum_finish(const struct sum_args *a, int64_t begin, int64_t n, void *out) {
    const void *in[GRADS_AT_ONCE];
    const float *start = a->first ? NULL : a->acc + begin;
    enum dtype to = DT_F32;
    for (int k = 0; k < a->count; k += GRADS_AT_ONCE) {
        int count = a->count - k < GRADS_AT_ONCE ? a->count - k : GRADS_AT_ONCE;
        bool last = k + count == a->count;
        for (int i = 0; i < count; i++)
            in[i] = (const char *)a->grads[k + i] + (size_t)begin * dtype_size(a->dtype);
        to = last ? a->dtype : DT_F32;
        void *at = last ? out : a->acc + begin;
        sum_block(&(struct sum_block){
            .out = at, .start = start, .in = in, .count = count, .n = n, .from = a->dtype, .to = to});
        start = at;
    }
}
