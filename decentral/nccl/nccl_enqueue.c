// The enqueuing half of collective_nccl: entries and the steps of a call. Independent of NCCL's own types.
#include <stdlib.h>

#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

#define WHOLE_BYTES ((size_t)4 << 20)  // below this two launches cost more than they hide

// Frees the entries that are done and adds their time. If no entry is free, waits for the oldest.
static struct nccl_entry *take_entry(struct collective_nccl *c, const struct collective_call *call) {
    const struct cuda_so *so = c->world->so;
    if (c->begun - c->ended == NCCL_ENTRIES) event_sync(c->ring[c->ended % NCCL_ENTRIES].done);
    pthread_mutex_lock(&c->lock);
    while (c->ended < c->begun && so->event_passed(c->ring[c->ended % NCCL_ENTRIES].done) != 0) {
        struct nccl_entry *e = &c->ring[c->ended % NCCL_ENTRIES];
        double seconds = so->event_seconds(e->start, e->done);
        if (seconds > 0) c->impl.head.busy_s += seconds;
        c->ended++;
    }
    struct nccl_entry *e = &c->ring[c->begun % NCCL_ENTRIES];
    pthread_mutex_unlock(&c->lock);
    e->owner = c;
    e->call = *call;
    e->waiting_since_s = 0;
    return e;
}

static void need_room(struct nccl_entry *e, size_t steps, size_t inputs) {
    if (steps > e->step_room) {
        e->steps = xrealloc(e->steps, steps * sizeof *e->steps);
        e->step_room = steps;
    }
    if (inputs > e->input_room) {
        e->inputs = xrealloc(e->inputs, inputs * sizeof *e->inputs);
        e->input_room = inputs;
    }
}

// Work that is enqueued on s from now on runs after the step that was enqueued last on any stream.
//
// Why         A rank's communicators use one device. NCCL requires that their operations are submitted by one thread at
//             a time and started in the same order on all ranks. Otherwise two ranks may start two operations in
//             opposite orders and deadlock (NCCL user guide, "Using multiple NCCL communicators concurrently"). The
//             order is that of the calls of the rank's thread, which is the same on all ranks.
// How         The stream's thread waits until the earlier step has been submitted. NCCL makes the device start them in
//             this order (NCCL_LAUNCH_ORDER_IMPLICIT, from 2.26 on); with `serial` the device waits until the earlier
//             step has ended.
// Progress    A slot of a stream, a kernel or a peer waits only for work that was enqueued before it, on its own rank
//             or on another rank with the same order. So the first operation in this order that has not ended can
//             always continue. A slot that failed or was skipped counts as passed, and fails the step that follows it.
static void follow_order(struct nccl_world *w, struct stream *s) {
    if (w->serial)
        stream_wait_event(s, w->order);
    else
        w->so->follow(s, w->order);
}

static void submit(struct nccl_entry *e, size_t index) {
    struct stream *s = e->call.stream;
    e->steps[index] = (struct nccl_step){.entry = e, .index = index};
    e->owner->world->so->submit(s, e->plan.row->name, nccl_run_step, &e->steps[index]);
    event_record(e->owner->world->order, s);
}

// A chunk's exchange waits for the sum of its buffer's previous chunk. The exchange of the sums waits for the last sum.
static void enqueue_exchange(struct nccl_entry *e, size_t step) {
    const struct collective_plan *p = &e->plan;
    const struct nccl_buffers *b = &e->owner->world->buffers[e->owner->channel];
    bool chunk = step < p->chunks;
    if (p->chunks && (!chunk || step >= p->buffers))
        stream_wait_event(e->call.stream, b->summed[(chunk ? step : p->chunks - 1) % p->buffers]);
    submit(e, step);
    if (chunk) event_record(b->there[step % p->buffers], e->call.stream);
}

static void enqueue_sum(struct nccl_entry *e, size_t step) {
    const struct collective_plan *p = &e->plan;
    const struct nccl_buffers *b = &e->owner->world->buffers[e->owner->channel];
    struct stream *sums = e->owner->world->sums;
    struct reduce_args sum = collective_step_sum(p, step, e->inputs + step * (size_t)p->size);
    stream_wait_event(sums, b->there[step % p->buffers]);
    if (sum.n) op_reduce(sums, &sum);
    event_record(b->summed[step % p->buffers], sums);
}

