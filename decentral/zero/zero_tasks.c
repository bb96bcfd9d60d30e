// A rank's step as a graph of tasks (shared/model/step_tasks.h): the hooks of zero.c without a device. Each function here
// adds what the hook of the same name enqueues, with the events that it waits for.
#include "decentral/collective/collective_plan.h"
#include "decentral/zero/zero_state.h"
#include "shared/core/numbers.h"

// collective_volume loops over the ranks, and neighbouring units often have equal sizes: of 65,536 ranks it would take
// minutes without these.
#define KNOWN 16
struct known_volume {
    struct collective_call call;
    struct collective_volume volume;
};

struct zero_tasks {
    const struct zero *z;
    struct step_tasks *t;
    struct known_volume known[KNOWN];
    int next;  // the entry of `known` that is replaced next
};

// ---------------------------------------------------------------- transfers
static struct collective_volume volume_of(struct zero_tasks *x, const struct collective_call *c) {
    for (int i = 0; i < KNOWN; i++) {
        const struct collective_call *k = &x->known[i].call;
        if (k->count == c->count && k->primitive == c->primitive && k->team.count == c->team.count &&
            k->team.step == c->team.step && k->stride == c->stride)
            return x->known[i].volume;
    }
    const struct collective_plan p = collective_plan_of(c, x->z->source.rank, x->z->source.size);
    struct known_volume *k = &x->known[x->next++ % KNOWN];
    *k = (struct known_volume){*c, collective_volume(&p)};
    return k->volume;
}

static enum task_pattern pattern_of(const struct zero *z, const struct collective_call *c) {
    bool sums = collective_by_library(c, zero_reduce_mode(z->c));
    bool moves = !collective_reduces(c->primitive) && !c->team.count && z->source.kind->moves_by_library;
    return sums || moves ? PATTERN_RING : PATTERN_ALL_TO_ALL;
}

// Units that share a transfer.
struct zero_range {
    int first, count;
};

// Adds leg `leg` of a call, together with the equal legs after it, `legs` in all, as one task.
static void add_legs(struct zero_tasks *x, const struct collective_call *c, int group, int leg, int legs,
                     enum task_stream stream, struct zero_range units) {
    const struct zero *z = x->z;
    const int world = z->source.size, counted = zero_counted_group(&z->opt);
    const bool serial = z->c->no_overlap;
    const struct collective_call one = collective_leg(c, z->source.rank, world, group, leg);
    const struct collective_volume volume = volume_of(x, &one);
    const int compute = x->t->last[ON_COMPUTE], members = one.team.count ? one.team.count : world;
    struct step_task *s = step_tasks_add(
        x->t, c->primitive == COLLECTIVE_ALL_GATHER ? TASK_ALL_GATHER : TASK_REDUCE_SCATTER, stream);
    s->unit = units.first;
    s->units = units.count;
    s->pattern = pattern_of(z, &one);
    s->team = !one.team.count ? TEAM_ALL : one.team.step > 1 ? TEAM_ACROSS : TEAM_WITHIN;
    s->team_size = members;
    s->bytes = (uint64_t)legs * (uint64_t)members * one.count * dtype_size(one.dt);
    s->moves = (struct task_moves){.sent = (uint64_t)legs * volume.sent,
                                   .received = (uint64_t)legs * volume.received,
                                   .messages = (uint64_t)legs * (uint64_t)(members - 1)};
    struct task_moves *m = &s->moves;
    // Each peer receives the same number of bytes, and world - counted of the peers are in other groups.
    uint64_t peers = m->messages, others = s->team == TEAM_ACROSS ? peers : (uint64_t)(world - counted);
    if (counted && peers && s->team != TEAM_WITHIN) {
        m->messages_across = others;
        m->across_sent = m->sent / peers * others;
        m->across_received = m->received / peers * others;
    }
    if (serial) step_tasks_need(x->t, s, compute);
    if (serial) step_tasks_wait(x->t, x->t->count - 1);
}

