// Life cycle of the model: its activations are carved here, its units dispatched.
#include "shared/model/model.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"
#include "shared/model/model_impl.h"

int64_t unit_tensor_offset(const struct unit *u, const char *name) {
    size_t prefix = strlen(u->name);
    for (int i = 0; i < u->count; i++) {
        const char *full = u->tensors[i].name;
        if (!strncmp(full, u->name, prefix) && full[prefix] == '.' && !strcmp(full + prefix + 1, name))
            return u->tensors[i].offset;
    }
    return -1;
}

static void find_tensors(struct model *m) {
    for (int i = 0; i < m->spec.layers; i++) {
        const struct unit *u = &m->layout->units[1 + i];
        struct block_tensors *t = &m->at[i];
        bool llama = m->spec.family == FAMILY_LLAMA;
        t->norm1 = unit_tensor_offset(u, "norm1");
        t->norm1_b = unit_tensor_offset(u, "norm1_b");
        t->wqkv = unit_tensor_offset(u, "wqkv");
        t->bqkv = unit_tensor_offset(u, "bqkv");
        t->wo = unit_tensor_offset(u, "wo");
        t->bo = unit_tensor_offset(u, "bo");
        t->norm2 = unit_tensor_offset(u, "norm2");
        t->norm2_b = unit_tensor_offset(u, "norm2_b");
        t->w_up = unit_tensor_offset(u, llama ? "w_gate_up" : "w_up");
        t->b_up = unit_tensor_offset(u, "b_up");
        t->w_down = unit_tensor_offset(u, "w_down");
        t->b_down = unit_tensor_offset(u, "b_down");
    }
}

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static void *take(struct model *m, enum mem_class c, int64_t elements, size_t bytes_each) {
    return arena_take(&m->arena, c, (size_t)elements * bytes_each);
}

static void carve_saved(struct model *m) {
    size_t e = dtype_size(m->dt);
    bool layer_norm = model_norm(m) == NORM_LAYER;
    for (int i = 0; i < m->spec.layers; i++) {
        struct block_saved *a = &m->saved[i];
        if (m->forward_only && i > 0) {
            *a = m->saved[0];
            continue;
        }
        a->x = take(m, MEM_ACTIVATION, m->R * m->C, e);
        a->n1 = take(m, MEM_ACTIVATION, m->R * m->C, e);
        a->qkv = take(m, MEM_ACTIVATION, m->R * m->QKV, e);
        a->att = take(m, MEM_ACTIVATION, m->R * m->A, e);
        a->mid = take(m, MEM_ACTIVATION, m->R * m->C, e);
        a->n2 = take(m, MEM_ACTIVATION, m->R * m->C, e);
        a->up = take(m, MEM_ACTIVATION, m->R * m->U, e);
        a->act = take(m, MEM_ACTIVATION, m->R * m->F, e);
        a->mean1 = layer_norm ? take(m, MEM_ACTIVATION, m->R, 4) : NULL;
        a->mean2 = layer_norm ? take(m, MEM_ACTIVATION, m->R, 4) : NULL;
        a->rstd1 = take(m, MEM_ACTIVATION, m->R, 4);
        a->rstd2 = take(m, MEM_ACTIVATION, m->R, 4);
        a->lse = take(m, MEM_ACTIVATION, m->R * m->spec.heads, 4);
    }
}

static void carve_gradients(struct model *m) {
    size_t e = dtype_size(m->dt);
    m->targets = take(m, MEM_ACTIVATION, m->R, 4);
    m->loss = take(m, MEM_ACTIVATION, m->R, 4);
    m->loss_sum = take(m, MEM_ACTIVATION, 1, sizeof(double));
    m->carry = take(m, MEM_ACTIVATION, m->R * m->C, e);
    m->d_c = take(m, MEM_ACTIVATION, m->R * m->C, e);
    m->d_qkv = take(m, MEM_ACTIVATION, m->R * m->QKV, e);
    m->d_att = take(m, MEM_ACTIVATION, m->R * m->A, e);
    // Stands idle until the blocks' backward: the head's chunks may meet there before.
    void *idle = take(m, MEM_ACTIVATION, m->apart ? max64(m->R * m->F, m->VP * m->C) : m->R * m->F, e);
    if (m->apart) m->head_share = idle;
    if (m->spec.family == FAMILY_LLAMA)
        m->d_act = idle;
    else
        m->d_up = idle;
}

static size_t scratch_bytes(const struct model *m) {
    const struct model_spec *s = &m->spec;
    size_t scratch = attn_scratch_bytes(m->B, m->T, s->heads, s->kv_heads, s->head_size);
    if (m->forward_only) return scratch;
    scratch = max_size(scratch, norm_bwd_scratch_bytes(m->C));
    return max_size(scratch, embed_bwd_scratch_bytes(m->B, m->T, m->C, m->V));
}

