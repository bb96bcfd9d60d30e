// Collectives between threads of one process: no copies through an engine, each rank loads straight
// from its peers' buffers. Native order is the same as ordered here.
//
//     publish slot | meet | load from peers' buffers | meet | next operation
//
// Meeting     A generation barrier per channel. The first meeting of an operation can be left: by the
//             deadline (then the whole hub is aborted) or by an abort. Whoever leaves it has not begun
//             to load, and an aborted hub lets nobody through any more. The later meetings cannot be left:
//             all ranks are in the operation by then and only copy memory, so they end; thus no rank returns
//             while a peer may still read its buffers, whatever went wrong.
// Aliasing    reduce_scatter and all_reduce write the rank's own piece of its own buffer while peers load
//             the other pieces: piece r of any buffer is read by rank r alone until the second meeting.
// Counting    The reader of a peer's bytes counts them as received for itself and as sent for the peer.
// Lock order  channel, then hub.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "decentral/collective_impl.h"
#include "shared/core/error.h"

// What a rank shows its peers during one operation.
struct local_slot {
    struct collective_call call;
    uint64_t sequence;  // operations of this rank on this channel
    struct wire_count *wire;
    bool present;  // arrived at the meeting under way
};

enum mail_state { MAIL_EMPTY, MAIL_FULL, MAIL_READING, MAIL_TAKEN };

// send/recv from one rank to another: the receiver loads from the sender's buffer.
struct local_mail {
    enum mail_state state;
    struct collective_call call;
    struct wire_count *wire;
};

struct local_channel {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int arrived;
    uint64_t generation;
    struct local_slot *slots;  // (size)
    struct local_mail *mail;   // (size,size): from, to
};

struct local_hub {
    int size;
    struct local_channel channels[LOCAL_CHANNELS];
    pthread_mutex_t lock;  // guards why until `aborted`
    atomic_bool aborted;
    char why[COLLECTIVE_ERROR_BYTES];
};

struct collective_local {
    struct collective_impl impl;
    struct local_hub *hub;
    struct local_channel *channel;
    int index;  // of the channel
    uint64_t sequence;
    const void **inputs;  // (size) of the sum under way
};

// ---------------------------------------------------------------- the hub

struct local_hub *local_hub_create(int size) {
    if (size < 1 || size > REDUCE_MAX) {
        fail("local collectives: %d ranks asked for; 1 to %d are possible", size, REDUCE_MAX);
        return NULL;
    }
    struct local_hub *h = xcalloc(1, sizeof *h);
    h->size = size;
    pthread_mutex_init(&h->lock, NULL);
    atomic_init(&h->aborted, false);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    for (int i = 0; i < LOCAL_CHANNELS; i++) {
        struct local_channel *ch = &h->channels[i];
        pthread_mutex_init(&ch->lock, NULL);
        pthread_cond_init(&ch->moved, &attr);
        ch->slots = xcalloc((unsigned long)size, sizeof *ch->slots);
        ch->mail = xcalloc((unsigned long)size * (unsigned long)size, sizeof *ch->mail);
    }
    pthread_condattr_destroy(&attr);
    return h;
}

void local_hub_destroy(struct local_hub **hub) {
    struct local_hub *h = *hub;
    if (!h) return;
    for (int i = 0; i < LOCAL_CHANNELS; i++) {
        pthread_mutex_destroy(&h->channels[i].lock);
        pthread_cond_destroy(&h->channels[i].moved);
        free(h->channels[i].slots);
        free(h->channels[i].mail);
    }
    pthread_mutex_destroy(&h->lock);
    free(h);
    *hub = NULL;
}

static void mark_aborted(struct local_hub *h, const char *why) {
    pthread_mutex_lock(&h->lock);
    if (!atomic_load(&h->aborted)) {
        snprintf(h->why, sizeof h->why, "%s", why);
        atomic_store(&h->aborted, true);
    }
    pthread_mutex_unlock(&h->lock);
}

// No channel may be locked: waiters are woken through each channel's lock.
void local_hub_abort(struct local_hub *h, const char *why) {
    mark_aborted(h, why);
    for (int i = 0; i < LOCAL_CHANNELS; i++) {
        pthread_mutex_lock(&h->channels[i].lock);
        pthread_cond_broadcast(&h->channels[i].moved);
        pthread_mutex_unlock(&h->channels[i].lock);
    }
}

