// ZeRO's hooks during a step, its creation and destruction, and the prediction of memory and traffic.
#include "decentral/zero/zero.h"

#include <stdlib.h>

#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"

static struct zero *zero_of(struct topology *t) { return (struct zero *)t; }

// ---------------------------------------------------------------- hooks
static int zero_acquire(struct topology *t, int u, enum pass pass, struct unit_view *view) {
    struct zero *z = zero_of(t);
    *view = (struct unit_view){0};
    if (zero_acquire_weights(z, u, pass, view) != 0) return -1;
    return pass == PASS_BACKWARD ? zero_acquire_grad(z, u, view) : 0;
}

static int zero_release(struct topology *t, int u, enum pass pass) {
    (void)pass;
    zero_release_weights(zero_of(t), u, 0);
    return 0;
}

static int zero_begin_micro(struct topology *t, int index, int count) {
    struct zero *z = zero_of(t);
    if (index < 0 || index >= count)
        return fail("rank %d, step %lld: micro-batch %d of %d does not exist", t->rank, (long long)z->step,
                    index, count);
    z->micro_index = index;
    z->micro_count = count;
    return zero_time_watch(z);
}

static int zero_grad_ready(struct topology *t, int u) {
    struct zero *z = zero_of(t);
    zero_grad_written(z, u);
    event_record(z->units[u].grad_done, z->opt.compute);
    uint64_t at = timeline_moment(t->timeline);
    zero_release_weights(z, u, at);
    zero_reduce_grad(z, u, at);
    return 0;
}

// ---------------------------------------------------------------- create and destroy
static void create_event(struct zero *z, struct event **e) {
    if (!(*e = event_create(z->opt.dev))) z->lacks_event = true;
}

static void destroy_event(struct zero *z, struct event **e) {
    (void)z;
    event_destroy(e);
}

static void for_each_event(struct zero *z, void (*visit)(struct zero *z, struct event **e)) {
    struct event **of_step[] = {&z->reduced, &z->gather_idle, &z->norm_done, &z->decided,
                                &z->stats,   &z->turn.begun,  &z->turn.over};
    for (size_t i = 0; i < sizeof of_step / sizeof *of_step; i++) visit(z, of_step[i]);
    for (int i = 0; i < zero_weight_slots(z); i++) {
        visit(z, &z->weight_slots[i].ready);
        visit(z, &z->weight_slots[i].idle);
    }
    for (int i = 0; i < GRAD_SLOTS; i++) visit(z, &z->grad_slots[i].idle);
    for (int u = 0; u < z->opt.layout->count; u++) {
        visit(z, &z->units[u].updated);
        visit(z, &z->units[u].gathered);
        visit(z, &z->units[u].grad_done);
        if (zero_onebit_on(z)) visit(z, &z->units[u].onebit.exchanged);
    }
}

static void zero_destroy(struct topology *t) {
    struct zero *z = zero_of(t);
    stream_sync(z->opt.compute);
    stream_destroy(&z->gather_stream);  // first: it waits for events of offload's streams
    zero_offload_close(z);
    stream_destroy(&z->reduce_stream);
    collective_destroy(&z->gather);
    collective_destroy(&z->aside);
    collective_destroy(&z->reduce);
    collective_destroy(&z->control);
    for_each_event(z, destroy_event);
    if (!z->opt.device_memory) free(z->host_scalars);
    zero_time_close(z);
    zero_weights_close(z);
    zero_pack_close(z);
    arena_release(&z->arena);
    free(z->units);
    grad_sums_free(&z->sums);
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
};

static int open_channel(struct zero *z, struct collective **out, int channel, bool control,
                        struct collective_options o) {
    o.mode = z->opt.reduce;
    o.control = control;
    int hpz = zero_hpz(&z->opt);
    bool gathers = channel == 0 || channel == 3;
    o.group = gathers && hpz ? hpz : z->opt.group;
    o.edge = zero_edge(&z->opt);
    if (channel == 2) o.group = o.edge = 0;  // norm and losses are of all ranks
    o.wire = &z->base.wire;
    o.deadline_s = z->opt.deadline_s;
    o.dev = z->opt.dev;
    *out = collective_create(&z->source, channel, &o);
    return *out ? 0 : -1;
}

