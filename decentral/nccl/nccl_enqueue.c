// The enqueuing half of collective_nccl: entries, the steps of a call, the table. Knows nothing of NCCL.
#include <assert.h>
#include <stdlib.h>

#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

// Frees the entries that are done and adds their time; waits for the oldest when there is no room.
static struct nccl_entry *take_entry(struct collective_nccl *c, struct stream *s) {
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
    e->stream = s;
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

// What is queued on s from here on comes behind the step that was queued last, whichever stream that was on.
// A rank's communicators use one device: NCCL wants their operations submitted by one thread at a time, and
// started in the same order on all ranks, or each of two ranks may run the operation that the other one's
// waits behind (NCCL user guide, "Using multiple NCCL communicators concurrently"). The order is that of the
// calls of the rank's thread, which all ranks make alike.
//
// Here the stream's thread waits until the earlier step has been submitted; that the device starts them in
// this order is NCCL's part (NCCL_LAUNCH_ORDER_IMPLICIT, from 2.26 on) or, with `serial`, the device waits
// until the earlier step has ended. No circle: whatever waits, a slot of a stream, a kernel or a peer, waits
// for something that was enqueued before it, on its own rank or on the others, where the order is the same;
// so the first that has not ended in that order can always go on. A slot that failed or was skipped has
// passed as well, and fails who follows it: there is no number that somebody could fail to draw.
static void follow_order(struct nccl_world *w, struct stream *s) {
    if (w->serial)
        stream_wait_event(s, w->order);
    else
        w->so->follow(s, w->order);
}

static void submit(struct nccl_entry *e, size_t index, enum step_kind kind, size_t done) {
    e->steps[index] = (struct nccl_step){.entry = e, .kind = kind, .done = done};
    e->owner->world->so->submit(e->stream, collective_op_name(e->call.op), nccl_run_step, &e->steps[index]);
    event_record(e->owner->world->order, e->stream);
}

// Chunks of everyone's pieces into staging, each followed by the sum of the own chunk in rank order.
static void enqueue_ordered(struct nccl_entry *e) {
    struct collective_nccl *c = e->owner;
    const struct collective_call *k = &e->call;
    int size = c->impl.head.size, rank = c->impl.head.rank;
    size_t b = dtype_size(k->dt), slot = nccl_slot(c->staging_bytes, size, k->dt),
           chunks = nccl_chunks(k, size, slot);
    bool back = k->op == COLLECTIVE_ALL_REDUCE;
    struct nccl_piece mine = nccl_piece_of(k, size, rank);
    char *out = back ? (char *)k->recv + mine.begin * b : k->recv;
    need_room(e, chunks + 1, chunks * (size_t)size);
    for (size_t j = 0; j < chunks; j++) {
        size_t done = j * slot, n = nccl_chunk(mine, done, slot);
        const void **inputs = e->inputs + j * (size_t)size;
        submit(e, j, STEP_PIECES, done);
        if (n == 0) continue;
        for (int i = 0; i < size; i++)
            inputs[i] = i == rank ? (const char *)k->send + (mine.begin + done) * b
                                  : c->staging + (size_t)(i < rank ? i : i - 1) * slot * b;
        op_reduce(e->stream,
                  &(struct reduce_args){
                      .out = out + done * b, .inputs = inputs, .count = size, .n = (int64_t)n, .dt = k->dt});
    }
    if (back) submit(e, chunks, STEP_BACK, 0);
}

// The rank's own piece, where NCCL's exchanges leave it out.
static void copy_own(struct nccl_entry *e) {
    const struct collective_call *k = &e->call;
    int rank = e->owner->impl.head.rank;
    size_t bytes = k->count * dtype_size(k->dt), at = (size_t)rank * bytes;
    const char *send = k->send;
    char *recv = k->recv;
    if (k->op == COLLECTIVE_ALL_TO_ALL || (k->op == COLLECTIVE_SCATTER && rank == k->root)) send += at;
    if (k->op == COLLECTIVE_ALL_TO_ALL || (k->op == COLLECTIVE_GATHER && rank == k->root)) recv += at;
    bool moves = k->op == COLLECTIVE_ALL_TO_ALL ||
                 ((k->op == COLLECTIVE_SCATTER || k->op == COLLECTIVE_GATHER) && rank == k->root);
    if (moves && send != recv) dev_copy(e->stream, recv, send, bytes);
}

// NULL, or why the call cannot be.
static const char *refusal(const struct collective_nccl *c, const struct collective_call *k, bool ordered) {
    if (!ordered) return NULL;
    if (k->dt == DT_U8) return "there is no sum of uint8; use int64";
    if (c->impl.head.size > 1 && nccl_slot(c->staging_bytes, c->impl.head.size, k->dt) == 0)
        return "this channel was created without staging for ordered reductions";
    return NULL;
}

static void enqueue(struct collective *head, struct stream *s, const struct collective_call *call) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    bool reduces = call->op == COLLECTIVE_REDUCE || call->op == COLLECTIVE_ALL_REDUCE ||
                   call->op == COLLECTIVE_REDUCE_SCATTER,
         ordered = reduces && head->mode == REDUCE_ORDERED;
    assert(call->root < head->size);
    if (atomic_load(&c->impl.failed)) {
        c->world->so->fail(s, c->impl.error);
        return;
    }
    const char *why = refusal(c, call, ordered);
    if (why) {
        nccl_give_up(c, s, collective_op_name(call->op), why);
        return;
    }
    struct nccl_entry *e = take_entry(c, s);
    e->call = *call;
    if (head->size > 1) follow_order(c->world, s);
    event_record(e->start, s);
    if (head->size == 1) {
        if (call->send != call->recv && call->send && call->recv)
            dev_copy(s, call->recv, call->send, call->count * dtype_size(call->dt));
    } else if (ordered) {
        enqueue_ordered(e);
    } else {
        need_room(e, 1, 0);
        copy_own(e);
        submit(e, 0, STEP_PLAIN, 0);
    }
    event_record(e->done, s);
    size_t sent, received;
    (ordered ? nccl_volume : nccl_native_volume)(call, head->rank, head->size, &sent, &received);
    collective_count(head->wire, head->control, sent, received);
    pthread_mutex_lock(&c->lock);
    c->begun++;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
}

