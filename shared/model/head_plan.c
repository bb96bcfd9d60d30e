#include "shared/model/head_plan.h"

#include "shared/model/layout.h"

// Bytes of a chunk on a CPU: enough for full speed, and small compared with the activations of models that need
// chunks.
#define HOST_BYTES ((int64_t)128 << 20)
#define HOST_ROWS  64  // the fewest rows of a chunk on a CPU, unless logits_bytes is given
// 1.25 GiB: the fewest bytes of a chunk on a GPU, unless logits_bytes is given
#define GPU_BYTES ((int64_t)5 << 28)
#define GPU_ROWS  1024  // on a GPU, a chunk of more rows has a multiple of this

static int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

static int64_t whole_rows(const struct head_question *q, int64_t rows) {
    return q->gpu && rows > GPU_ROWS ? divide_up(rows, GPU_ROWS) * GPU_ROWS : rows;
}

// Returns the rows of a chunk by its bytes only, without the limit on the number of chunks.
static int64_t wanted_rows(const struct head_question *q) {
    int64_t element = (int64_t)dtype_size(q->dtype);
    int64_t row_bytes = (q->gpu ? model_classes_padded(q->vocab) : q->vocab) * element;
    if (q->logits_bytes) {
        int64_t rows = q->logits_bytes / row_bytes;
        if (q->gpu && rows > GPU_ROWS) rows -= rows % GPU_ROWS;
        return rows > 1 ? rows : 1;
    }
    if (q->gpu) return whole_rows(q, divide_up(GPU_BYTES, row_bytes));
    int64_t rows = HOST_BYTES / row_bytes;
    return rows > HOST_ROWS ? rows : HOST_ROWS;
}

struct head_plan head_plan_of(const struct head_question *q) {
    bool rounds = q->dtype != DT_F32;
    struct head_plan p = {.rows = wanted_rows(q)};
    int64_t least = whole_rows(q, divide_up(q->rows, HEAD_CHUNKS_MAX));
    if (rounds && p.rows < least) p.rows = least;
    if (p.rows > q->rows) p.rows = q->rows;
    p.chunks = divide_up(q->rows, p.rows);
    p.separate = rounds && p.chunks > 1 && q->micro_batches > 1;
    return p;
}