// Every rank opens the same channels in the same order.
static int create_collectives(struct zero *z) {
    if (open_channel(z, &z->gather, 0, false, z->gather_memory) != 0) return -1;
    if (open_channel(z, &z->reduce, 1, false, z->reduce_memory) != 0) return -1;
    if (open_channel(z, &z->aside, 3, true, z->gather_memory) != 0) return -1;
    return open_channel(z, &z->control, 2, true, z->control_memory);
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

static int check_options(const struct zero_options *o) {
    if (!zero_policy_of(o->stage))
        return fail("zero_optimization.stage is %d; the stages are 0, 1, 2 and 3", o->stage);
    if (o->layout->world != o->source->size)
        return fail("zero:%d: the layout is padded for %d ranks, but there are %d", o->stage,
                    o->layout->world, o->source->size);
    if (o->source->rank < 0 || o->source->rank >= o->source->size)
        return fail("zero:%d: rank %d of %d does not exist", o->stage, o->source->rank, o->source->size);
    if (o->dtype != DT_F32 && o->dtype != DT_BF16 && o->dtype != DT_F16)
        return fail("zero:%d: cannot train in %s; use fp32, bf16 or fp16", o->stage, dtype_name(o->dtype));
    if (o->group && (o->group < 0 || o->source->size % o->group))
        return fail("zero:%d: %d ranks are not groups of %d (reduce_group)", o->stage, o->source->size,
                    o->group);
    if (collective_is_grouped(o->group, o->source->size) && o->reduce == REDUCE_NATIVE)
        return fail("zero:%d: reduce_group %d: \"reduce\": \"native\" has no sums in groups", o->stage,
                    o->group);
    if (o->hpz && (o->hpz < 0 || o->source->size % o->hpz))
        return fail("zero:%d: %d ranks are not groups of %d (zero_hpz_partition_size)", o->stage,
                    o->source->size, o->hpz);
    if (zero_hpz(o) && (o->reduce == REDUCE_NATIVE ||
                        (collective_is_grouped(o->group, o->source->size) && o->group != o->hpz)))
        return fail("zero:%d: zero_hpz_partition_size %d: not over %s with these groups or sums", o->stage,
                    o->hpz, o->source->kind->name);
    if (o->offload.params && (zero_policy_of(o->stage)->weights != RESIDENT_SHARD || !o->offload.optimizer ||
                              (o->offload.ratio > 0 && o->offload.ratio < 1)))
        return fail("zero:%d: offload_param needs stage 3, and all of offload_optimizer", o->stage);
    if (o->offload.optimizer && zero_policy_of(o->stage)->optimizer == RESIDENT_FULL)
        return fail(
            "zero:%d: offload_optimizer: every rank holds the whole optimizer, and none of it is a rank's own to "
            "offload; use stage 1, 2 or 3, or leave offload_optimizer out",
            o->stage);
    if (o->reduce == REDUCE_NATIVE && o->source->kind->ordered_16bit_only && o->dtype != DT_F32)
        return fail(
            "zero:%d: %s collectives reduce no %s natively; set \"reduce\" to \"ordered\" or train in fp32",
            o->stage, o->source->kind->name, dtype_name(o->dtype));
    return 0;
}

int zero_predict(const struct zero_options *o, struct topology_memory *mem, struct wire_prediction *wire) {
    if (check_options(o) != 0) return -1;
    struct zero z = {.opt = *o, .source = *o->source, .policy = zero_policy_for(o)};
    z.units = xcalloc((unsigned long)o->layout->count, sizeof *z.units);
    arena_init(&z.arena, NULL);
    zero_weights_open(&z);
    zero_pack_open(&z);
    zero_carve(&z);
    for (int c = 0; c < MEM_CLASSES; c++) mem->predicted_bytes[c] = z.arena.bytes[c];
    struct textbook t = zero_textbook(z.policy, o);
    mem->formula_bytes = textbook_bytes(t, o->layout->params, o->source->size);
    *wire = zero_wire(z.policy, o);
    wire->offload = zero_offload_traffic(&z);
    if (zero_onebit_on(&z)) zero_onebit_wire(o, wire);
    zero_weights_close(&z);
    zero_pack_close(&z);
    free(z.units);
    grad_sums_free(&z.sums);
    return 0;
}

struct topology *zero_create(const struct zero_options *o) {
    struct topology_memory memory;
    struct wire_prediction wire;
    struct zero_options opt = *o;
    opt.device_memory = !dev_host_memory(o->dev);
    if (opt.offload.threads < 1) opt.offload.threads = 1;
    if (zero_predict(&opt, &memory, &wire) != 0) return NULL;
    struct zero *z = xcalloc(1, sizeof *z);
    z->opt = opt;
    z->source = *o->source;
    z->opt.source = &z->source;
    z->policy = zero_policy_for(o);
    z->base = (struct topology){
        .ops = &zero_ops,
        .layout = o->layout,
        .dev = o->dev,
        .compute = o->compute,
        .dtype = o->dtype,
        .rank = o->source->rank,
        .size = o->source->size,
        .memory = memory,
        .wire_predicted = wire,
    };
    z->micro_count = 1;
    z->units = xcalloc((unsigned long)o->layout->count, sizeof *z->units);
    zero_time_open(z);
    arena_init(&z->arena, o->dev);
    zero_weights_open(z);
    zero_pack_open(z);
    zero_carve(z);
    if (!opt.device_memory) {
        z->host_scalars = xcalloc(1, zero_words_bytes(z));
        z->host_shares = zero_shares_behind(z->host_scalars);
    }
    for (int u = 0; u < o->layout->count; u++) z->units[u].shape = grad_shape(o->layout, u);
    for_each_event(z, create_event);
    if (z->arena.failed || z->lacks_event || create_streams(z) != 0 || zero_offload_open(z) != 0 ||
        create_collectives(z) != 0) {
        zero_destroy(&z->base);
        return NULL;
    }
    return &z->base;
}
