// Collectives between threads of one process: no copies through an engine, each rank loads straight
// from its peers' buffers. Native order is the same as ordered here.
//
//     publish slot | meet | load from peers' buffers | meet | next operation
//
// Aliasing    reduce_scatter and all_reduce write the rank's own piece of its own buffer while peers load
//             the other pieces: piece r of any buffer is read by rank r alone until the second meeting.
// Counting    The reader of a peer's bytes counts them as received for itself and as sent for the peer.
// Devices     In device memory the same operations are enqueued, ordered by events (local_impl.h). The
//             deadline is that of the meetings: a device that hangs is not noticed.
#include <stdio.h>
#include <stdlib.h>

#include "decentral/collective/local_impl.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- whether all mean the same

static void describe(char *buf, size_t bytes, int rank, const struct local_slot *s) {
    const struct collective_call *c = &s->call;
    int n = snprintf(buf, bytes, "rank %d called %s of %zu %s as its operation %llu", rank,
                     collective_op_name(c->op), c->count, dtype_name(c->dt), (unsigned long long)s->sequence);
    if (c->root >= 0) n += snprintf(buf + n, bytes - (size_t)n, " with root %d", c->root);
    if (s->owner->dev && !dev_host_memory(s->owner->dev))
        snprintf(buf + n, bytes - (size_t)n, " on device memory");
}

// After the first meeting: every rank compares everyone with rank 0 and so reaches the same verdict.
static int check_signatures(struct collective_local *l) {
    const struct local_slot *s = l->channel->slots;
    for (int i = 1; i < l->hub->size; i++) {
        if (s[i].call.op == s[0].call.op && s[i].call.count == s[0].call.count &&
            s[i].call.dt == s[0].call.dt && s[i].call.root == s[0].call.root &&
            s[i].sequence == s[0].sequence && s[i].owner->moves == s[0].owner->moves)
            continue;
        char first[200], other[200], text[COLLECTIVE_ERROR_BYTES];
        describe(first, sizeof first, 0, &s[0]);
        describe(other, sizeof other, i, &s[i]);
        snprintf(text, sizeof text, "channel %d: %s, but %s", l->index, first, other);
        return collective_impl_fail(&l->impl, "%s", text);
    }
    return 0;
}

// ---------------------------------------------------------------- what a rank does once all are there

static struct collective_local *peer_of(const struct collective_local *l, int rank) {
    return l->channel->slots[rank].owner;
}

static void count_load(struct collective_local *l, int from, size_t bytes) {
    if (from == l->impl.head.rank) return;
    collective_count(l->impl.head.wire, l->impl.head.control, 0, bytes);
    collective_count(peer_of(l, from)->impl.head.wire, l->impl.head.control, bytes, 0);
}

// What follows in this operation reads what the peer had before the point.
static void follow(struct collective_local *l, int from, enum local_point p) {
    if (from != l->impl.head.rank) l->moves->follow(l, peer_of(l, from), p);
}

static void load(struct collective_local *l, void *dst, const void *src, size_t bytes, int from) {
    if (dst != src && bytes) l->moves->copy(l, dst, src, bytes);
    count_load(l, from, bytes);
}

// out = ordered sum of everyone's send[offset, offset + n).
static int load_sum(struct collective_local *l, const struct collective_call *c, void *out, size_t offset,
                    size_t n) {
    size_t e = dtype_size(c->dt);
    for (int i = 0; i < l->hub->size; i++) {
        follow(l, i, LOCAL_READY);
        l->inputs[i] = (const char *)l->channel->slots[i].call.send + offset * e;
        count_load(l, i, n * e);
    }
    return l->moves->sum(l, out, n, c->dt);
}

static int load_all_reduce(struct collective_local *l, const struct collective_call *c) {
    int size = l->hub->size, rank = l->impl.head.rank;
    size_t e = dtype_size(c->dt), begin = collective_piece_begin(c->count, size, rank);
    size_t end = collective_piece_begin(c->count, size, rank + 1);
    int rc = load_sum(l, c, (char *)c->recv + begin * e, begin, end - begin);
    if (rc == 0) rc = l->moves->mark(l, c, LOCAL_SUMMED);
    if (local_meet_again(l, c, rc) != 0) return -1;
    for (int i = 0; i < size; i++) {
        if (i == rank) continue;
        size_t at = collective_piece_begin(c->count, size, i) * e;
        size_t bytes = collective_piece_begin(c->count, size, i + 1) * e - at;
        follow(l, i, LOCAL_SUMMED);
        load(l, (char *)c->recv + at, (const char *)l->channel->slots[i].call.recv + at, bytes, i);
    }
    return 0;
}