// ---------------------------------------------------------------- meeting

static struct timespec deadline_after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)(seconds * 1e9);
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}

// Sleeps until the channel moves; ETIMEDOUT at the deadline. deadline_s <= 0: none.
static int channel_sleep(struct collective_local *l, const struct timespec *until) {
    if (l->impl.head.deadline_s <= 0) return pthread_cond_wait(&l->channel->moved, &l->channel->lock);
    return pthread_cond_timedwait(&l->channel->moved, &l->channel->lock, until);
}

static int fail_aborted(struct collective_local *l, enum collective_op op) {
    return collective_impl_fail(&l->impl, "%s on channel %d: aborted: %s", collective_op_name(op), l->index,
                                l->hub->why);
}

// The own failure aborts everyone else.
static int fail_and_abort(struct collective_local *l, const char *text) {
    collective_impl_fail(&l->impl, "%s", text);
    local_hub_abort(l->hub, text);
    return -1;
}

// With the channel locked; unlocks it. The hub is marked before this rank withdraws: another one that times
// out at the same moment must not take it for missing.
static int meet_timed_out(struct collective_local *l, const struct collective_call *call) {
    struct local_channel *ch = l->channel;
    bool missing[REDUCE_MAX] = {false};
    char ranks[128], text[COLLECTIVE_ERROR_BYTES];
    for (int i = 0; i < l->hub->size; i++) missing[i] = !ch->slots[i].present;
    snprintf(text, sizeof text, "%s on channel %d (operation %llu): rank %s did not come within %g s",
             collective_op_name(call->op), l->index, (unsigned long long)l->sequence,
             collective_rank_list(ranks, sizeof ranks, missing, l->hub->size), l->impl.head.deadline_s);
    mark_aborted(l->hub, text);
    ch->arrived--;
    ch->slots[l->impl.head.rank].present = false;
    pthread_mutex_unlock(&ch->lock);
    return fail_and_abort(l, text);
}

// Called with the channel locked by the rank that completes a meeting.
static void let_everyone_through(struct local_channel *ch, int size) {
    ch->arrived = 0;
    for (int i = 0; i < size; i++) ch->slots[i].present = false;
    ch->generation++;
    pthread_cond_broadcast(&ch->moved);
}

// The first meeting: publishes the call and waits for all peers. 0, or -1 after keeping the error.
static int meet_begin(struct collective_local *l, const struct collective_call *call) {
    struct local_channel *ch = l->channel;
    struct local_slot *mine = &ch->slots[l->impl.head.rank];
    struct timespec until = deadline_after(l->impl.head.deadline_s);
    l->sequence++;
    pthread_mutex_lock(&ch->lock);
    if (atomic_load(&l->hub->aborted)) {
        pthread_mutex_unlock(&ch->lock);
        return fail_aborted(l, call->op);
    }
    *mine = (struct local_slot){
        .call = *call, .sequence = l->sequence, .wire = l->impl.head.wire, .present = true};
    uint64_t generation = ch->generation;
    if (++ch->arrived == l->hub->size) let_everyone_through(ch, l->hub->size);
    while (ch->generation == generation) {
        if (atomic_load(&l->hub->aborted)) {
            ch->arrived--;
            mine->present = false;
            pthread_mutex_unlock(&ch->lock);
            return fail_aborted(l, call->op);
        }
        if (channel_sleep(l, &until) == ETIMEDOUT && ch->generation == generation &&
            !atomic_load(&l->hub->aborted))
            return meet_timed_out(l, call);
    }
    pthread_mutex_unlock(&ch->lock);
    return 0;
}

// The later meetings: everyone is coming.
static void meet_again(struct collective_local *l) {
    struct local_channel *ch = l->channel;
    pthread_mutex_lock(&ch->lock);
    uint64_t generation = ch->generation;
    if (++ch->arrived == l->hub->size) let_everyone_through(ch, l->hub->size);
    while (ch->generation == generation) pthread_cond_wait(&ch->moved, &ch->lock);
    pthread_mutex_unlock(&ch->lock);
}

static void describe(char *buf, size_t bytes, int rank, const struct local_slot *s) {
    const struct collective_call *c = &s->call;
    int n = snprintf(buf, bytes, "rank %d called %s of %zu %s as its operation %llu", rank,
                     collective_op_name(c->op), c->count, dtype_name(c->dt), (unsigned long long)s->sequence);
    if (c->root >= 0) snprintf(buf + n, bytes - (size_t)n, " with root %d", c->root);
}