// Adds a call over the units' shards, which needs the task `after` (-1: none).
static void add_call(struct zero_tasks *x, enum collective_primitive what, int64_t shard, int group,
                     enum task_stream stream, int after, struct zero_range units) {
    const struct zero *z = x->z;
    const struct collective_call c = {.primitive = what, .count = (size_t)shard, .dt = z->c->dtype};
    const int legs = collective_legs(&c, z->source.size, group), first = x->t->count;
    if (legs == 1) {
        add_legs(x, &c, group, 0, 1, stream, units);
    } else if (what == COLLECTIVE_ALL_GATHER) {
        add_legs(x, &c, group, 0, 1, stream, units);
        add_legs(x, &c, group, 1, legs - 1, stream, units);
    } else {
        add_legs(x, &c, group, 0, legs - 1, stream, units);
        add_legs(x, &c, group, legs - 1, 1, stream, units);
    }
    step_tasks_need(x->t, &x->t->list[first], after);
}

// ---------------------------------------------------------------- weights
static void acquire_weights(void *ctx, struct step_tasks *t, int u, enum pass pass) {
    const struct zero_tasks *x = ctx;
    if (pass == PASS_FORWARD && x->z->policy->gather_weights) step_tasks_wait_previous(t, TASK_ALL_GATHER, u);
}

static void gather_within(struct zero_tasks *x, int u) {
    const struct zero *z = x->z;
    int hpz = zero_hpz(&z->opt);
    const struct collective_call c = {.primitive = COLLECTIVE_ALL_GATHER,
                                      .count = (size_t)(z->opt.layout->units[u].n_pad / hpz),
                                      .dt = z->c->dtype,
                                      .team = collective_within(z->source.rank, hpz)};
    add_legs(x, &c, 0, 0, 1, ON_GATHER, (struct zero_range){u, 1});
}

// The kind of the last task of an offloaded unit's update, or of the task after which its new weights may be gathered.
static enum task_kind last_task_kind(const struct zero *z, bool disk) {
    return disk ? TASK_WRITE : z->c->offload_param.device ? TASK_UPDATE : TASK_UP;
}
static enum task_kind updated_by(const struct zero *z, int u) {
    return z->units[u].offloaded ? last_task_kind(z, zero_disk_on(z)) : TASK_UPDATE;
}

// Frozen units follow the trained ones.
static void start_gather(void *ctx, struct step_tasks *t, int u, int idle, bool again) {
    struct zero_tasks *x = ctx;
    const struct zero *z = x->z;
    const bool frozen = u >= z->opt.layout->count;
    int first = t->count;
    if (zero_hpz(&z->opt) && (again || frozen)) {
        gather_within(x, u);
    } else {
        if (z->c->offload_param.device) zero_offload_tasks_fetch(z, t, u);
        int group = zero_hpz(&z->opt) ? zero_hpz(&z->opt) : (int)z->c->reduce_group;
        add_call(x, COLLECTIVE_ALL_GATHER, unit_shard(z->opt.layout, u), group, ON_GATHER, -1,
                 (struct zero_range){u, 1});
    }
    for (bool begun = false; !begun; first++) {  // the first task on the stream, a read from disk
        begun = t->list[first].stream == ON_GATHER;
        if (begun) step_tasks_need(t, &t->list[first], idle);
        if (!again && !frozen) step_task_after_previous(&t->list[first], updated_by(z, u), u);
    }
}

static void start_frozen(void *ctx, struct step_tasks *t, int u, int idle, bool again) {
    const struct zero_tasks *x = ctx;
    start_gather(ctx, t, step_tasks_frozen(x->z->opt.layout, u), idle, again);
}

// ---------------------------------------------------------------- gradients
static int grad_ready(void *ctx, struct step_tasks *t, int u, bool last) {
    struct zero_tasks *x = ctx;
    const struct zero *z = x->z;
    const struct zero_bundle *b = zero_bundle_of(&z->reduced_bundles.table, u);
    const int before = t->last[ON_REDUCE], backward = t->last[ON_COMPUTE];
    if (z->policy->grads == RESIDENT_FULL && !last) return -1;
    if (u > b->first) return before;  // the last task is a copy, which runs after the collective
    struct zero_range units = {b->first, b->count};
    add_call(x, COLLECTIVE_REDUCE_SCATTER, b->shard, (int)z->c->reduce_group, ON_REDUCE, backward, units);
    int reduced = t->last[ON_REDUCE];
    if (z->policy->gather_grads)
        add_call(x, COLLECTIVE_ALL_GATHER, b->shard, (int)z->c->reduce_group, ON_REDUCE, -1, units);
    return b->count > 1 ? before : reduced;
}