static int load_pieces(struct collective_local *l, const struct collective_call *c) {
    const struct local_slot *peers = l->channel->slots;
    int rank = l->impl.head.rank;
    size_t bytes = c->count * dtype_size(c->dt);
    switch (c->op) {
        case COLLECTIVE_BROADCAST:
            follow(l, c->root, LOCAL_READY);
            load(l, c->recv, peers[c->root].call.send, bytes, c->root);
            return 0;
        case COLLECTIVE_SCATTER:
            follow(l, c->root, LOCAL_READY);
            load(l, c->recv, (const char *)peers[c->root].call.send + (size_t)rank * bytes, bytes, c->root);
            return 0;
        case COLLECTIVE_REDUCE:
            return rank == c->root ? load_sum(l, c, c->recv, 0, c->count) : 0;
        case COLLECTIVE_ALL_REDUCE:
            return load_all_reduce(l, c);
        case COLLECTIVE_REDUCE_SCATTER:
            return load_sum(l, c, c->recv, (size_t)rank * c->count, c->count);
        case COLLECTIVE_GATHER:
            if (rank != c->root) return 0;
            break;
        case COLLECTIVE_ALL_GATHER:
        case COLLECTIVE_ALL_TO_ALL:
            break;
        case COLLECTIVE_SEND:
        case COLLECTIVE_RECV:
        case COLLECTIVE_BARRIER:
        case COLLECTIVE_OPS:
            return 0;
    }
    size_t mine = c->op == COLLECTIVE_ALL_TO_ALL ? (size_t)rank * bytes : 0;
    for (int i = 0; i < l->hub->size; i++) {
        follow(l, i, LOCAL_READY);
        load(l, (char *)c->recv + (size_t)i * bytes, (const char *)peers[i].call.send + mine, bytes, i);
    }
    return 0;
}

// A rank that has failed has nothing under way any more; its points say nothing.
static int finish(struct collective_local *l, const struct collective_call *c, enum local_point p, int rc) {
    if (rc == 0) rc = l->moves->mark(l, c, p);
    if (rc != 0) l->moves->drain(l);
    return rc;
}

// The last meeting, and behind it the points: nobody's later work comes before what peers still do.
static int leave(struct collective_local *l, const struct collective_call *c, int rc) {
    int own = finish(l, c, LOCAL_DONE, rc);
    rc = local_meet_again(l, c, own);
    for (int i = 0; i < l->hub->size; i++) {
        if (i == l->impl.head.rank || atomic_load(&l->channel->slots[i].failed)) continue;
        if (own == 0)
            l->moves->follow(l, peer_of(l, i), LOCAL_DONE);
        else
            l->moves->await(peer_of(l, i), LOCAL_DONE);
    }
    atomic_fetch_add(&l->channel->left, 1);
    return rc;
}

// ---------------------------------------------------------------- send and recv

// Ends when the receiver has taken the bytes, or its device will have before anything that follows here.
static int run_send(struct collective_local *l, const struct collective_call *call) {
    struct local_mail *m = &l->channel->mail[l->impl.head.rank * l->hub->size + call->root];
    if (l->moves->mark(l, call, LOCAL_READY) != 0) return local_fail_and_abort(l, l->impl.error);
    pthread_mutex_lock(&l->channel->lock);
    m->call = *call;
    m->sender = l;
    m->failed = false;
    local_mail_set(l, m, MAIL_FULL);
    if (local_mail_wait(l, m, MAIL_TAKEN, call) != 0) return -1;
    bool failed = m->failed;
    pthread_mutex_unlock(&l->channel->lock);
    if (!failed) l->moves->follow(l, m->receiver, LOCAL_DONE);
    pthread_mutex_lock(&l->channel->lock);
    local_mail_set(l, m, MAIL_EMPTY);
    pthread_mutex_unlock(&l->channel->lock);
    return failed ? local_fail_aborted(l, call->op) : 0;
}

// The bytes of a mail that is there; its sender stays until they are taken.
static int take_mail(struct collective_local *l, struct local_mail *m, const struct collective_call *call) {
    size_t bytes = call->count * dtype_size(call->dt);
    l->moves->follow(l, m->sender, LOCAL_READY);
    if (bytes) l->moves->copy(l, call->recv, m->call.send, bytes);
    collective_count(l->impl.head.wire, l->impl.head.control, 0, bytes);
    collective_count(m->sender->impl.head.wire, l->impl.head.control, bytes, 0);
    int rc = finish(l, call, LOCAL_DONE, 0);
    if (rc != 0) local_hub_mark(l->hub, l->impl.error);
    pthread_mutex_lock(&l->channel->lock);
    m->receiver = l;
    m->failed = rc != 0;
    local_mail_set(l, m, MAIL_TAKEN);
    // Until the sender has followed the own point, which is then free to be marked again.
    while (m->state == MAIL_TAKEN && l->moves->waits)
        pthread_cond_wait(&l->channel->moved, &l->channel->lock);
    pthread_mutex_unlock(&l->channel->lock);
    if (rc != 0) local_hub_abort(l->hub, l->impl.error);
    return rc;
}

