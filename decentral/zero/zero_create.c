// A rank of ZeRO before and after its steps: its buffers, events, streams and collectives. One function measures all
// buffers for the prediction, and allocates them.
//
//   class       what                                                        elements
//   parameter   weights, or their shard                                     n_pad | S   of the run's type
//               hpZ: the secondary shard, of a group of h ranks             n_pad / h   of the run's type
//               LoRA, stage 3: shards of what is frozen, F elements      F / N       of the run's type; with hpZ F / h
//   gradient    gradients, or their shard                                   n_pad | S   of the run's type
//               fp32 sums of micro-batches (sums_in_fp32)                   n_pad | S   fp32
//   master      fp32 masters of 16-bit runs; in fp32 the master is the      n_pad | S   fp32
//               weights
//   optimizer   the optimizer's states                                      n_pad | S   fp32, each
//               1-bit Adam: errors of the codes it sends, and of its sums   n_pad + S   fp32
//   comm        slots (whole units of sharded data), bundles, staging of reductions, 1-bit codes
//   workspace   norm, decision, losses
//   offload     zero_offload's memory on the host
//   pinned      the host's copy of the values that ranks exchange in a step; the staging of a device's
//               collectives over the host; none if the device's memory is the host's
#include <assert.h>
#include <stdlib.h>

#include "decentral/zero/zero.h"
#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- buffers
// elements: of the units up to and including u.
static void carve_unit(struct zero *z, int u, int64_t elements) {
    struct zero_unit *zu = &z->units[u];
    const struct zero_policy *p = z->policy;
    const struct unit *unit = &z->opt.layout->units[u];
    int64_t n = unit->n_pad, shard = unit_shard(z->opt.layout, u), at = shard * z->source.rank;
    size_t e = dtype_size(z->c->dtype);
    bool whole = p->optimizer == RESIDENT_FULL;
    void *w = zero_disk_on(z) ? NULL
                              : arena_take(&z->arena, zero_offload_class_of_weights(z),
                                           (size_t)(p->weights == RESIDENT_FULL ? n : shard) * e);
    zu->weights = p->weights == RESIDENT_FULL ? w : NULL;
    zu->weight_shard = p->weights == RESIDENT_FULL ? zero_at(z, w, at) : w;
    if (zero_hpz(&z->opt))
        zu->secondary = arena_take(&z->arena, MEM_PARAMETER, (size_t)(n / zero_hpz(&z->opt)) * e);
    void *g = arena_take(&z->arena, MEM_GRADIENT, (size_t)(p->grads == RESIDENT_FULL ? n : shard) * e);
    zu->grad = p->grads == RESIDENT_FULL ? g : NULL;
    zu->grad_shard = p->grads == RESIDENT_FULL ? zero_at(z, g, at) : g;
    struct update_range *r = &zu->update;
    *r = (struct update_range){.unit = unit,
                               .begin = whole ? 0 : at,
                               .end = whole ? n : at + shard,
                               .weight = whole ? zu->weights : zu->weight_shard,
                               .grad = whole ? zu->grad : zu->grad_shard,
                               .dtype = z->c->dtype};
    zu->offloaded = zero_offloads(z, elements);
    if (zu->offloaded) {
        zero_offload_carve_unit(z, u);
        return;
    }
    if (z->c->dtype == DT_F32) {
        r->master = r->weight;
        r->weight = NULL;  // in fp32 the master is the weights, so one update is enough
    } else {
        r->master = arena_take(&z->arena, MEM_MASTER, (size_t)(r->end - r->begin) * sizeof(float));
    }
    optimizer_carve(&z->arena, z->c->optimizer.row, r->end - r->begin, r->state);
}

static void carve_slot(struct zero *z, struct zero_slot *s, int64_t elements) {
    *s = (struct zero_slot){.elements = elements, .unit = -1, .shape = -1};
    s->buf = arena_take(&z->arena, MEM_COMM, (size_t)elements * dtype_size(z->c->dtype));
}

