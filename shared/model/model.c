// Creation and memory of the model, its inputs, the embedding, and the dispatch by unit.
#include "shared/model/model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_math.h"
#include "kernels/operations.h"
#include "shared/core/error.h"
#include "shared/model/activations.h"

// Returns the tensor "<unit>.<name>", or NULL if the unit has none.
static const struct tensor *tensor_of(const struct unit *u, const char *name) {
    for (int i = 0; i < u->count; i++)
        if (!strcmp(strrchr(u->tensors[i].name, '.') + 1, name)) return &u->tensors[i];
    return NULL;
}

static int64_t offset_of(const struct unit *u, const char *name) {
    const struct tensor *t = tensor_of(u, name);
    return t ? t->offset : -1;
}

static struct norm norm_of(const struct unit *u, const char *weight, const char *bias) {
    return (struct norm){.weight = offset_of(u, weight), .bias = offset_of(u, bias)};
}

static struct linear linear_of(const struct unit *u, const struct model_spec *s, enum lora_linear l,
                               const char *bias) {
    const struct tensor *t = tensor_of(u, lora_tensor(s, l));
    struct linear out = {t->offset, offset_of(u, bias), .in = t->shape[1], .out = t->shape[0]};
    for (int part = 0; part < LORA_PARTS; part++) {
        char name[TENSOR_NAME_MAX];
        struct lora_rows of = lora_rows_of(s, l, part);
        snprintf(name, sizeof name, "%s%d_A", lora_tensor(s, l), part);
        out.adapters[part] = (struct adapter){.a = offset_of(u, name), .first = of.first, .rows = of.rows};
        snprintf(name, sizeof name, "%s%d_B", lora_tensor(s, l), part);
        out.adapters[part].b = offset_of(u, name);
    }
    return out;
}

static bool on_gpu(const struct model_options *o) { return o->dev ? !dev_host_memory(o->dev) : o->gpu; }

struct head_plan model_head_plan(const struct model_options *o) {
    return head_plan_of(&(struct head_question){.rows = o->batch * o->seq,
                                                .vocab = o->spec->vocab,
                                                .micro_batches = o->micro_batches,
                                                .logits_bytes = o->logits_bytes,
                                                .gpu = on_gpu(o),
                                                .dtype = o->dtype});
}

// Sets sizes and offsets; takes no memory.
static struct model *model_shell(const struct model_options *o) {
    struct model *m = xcalloc(1, sizeof *m);
    const struct model_spec *s = o->spec;
    m->spec = *s;
    m->layout = o->layout;
    m->s = o->compute;
    m->dt = o->dtype;
    m->B = o->batch;
    m->T = m->most_seq = o->seq;
    m->R = o->batch * o->seq;
    m->C = s->channels;
    m->A = (int64_t)s->heads * s->head_size;
    m->QKV = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_size;
    m->F = s->ffn;
    m->U = model_up_width(s);
    m->forward_only = o->forward_only;
    m->watches = o->watch_gradients;
    if (!o->forward_only) m->recompute = o->recompute;
    m->keeps_act = s->traits.mlp == MLP_GELU && on_gpu(o) && !o->recompute.gelu_apart;
    // The chunks of the head's logits.
    struct head_plan p = model_head_plan(o);
    m->V = s->vocab;
    m->VS = model_classes_padded(m->V);
    m->VP = on_gpu(o) ? m->VS : m->V;
    m->chunk = o->forward_only ? 1 : p.rows;
    m->separate = p.separate;
    // Offsets of the tensors. Every block has the same tensors at the same offsets.
    const struct layout *l = layout_of_model(m->layout);
    const struct unit *first = &l->units[0], *block = &l->units[1], *head = &l->units[l->count - 1];
    m->frozen_from = l == m->layout ? INT64_MAX : block->trained;
    bool gated = s->traits.mlp == MLP_SWIGLU;
    struct block b = {.norm1 = norm_of(block, "norm1", "norm1_b"),
                      .norm2 = norm_of(block, "norm2", "norm2_b"),
                      .wqkv = linear_of(block, s, LORA_QKV, "bqkv"),
                      .wo = linear_of(block, s, LORA_OUT, "bo"),
                      .w_up = linear_of(block, s, LORA_UP, gated ? "b_gate_up" : "b_up"),
                      .w_down = linear_of(block, s, LORA_DOWN, "b_down")};
    m->blocks = xcalloc((size_t)s->layers, sizeof *m->blocks);
    for (int i = 0; i < s->layers; i++) m->blocks[i] = b;
    m->final = norm_of(head, "norm", "norm_b");
    m->wte = offset_of(first, "wte");
    m->wpe = offset_of(first, "wpe");
    m->projection = s->tied ? m->wte : offset_of(head, "lm_head");
    return m;
}

