// y = a + b.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spans.h"

static void add_span(const void *args, int64_t begin, int64_t end) {
    const struct add_args *s = args;
    float a[CHUNK], b[CHUNK];
    for (int64_t i = begin; i < end; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - i);
        load_f32(s->dt, a, s->a, i, n);
        load_f32(s->dt, b, s->b, i, n);
        for (int64_t j = 0; j < n; j++) a[j] += b[j];
        store_f32(s->dt, s->y, i, a, n);
    }
}

int cpu_op_add(int threads, const void *args, const char **why) {
    (void)why;
    for_spans(threads, ((const struct add_args *)args)->n, SPAN_ELEMENTS, add_span, args);
    return 0;
}