static int run_recv(struct collective_local *l, const struct collective_call *call) {
    int rank = l->impl.head.rank;
    struct local_mail *m = &l->channel->mail[call->root * l->hub->size + rank];
    pthread_mutex_lock(&l->channel->lock);
    if (local_mail_wait(l, m, MAIL_FULL, call) != 0) return -1;
    const char *differs = NULL;
    if (m->call.count != call->count || m->call.dt != call->dt) differs = "";
    if (m->sender->moves != l->moves) differs = ", one of them in device memory";
    if (differs) {
        char text[COLLECTIVE_ERROR_BYTES];
        snprintf(text, sizeof text, "channel %d: rank %d sends %zu %s, but rank %d receives %zu %s%s",
                 l->index, call->root, m->call.count, dtype_name(m->call.dt), rank, call->count,
                 dtype_name(call->dt), differs);
        pthread_mutex_unlock(&l->channel->lock);
        return local_fail_and_abort(l, text);
    }
    m->state = MAIL_READING;
    pthread_mutex_unlock(&l->channel->lock);
    return take_mail(l, m, call);
}

// ---------------------------------------------------------------- the table

static int local_run(struct collective_impl *impl, struct stream *s, const struct collective_call *call) {
    struct collective_local *l = (struct collective_local *)impl;
    if (local_moves_open(l, s) != 0) return local_fail_and_abort(l, impl->error);
    if (call->op == COLLECTIVE_SEND) return run_send(l, call);
    if (call->op == COLLECTIVE_RECV) return run_recv(l, call);
    if (l->moves->mark(l, call, LOCAL_READY) != 0) return local_fail_and_abort(l, impl->error);
    if (local_meet_begin(l, call) != 0) return -1;
    int rc = check_signatures(l);
    if (rc == 0) {
        l->moves->greet(l);
        rc = load_pieces(l, call);
    }
    rc = leave(l, call, rc);
    if (rc != 0) local_hub_abort(l->hub, impl->error);
    return rc;
}

static void local_abort(struct collective *c, const char *why) {
    local_hub_abort(((struct collective_local *)c)->hub, why);
}

static bool local_aborted(struct collective *c, char *why, size_t why_bytes) {
    return local_hub_aborted(((struct collective_local *)c)->hub, why, why_bytes);
}

static void local_destroy(struct collective *c) {
    struct collective_local *l = (struct collective_local *)c;
    local_moves_close(l);
    collective_impl_fini(&l->impl);
    free(l->inputs);
    free(l);
}

static const struct collective_ops local_ops = {
    .name = "local",
    .broadcast = collective_enqueue_broadcast,
    .scatter = collective_enqueue_scatter,
    .reduce = collective_enqueue_reduce,
    .all_reduce = collective_enqueue_all_reduce,
    .gather = collective_enqueue_gather,
    .all_gather = collective_enqueue_all_gather,
    .reduce_scatter = collective_enqueue_reduce_scatter,
    .all_to_all = collective_enqueue_all_to_all,
    .send = collective_enqueue_send,
    .recv = collective_enqueue_recv,
    .barrier = collective_enqueue_barrier,
    .abort = local_abort,
    .aborted = local_aborted,
    .destroy = local_destroy,
};

struct collective *collective_local_create(struct local_hub *h, int rank, int channel,
                                           const struct collective_options *o) {
    if (rank < 0 || rank >= h->size || channel < 0 || channel >= LOCAL_CHANNELS) {
        fail("local collectives: rank %d, channel %d: there are %d ranks and %d channels", rank, channel,
             h->size, LOCAL_CHANNELS);
        return NULL;
    }
    struct collective_local *l = xcalloc(1, sizeof *l);
    collective_impl_init(&l->impl, &local_ops, rank, h->size, o);
    l->impl.run = local_run;
    l->impl.enqueue = stream_submit;
    l->hub = h;
    l->channel = &h->channels[channel];
    l->index = channel;
    l->inputs = xcalloc((unsigned long)h->size, sizeof *l->inputs);
    return &l->impl.head;
}
