// The sizes of a model's training step, for `starring bench kernels --model`.
#include "shared/bench/bench_sizes.h"
#include "shared/core/error.h"
#include "shared/hf/presets.h"
#include "shared/model/head_plan.h"
#include "shared/model/layout.h"

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