// ---------------------------------------------------------------- the end of a step
static int add_control(struct zero_tasks *x, enum task_kind kind, uint64_t bytes, int after) {
    struct step_task *s = step_tasks_add(x->t, kind, ON_REDUCE);
    s->bytes = bytes;
    s->control = true;
    s->pattern = PATTERN_ALL_TO_ALL;
    s->team = TEAM_ALL;
    s->team_size = x->z->source.size;
    step_tasks_need(x->t, s, after);
    if (x->z->c->no_overlap) step_tasks_wait(x->t, x->t->count - 1);
    return x->t->count - 1;
}

static void launch_decision(struct zero_tasks *x) {
    const struct zero *z = x->z;
    uint64_t words = (uint64_t)zero_step_words(z) * (uint64_t)z->source.size;
    struct step_task *norm = step_tasks_add(x->t, TASK_NORM, ON_COMPUTE);
    norm->elements = z->opt.layout->padded / z->source.size;
    if (z->offload.elements)
        step_task_after_previous(
            norm, last_task_kind(z, zero_folder(&z->c->offload_optimizer) || zero_disk_writes_weights(z)),
            -1);
    int at = x->t->count - 1;
    add_control(x, TASK_ALL_REDUCE, EXACT_SUM_WORDS * sizeof(int64_t), at);
    step_tasks_wait(x->t, add_control(x, TASK_ALL_GATHER, words * sizeof(double), at));
    step_tasks_add(x->t, TASK_DECIDE, ON_COMPUTE);
}

static void launch_update(struct zero_tasks *x, int u) {
    const struct zero *z = x->z;
    const struct update_range *r = &z->units[u].update;
    if (z->units[u].offloaded) {
        zero_offload_tasks_update(z, x->t, u);
    } else {
        struct step_task *s = step_tasks_add(x->t, TASK_UPDATE, ON_COMPUTE);
        step_task_unit(s, u);
        s->elements = r->end - r->begin;
    }
    if (!z->policy->gather_weights) return;
    const struct zero_bundle *b = zero_bundle_of(&z->gathered_bundles.table, u);
    int updated = x->t->last[z->units[u].offloaded ? ON_UP : ON_COMPUTE];
    if (u == b->first + b->count - 1)
        add_call(x, COLLECTIVE_ALL_GATHER, b->shard, (int)z->c->reduce_group, ON_GATHER, updated,
                 (struct zero_range){b->first, b->count});
}

static void end_step(void *ctx, struct step_tasks *t) {
    struct zero_tasks *x = ctx;
    step_tasks_wait(t, t->last[ON_REDUCE]);
    step_tasks_wait(t, t->last[ON_GATHER]);
    launch_decision(x);
    for (int u = 0; u < x->z->opt.layout->count; u++) launch_update(x, u);
}

void zero_tasks(const struct zero *z, struct step_tasks *t) {
    const struct unit_prefetch ahead = zero_ahead(z->c);
    struct zero_tasks x = {.z = z, .t = t};
    const struct step_hooks hooks = {.slots = z->policy->weights == RESIDENT_SHARD ? &ahead : NULL,
                                     .ahead = !z->c->no_overlap,
                                     .fetch = start_gather,
                                     .fetch_frozen = zero_shards_frozen(z) ? start_frozen : NULL,
                                     .acquire = acquire_weights,
                                     .grad_ready = grad_ready,
                                     .shared_grads = z->policy->grads == RESIDENT_SHARD,
                                     .end = end_step};
    step_tasks_walk(t, z->opt.layout, &hooks, &x);
}

struct wire_prediction zero_wire(const struct zero *z) {
    struct step_tasks t = {.micro_batches = z->c->accumulation};
    zero_tasks(z, &t);
    struct wire_prediction w = step_tasks_wire(&t);
    const uint64_t world = (uint64_t)z->source.size, group = (uint64_t)zero_counted_group(&z->opt);
    w.group = (int)group;
    // Without groups of either kind a rank sends a part of each buffer to each of its peers.
    for (const struct step_task *s = t.list; s < t.list + t.count && group; s++)
        if (!s->control && (s->team == TEAM_ALL || s->team == TEAM_WITHIN))
            w.flat_across_sent_per_step =
                (uint64_t)size_plus((int64_t)w.flat_across_sent_per_step,
                                    size_times(s->times, (int64_t)(s->bytes / world * (world - group))));
    step_tasks_free(&t);
    return w;
}
