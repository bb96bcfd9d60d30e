#include "ps/server/key_pass.h"

#include <string.h>

#include "kernels/cpu/sum_block.h"
#include "ps/server/server_options.h"
#include "shared/core/error.h"

#define GRADS_AT_ONCE  32
#define SCALED_AT_ONCE 1024  // elements

// ---------------------------------------------------------------- sums
// Elements [at, at + n), n <= SCALED_AT_ONCE: adds one group's gradients after the other. If `out` is given, these
// complete the sum, which is written to `out`.
static void add_groups(const struct sum_args *a, int64_t at, int64_t n, void *out) {
    char rounded[SCALED_AT_ONCE * sizeof(float)] __attribute__((aligned(64)));
    for (int i = 0, end; i < a->count; i = end) {
        int worker = a->first_worker + i, rest = a->group - worker % a->group;
        end = a->count - i < rest ? a->count : i + rest;
        bool whole = end - i == rest, last = out && end == a->count;
        for (int k = i; k < end; k += GRADS_AT_ONCE) {
            const void *in[GRADS_AT_ONCE];
            int count = end - k < GRADS_AT_ONCE ? end - k : GRADS_AT_ONCE;
            bool over = whole && k + count == end;
            for (int j = 0; j < count; j++)
                in[j] = (const char *)a->grads[k + j] + (size_t)at * dtype_size(a->dtype);
            sum_block(
                &(struct sum_block){.out = over ? (void *)rounded : a->group_acc + at,
                                    .start = (a->first_worker + k) % a->group ? a->group_acc + at : NULL,
                                    .in = in,
                                    .count = count,
                                    .n = n,
                                    .from = a->dtype,
                                    .to = over ? a->dtype : DT_F32});
        }
        if (!whole) return;
        const void *group = rounded;
        sum_block(&(struct sum_block){.out = last ? out : a->acc + at,
                                      .start = worker < a->group ? NULL : a->acc + at,
                                      .in = &group,
                                      .count = 1,
                                      .n = n,
                                      .from = a->dtype,
                                      .to = last ? a->dtype : DT_F32});
    }
}

static void add_codes(const struct sum_args *a) {
    const char *why = "";
    for (int i = 0; i < a->count; i++) {
        struct code_add_args add = {.out = a->acc,
                                    .code = a->grads[i],
                                    .n = a->n,
                                    .format = a->code,
                                    .use = a->first && i == 0 ? CODE_SET : CODE_PLUS};
        cpu_ops[OP_CODE_ADD](1, &add, &why);
    }
}

void sum_add(const struct sum_args *a) {
    if (a->code.kind != CODE_NONE) {
        add_codes(a);
        return;
    }
    for (int64_t at = 0; at < a->n && a->group; at += SCALED_AT_ONCE)
        add_groups(a, at, a->n - at < SCALED_AT_ONCE ? a->n - at : SCALED_AT_ONCE, NULL);
    if (a->group) return;
    sum_block(&(struct sum_block){.out = a->acc,
                                  .start = a->first ? NULL : a->acc,
                                  .in = a->grads,
                                  .count = a->count,
                                  .n = a->n,
                                  .from = a->dtype,
                                  .to = DT_F32});
}

static void finish(const struct sum_args *a, int64_t begin, int64_t n, void *out, enum dtype rounded) {
    const void *in[GRADS_AT_ONCE];
    const float *start = a->first ? NULL : a->acc + begin;
    enum dtype to = DT_F32;
    if (a->count == 0)
        sum_block(&(struct sum_block){.out = out, .start = start, .n = n, .from = a->dtype, .to = rounded});
    for (int k = 0; k < a->count; k += GRADS_AT_ONCE) {
        int count = a->count - k < GRADS_AT_ONCE ? a->count - k : GRADS_AT_ONCE;
        bool last = k + count == a->count;
        for (int i = 0; i < count; i++)
            in[i] = (const char *)a->grads[k + i] + (size_t)begin * dtype_size(a->dtype);
        to = last ? rounded : DT_F32;
        void *at = last ? out : a->acc + begin;
        sum_block(&(struct sum_block){
            .out = at, .start = start, .in = in, .count = count, .n = n, .from = a->dtype, .to = to});
        start = at;
    }
}

// Works block by block in ascending order. out may be inside acc: it never overwrites elements of acc that are read
// later.
void sum_finish(const struct sum_args *a, int64_t begin, int64_t n, void *out) {
    float block[SCALED_AT_ONCE];
    for (int64_t at = 0; at < n && a->group; at += SCALED_AT_ONCE)
        add_groups(a, begin + at, n - at < SCALED_AT_ONCE ? n - at : SCALED_AT_ONCE,
                   (char *)out + (size_t)at * dtype_size(a->dtype));
    if (a->group) return;
    if (a->scale == 0.0f || a->scale == 1.0f) {
        finish(a, begin, n, out, a->dtype);
        return;
    }
    for (int64_t at = 0; at < n; at += SCALED_AT_ONCE) {
        int64_t m = n - at < SCALED_AT_ONCE ? n - at : SCALED_AT_ONCE;
        const char *why = "";
        struct cast_args cast = {.out = (char *)out + (size_t)at * dtype_size(a->dtype),
                                 .in = block,
                                 .n = m,
                                 .from = DT_F32,
                                 .to = a->dtype};
        finish(a, begin + at, m, block, DT_F32);
        for (int64_t i = 0; i < m; i++) block[i] *= a->scale;
        cpu_ops[OP_CAST](1, &cast, &why);
    }
}

// ---------------------------------------------------------------- the last pass
// The key's range from element `at` on.
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
    // A code's elements may be anywhere in the key, so codes are added to the whole key, which is then rounded chunk by
    // chunk.
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
        thread_time_interleave(p->spans, SERVER_SUM);
        sum_finish(&sum, at, m, grad);
        if (cpu_ops[OP_SUMSQ](1, &squares, &why) != 0) return fail("the sum of squares: %s", why);
        if (!p->step) continue;
        thread_time_interleave(p->spans, SERVER_UPDATE);
        struct update_range range = part_of(p, at, m, grad);
        if (optimizer_apply(p->optimizer, &range, p->step, 1) != 0) return -1;
    }
    return 0;
}