// After the first meeting: every rank compares everyone with rank 0 and so reaches the same verdict.
static int check_signatures(struct collective_local *l) {
    const struct local_slot *s = l->channel->slots;
    for (int i = 1; i < l->hub->size; i++) {
        if (s[i].call.op == s[0].call.op && s[i].call.count == s[0].call.count &&
            s[i].call.dt == s[0].call.dt && s[i].call.root == s[0].call.root &&
            s[i].sequence == s[0].sequence)
            continue;
        char first[160], other[160], text[COLLECTIVE_ERROR_BYTES];
        describe(first, sizeof first, 0, &s[0]);
        describe(other, sizeof other, i, &s[i]);
        snprintf(text, sizeof text, "channel %d: %s, but %s", l->index, first, other);
        return collective_impl_fail(&l->impl, "%s", text);
    }
    return 0;
}

// ---------------------------------------------------------------- what a rank does once all are there

static void count_load(struct collective_local *l, int from, size_t bytes) {
    if (from == l->impl.head.rank) return;
    collective_count(l->impl.head.wire, l->impl.head.control, 0, bytes);
    collective_count(l->channel->slots[from].wire, l->impl.head.control, bytes, 0);
}

static void load(struct collective_local *l, void *dst, const void *src, size_t bytes, int from) {
    if (dst != src && bytes) memcpy(dst, src, bytes);
    count_load(l, from, bytes);
}

// out = ordered sum of everyone's send[offset, offset + n).
static int load_sum(struct collective_local *l, const struct collective_call *c, void *out, size_t offset,
                    size_t n) {
    size_t e = dtype_size(c->dt);
    for (int i = 0; i < l->hub->size; i++) {
        l->inputs[i] = (const char *)l->channel->slots[i].call.send + offset * e;
        count_load(l, i, n * e);
    }
    return collective_sum(&l->impl, out, l->inputs, (int64_t)n, c->dt);
}

static int load_all_reduce(struct collective_local *l, const struct collective_call *c) {
    int size = l->hub->size, rank = l->impl.head.rank;
    size_t e = dtype_size(c->dt), begin = collective_piece_begin(c->count, size, rank);
    size_t end = collective_piece_begin(c->count, size, rank + 1);
    int rc = load_sum(l, c, (char *)c->recv + begin * e, begin, end - begin);
    meet_again(l);
    for (int i = 0; i < size; i++) {
        if (i == rank) continue;
        size_t at = collective_piece_begin(c->count, size, i) * e;
        size_t bytes = collective_piece_begin(c->count, size, i + 1) * e - at;
        load(l, (char *)c->recv + at, (const char *)l->channel->slots[i].call.recv + at, bytes, i);
    }
    return rc;
}