static void carve_control(struct zero *z) {
    size_t largest = (size_t)zero_pack_largest(z);
    struct collective_options *gather = &z->gather_memory, *reduce = &z->reduce_memory;
    size_t values = collective_host_staging(&z->source, EXACT_SUM_WORDS, DT_I64);
    size_t block = collective_host_staging(&z->source, largest, z->c->dtype);
    // The number of ranks that share a secondary copy.
    int64_t parts = zero_hpz(&z->opt) ? z->source.size / zero_hpz(&z->opt) : 1;
    size_t gathered = largest * (size_t)parts;
    for (int i = 0; i < zero_frozen_slots(z); i++) {
        int ranks = zero_hpz(&z->opt) ? zero_hpz(&z->opt) : z->source.size;
        size_t shard = (size_t)unit_schedule_elements(&z->frozen.schedule, i) / (size_t)ranks;
        if (shard > gathered) gathered = shard;
    }
    gather->host_staging_bytes = collective_host_staging(&z->source, gathered, z->c->dtype);
    gather->host_staging = arena_take(&z->arena, MEM_HOST, gather->host_staging_bytes);
    reduce->host_staging_bytes = block > values ? block : values;
    reduce->host_staging = arena_take(&z->arena, MEM_HOST, reduce->host_staging_bytes);
    z->control_memory = *reduce;  // one stream: shared host staging; sums of int64 need no other
    reduce->staging_bytes = collective_staging(&z->source, largest, z->c->dtype);
    reduce->staging = arena_take(&z->arena, MEM_COMM, reduce->staging_bytes);
    z->sum = arena_take(&z->arena, MEM_WORKSPACE, sizeof *z->sum);
    z->scalars = arena_take(&z->arena, MEM_WORKSPACE, zero_words_bytes(z));
    z->shares = zero_shares_after(z->scalars);
    if (!z->opt.device_memory) return;
    z->host_scalars = arena_take(&z->arena, MEM_HOST, zero_words_bytes(z));
    z->host_shares = zero_shares_after(z->host_scalars);
}

static void carve_frozen(struct zero *z) {
    const struct layout *l = z->opt.layout;
    int hpz = zero_hpz(&z->opt);
    for (int u = l->count; u < zero_units(z); u++) {
        size_t bytes = (size_t)l->units[u].n_pad * dtype_size(z->c->dtype);
        if (hpz)
            z->units[u].secondary = arena_take(&z->arena, MEM_PARAMETER, bytes / (size_t)hpz);
        else if (zero_disk_on(z))
            zero_disk_carve_unit(z, u);
        else
            z->units[u].weight_shard =
                arena_take(&z->arena, zero_offload_class_of_weights(z), bytes / (size_t)z->source.size);
    }
    for (int i = 0; i < zero_frozen_slots(z); i++)
        carve_slot(z, &z->frozen.slots[i], unit_schedule_elements(&z->frozen.schedule, i));
}

// Takes every buffer from z->arena, which either measures or allocates.
static void carve(struct zero *z) {
    int64_t elements = 0;
    for (int u = 0; u < z->opt.layout->count; u++) {
        elements += z->opt.layout->units[u].n_pad;
        carve_unit(z, u, elements);
    }
    for (int i = 0; i < zero_weight_slots(z); i++)
        carve_slot(z, &z->weight_slots[i], unit_schedule_elements(&z->schedule, i));
    carve_frozen(z);
    for (int i = 0; i < GRAD_SLOTS && z->policy->grads == RESIDENT_SHARD; i++)
        carve_slot(z, &z->grad_slots[i], grad_slot_elements(z->opt.layout, i));
    if (config_sums_in_fp32(z->c))
        grad_sums_carve(&z->sums, &z->arena, z->opt.layout,
                        z->policy->grads == RESIDENT_FULL ? GRAD_WHOLE : GRAD_SHARD);
    zero_pack_carve(z);
    carve_control(z);
    zero_offload_carve(z);
    zero_onebit_carve(z);
}

// Opens the schedule of gathers and its slots, and the tables of bundles, without buffers.
static void open_tables(struct zero *z) {
    const struct unit_prefetch ahead = zero_ahead(z->c);
    z->units = xcalloc((unsigned long)zero_units(z), sizeof *z->units);
    unit_schedule_open(&z->schedule, z->opt.layout, &ahead);
    if (z->policy->weights == RESIDENT_SHARD)
        z->weight_slots = xcalloc((unsigned long)unit_schedule_count(&z->schedule), sizeof *z->weight_slots);
    if (zero_shards_frozen(z)) {
        unit_schedule_open(&z->frozen.schedule, z->opt.layout->rest, &ahead);
        z->frozen.slots =
            xcalloc((unsigned long)unit_schedule_count(&z->frozen.schedule), sizeof *z->frozen.slots);
    }
    zero_bundles_reduced(&z->reduced_bundles.table, &z->opt);
    zero_bundles_gathered(&z->gathered_bundles.table, z->policy, &z->opt);
}