// Frequencies of LLaMA 3's rope (Hugging Face modeling_rope_utils, "llama3"): long wavelengths are divided by
// `factor`, short ones are kept, those between are blended.
static double scaled_frequency(const struct model_spec *s, double f) {
    if (s->rope_scaling == ROPE_LINEAR) return f / s->rope_factor;
    if (s->rope_scaling != ROPE_LLAMA3) return f;
    double wavelength = 2.0 * M_PI / f, original = s->rope_original_positions;
    if (wavelength < original / s->rope_high_freq_factor) return f;
    if (wavelength > original / s->rope_low_freq_factor) return f / s->rope_factor;
    double smooth = (original / wavelength - s->rope_low_freq_factor) /
                    ((double)s->rope_high_freq_factor - s->rope_low_freq_factor);
    return (1.0 - smooth) * f / s->rope_factor + smooth * f;
}

#define ROPE_POSITIONS 4096  // positions whose angles are on the host together

static int fill_rope(struct model *m) {
    int64_t half = m->spec.head_size / 2, piece = m->T < ROPE_POSITIONS ? m->T : ROPE_POSITIONS;
    float *table = xcalloc((size_t)(piece * half * 2), sizeof *table);
    int rc = 0;
    for (int64_t begin = 0; begin < m->T && rc == 0; begin += piece) {
        int64_t n = m->T - begin < piece ? m->T - begin : piece;
        for (int64_t i = 0; i < half; i++) {
            double f = scaled_frequency(&m->spec,
                                        exact_pow(m->spec.rope_theta, -2.0 * (double)i / m->spec.head_size));
            for (int64_t t = 0; t < n; t++) {
                table[(t * half + i) * 2] = (float)exact_cosine((double)(begin + t) * f);
                table[(t * half + i) * 2 + 1] = (float)exact_sine((double)(begin + t) * f);
            }
        }
        dev_copy(m->s, m->rope + begin * half * 2, table, (size_t)(n * half * 2) * sizeof *table);
        rc = stream_sync(m->s);
    }
    free(table);
    return rc;
}

void model_predict(const struct model_options *o, size_t bytes[MEM_CLASSES]) {
    struct model *m = model_shell(o);
    arena_init(&m->arena, NULL);
    activations_carve(m);
    memcpy(bytes, m->arena.bytes, sizeof m->arena.bytes);
    model_destroy(&m);
}

struct model *model_create(const struct model_options *o) {
    if (model_spec_check_seq(o->spec, o->seq)) return NULL;
    struct model *m = model_shell(o);
    arena_init(&m->arena, o->dev);
    activations_carve(m);
    if (m->arena.failed || kept_inputs_open(m) || (m->rope && fill_rope(m))) model_destroy(&m);
    return m;
}

void model_destroy(struct model **pm) {
    struct model *m = *pm;
    if (!m) return;
    kept_inputs_close(m);
    arena_release(&m->arena);
    free(m->blocks);
    free(m);
    *pm = NULL;
}

void model_set_seq(struct model *m, int64_t seq) {
    assert(seq > 0 && seq <= m->most_seq);
    m->T = seq;
    m->R = m->B * seq;
}

void model_set_batch(struct model *m, const int32_t *tokens, const int32_t *targets,
                     float loss_scale_over_tokens, bool zero_loss) {
    dev_copy(m->s, m->tokens, tokens, (size_t)m->R * sizeof *tokens);
    dev_copy(m->s, m->targets, targets, (size_t)m->R * sizeof *targets);
    m->grad_scale = loss_scale_over_tokens;
    m->zero_loss = zero_loss;
}

void model_set_tokens(struct model *m, const int32_t *tokens, int64_t seq) {
    assert(m->forward_only);
    model_set_seq(m, seq);
    dev_copy(m->s, m->tokens, tokens, (size_t)m->R * sizeof *tokens);
}

const double *model_loss_on_device(const struct model *m) { return m->loss_sum; }

double model_loss_sum(const struct model *m) {
    double sum;
    dev_copy(m->s, &sum, m->loss_sum, sizeof sum);
    return stream_sync(m->s) ? NAN : sum;
}