// Enqueues the plan's actions: exchanges on the call's stream by NCCL's sends and receives, sums on the stream `sums`.
// Later work on the call's stream waits for the last sum, and so for all of them.
static void enqueue_steps(struct nccl_entry *e) {
    const struct collective_plan *p = &e->plan;
    struct collective_transfer own = collective_own_copy(p);
    need_room(e, p->steps, p->chunks * (size_t)p->size);
    if (own.recv_bytes) dev_copy(e->call.stream, own.recv, own.send, own.recv_bytes);
    for (size_t i = 0; i < collective_actions(p); i++) {
        struct collective_action a = collective_action(p, i);
        if (a.what == ACTION_BEGIN) enqueue_exchange(e, a.step);
        if (a.what == ACTION_SUM) enqueue_sum(e, a.step);
    }
    if (p->chunks)
        stream_wait_event(e->call.stream,
                          e->owner->world->buffers[e->owner->channel].summed[(p->chunks - 1) % p->buffers]);
}

// Returns NULL, or why the call is refused.
static const char *refusal(const struct collective_nccl *c, const struct collective_call *k, bool ordered) {
    if (!ordered) return NULL;
    if (k->dt == DT_U8) return "there is no sum of uint8; use int64";
    if (collective_slot(c->staging_bytes, c->impl.head.size, k->dt) == 0)
        return "this channel was created without staging for ordered reductions";
    return NULL;
}

// Counts bytes per peer. If the library sums, it counts the formula's bytes instead.
static void count(const struct collective *head, const struct collective_plan *p, bool library) {
    struct collective_team team = collective_team_of(p->call, head->size);
    struct collective_volume v = collective_native_volume(p);
    bool whole = library && collective_reduces(p->call->primitive);
    if (whole) collective_count(head->wire, head->control, v.sent, v.received);
    for (int i = 0; i < p->size && !whole; i++) {
        v = collective_volume_with(p, i);
        collective_count_peer(head, collective_member(team, i), v.sent, v.received);
    }
}

void nccl_enqueue(struct collective *head, const struct collective_call *call) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    struct stream *s = call->stream;
    bool library = nccl_has(call) && !call->team.count;  // a team uses sends and receives
    bool ordered =
        collective_reduces(call->primitive) && !(library && collective_by_library(call, head->mode));
    if (atomic_load(&c->impl.failed)) {
        c->world->so->fail(s, c->impl.error);
        return;
    }
    const char *why = refusal(c, call, ordered);
    if (why) {
        nccl_give_up(c, s, collective_name(call->primitive), why);
        return;
    }
    struct nccl_entry *e = take_entry(c, call);
    e->library = library && !ordered;
    head->by = e->library ? "library" : "exchange";
    const struct collective_staging_room room = {c->staging, c->staging_bytes, WHOLE_BYTES};
    e->plan = e->library ? collective_plan_of(&e->call, head->rank, head->size)
                         : collective_plan_steps(&e->call, head->rank, head->size, &room);
    if (head->size > 1) follow_order(c->world, s);
    event_record(e->start, s);
    if (head->size == 1 && call->reduction == REDUCTION_LOR && collective_reduces(call->primitive)) {
        need_room(e, 0, 1);
        e->inputs[0] = call->send;
        op_reduce(s, &(struct reduce_args){call->recv, e->inputs, 1, (int64_t)call->count, call->dt,
                                           call->reduction});
    } else if (head->size == 1) {
        if (call->send != call->recv && call->send && call->recv)
            dev_copy(s, call->recv, call->send, call->count * dtype_size(call->dt));
    } else if (e->library) {
        need_room(e, 1, 0);
        submit(e, 0);
    } else {
        enqueue_steps(e);
    }
    event_record(e->done, s);
    count(head, &e->plan, e->library);
    pthread_mutex_lock(&c->lock);
    c->begun++;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
}