static void close_tables(struct zero *z) {
    unit_schedule_close(&z->schedule);
    free(z->weight_slots);
    if (z->frozen.slots) unit_schedule_close(&z->frozen.schedule);
    free(z->frozen.slots);
    zero_bundles_close(&z->reduced_bundles.table);
    zero_bundles_close(&z->gathered_bundles.table);
    free(z->units);
    grad_sums_free(&z->sums);
}

// ---------------------------------------------------------------- the prediction
// Checks only what the configuration alone does not tell. The configuration's reader and the row (decentral/zero_row.c) check
// the rest.
static int check_options(const struct zero_options *o) {
    const struct config *c = o->config;
    assert(o->source->rank >= 0 && o->source->rank < o->source->size && zero_policy_of(c->variant));
    if (o->layout->world != o->source->size)
        return fail("zero:%d: the layout is padded for %d ranks, but there are %d", c->variant,
                    o->layout->world, o->source->size);
    if (c->reduce_group < 0 || (c->reduce_group && o->source->size % (int)c->reduce_group))
        return fail("zero:%d: %d ranks are not groups of %d (reduce_group)", c->variant, o->source->size,
                    (int)c->reduce_group);
    if (c->reduce_native && o->source->kind->ordered_16bit_only && c->dtype != DT_F32)
        return fail(
            "zero:%d: %s collectives reduce no %s natively; set \"reduce\" to \"ordered\" or train in fp32",
            c->variant, o->source->kind->name, dtype_name(c->dtype));
    return 0;
}

// Measures all buffers, without ranks. The caller closes the tables. Returns 0, or -1 after logging.
static int measure(struct zero *z, const struct zero_options *o) {
    if (check_options(o) != 0) return -1;
    *z = (struct zero){.c = o->config, .opt = *o, .source = *o->source, .policy = zero_policy_for(o)};
    arena_init(&z->arena, NULL);
    open_tables(z);
    carve(z);
    return 0;
}

int zero_predict(const struct zero_options *o, struct topology_memory *mem, struct wire_prediction *wire) {
    struct zero z;
    if (measure(&z, o)) return -1;
    for (int c = 0; c < MEM_CLASSES; c++) mem->predicted_bytes[c] = z.arena.bytes[c];
    struct textbook t = zero_textbook(z.policy, o);
    mem->formula_bytes = textbook_bytes(t, o->layout->params, o->source->size);
    *wire = zero_wire(&z);
    if (zero_onebit_on(&z)) zero_onebit_wire(o, wire);
    close_tables(&z);
    return 0;
}

int zero_step_tasks(const struct zero_options *o, struct step_tasks *t) {
    struct zero z;
    if (measure(&z, o)) return -1;
    zero_tasks(&z, t);
    close_tables(&z);
    return 0;
}

// ---------------------------------------------------------------- events, streams, collectives
static void create_event(struct zero *z, struct event **e) {
    if (!(*e = event_create(z->opt.dev))) z->event_failed = true;
}

static void destroy_event(struct zero *z, struct event **e) {
    (void)z;
    event_destroy(e);
}

static void for_each_event(struct zero *z, void (*visit)(struct zero *z, struct event **e)) {
    struct event **of_step[] = {&z->reduced, &z->gather_idle,      &z->norm_done,      &z->decided,
                                &z->stats,   &z->serialized.begun, &z->serialized.over};
    for (size_t i = 0; i < sizeof of_step / sizeof *of_step; i++) visit(z, of_step[i]);
    for (int i = 0; i < zero_weight_slots(z); i++) {
        visit(z, &z->weight_slots[i].ready);
        visit(z, &z->weight_slots[i].idle);
    }
    for (int i = 0; i < zero_frozen_slots(z); i++) {
        visit(z, &z->frozen.slots[i].ready);
        visit(z, &z->frozen.slots[i].idle);
    }
    for (int i = 0; i < GRAD_SLOTS; i++) visit(z, &z->grad_slots[i].idle);
    for (int u = 0; u < zero_units(z); u++) visit(z, &z->units[u].updated);
    for (int u = 0; u < z->opt.layout->count; u++) {
        visit(z, &z->units[u].gathered);
        visit(z, &z->units[u].grad_done);
        if (zero_onebit_on(z)) visit(z, &z->units[u].onebit.exchanged);
    }
}