static void embedding_forward(struct model *m, const struct unit_view *v) {
    kept_input_begins(m, 0);
    op_embed_fwd(m->s, &(struct embed_fwd_args){.out = m->blocks[0].norm1.x,
                                                .tokens = m->tokens,
                                                .wte = weight_at(m, v, m->wte),
                                                .wpe = weight_at(m, v, m->wpe),
                                                .batch = m->B,
                                                .seq = m->T,
                                                .channels = m->C,
                                                .dt = m->dt});
}

static void embedding_backward(struct model *m, const struct unit_view *v) {
    op_embed_bwd(m->s, &(struct embed_bwd_args){.dwte = grad_at(m, v, m->wte),
                                                .dwpe = grad_at(m, v, m->wpe),
                                                .dout = m->carry,
                                                .tokens = m->tokens,
                                                .scratch = m->scratch,
                                                .batch = m->B,
                                                .seq = m->T,
                                                .channels = m->C,
                                                .vocab = m->V,
                                                .positions = m->spec.max_positions,
                                                .zero_dwte = !m->spec.tied && !v->accumulate,
                                                .accumulate_dwpe = v->accumulate,
                                                .dt = m->dt});
}

void model_forward(struct model *m, int u, const struct unit_view *view, const struct unit_view *tied,
                   bool want_loss) {
    if (u == 0)
        embedding_forward(m, view);
    else if (u <= m->spec.layers)
        block_forward(m, u - 1, view);
    else
        head_forward(m, view, tied, want_loss);
}

void model_backward(struct model *m, int u, const struct unit_view *view, const struct unit_view *tied) {
    if (u == 0)
        embedding_backward(m, view);
    else if (u <= m->spec.layers)
        block_backward(m, u - 1, view);
    else
        head_backward(m, view, tied);
}

int model_row_logits(struct model *m, const struct unit_view *head, const struct unit_view *tied, int64_t row,
                     float *out) {
    return head_row_logits(m, head, tied, row, out);
}

// ---------------------------------------------------------------- gradients that are not finite
// op_sumsq takes whole blocks. A tensor's last, partial block is copied into a block of zeros, because the elements after
// it in the unit belong to the next tensor.
void grad_watch_unit(struct model *m, int u, const void *grad, int micro) {
    const struct unit *unit = &m->layout->units[u];
    size_t e = dtype_size(m->dt);
    int64_t place = 0;
    assert(m->watch && "a model that was created without watch_gradients");
    for (int i = 0; i < u; i++) place += m->layout->units[i].count;
    for (int i = 0; i < unit->count; i++, place++) {
        const struct tensor *t = &unit->tensors[i];
        const char *from = (const char *)grad + (size_t)t->offset * e;
        int64_t whole = t->numel / SUMSQ_BLOCK * SUMSQ_BLOCK, rest = t->numel - whole;
        struct sumsq_args a = {
            .out = m->watch + place, .x = from, .n = whole, .zero_out = micro == 0, .dt = m->dt};
        if (whole) op_sumsq(m->s, &a);
        if (!rest) continue;
        char *block = (char *)m->watch_rest + (size_t)(place * SUMSQ_BLOCK) * e;
        dev_copy(m->s, block, from + (size_t)whole * e, (size_t)rest * e);
        a.x = block;
        a.n = SUMSQ_BLOCK;
        a.zero_out = micro == 0 && !whole;
        op_sumsq(m->s, &a);
    }
}

int grad_watch_read(struct model *m, struct grad_watched *out) {
    int64_t n = layout_tensors(m->layout);
    struct exact_sum *sums = xcalloc((size_t)n, sizeof *sums);
    *out = (struct grad_watched){.tensor = -1};
    dev_copy(m->s, sums, m->watch, (size_t)n * sizeof *sums);
    int rc = stream_sync(m->s);
    for (int64_t i = 0; i < n && !rc && out->tensor < 0; i++)
        if (sums[i].nonfinite)
            *out = (struct grad_watched){i, grad_watch_name(m->layout, i), sums[i].nonfinite};
    free(sums);
    return rc ? -1 : 0;
}

const char *grad_watch_name(const struct layout *l, int64_t tensor) {
    int u = 0;
    while (tensor >= l->units[u].count) tensor -= l->units[u++].count;
    return l->units[u].tensors[tensor].name;
}
