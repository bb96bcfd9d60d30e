#include "shared/bench/bench_sizes.h"

#include "shared/core/error.h"
#include "shared/hf/presets.h"
#include "shared/model/head_plan.h"
#include "shared/model/layout.h"

#define BOTH_KINDS \
    (BENCH_RMS | BENCH_LAYER | BENCH_SWIGLU | BENCH_GELU | BENCH_ROPE | BENCH_POSITIONS | BENCH_BIASES)

static const struct bench_sizes host_sizes = {.batch = 4,
                                              .seq = 1024,
                                              .rows = 4096,
                                              .channels = 768,
                                              .heads = 12,
                                              .kv_heads = 12,
                                              .head_size = 64,
                                              .width = 2048,
                                              .wide = 3072,
                                              .wide_rows = 4096,
                                              .vocab = 50257,
                                              .logit_rows = 512,
                                              .unit = INT64_C(1) << 24,
                                              .product = 2048,
                                              .parts = BOTH_KINDS};
static const struct bench_sizes gpu_sizes = {.batch = 64,
                                             .seq = 1024,
                                             .rows = 65536,
                                             .channels = 2048,
                                             .heads = 16,
                                             .kv_heads = 16,
                                             .head_size = 128,
                                             .width = 2048,
                                             .wide = 8192,
                                             .wide_rows = 16384,
                                             .vocab = 50257,
                                             .logit_rows = 2688,
                                             .unit = INT64_C(1) << 27,
                                             .product = 8192,
                                             .parts = BOTH_KINDS};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

struct bench_sizes bench_sizes_of(bool gpu, int64_t elements, int64_t product) {
    const struct bench_sizes *full = gpu ? &gpu_sizes : &host_sizes;
    struct bench_sizes n = *full;
    if (product) n.product = product;
    n.classes = n.vocab;
    n.copy = n.unit;
    if (!elements) return n;
    n.unit = n.copy = elements;
    n.rows = most(1, full->rows * elements / full->unit);
    n.seq = least(full->seq, n.rows);
    n.batch = n.rows / n.seq;
    n.rows = n.batch * n.seq;
    n.wide_rows = most(1, full->wide_rows * elements / full->unit);
    n.logit_rows = least(n.rows, most(1, full->logit_rows * elements / full->unit));
    n.vocab = n.classes = least(full->vocab, most(64, full->vocab * elements / full->unit));
    return n;
}

int64_t bench_logit_stride(const struct bench_sizes *n) { return model_classes_padded(n->vocab); }

// ---------------------------------------------------------------- a model's
#define SEQ        1024
#define BATCH_HOST 1
#define BATCH_GPU  32
// Numbers that the yardstick copies, at least: a small model's block may fit a GPU's L2, or a CPU's.
#define COPY_HOST (INT64_C(1) << 24)
#define COPY_GPU  (INT64_C(1) << 27)

static int set_rows(const struct bench_request *q, const struct model_spec *s, struct bench_sizes *out) {
    int64_t longest = model_longest_seq(s);
    out->batch = q->batch ? q->batch : q->gpu ? BATCH_GPU : BATCH_HOST;
    out->seq = q->seq ? q->seq : longest && longest < SEQ ? longest : SEQ;
    out->rows = out->wide_rows = out->batch * out->seq;
    if (longest && out->seq > longest)
        return fail("--seq %lld: model %s takes sequences of up to %lld tokens", (long long)out->seq, s->name,
                    (long long)longest);
    return 0;
}

static void set_linears(const struct model_spec *s, struct bench_sizes *out) {
    const struct model_traits *t = &s->traits;
    bool gelu = t->mlp == MLP_GELU;
    int64_t attention = (int64_t)s->heads * s->head_size;
    int64_t qkv = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_size;
    out->linear[0] = (struct bench_linear){"qkv", qkv, s->channels, t->qkv_bias, false};
    out->linear[1] = (struct bench_linear){"attention's", s->channels, attention, t->out_bias, false};
    out->linear[2] =
        (struct bench_linear){gelu ? "up" : "gate and up", model_up_width(s), s->channels, t->mlp_bias, gelu};
    out->linear[3] = (struct bench_linear){"down", s->channels, s->ffn, t->mlp_bias, false};
    out->linears = BENCH_LINEARS;
}

static int parts_of(const struct model_spec *s) {
    const struct model_traits *t = &s->traits;
    bool rotary = t->positions == POSITIONS_ROTARY;
    return (t->norm == NORM_RMS ? BENCH_RMS : BENCH_LAYER) |
           (t->mlp == MLP_SWIGLU ? BENCH_SWIGLU : BENCH_GELU) | (rotary ? BENCH_ROPE : BENCH_POSITIONS) |
           (rotary && t->qkv_bias ? BENCH_ROPE_BIAS : 0) |
           (t->out_bias || t->mlp_bias || (t->qkv_bias && !rotary) ? BENCH_BIASES : 0) |
           (s->tied ? BENCH_TIED : 0);
}

int bench_sizes_of_model(const struct bench_request *q, struct bench_sizes *out) {
    struct model_spec s;
    if (model_spec_load(q->model, &s)) return -1;
    *out = (struct bench_sizes){.channels = s.channels,
                                .heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .head_size = s.head_size,
                                .vocab = s.vocab,
                                .wide = s.ffn,
                                .product = q->product ? q->product
                                           : q->gpu   ? 8192
                                                      : 2048};
    if (set_rows(q, &s, out)) return -1;
    set_linears(&s, out);
    out->parts = parts_of(&s);
    if (s.traits.mlp == MLP_SWIGLU) out->width = s.ffn;
    out->classes = q->gpu ? model_classes_padded(s.vocab) : s.vocab;
    out->logit_rows =
        head_plan_of(
            &(struct head_question){
                .rows = out->rows, .vocab = s.vocab, .micro_batches = 1, .gpu = q->gpu, .dtype = q->dtype})
            .rows;
    struct layout *l = model_layout_create(&s, 1);
    if (!l) return -1;
    int64_t large = q->gpu ? COPY_GPU : COPY_HOST, block = l->units[1].n_pad;
    out->unit = q->elements ? q->elements : block;
    out->copy = q->elements ? q->elements : block > large ? block : large;
    layout_destroy(&l);
    return 0;
}
