#include "shared/model/activations.h"

#include "shared/core/error.h"
#include "shared/core/numbers.h"

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

static void *take(struct model *m, enum mem_class c, int64_t rows, int64_t columns, size_t bytes_each) {
    return arena_take(&m->arena, c, size_bytes(rows, columns, bytes_each));
}

// The activations that the adapters of a linear layer keep.
static void carve_adapters(struct model *m, struct linear *l) {
    for (int part = 0; part < LORA_PARTS; part++)
        if (l->adapters[part].a >= 0)
            l->adapters[part].h = take(m, MEM_ACTIVATION, m->R, m->spec.lora.r, dtype_size(m->dt));
}

bool keeps_input(const struct model *m, const struct linear *l) {
    bool adapted = false;
    for (int part = 0; part < LORA_PARTS; part++) adapted = adapted || l->adapters[part].a >= 0;
    return adapted || !m->spec.lora.r;
}

// shares: the norm whose output's buffer it takes; NULL: it has its own.
static void carve_norm(struct model *m, struct norm *n, const struct norm *shares) {
    n->y = shares ? shares->y : take(m, MEM_ACTIVATION, m->R, m->C, dtype_size(m->dt));
    if (m->spec.traits.norm == NORM_LAYER) n->mean = take(m, MEM_ACTIVATION, m->R, 1, 4);
    n->rstd = take(m, MEM_ACTIVATION, m->R, 1, 4);
}

// Carves block i: its own buffers, and those it shares with block 0 (recompute.h). If the block keeps only its
// input, its x is set already.
static void carve_block(struct model *m, int i) {
    struct block *b = &m->blocks[i], *first = &m->blocks[0];
    size_t e = dtype_size(m->dt);
    void *x = b->norm1.x;
    bool shares_all = i > 0 && (m->forward_only || i < m->inputs.blocks);
    bool shares_cheap = i > 0 && m->recompute.kind == RECOMPUTE_CHEAP;
    if (shares_all || shares_cheap) *b = *first;
    if (shares_all) {
        if (x) b->norm1.x = x;
        return;
    }
    if (i >= m->inputs.blocks) b->norm1.x = take(m, MEM_ACTIVATION, m->R, m->C, e);
    // The backward needs these; RECOMPUTE_CHEAP does not recompute them.
    b->qkv = take(m, MEM_ACTIVATION, m->R, m->QKV, e);
    b->att = take(m, MEM_ACTIVATION, m->R, m->A, e);
    b->norm2.x = take(m, MEM_ACTIVATION, m->R, m->C, e);
    b->up = take(m, MEM_ACTIVATION, m->R, m->U, e);
    b->lse = take(m, MEM_ACTIVATION, m->R, m->spec.heads, 4);
    struct linear *linears[LORA_LINEARS] = {&b->wqkv, &b->wo, &b->w_up, &b->w_down};
    for (int k = 0; k < LORA_LINEARS; k++) carve_adapters(m, linears[k]);
    // Other blocks write what their backward does not read into block 0's buffers.
    if (!shares_cheap) {
        carve_norm(m, &b->norm1, i && !keeps_input(m, &b->wqkv) ? &first->norm1 : NULL);
        carve_norm(m, &b->norm2, i && !keeps_input(m, &b->w_up) ? &first->norm2 : NULL);
    }
    if (i && !keeps_input(m, &b->w_down))
        b->act = first->act;
    else if (!shares_cheap || m->keeps_act)
        b->act = take(m, MEM_ACTIVATION, m->R, m->F, e);
}

// Takes the memory for the inputs of the blocks that keep only their input, and sets these blocks' x.
static void carve_inputs(struct model *m) {
    size_t bytes = size_bytes(m->R, m->C, dtype_size(m->dt));
    struct kept_inputs *in = &m->inputs;
    in->blocks = recompute_blocks(&m->recompute, &m->spec);
    in->on_host = m->recompute.inputs_on_host && in->blocks > 2;
    int slots = in->on_host ? 2 : 0, copied = in->on_host ? in->blocks - 2 : 0;
    for (int i = 0; i < slots; i++) in->slots[i] = arena_take(&m->arena, MEM_ACTIVATION, bytes);
    in->host = arena_take(&m->arena, MEM_HOST, size_bytes(copied, 1, bytes));
    for (int i = 0; i < in->blocks; i++)
        m->blocks[i].norm1.x = in->on_host ? in->slots[i & 1] : arena_take(&m->arena, MEM_ACTIVATION, bytes);
}