static void carve(struct model *m) {
    size_t e = dtype_size(m->dt);
    carve_saved(m);
    m->tokens = take(m, MEM_ACTIVATION, m->R, 4);
    m->final_x = take(m, MEM_ACTIVATION, m->R * m->C, e);
    m->nf = take(m, MEM_ACTIVATION, m->R * m->C, e);
    m->meanf = model_norm(m) == NORM_LAYER ? take(m, MEM_ACTIVATION, m->R, 4) : NULL;
    m->rstdf = take(m, MEM_ACTIVATION, m->R, 4);
    m->pass = take(m, MEM_ACTIVATION, m->R * m->C, e);
    if (!m->forward_only) carve_gradients(m);
    m->logits = take(m, MEM_WORKSPACE, m->chunk * m->VS, e);
    if (m->spec.family == FAMILY_LLAMA) m->rope = take(m, MEM_WORKSPACE, m->T * m->spec.head_size, 4);
    m->scratch = arena_take(&m->arena, MEM_WORKSPACE, scratch_bytes(m));
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

static void set_head(struct model *m, const struct model_options *o) {
    struct head_plan p = model_head_plan(o);
    m->V = o->spec->vocab;
    m->VS = model_classes_padded(m->V);
    m->VP = on_gpu(o) ? m->VS : m->V;
    m->chunk = o->forward_only ? 1 : p.rows;
    m->apart = p.apart;
}

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
    m->U = s->family == FAMILY_LLAMA ? 2 * m->F : m->F;
    set_head(m, o);
    m->forward_only = o->forward_only;
    m->at = xcalloc((size_t)s->layers, sizeof *m->at);
    m->saved = xcalloc((size_t)s->layers, sizeof *m->saved);
    return m;
}

// Frequencies of LLaMA 3's rope (Hugging Face modeling_rope_utils, "llama3"): long wavelengths are
// stretched by `factor`, short ones kept, those between blended.
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

static int fill_rope(struct model *m) {
    int64_t half = m->spec.head_size / 2;
    float *table = xcalloc((size_t)(m->T * half * 2), sizeof *table);
    for (int64_t i = 0; i < half; i++) {
        double f =
            scaled_frequency(&m->spec, exact_pow(m->spec.rope_theta, -2.0 * (double)i / m->spec.head_size));
        for (int64_t t = 0; t < m->T; t++) {
            table[(t * half + i) * 2] = (float)exact_cosine((double)t * f);
            table[(t * half + i) * 2 + 1] = (float)exact_sine((double)t * f);
        }
    }
    dev_copy(m->s, m->rope, table, (size_t)(m->T * half * 2) * sizeof *table);
    int rc = stream_sync(m->s);
    free(table);
    return rc;
}

void model_predict(const struct model_options *o, size_t bytes[MEM_CLASSES]) {
    struct model *m = model_shell(o);
    arena_init(&m->arena, NULL);
    carve(m);
    memcpy(bytes, m->arena.bytes, sizeof m->arena.bytes);
    model_destroy(&m);
}

struct model *model_create(const struct model_options *o) {
    if (model_spec_check_seq(o->spec, o->seq)) return NULL;
    struct model *m = model_shell(o);
    arena_init(&m->arena, o->dev);
    carve(m);
    find_tensors(m);
    if (m->arena.failed || (m->rope && fill_rope(m))) model_destroy(&m);
    return m;
}

void model_destroy(struct model **pm) {
    struct model *m = *pm;
    if (!m) return;
    arena_release(&m->arena);
    free(m->at);
    free(m->saved);
    free(m);
    *pm = NULL;
}

void model_set_batch(struct model *m, const int32_t *tokens, const int32_t *targets,
                     float loss_scale_over_tokens, bool zero_loss) {
    dev_copy(m->s, m->tokens, tokens, (size_t)m->R * sizeof *tokens);
    dev_copy(m->s, m->targets, targets, (size_t)m->R * sizeof *targets);
    m->grad_scale = loss_scale_over_tokens;
    m->zero_loss = zero_loss;
}

void model_set_tokens(struct model *m, const int32_t *tokens, int64_t seq) {
    assert(m->forward_only && seq > 0 && seq <= m->most_seq);
    m->T = seq;
    m->R = m->B * seq;
    dev_copy(m->s, m->tokens, tokens, (size_t)m->R * sizeof *tokens);
}

const double *model_loss_place(const struct model *m) { return m->loss_sum; }

double model_loss_sum(const struct model *m) {
    double sum;
    dev_copy(m->s, &sum, m->loss_sum, sizeof sum);
    return stream_sync(m->s) ? NAN : sum;
}

static void embedding_forward(struct model *m, const struct unit_view *v) {
    const struct unit *u = &m->layout->units[0];
    op_embed_fwd(m->s, &(struct embed_fwd_args){.out = m->saved[0].x,
                                                .tokens = m->tokens,
                                                .wte = weight_at(m, v, unit_tensor_offset(u, "wte")),
                                                .wpe = weight_at(m, v, unit_tensor_offset(u, "wpe")),
                                                .batch = m->B,
                                                .seq = m->T,
                                                .channels = m->C,
                                                .dt = m->dt});
}

static void embedding_backward(struct model *m, const struct unit_view *v) {
    const struct unit *u = &m->layout->units[0];
    op_embed_bwd(m->s, &(struct embed_bwd_args){.dwte = grad_at(m, v, unit_tensor_offset(u, "wte")),
                                                .dwpe = grad_at(m, v, unit_tensor_offset(u, "wpe")),
                                                .dout = m->carry,
                                                .tokens = m->tokens,
                                                .scratch = m->scratch,
                                                .batch = m->B,
                                                .seq = m->T,
                                                .channels = m->C,
                                                .vocab = m->V,
                                                .positions = m->spec.max_positions,
                                                .zero_dwte = !m->layout->tied && !v->accumulate,
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
