// Each rank loads straight from its peers' buffers:
//
//     show the call | meet | load from peers' buffers | meet | next operation
//     small:
//     show a copy   | meet | load from peers' copies         | next operation
//
// An all_reduce meets once more before it loads the others' sums.
//
// Aliasing    reduce_scatter and all_reduce write the rank's own piece of its own buffer while peers load
//             the other pieces. That is safe: only rank r reads piece r of any buffer before the second
//             meeting.
// Counting    The reader of a peer's bytes counts them as received for itself and as sent for the peer. Of what is
//             small each rank counts its own, the same: its peers may still be reading when it has gone on.
// Devices     In device memory the same operations are enqueued, ordered by events (threads_impl.h). The
//             deadline is that of the meetings; it does not notice a device that hangs.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/collective/collective_groups.h"
#include "decentral/collective/threads_hub.h"
#include "decentral/collective/threads_impl.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- whether all mean the same
static void describe(char *buf, size_t bytes, int rank, const struct threads_show *s) {
    const struct collective_call *c = &s->call;
    int n =
        snprintf(buf, bytes, "rank %d called %s of %zu %s as its operation %llu", rank,
                 collective_name(c->primitive), c->count, dtype_name(c->dt), (unsigned long long)s->sequence);
    if (collective_rooted(c->primitive)) n += snprintf(buf + n, bytes - (size_t)n, " with root %d", c->root);
    if (s->owner->enqueues) snprintf(buf + n, bytes - (size_t)n, " on device memory");
}

// After the first meeting: every rank compares everyone with rank 0 and so reaches the same verdict.
static int check_signatures(struct collective_threads *t) {
    const struct threads_show *first = threads_shown(t, 0);
    for (int i = 1; i < t->size; i++) {
        const struct threads_show *s = threads_shown(t, i);
        if (s->call.primitive == first->call.primitive && s->call.count == first->call.count &&
            s->call.dt == first->call.dt && s->call.root == first->call.root &&
            s->sequence == first->sequence && s->owner->enqueues == first->owner->enqueues)
            continue;
        char one[200], other[200], text[COLLECTIVE_ERROR_BYTES];
        describe(one, sizeof one, collective_member(t->seat->team, 0), first);
        describe(other, sizeof other, collective_member(t->seat->team, i), s);
        snprintf(text, sizeof text, "channel %d: %s, but %s", t->index, one, other);
        return collective_impl_fail(&t->impl, "%s", text);
    }
    return 0;
}

// ---------------------------------------------------------------- what a rank does once all are there
static struct collective_threads *peer_of(const struct collective_threads *t, int rank) {
    return threads_shown(t, rank)->owner;
}

static void count_load(struct collective_threads *t, int from, size_t bytes) {
    struct collective *mine = &t->impl.head, *theirs = &peer_of(t, from)->impl.head;
    if (from == t->rank || t->small) return;
    collective_count_peer(mine, theirs->rank, 0, bytes);
    collective_count_peer(theirs, mine->rank, bytes, 0);
}

// Work enqueued from here on comes after the peer's point.
static void follow(struct collective_threads *t, int from, enum threads_point p) {
    if (from != t->rank) threads_follow(t, peer_of(t, from), p);
}

static void load(struct collective_threads *t, void *dst, const void *src, size_t bytes, int from) {
    if (dst != src && bytes) threads_copy(t, dst, src, bytes);
    count_load(t, from, bytes);
}

// The sum of the own piece of everyone's send.
static int load_sum(struct collective_threads *t, const struct collective_plan *p) {
    struct collective_span mine = collective_piece(p, p->rank);
    size_t e = dtype_size(p->call->dt);
    for (int i = 0; i < p->size; i++) {
        follow(t, i, THREADS_READY);
        t->inputs[i] = (const char *)threads_shown(t, i)->call.send + mine.at * e;
        count_load(t, i, mine.count * e);
    }
    return threads_sum(t, (char *)p->call->recv + collective_sum_place(p) * e, mine.count, p->call->dt);
}

// Loads the others' pieces once they are summed. rc: of the own sum.
static int load_summed(struct collective_threads *t, const struct collective_plan *p, int rc) {
    size_t e = dtype_size(p->call->dt);
    struct collective_span mine = collective_piece(p, p->rank);
    if (rc == 0 && t->small && mine.count)
        memcpy((char *)threads_shown(t, p->rank)->call.recv + mine.at * e,
               (const char *)p->call->recv + mine.at * e, mine.count * e);
    if (rc == 0) rc = threads_mark(t, p->call, THREADS_SUMMED);
    if (threads_meet_again(t, p->call, rc) != 0) return -1;
    for (int i = 0; i < p->size; i++) {
        if (i == p->rank) continue;
        struct collective_span theirs = collective_piece(p, i);
        follow(t, i, THREADS_SUMMED);
        load(t, (char *)p->call->recv + theirs.at * e,
             (const char *)threads_shown(t, i)->call.recv + theirs.at * e, theirs.count * e, i);
    }
    return 0;
}