static void carve_gradients(struct model *m) {
    size_t e = dtype_size(m->dt);
    m->targets = take(m, MEM_ACTIVATION, m->R, 1, 4);
    m->loss = take(m, MEM_ACTIVATION, m->R, 1, 4);
    m->loss_sum = take(m, MEM_ACTIVATION, 1, 1, sizeof(double));
    m->carry = take(m, MEM_ACTIVATION, m->R, m->C, e);
    m->d_c = take(m, MEM_ACTIVATION, m->R, m->C, e);
    m->d_qkv = take(m, MEM_ACTIVATION, m->R, m->QKV, e);
    m->d_att = take(m, MEM_ACTIVATION, m->R, m->A, e);
    if (m->spec.lora.r) m->d_h = take(m, MEM_ACTIVATION, m->R, m->spec.lora.r, e);
    // The blocks' backward is the first to use d_mlp, so the head's backward before it may sum its chunks there.
    int64_t of_mlp = size_times(m->R, m->F),
            of_head = m->separate && !m->spec.lora.r ? size_times(m->VP, m->C) : 0;
    m->d_mlp = take(m, MEM_ACTIVATION, of_mlp > of_head ? of_mlp : of_head, 1, e);
    if (of_head) m->head_sum = m->d_mlp;
    if (!m->watches) return;
    m->watch = take(m, MEM_WORKSPACE, layout_tensors(m->layout), 1, sizeof *m->watch);
    m->watch_rest = take(m, MEM_WORKSPACE, layout_tensors(m->layout), SUMSQ_BLOCK, e);
}

static size_t scratch_bytes(const struct model *m) {
    const struct model_spec *s = &m->spec;
    // Attention's scratch has a number for each head and position.
    if (size_is_too_large(size_bytes(m->R, s->heads, sizeof(double)))) return (size_t)SIZE_TOP;
    size_t scratch = attn_scratch_bytes(m->B, m->T, s->heads, s->kv_heads, s->head_size);
    if (m->forward_only) return scratch;
    scratch = max_size(scratch, norm_bwd_scratch_bytes(m->C));
    if (s->lora.r) return scratch;  // the embedding is frozen, and so has no backward
    return max_size(scratch, embed_bwd_scratch_bytes(m->B, m->T, m->C, m->V));
}

void activations_carve(struct model *m) {
    size_t e = dtype_size(m->dt);
    carve_inputs(m);
    for (int i = 0; i < m->spec.layers; i++) carve_block(m, i);
    m->tokens = take(m, MEM_ACTIVATION, m->R, 1, 4);
    m->final.x = take(m, MEM_ACTIVATION, m->R, m->C, e);
    carve_norm(m, &m->final, NULL);
    m->pass = take(m, MEM_ACTIVATION, m->R, m->C, e);
    if (!m->forward_only) carve_gradients(m);
    m->logits = take(m, MEM_WORKSPACE, m->chunk, m->VS, e);
    if (m->spec.traits.positions == POSITIONS_ROTARY)
        m->rope = take(m, MEM_WORKSPACE, m->T, m->spec.head_size, 4);
    m->scratch = arena_take(&m->arena, MEM_WORKSPACE, scratch_bytes(m));
}

// ---------------------------------------------------------------- inputs on the host
static size_t input_bytes(const struct model *m) { return size_bytes(m->R, m->C, dtype_size(m->dt)); }

static bool is_copied(const struct kept_inputs *in, int i) { return in->on_host && i < in->blocks - 2; }

int kept_inputs_open(struct model *m) {
    struct kept_inputs *in = &m->inputs;
    struct device *dev = m->arena.dev;
    if (!in->on_host) return 0;
    in->copies = stream_create(dev, "kept inputs");
    bool all = in->copies;
    for (int i = 0; i < 2; i++)
        all = (in->used[i] = event_create(dev)) && (in->copied[i] = event_create(dev)) && all;
    if (!all)
        return fail(
            "activation_checkpointing.cpu_checkpointing: cannot create a stream and events for the copies: %s",
            dev_error(dev));
    stream_phase(in->copies, PHASE_COMM);
    return 0;
}

void kept_inputs_close(struct model *m) {
    struct kept_inputs *in = &m->inputs;
    stream_destroy(&in->copies);
    for (int i = 0; i < 2; i++) {
        event_destroy(&in->used[i]);
        event_destroy(&in->copied[i]);
    }
}

// Copies x[i] between its slot and the host, after all work enqueued on the compute stream so far.
static void copy(struct model *m, int i, bool out) {
    struct kept_inputs *in = &m->inputs;
    int slot = i & 1;
    char *host = in->host + (size_t)i * input_bytes(m);
    event_record(in->used[slot], m->s);
    stream_wait_event(in->copies, in->used[slot]);
    dev_copy(in->copies, out ? (void *)host : in->slots[slot], out ? in->slots[slot] : (void *)host,
             input_bytes(m));
    event_record(in->copied[slot], in->copies);
}

void kept_input_begins(struct model *m, int i) {
    if (m->inputs.on_host && i < m->inputs.blocks) stream_wait_event(m->s, m->inputs.copied[i & 1]);
}

void kept_input_ends(struct model *m, int i) {
    if (is_copied(&m->inputs, i)) copy(m, i, true);
}

void kept_input_needed(struct model *m, int i) {
    if (is_copied(&m->inputs, i)) stream_wait_event(m->s, m->inputs.copied[i & 1]);
}

// x[i]'s slot is now free for x[i-2].
void kept_input_done(struct model *m, int i) {
    if (i >= 2 && i < m->inputs.blocks && is_copied(&m->inputs, i - 2)) copy(m, i - 2, false);
}
