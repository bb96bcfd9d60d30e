// The bytes and flops of each operation, computed from its arguments, for benchmarks and lower bounds of time.
#include "kernels/operations.h"

static double size_of(enum dtype t) { return (double)dtype_size(t); }

// An elementwise update reads the gradient or its code, writes the weight, reads and writes the master, and reads
// `states` moments and writes all of them but `frozen`. A code replaces the first moment, which is not read then.
static double update_bytes(const struct update_args *a, double states, double frozen) {
    double weight = !a->weight || a->weight == (const void *)a->master ? 0 : size_of(a->dt);
    double gradient =
        a->codes ? (double)onebit_bytes(a->n) - (double)a->n * sizeof *a->m : (double)a->n * size_of(a->dt);
    return (double)a->n * (8 * (states + 1) - 4 * frozen + weight) + gradient;
}

// A topk code names only some elements, and the others are not touched. The other codes name all elements.
static double code_add_bytes(const struct code_add_args *a) {
    double code = (double)code_bytes(&a->format, a->n), all = (double)a->n * (a->use == CODE_SET ? 4 : 8);
    return code + (a->format.kind == CODE_TOPK && a->use != CODE_SET ? code : all);
}

// One causal product of all heads, scores or values: half of the square is computed.
static double causal_flops(int64_t batch, int64_t seq, int64_t heads, int64_t head_size) {
    return (double)batch * (double)seq * (double)seq * (double)heads * (double)head_size;
}

// Queries and keys are read and written; the gradient of the bias also reads the values.
static double rope_bytes(const struct rope_args *a) {
    int64_t rotated = a->heads + a->kv_heads, read = a->dbias ? a->kv_heads : 0;
    return (double)(a->batch * a->seq) * (double)((2 * rotated + read) * a->head_size) * size_of(a->dt);
}

static double embed_bwd_bytes(const struct embed_bwd_args *a) {
    int64_t rows = a->batch * a->seq + (a->zero_dwte ? a->vocab : 0);
    if (a->dwpe) rows += a->accumulate_dwpe ? 2 * a->seq : a->positions;
    return (double)rows * (double)a->channels * size_of(a->dt);
}

// The case of operation OP, whose arguments are a.
#define BYTES(OP, args_t, bytes_of)                   \
    case OP: {                                        \
        const struct args_t *a = args;                \
        return (struct op_work){.bytes = (bytes_of)}; \
    }
#define FLOPS(OP, args_t, flops_of)                   \
    case OP: {                                        \
        const struct args_t *a = args;                \
        return (struct op_work){.flops = (flops_of)}; \
    }
#define UPDATE_BYTES(first, OP, name, states, frozen, variant) \
    BYTES(OP, update_args, update_bytes(a, states, frozen))
#define N(count) ((double)(count)*size_of(a->dt))

struct op_work op_work_of(enum op op, const void *args) {
    switch (op) {
        FLOPS(OP_MATMUL, matmul_args, 2 * (double)a->m * (double)a->n * (double)a->k)
        FLOPS(OP_ATTN_FWD, attn_fwd_args, 2 * causal_flops(a->batch, a->seq, a->heads, a->head_size))
        FLOPS(OP_ATTN_BWD, attn_bwd_args, 5 * causal_flops(a->batch, a->seq, a->heads, a->head_size))
        BYTES(OP_BIAS_GRAD, bias_grad_args, N(a->rows * a->n))
        BYTES(OP_EMBED_FWD, embed_fwd_args, N((a->batch + (a->wpe != NULL)) * a->seq * a->channels))
        BYTES(OP_EMBED_BWD, embed_bwd_args, embed_bwd_bytes(a))
        BYTES(OP_NORM_FWD, norm_fwd_args, N((a->residual ? 4 : 2) * a->rows * a->channels))
        BYTES(OP_NORM_BWD, norm_bwd_args, N((a->dresidual ? 4 : 3) * a->rows * a->channels))
        BYTES(OP_ROPE, rope_args, rope_bytes(a))
        BYTES(OP_GELU_FWD, gelu_args, N(2 * a->n))
        BYTES(OP_GELU_BWD, gelu_args, N(3 * a->n))
        BYTES(OP_SWIGLU_FWD, swiglu_args, N(3 * a->rows * a->width))
        BYTES(OP_SWIGLU_BWD, swiglu_args, N(5 * a->rows * a->width))
        BYTES(OP_ADD, add_args, N(3 * a->n))
        BYTES(OP_XENT, xent_args, N((a->want_grad ? 2 : 1) * a->rows * a->vocab))
        BYTES(OP_LOSS_SUM, loss_sum_args, (double)a->rows * 4)
        BYTES(OP_SUMSQ, sumsq_args, N(a->n))
        UPDATES(UPDATE_BYTES, )
        BYTES(OP_ONEBIT_ENCODE, onebit_encode_args, N(a->n) + (double)a->n * 16 + (double)onebit_bytes(a->n))
        BYTES(OP_ONEBIT_SUM, onebit_sum_args, (double)a->n * 12 + (double)onebit_bytes(a->n) * (a->ranks + 1))
        BYTES(OP_CODE_ENCODE, code_encode_args,
              N(a->n) + (double)a->n * 4 + (double)code_bytes(&a->format, a->n))
        BYTES(OP_CODE_ERROR, code_error_args, N(a->n) + (double)a->n * 8)
        BYTES(OP_CODE_ADD, code_add_args, code_add_bytes(a))
        BYTES(OP_REDUCE, reduce_args, N(a->n * (a->count + 1)))
        BYTES(OP_CAST, cast_args, (double)a->n * (size_of(a->from) + size_of(a->to)))
        BYTES(OP_FILL_ZERO, fill_zero_args, (double)a->bytes)
        case OP_DECIDE:
            return (struct op_work){.bytes = sizeof(struct exact_sum)};
        case OP_BUSY:
            return (struct op_work){.bytes = 2 * sizeof(int64_t)};
        case OP_COUNT:
            break;
    }
    assert(0 && "no operation");
    return (struct op_work){0};
}