// ---------------------------------------------------------------- the table

static void nccl_broadcast(struct collective *c, struct stream *s, void *buf, size_t count, enum dtype dt,
                           int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_BROADCAST, dt, root, count, buf, buf});
}

static void nccl_scatter(struct collective *c, struct stream *s, const void *send, void *recv, size_t count,
                         enum dtype dt, int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_SCATTER, dt, root, count, send, recv});
}

static void nccl_reduce(struct collective *c, struct stream *s, const void *send, void *recv, size_t count,
                        enum dtype dt, int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_REDUCE, dt, root, count, send, recv});
}

static void nccl_all_reduce(struct collective *c, struct stream *s, const void *send, void *recv,
                            size_t count, enum dtype dt) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_ALL_REDUCE, dt, -1, count, send, recv});
}

static void nccl_gather(struct collective *c, struct stream *s, const void *send, void *recv, size_t count,
                        enum dtype dt, int root) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_GATHER, dt, root, count, send, recv});
}

static void nccl_all_gather(struct collective *c, struct stream *s, const void *send, void *recv,
                            size_t count, enum dtype dt) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_ALL_GATHER, dt, -1, count, send, recv});
}

static void nccl_reduce_scatter(struct collective *c, struct stream *s, const void *send, void *recv,
                                size_t count, enum dtype dt) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_REDUCE_SCATTER, dt, -1, count, send, recv});
}

static void nccl_all_to_all(struct collective *c, struct stream *s, const void *send, void *recv,
                            size_t count, enum dtype dt) {
    assert(send != recv);
    enqueue(c, s, &(struct collective_call){COLLECTIVE_ALL_TO_ALL, dt, -1, count, send, recv});
}

static void nccl_send(struct collective *c, struct stream *s, const void *buf, size_t count, enum dtype dt,
                      int to) {
    assert(to >= 0 && to != c->rank);
    enqueue(c, s, &(struct collective_call){COLLECTIVE_SEND, dt, to, count, buf, NULL});
}

static void nccl_recv(struct collective *c, struct stream *s, void *buf, size_t count, enum dtype dt,
                      int from) {
    assert(from >= 0 && from != c->rank);
    enqueue(c, s, &(struct collective_call){COLLECTIVE_RECV, dt, from, count, NULL, buf});
}

static void nccl_barrier(struct collective *c, struct stream *s) {
    enqueue(c, s, &(struct collective_call){COLLECTIVE_BARRIER, DT_U8, -1, 0, NULL, NULL});
}

const struct collective_ops nccl_ops = {
    .name = "nccl",
    .broadcast = nccl_broadcast,
    .scatter = nccl_scatter,
    .reduce = nccl_reduce,
    .all_reduce = nccl_all_reduce,
    .gather = nccl_gather,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_to_all = nccl_all_to_all,
    .send = nccl_send,
    .recv = nccl_recv,
    .barrier = nccl_barrier,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};