static int load_pieces(struct collective_local *l, const struct collective_call *c) {
    const struct local_slot *peers = l->channel->slots;
    int rank = l->impl.head.rank;
    size_t bytes = c->count * dtype_size(c->dt);
    switch (c->op) {
        case COLLECTIVE_BROADCAST:
            load(l, c->recv, peers[c->root].call.send, bytes, c->root);
            return 0;
        case COLLECTIVE_SCATTER:
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
    for (int i = 0; i < l->hub->size; i++)
        load(l, (char *)c->recv + (size_t)i * bytes, (const char *)peers[i].call.send + mine, bytes, i);
    return 0;
}

// ---------------------------------------------------------------- send and recv

// Waits, with the channel locked, until the mail is in the wanted state. -1 with the channel unlocked. A
// mail that is being read is waited for whatever happens: the reader only copies memory.
static int mail_wait(struct collective_local *l, struct local_mail *m, enum mail_state want,
                     const struct collective_call *call) {
    struct timespec until = deadline_after(l->impl.head.deadline_s);
    bool late = false;
    while (m->state != want) {
        bool busy = m->state == MAIL_READING || m->state == MAIL_TAKEN;
        if (!busy && (late || atomic_load(&l->hub->aborted))) {
            if (call->op == COLLECTIVE_SEND && want == MAIL_TAKEN) m->state = MAIL_EMPTY;
            pthread_mutex_unlock(&l->channel->lock);
            if (atomic_load(&l->hub->aborted)) return fail_aborted(l, call->op);
            char text[COLLECTIVE_ERROR_BYTES];
            snprintf(text, sizeof text, "%s on channel %d: rank %d did not come within %g s",
                     collective_op_name(call->op), l->index, call->root, l->impl.head.deadline_s);
            return fail_and_abort(l, text);
        }
        if (busy)
            pthread_cond_wait(&l->channel->moved, &l->channel->lock);
        else
            late = channel_sleep(l, &until) == ETIMEDOUT;
    }
    return 0;
}

static void mail_set(struct collective_local *l, struct local_mail *m, enum mail_state state) {
    m->state = state;
    pthread_cond_broadcast(&l->channel->moved);
}

// Ends when the receiver has taken the bytes: the buffer is free then.
static int run_send(struct collective_local *l, const struct collective_call *call) {
    struct local_mail *m = &l->channel->mail[l->impl.head.rank * l->hub->size + call->root];
    pthread_mutex_lock(&l->channel->lock);
    m->call = *call;
    m->wire = l->impl.head.wire;
    mail_set(l, m, MAIL_FULL);
    if (mail_wait(l, m, MAIL_TAKEN, call) != 0) return -1;
    mail_set(l, m, MAIL_EMPTY);
    pthread_mutex_unlock(&l->channel->lock);
    return 0;
}

static int run_recv(struct collective_local *l, const struct collective_call *call) {
    int rank = l->impl.head.rank;
    struct local_mail *m = &l->channel->mail[call->root * l->hub->size + rank];
    pthread_mutex_lock(&l->channel->lock);
    if (mail_wait(l, m, MAIL_FULL, call) != 0) return -1;
    if (m->call.count != call->count || m->call.dt != call->dt) {
        char text[COLLECTIVE_ERROR_BYTES];
        snprintf(text, sizeof text, "channel %d: rank %d sends %zu %s, but rank %d receives %zu %s", l->index,
                 call->root, m->call.count, dtype_name(m->call.dt), rank, call->count, dtype_name(call->dt));
        pthread_mutex_unlock(&l->channel->lock);
        return fail_and_abort(l, text);
    }
    m->state = MAIL_READING;
    pthread_mutex_unlock(&l->channel->lock);
    size_t bytes = call->count * dtype_size(call->dt);
    if (bytes) memcpy(call->recv, m->call.send, bytes);
    collective_count(l->impl.head.wire, l->impl.head.control, 0, bytes);
    collective_count(m->wire, l->impl.head.control, bytes, 0);
    pthread_mutex_lock(&l->channel->lock);
    mail_set(l, m, MAIL_TAKEN);
    pthread_mutex_unlock(&l->channel->lock);
    return 0;
}

// ---------------------------------------------------------------- the table

static int local_run(struct collective_impl *impl, const struct collective_call *call) {
    struct collective_local *l = (struct collective_local *)impl;
    if (call->op == COLLECTIVE_SEND) return run_send(l, call);
    if (call->op == COLLECTIVE_RECV) return run_recv(l, call);
    if (meet_begin(l, call) != 0) return -1;
    int rc = check_signatures(l);
    if (rc == 0) rc = load_pieces(l, call);
    meet_again(l);
    if (rc != 0) local_hub_abort(l->hub, impl->error);
    return rc;
}

static void local_abort(struct collective *c, const char *why) {
    local_hub_abort(((struct collective_local *)c)->hub, why);
}

static void local_destroy(struct collective *c) {
    struct collective_local *l = (struct collective_local *)c;
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
    l->hub = h;
    l->channel = &h->channels[channel];
    l->index = channel;
    l->inputs = xcalloc((unsigned long)h->size, sizeof *l->inputs);
    return &l->impl.head;
}

static size_t local_staging_bytes(int size, size_t max_count, enum dtype dt) {
    (void)size;
    (void)max_count;
    (void)dt;
    return 0;
}

static struct collective *source_create(const struct collective_source *src, int channel,
                                        const struct collective_options *o) {
    return collective_local_create(src->impl, src->rank, channel, o);
}

struct collective_source collective_source_local(struct local_hub *h, int rank) {
    return (struct collective_source){
        .name = "local",
        .rank = rank,
        .size = h ? h->size : 0,
        .staging_bytes = local_staging_bytes,
        .create = source_create,
        .impl = h,
    };
}
