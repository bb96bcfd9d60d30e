#include "ps/server/key_pass.h"

#include <string.h>

#include "ps/server/server_time.h"
#include "shared/core/error.h"

// The part of the key's range from element `at` on.
static struct update_range part_of(const struct key_pass *p, int64_t at, int64_t n, const void *grad) {
    struct update_range r = p->range;
    size_t size = dtype_size(r.dtype);
    r.begin += at;
    r.end = r.begin + n;
    r.master += at;
    for (int i = 0; i < p->optimizer->row->states; i++) r.state[i] += at;
    if (r.weight) r.weight = (char *)r.weight + (size_t)at * size;
    r.grad = grad;
    return r;
}

int key_pass_run(const struct key_pass *p) {
    struct sum_args sum = p->sum;
    int64_t n = sum.n;
    size_t size = dtype_size(sum.dtype);
    // A code's elements lie where they like: they are added to the whole key, which is then rounded chunk by chunk.
    if (sum.code.kind != CODE_NONE) {
        sum_add(&sum);
        sum.count = 0;
        sum.first = false;
    }
    for (int64_t at = 0; at < n; at += KEY_PASS_CHUNK) {
        int64_t m = n - at < KEY_PASS_CHUNK ? n - at : KEY_PASS_CHUNK;
        void *grad = p->step ? p->chunk : (char *)sum.acc + (size_t)at * size;
        struct sumsq_args squares = {.out = p->squares, .x = grad, .n = m, .dt = p->sum.dtype};
        const char *why = "";
        thread_time_weave(p->spans, SERVER_SUM);
        sum_finish(&sum, at, m, grad);
        if (cpu_ops[OP_SUMSQ](1, &squares, &why) != 0) return fail("the sum of squares: %s", why);
        if (!p->step) continue;
        thread_time_weave(p->spans, SERVER_UPDATE);
        struct update_range range = part_of(p, at, m, grad);
        if (optimizer_apply(p->optimizer, &range, p->step, 1) != 0) return -1;
    }
    return 0;
}