static int load_pieces(struct collective_threads *t, const struct collective_call *c) {
    struct collective_plan p = collective_plan_of(c, t->impl.head.rank, t->hub->size);
    struct collective_span mine = collective_piece(&p, p.rank);
    size_t e = dtype_size(c->dt);
    if (p.recv_blocks == 0) return 0;
    if (p.row->result == RESULT_SUMMED) return load_sum(t, &p);
    if (p.row->result == RESULT_SUMMED_IN_PIECES) return load_summed(t, &p, load_sum(t, &p));
    for (int i = 0; i < p.size; i++) {
        if (!collective_sends(&p, i)) continue;
        follow(t, i, THREADS_READY);
        load(t, (char *)c->recv + collective_place(&p, i) * e,
             (const char *)threads_shown(t, i)->call.send + mine.at * e, mine.count * e, i);
    }
    return 0;
}

// Marks the point, or, where the rank has failed, waits until its device has ended what it was given.
static int finish(struct collective_threads *t, const struct collective_call *c, enum threads_point p,
                  int rc) {
    if (rc == 0) rc = threads_mark(t, c, p);
    if (rc != 0) threads_drain(t);
    return rc;
}

// The last meeting; then this rank's later work waits for what its peers still do.
static int leave(struct collective_threads *t, const struct collective_call *c, int rc) {
    int own = finish(t, c, THREADS_DONE, rc);
    rc = threads_meet_again(t, c, own);
    for (int i = 0; i < t->size; i++) {
        if (i == t->rank || atomic_load(&t->channel->slots[i].failed)) continue;
        if (own == 0)
            threads_follow(t, peer_of(t, i), THREADS_DONE);
        else
            threads_await(t, peer_of(t, i), THREADS_DONE);
    }
    atomic_fetch_add(&t->channel->left, 1);
    return rc;
}

// ---------------------------------------------------------------- send and recv
// Ends when the receiver has taken the bytes or has enqueued that, in which case later work here waits for
// it.
static int run_send(struct collective_threads *t, const struct collective_call *call) {
    struct threads_mail *m = &t->channel->mail[t->impl.head.rank * t->hub->size + call->peer];
    if (threads_mark(t, call, THREADS_READY) != 0) return threads_fail_and_abort(t, t->impl.error);
    pthread_mutex_lock(&t->channel->lock);
    m->call = *call;
    m->sender = t;
    m->failed = false;
    threads_mail_set(t, m, MAIL_FULL);
    if (threads_mail_wait(t, m, MAIL_TAKEN, call) != 0) return -1;
    bool failed = m->failed;
    pthread_mutex_unlock(&t->channel->lock);
    if (!failed) threads_follow(t, m->receiver, THREADS_DONE);
    pthread_mutex_lock(&t->channel->lock);
    threads_mail_set(t, m, MAIL_EMPTY);
    pthread_mutex_unlock(&t->channel->lock);
    return failed ? threads_fail_aborted(t, call->primitive) : 0;
}

// Loads the bytes of a mail; its sender waits until they are taken.
static int take_mail(struct collective_threads *t, struct threads_mail *m,
                     const struct collective_call *call) {
    size_t bytes = call->count * dtype_size(call->dt);
    threads_follow(t, m->sender, THREADS_READY);
    if (bytes) threads_copy(t, call->recv, m->call.send, bytes);
    collective_count_peer(&t->impl.head, m->sender->impl.head.rank, 0, bytes);
    collective_count_peer(&m->sender->impl.head, t->impl.head.rank, bytes, 0);
    int rc = finish(t, call, THREADS_DONE, 0);
    if (rc != 0) threads_hub_mark(t->hub, t->impl.error);
    pthread_mutex_lock(&t->channel->lock);
    m->receiver = t;
    m->failed = rc != 0;
    threads_mail_set(t, m, MAIL_TAKEN);
    // The sender follows this rank's point first; then the point may be marked again.
    while (m->state == MAIL_TAKEN && t->enqueues) pthread_cond_wait(&t->channel->moved, &t->channel->lock);
    pthread_mutex_unlock(&t->channel->lock);
    if (rc != 0) threads_hub_abort(t->hub, t->impl.error);
    return rc;
}

static int run_recv(struct collective_threads *t, const struct collective_call *call) {
    int rank = t->impl.head.rank;
    struct threads_mail *m = &t->channel->mail[call->peer * t->hub->size + rank];
    pthread_mutex_lock(&t->channel->lock);
    if (threads_mail_wait(t, m, MAIL_FULL, call) != 0) return -1;
    const char *differs = NULL;
    if (m->call.count != call->count || m->call.dt != call->dt) differs = "";
    if (m->sender->enqueues != t->enqueues) differs = ", one of them in device memory";
    if (differs) {
        char text[COLLECTIVE_ERROR_BYTES];
        snprintf(text, sizeof text, "channel %d: rank %d sends %zu %s, but rank %d receives %zu %s%s",
                 t->index, call->peer, m->call.count, dtype_name(m->call.dt), rank, call->count,
                 dtype_name(call->dt), differs);
        pthread_mutex_unlock(&t->channel->lock);
        return threads_fail_and_abort(t, text);
    }
    m->state = MAIL_READING;
    pthread_mutex_unlock(&t->channel->lock);
    return take_mail(t, m, call);
}

