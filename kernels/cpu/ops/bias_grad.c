// The gradient of a bias: sums over rows, column by column.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spans.h"

#define BIAS_COLUMNS 64  // a cut between threads: whole cache lines of 16-bit elements
#define BIAS_ROWS    64  // summed by themselves before they join the total: shorter chains round less

// Columns [begin, end). The order of a column's additions depends on the row count alone, so blocks
// of columns may be cut anywhere and no scratch is needed beyond two rows on the stack.
static void bias_grad_span(const void *args, int64_t begin, int64_t end) {
    const struct bias_grad_args *a = args;
    float total[CHUNK], part[CHUNK], dy[CHUNK];
    for (int64_t c = begin; c < end; c += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - c);
        for (int64_t j = 0; j < n; j++) total[j] = 0.0f;
        for (int64_t r0 = 0; r0 < a->rows; r0 += BIAS_ROWS) {
            int64_t r1 = chunk_min(r0 + BIAS_ROWS, a->rows);
            load_f32(a->dt, part, a->dy, r0 * a->n + c, n);
            for (int64_t r = r0 + 1; r < r1; r++) {
                load_f32(a->dt, dy, a->dy, r * a->n + c, n);
                for (int64_t j = 0; j < n; j++) part[j] += dy[j];
            }
            for (int64_t j = 0; j < n; j++) total[j] += part[j];
        }
        if (a->accumulate) {
            load_f32(a->dt, dy, a->dbias, c, n);
            for (int64_t j = 0; j < n; j++) total[j] += dy[j];
        }
        store_f32(a->dt, a->dbias, c, total, n);
    }
}

int cpu_op_bias_grad(int threads, const void *args, const char **why) {
    const struct bias_grad_args *a = args;
    (void)why;
    for_spans(a->rows * a->n < SPAN_ELEMENTS ? 1 : threads, a->n, BIAS_COLUMNS, bias_grad_span, a);
    return 0;
}
