// Gathering weights: which rank gathers which weights, and when.
//
// Stage 3, forward, two slots by parity (backward: the same in descending order):
//
//     gather    | u0 -> even | u1 -> odd |      | u2 -> even |        | u3 -> odd | ..
//     compute                | u0 .. even |     | u1 .. odd  |        | u2 .. even | ..
//                                         ^ u2's gather waits for slot.idle, compute waits for slot.ready
//
// The schedule decides which unit uses which slot, and when: unit_schedule.h.
//
// hpZ (ZeRO++, Wang et al. 2023, section 4.2), groups of h ranks, h = 2 of N = 4: after a unit's first gather each rank
// keeps 1/h of it. Later gathers, until the weights change, use these copies and stay within the group.
//
//     slot        | s0 s1 s2 s3 |      s: the ranks' shards
//     secondary   | s0 s1 |            of ranks 0 and 2
//                         | s2 s3 |    of ranks 1 and 3
#include <stdlib.h>

#include "decentral/collective/collective_groups.h"
#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"

void zero_weights_open(struct zero *z) {
    unit_schedule_open(&z->schedule, z->opt.layout, &z->opt.prefetch);
    if (z->policy->weights == RESIDENT_SHARD)
        z->weight_slots = xcalloc((unsigned long)unit_schedule_count(&z->schedule), sizeof *z->weight_slots);
}

void zero_weights_close(struct zero *z) {
    unit_schedule_close(&z->schedule);
    free(z->weight_slots);
}

static struct zero_slot *slot_of(struct zero *z, int u) {
    return &z->weight_slots[unit_schedule_slot(&z->schedule, u)];
}

// Gathers the whole of u from the group's secondary shards.
static void gather_within(struct zero *z, int u, void *whole) {
    int hpz = zero_hpz(&z->opt);
    collective_enqueue(z->gather,
                       &(struct collective_call){.primitive = COLLECTIVE_ALL_GATHER,
                                                 .stream = z->gather_stream,
                                                 .send = z->units[u].secondary,
                                                 .recv = whole,
                                                 .count = (size_t)(z->opt.layout->units[u].n_pad / hpz),
                                                 .dt = z->opt.dtype,
                                                 .team = collective_within(z->source.rank, hpz)});
}

// Gathers u from all ranks. In a training pass this rank keeps its shard of the group's copy.
static void gather_all(struct zero *z, int u, void *whole, enum pass pass) {
    int hpz = zero_hpz(&z->opt);
    const void *shard =
        z->opt.offload.params ? zero_offload_shard(z, u, whole, pass) : z->units[u].weight_shard;
    collective_all_gather(pass == PASS_EVAL ? z->aside : z->gather, z->gather_stream, shard, whole,
                          (size_t)unit_shard(z->opt.layout, u), z->opt.dtype);
    if (!hpz || pass == PASS_EVAL) return;
    int64_t part = z->opt.layout->units[u].n_pad / hpz;
    dev_copy(z->gather_stream, z->units[u].secondary, zero_at(z, whole, part * (z->source.rank % hpz)),
             (size_t)part * dtype_size(z->opt.dtype));
}

static uint64_t moved_within(const struct zero *z, int u) {
    int64_t n = z->opt.layout->units[u].n_pad, hpz = zero_hpz(&z->opt);
    return (uint64_t)(n / hpz * (hpz - 1)) * dtype_size(z->opt.dtype);
}

// Starts the all-gather of u in its slot, which is not held.
static void start_gather(struct zero *z, int u, enum pass pass) {
    struct zero_slot *s = slot_of(z, u);
    stream_wait_event(z->gather_stream, s->idle);
    stream_wait_event(z->gather_stream, z->units[u].updated);
    bool within = zero_hpz(&z->opt) && unit_schedule_again(&z->schedule, u, pass);
    struct zero_move m = {TRANSFER_WEIGHTS,
                          u,
                          within ? moved_within(z, u) : zero_moved(z, u),
                          {s->idle_at, z->units[u].updated_at}};
    if (pass == PASS_EVAL) zero_turn_begin(z, z->gather_stream, 0);
    s->move = pass == PASS_EVAL ? 0 : zero_move_begin(z, z->gather_stream, &m);
    if (within)
        gather_within(z, u, s->buf);
    else
        gather_all(z, u, s->buf, pass);
    zero_move_end(z, z->gather_stream, s->move);
    event_record(s->ready, z->gather_stream);
    s->unit = u;
    unit_schedule_gathered(&z->schedule, u, pass);
}

void zero_prefetch(struct topology *t, int u, enum pass pass) {
    struct zero *z = (struct zero *)t;
    if (z->policy->weights != RESIDENT_SHARD || z->opt.in_turn) return;
    for (int k = 0, v; (v = unit_schedule_ahead(&z->schedule, u, pass, k)) >= 0; k++)
        if (!unit_schedule_there(&z->schedule, v, pass) && !slot_of(z, v)->held) start_gather(z, v, pass);
}

int zero_acquire_weights(struct zero *z, int u, enum pass pass, struct unit_view *view) {
    struct zero_unit *zu = &z->units[u];
    if (z->policy->weights == RESIDENT_FULL) {
        timeline_wait(z->base.timeline, z->opt.compute, zu->gathered, zu->gather);
        view->weights = zu->weights;
        return 0;
    }
    struct zero_slot *s = slot_of(z, u);
    if (!unit_schedule_there(&z->schedule, u, pass)) {
        if (s->held)
            return fail("rank %d, step %lld: unit %s is asked for while unit %s still holds its slot",
                        z->base.rank, (long long)z->step, z->opt.layout->units[u].name,
                        z->opt.layout->units[s->unit].name);
        start_gather(z, u, pass);
    }
    timeline_wait(z->base.timeline, z->opt.compute, s->ready, s->move);
    s->held = true;
    view->weights = s->buf;
    return 0;
}

void zero_release_weights(struct zero *z, int u, uint64_t at) {
    if (z->policy->weights == RESIDENT_FULL) return;
    struct zero_slot *s = slot_of(z, u);
    event_record(s->idle, z->opt.compute);
    s->idle_at = at ? at : timeline_moment(z->base.timeline);
    s->held = false;
}