// ---------------------------------------------------------------- small
static bool is_small(const struct collective_threads *t, const struct collective_call *c) {
    size_t blocks = collective_rows[c->primitive].n_sent ? (size_t)t->size : 1;
    size_t most = t->channel->small_bytes / dtype_size(c->dt) / blocks;
    return !t->enqueues && !c->stride && c->count <= most;
}

// Nobody needs this rank any more: peers load from its copies.
static int leave_small(struct collective_threads *t, const struct collective_call *call, int rc) {
    struct collective_plan p = collective_plan_of(call, t->impl.head.rank, t->hub->size);
    for (int i = 0; i < t->size && rc == 0; i++) {
        struct collective_volume v = collective_volume_with(&p, i);
        collective_count_peer(&t->impl.head, collective_member(t->seat->team, i), v.sent, v.received);
    }
    atomic_fetch_add(&t->channel->left, 1);
    return rc;
}

// ---------------------------------------------------------------- the table
static void take_seat(struct collective_threads *t, const struct collective_call *call) {
    struct collective_team team = collective_team_of(call, t->hub->size);
    int i = 0;
    while (i + 1 < THREADS_SEATS && memcmp(&t->seats[i].team, &team, sizeof team) != 0) i++;
    assert(t->seats[i].channel && "a team that its collective was created without");
    t->seat = &t->seats[i];
    t->channel = t->seat->channel;
    t->rank = t->seat->rank;
    t->size = team.count;
}

// With groups everyone has two more seats: in the own group, and with those at the same place in theirs.
static void find_seats(struct collective_threads *t) {
    int group = t->impl.head.group, rank = t->impl.head.rank, size = t->hub->size;
    struct collective_team teams[THREADS_SEATS] = {
        {0, 1, size}, collective_within(rank, group), collective_across(rank, size, group)};
    for (int i = 0; i < (collective_is_grouped(group, size) ? THREADS_SEATS : 1); i++) {
        struct threads_channel *ch = threads_hub_channel(t->hub, teams[i], t->index);
        int own = collective_place_in(teams[i], rank);
        t->seats[i] = (struct threads_seat){.channel = ch, .team = teams[i], .rank = own};
        if (!ch->slots[own].copies) ch->slots[own].copies = xcalloc(3, ch->small_bytes);
    }
}

static int threads_run(struct collective_impl *impl, const struct collective_call *call) {
    struct collective_threads *t = (struct collective_threads *)impl;
    take_seat(t, call);
    if (threads_moves_open(t, call->stream) != 0) return threads_fail_and_abort(t, impl->error);
    if (call->primitive == COLLECTIVE_SEND) return run_send(t, call);
    if (call->primitive == COLLECTIVE_RECV) return run_recv(t, call);
    if (threads_mark(t, call, THREADS_READY) != 0) return threads_fail_and_abort(t, impl->error);
    t->small = is_small(t, call);
    if (threads_meet_begin(t, call) != 0) return -1;
    int rc = check_signatures(t);
    bool agreed = rc == 0;
    if (agreed) {
        threads_greet(t);
        rc = load_pieces(t, call);
    }
    rc = agreed && t->small ? leave_small(t, call, rc) : leave(t, call, rc);
    if (rc != 0) threads_hub_abort(t->hub, impl->error);
    return rc;
}

static void threads_abort(struct collective *c, const char *why) {
    threads_hub_abort(((struct collective_threads *)c)->hub, why);
}

static bool threads_aborted(struct collective *c, char *why, size_t why_bytes) {
    return threads_hub_aborted(((struct collective_threads *)c)->hub, why, why_bytes);
}

static void threads_destroy(struct collective *c) {
    struct collective_threads *t = (struct collective_threads *)c;
    threads_hub_computes(t->hub, t->impl.head.rank, NULL);
    threads_moves_close(t);
    collective_impl_fini(&t->impl);
    free(t->inputs);
    free(t);
}

static const struct collective_ops threads_ops = {
    .name = "local",
    .enqueue = collective_impl_enqueue,
    .abort = threads_abort,
    .aborted = threads_aborted,
    .destroy = threads_destroy,
};

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    struct threads_hub *h = world;
    if (rank < 0 || rank >= h->size || channel < 0 || channel >= COLLECTIVE_CHANNELS) {
        fail("local collectives: rank %d, channel %d: there are %d ranks and %d channels", rank, channel,
             h->size, COLLECTIVE_CHANNELS);
        return NULL;
    }
    struct collective_threads *t = xcalloc(1, sizeof *t);
    collective_impl_init(&t->impl, &threads_ops, rank, h->size, o);
    t->impl.run = threads_run;
    t->impl.enqueue = stream_submit;
    t->hub = h;
    t->index = channel;
    find_seats(t);
    t->inputs = xcalloc((unsigned long)h->size, sizeof *t->inputs);
    if (o->dev) threads_hub_computes(h, rank, o->dev);
    return &t->impl.head;
}

const struct collective_kind collective_threads_kind = {.name = "local", .create = create};