static int open_channel(struct zero *z, struct collective **out, int channel, bool control,
                        struct collective_options o) {
    o.mode = zero_reduce_mode(z->c);
    o.control = control;
    int hpz = zero_hpz(&z->opt);
    bool gathers = channel == 0 || channel == 3;
    o.group = gathers && hpz ? hpz : (int)z->c->reduce_group;
    o.counted_group = zero_counted_group(&z->opt);
    // Norm and losses are reduced over all ranks, without groups.
    if (channel == 2) o.group = o.counted_group = 0;
    o.wire = &z->base.wire;
    o.deadline_s = (double)z->c->deadline_ms * 1e-3;
    o.dev = z->opt.dev;
    *out = collective_create(&z->source, channel, &o);
    return *out ? 0 : -1;
}

static int create_streams(struct zero *z) {
    z->gather_stream = stream_create(z->opt.dev, "gather");
    z->reduce_stream = stream_create(z->opt.dev, "reduce");
    if (!z->gather_stream || !z->reduce_stream)
        return fail("rank %d: cannot create the communication streams: %s", z->base.rank,
                    dev_error(z->opt.dev));
    stream_phase(z->gather_stream, PHASE_COMM);
    stream_phase(z->reduce_stream, PHASE_COMM);
    return 0;
}

// ---------------------------------------------------------------- create and destroy
static void zero_destroy(struct topology *t) {
    struct zero *z = (struct zero *)t;
    stream_sync(z->opt.compute);
    stream_destroy(&z->gather_stream);  // destroyed first, since it waits for events of the offload's streams
    zero_offload_close(z);
    stream_destroy(&z->reduce_stream);
    collective_destroy(&z->gather);
    collective_destroy(&z->eval_gather);
    collective_destroy(&z->reduce);
    collective_destroy(&z->control);
    for_each_event(z, destroy_event);
    if (!z->opt.device_memory) free(z->host_scalars);
    zero_time_close(z);
    close_tables(z);
    arena_release(&z->arena);
    free(z);
}

static const struct topology_ops zero_ops = {
    .name = "zero",
    .prefetch = zero_prefetch,
    .acquire = zero_acquire,
    .release = zero_release,
    .begin_micro = zero_begin_micro,
    .grad_ready = zero_grad_ready,
    .step = zero_step,
    .sum = zero_sum,
    .finish = zero_finish,
    .weights = zero_weights,
    .state = zero_state,
    .load = zero_load,
    .load_unit = zero_load_unit,
    .abort = zero_abort,
    .why = zero_why,
    .destroy = zero_destroy,
    .prefetch_frozen = zero_prefetch_frozen,
    .acquire_frozen = zero_acquire_frozen,
    .release_frozen = zero_release_frozen,
    .load_frozen = zero_load_frozen,
};

struct topology *zero_create(const struct zero_options *o) {
    struct topology_memory memory;
    struct wire_prediction wire;
    struct zero_options opt = *o;
    opt.device_memory = !dev_host_memory(o->dev);
    if (opt.threads < 1) opt.threads = 1;
    if (zero_predict(&opt, &memory, &wire) != 0) return NULL;
    struct zero *z = xcalloc(1, sizeof *z);
    z->config = *o->config;
    z->c = opt.config = &z->config;
    z->opt = opt;
    z->source = *o->source;
    z->opt.source = &z->source;
    z->policy = zero_policy_for(o);
    z->base = (struct topology){
        .ops = &zero_ops,
        .layout = o->layout,
        .dev = o->dev,
        .compute = o->compute,
        .dtype = o->config->dtype,
        .rank = o->source->rank,
        .size = o->source->size,
        .memory = memory,
        .wire_predicted = wire,
    };
    z->micro_count = 1;
    // 1. Buffers.
    zero_time_open(z);
    arena_init(&z->arena, o->dev);
    open_tables(z);
    carve(z);
    if (!opt.device_memory) {
        z->host_scalars = xcalloc(1, zero_words_bytes(z));
        z->host_shares = zero_shares_after(z->host_scalars);
    }
    for (int u = 0; u < o->layout->count; u++) z->units[u].shape = grad_shape(o->layout, u);
    // 2. Events, streams and collectives. Every rank opens the same channels in the same order.
    for_each_event(z, create_event);
    if (z->arena.failed || z->event_failed || create_streams(z) != 0 || zero_offload_open(z) != 0 ||
        open_channel(z, &z->gather, 0, false, z->gather_memory) != 0 ||
        open_channel(z, &z->reduce, 1, false, z->reduce_memory) != 0 ||
        open_channel(z, &z->eval_gather, 3, true, z->gather_memory) != 0 ||
        open_channel(z, &z->control, 2, true, z->control_memory) != 0) {
        zero_destroy(&z->base);
        return NULL;
    }
    return &z->base;
}
