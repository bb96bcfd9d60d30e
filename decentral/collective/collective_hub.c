// Collectives in shared memory: each rank loads directly from its peers' buffers, or from their windows (hub_impl.h).
// An all_reduce has one more barrier, before it loads the others' sums.
//
// Aliasing    reduce_scatter and all_reduce write the rank's own piece of its own buffer while peers load the other
//             pieces. This is safe: only rank r reads piece r of any buffer before the second barrier. A chunk touches
//             only its own elements of each block.
// Chunks      Between processes a call is as many operations as its blocks fill windows. Chunk c of each block:
//
//                 buffer   | block 0: 0 1 2 .. | block 1: 0 1 2 .. |        window   | chunk c of block 0 | of block 1 | ..
//
//             The own block is not copied: no peer loads it.
// Counting    Each rank counts the bytes of its call's plan when the call is done.
// Devices     For threads in device memory, the same operations are enqueued, ordered by events. For processes the
//             device memory is staged on the host. Only the barriers have a deadline; a hanging device is not
//             noticed.
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "decentral/collective/collective_plan.h"
#include "decentral/collective/hub_impl.h"
#include "shared/core/error.h"

#define DIRECT_LEAST ((size_t)128 << 10)  // bytes; processes copy calls up to this size through windows

// ---------------------------------------------------------------- comparing the ranks' calls
static void describe(char *buf, size_t bytes, int rank, const struct hub_call *s) {
    int n =
        snprintf(buf, bytes, "rank %d called %s of %zu %s as its operation %llu", rank,
                 collective_name(s->primitive), s->count, dtype_name(s->dt), (unsigned long long)s->sequence);
    if (collective_rooted(s->primitive)) n += snprintf(buf + n, bytes - (size_t)n, " with root %d", s->root);
    if (s->reduction) n += snprintf(buf + n, bytes - (size_t)n, " by %s", reduction_names[s->reduction]);
    if (s->enqueues) snprintf(buf + n, bytes - (size_t)n, " on device memory");
}

// After the first barrier every rank compares all calls with rank 0's, so all ranks get the same result.
static int check_signatures(struct collective_hub *t) {
    const struct hub_call *first = hub_call_of(t, 0);
    for (int i = 1; i < t->size; i++) {
        const struct hub_call *s = hub_call_of(t, i);
        if (s->primitive == first->primitive && s->count == first->count && s->dt == first->dt &&
            s->root == first->root && s->reduction == first->reduction && s->sequence == first->sequence &&
            s->enqueues == first->enqueues)
            continue;
        char one[200], other[200], text[COLLECTIVE_ERROR_BYTES];
        describe(one, sizeof one, collective_member(t->team->ranks, 0), first);
        describe(other, sizeof other, collective_member(t->team->ranks, i), s);
        snprintf(text, sizeof text, "channel %d: %s, but %s", t->impl.channel, one, other);
        return collective_impl_fail(&t->impl, "%s", text);
    }
    return 0;
}

// ---------------------------------------------------------------- windows
static char *window_of(const struct collective_hub *t, int member, int window) {
    return hub_window(t->hub, collective_member(t->team->ranks, member), t->impl.channel, window);
}

// Returns the window with the data that the member sends in the current operation.
static char *sent_window(const struct collective_hub *t, int member) {
    return window_of(t, member, 2 * t->team_kind + t->parity);
}

// Returns the offset, in elements, of the piece for a rank in a window. A window has no gaps between blocks.
static size_t packed(const struct collective_plan *p, int rank) {
    return p->row->n_sent ? (size_t)rank * p->call->count : collective_piece(p, rank).at;
}

// Fills the window that peers load from. The window is free: its last readers have since entered a later barrier.
static void fill_window(const struct collective_hub *t, const struct collective_plan *p) {
    size_t e = dtype_size(p->call->dt);
    char *window = sent_window(t, t->rank);
    const char *send = p->call->send;
    bool same_for_all = !p->row->n_sent && p->row->result != RESULT_SUMMED_IN_PIECES;
    if (!p->send_blocks || !p->call->count) return;
    if (same_for_all) {
        memcpy(window, send, p->call->count * e);
        return;
    }
    for (int i = 0; i < p->size; i++) {
        struct collective_span piece = collective_piece(p, i);
        if (i != p->rank && piece.count)
            memcpy(window + packed(p, i) * e, send + piece.at * e, piece.count * e);
    }
}

// Returns the address of the piece that the member sends to this rank.
static const char *piece_from(const struct collective_hub *t, const struct collective_plan *p, int member) {
    size_t e = dtype_size(p->call->dt), at = collective_piece(p, p->rank).at * e;
    if (member == p->rank) return (const char *)p->call->send + at;
    if (!t->windows) return (const char *)hub_call_of(t, member)->send + at;
    bool whole = !p->row->n_sent && p->row->result != RESULT_SUMMED_IN_PIECES;
    return sent_window(t, member) + (whole ? 0 : packed(p, p->rank) * e);
}

// ---------------------------------------------------------------- memory of other processes
static bool can_read(const struct hub *h, int rank) {
    const struct hub_rank *r = &h->memory->ranks[rank];
    uint64_t word = 0;
    struct iovec to = {&word, sizeof word}, from = {(void *)(uintptr_t)r->probe, sizeof word};
    return process_vm_readv(r->pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof word &&
           word == hub_probe_value(r->pid, rank);
}

static bool never(const void *arg) {
    (void)arg;
    return false;
}

// If the rank has died, waits until its launcher reports how it ended, or until the deadline.
int hub_read(struct collective_hub *t, enum collective_primitive p, int rank, void *dst, const void *src,
             size_t bytes) {
    struct hub_memory *m = t->hub->memory;
    for (size_t done = 0; done < bytes;) {
        struct iovec to = {(char *)dst + done, bytes - done};
        struct iovec from = {(char *)(uintptr_t)src + done, bytes - done};
        ssize_t n = process_vm_readv(m->ranks[rank].pid, &to, 1, &from, 1, 0);
        int error = errno;
        if (n > 0) done += (size_t)n;
        if (n > 0) continue;
        if (rank_liveness_end_reason(t->hub->lives))
            return collective_impl_fail_aborted(&t->impl, collective_name(p));
        if (n < 0 && error == ESRCH) return hub_wait_for(t, &(struct hub_futex){0}, never, NULL, p, rank);
        char text[COLLECTIVE_ERROR_BYTES];
        snprintf(text, sizeof text, "%s on channel %d: the memory of rank %d cannot be read: %s",
                 collective_name(p), t->impl.channel, rank, strerror(n < 0 ? error : EFAULT));
        return hub_fail_and_abort(t, text);
    }
    return 0;
}

// Called after the first barrier of a team's first operation: tests how its members reach each other's memory. GPUs:
// sums need direct access; copies use it if possible. Processes use it only if all of them can read. Returns 0 or -1.
static int probe_access(struct collective_hub *t, enum collective_primitive p) {
    t->team->probed = true;
    for (int i = t->size - 1; i >= 0 && t->enqueues; i--)
        if (dev_reach(t->dev, hub_call_of(t, i)->owner->dev) != 0)
            t->unreachable = collective_member(t->team->ranks, i);
    if (!t->hub->processes) return 0;
    bool reads = dev_host_memory(t->dev);
    for (int i = 0; i < t->size && reads; i++) reads = can_read(t->hub, collective_member(t->team->ranks, i));
    atomic_store(&hub_slot(t, t->rank)->reads, reads);
    if (hub_barrier_again(t, p, 0)) return -1;
    for (int i = 0; i < t->size; i++) reads = reads && atomic_load(&hub_slot(t, i)->reads);
    t->team->direct = reads;
    return 0;
}

// ---------------------------------------------------------------- the work after the first barrier
// In device memory the work is enqueued. In host memory it is done at once, and points have no effect.
//
// Stores the stream's device and creates the points' events. Returns 0, or -1 after keeping the error.
static int open_moves(struct collective_hub *t, struct stream *s) {
    t->stream = s;
    if (t->dev) return 0;
    t->dev = stream_device(s);
    t->enqueues = !t->hub->processes && !dev_host_memory(t->dev);
    t->unreachable = -1;
    for (int p = 0; p < HUB_POINTS && t->enqueues; p++)
        if (!(t->points[p] = event_create(t->dev)))
            return collective_impl_fail(&t->impl, "channel %d: an event cannot be created: %s",
                                        t->impl.channel, dev_error(t->dev));
    return 0;
}

// Waits until every peer has left all operations that this rank took part in; then destroys the events.
static void close_moves(struct collective_hub *t) {
    // This ends soon: between the last barrier and its points no peer waits for another.
    for (int i = 0; i < HUB_TEAMS && t->enqueues; i++) {
        const struct hub_team *s = &t->teams[i];
        uint64_t entered = hub_channel(t->hub, t->impl.head.rank, t->impl.channel)->slots[i].entered;
        for (int k = 0; s->barrier && k < s->ranks.count; k++) {
            int peer = collective_member(s->ranks, k);
            while (atomic_load(&hub_channel(t->hub, peer, t->impl.channel)->slots[i].left) < entered)
                usleep(20);
        }
    }
    for (int p = 0; p < HUB_POINTS; p++) event_destroy(&t->points[p]);
}

// Records an event (the point) after all work enqueued so far. Returns 0, or -1 after keeping the error. A failed
// device reports here the errors of earlier calls.
static int mark_point(struct collective_hub *t, enum collective_primitive p, enum hub_point point) {
    if (!t->enqueues) return 0;
    event_record(t->points[point], t->stream);
    const char *why = dev_error(t->dev);
    if (!*why) return 0;
    return collective_impl_fail(&t->impl, "%s on channel %d: %s", collective_name(p), t->impl.channel, why);
}

// Work that is enqueued from now on waits for the peer's point.
static void follow_point(struct collective_hub *t, int from, enum hub_point p) {
    if (from != t->rank && t->enqueues) stream_wait_event(t->stream, hub_call_of(t, from)->owner->points[p]);
}

static void load(struct collective_hub *t, void *dst, const void *src, size_t bytes) {
    if (dst == src || !bytes) return;
    if (t->enqueues)
        dev_copy(t->stream, dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

// out(n) = the reduction of t->inputs in rank order. Returns 0, or -1 after keeping the error.
static int reduce_inputs(struct collective_hub *t, const struct collective_call *c, void *out, size_t n) {
    struct reduce_args a = {
        .out = out, .inputs = t->inputs, .count = t->size, .n = (int64_t)n, .dt = c->dt, .how = c->reduction};
    if (!t->enqueues) return collective_sum(&t->impl, &a);
    if (t->unreachable >= 0)
        return collective_impl_fail(&t->impl,
                                    "channel %d: the GPU of rank %d cannot read the memory of rank %d's "
                                    "directly: use --collective nccl",
                                    t->impl.channel, t->impl.head.rank, t->unreachable);
    if (n == 0) return 0;
    if (c->dt == DT_U8) return collective_impl_fail(&t->impl, "there is no sum of uint8; use int64");
    op_reduce(t->stream, &a);
    return 0;
}

// Sums the own piece of all ranks' send.
static int load_sum(struct collective_hub *t, const struct collective_plan *p) {
    struct collective_span mine = collective_piece(p, p->rank);
    size_t e = dtype_size(p->call->dt);
    for (int i = 0; i < p->size; i++) {
        follow_point(t, i, HUB_READY);
        t->inputs[i] = piece_from(t, p, i);
    }
    return reduce_inputs(t, p->call, (char *)p->call->recv + collective_sum_offset(p) * e, mine.count);
}

// Loads the others' pieces after they are summed. rc: the result of the own sum.
static int load_summed(struct collective_hub *t, const struct collective_plan *p, int rc) {
    size_t e = dtype_size(p->call->dt);
    struct collective_span mine = collective_piece(p, p->rank);
    char *recv = p->call->recv;
    if (rc == 0 && t->windows && mine.count)
        memcpy(window_of(t, t->rank, HUB_WINDOW_SUMS) + mine.at * e, recv + mine.at * e, mine.count * e);
    if (rc == 0) rc = mark_point(t, p->call->primitive, HUB_SUMMED);
    if (hub_barrier_again(t, p->call->primitive, rc) != 0) return -1;
    for (int i = 0; i < p->size; i++) {
        if (i == p->rank) continue;
        size_t at = collective_piece(p, i).at * e;
        const char *from = t->windows ? window_of(t, i, HUB_WINDOW_SUMS) : hub_call_of(t, i)->recv;
        follow_point(t, i, HUB_SUMMED);
        load(t, recv + at, from + at, collective_piece(p, i).count * e);
    }
    return 0;
}

static int load_pieces(struct collective_hub *t, const struct collective_plan *p) {
    size_t e = dtype_size(p->call->dt), bytes = collective_piece(p, p->rank).count * e;
    bool reads = t->hub->processes && !t->windows;
    if (p->recv_blocks == 0) return 0;
    if (p->row->result == RESULT_SUMMED) return load_sum(t, p);
    if (p->row->result == RESULT_SUMMED_IN_PIECES) return load_summed(t, p, load_sum(t, p));
    for (int i = 0; i < p->size; i++) {
        if (!collective_sends(p, i)) continue;
        char *to = (char *)p->call->recv + collective_recv_offset(p, i) * e;
        follow_point(t, i, HUB_READY);
        if (!reads || i == p->rank)
            load(t, to, piece_from(t, p, i), bytes);
        else if (hub_read(t, p->call->primitive, collective_member(t->team->ranks, i), to,
                          piece_from(t, p, i), bytes))
            return -1;
    }
    return 0;
}

// Marks the point; if the rank has failed, waits until its device has done all enqueued work.
static int finish(struct collective_hub *t, enum collective_primitive what, enum hub_point p, int rc) {
    if (rc == 0) rc = mark_point(t, what, p);
    if (rc != 0 && t->enqueues) stream_sync(t->stream);
    return rc;
}

// The last barrier. Afterwards this rank's later work waits until its peers have finished loading.
static int finish_operation(struct collective_hub *t, enum collective_primitive what, int rc) {
    int own = finish(t, what, HUB_DONE, rc);
    rc = hub_barrier_again(t, what, own);
    for (int i = 0; i < t->size; i++) {
        if (i == t->rank || !t->enqueues || atomic_load(&hub_slot(t, i)->failed)) continue;
        if (own == 0)
            follow_point(t, i, HUB_DONE);
        else
            event_sync(hub_call_of(t, i)->owner->points[HUB_DONE]);
    }
    return rc;
}

// Runs one operation: a call, or one chunk of a call.
static int run_operation(struct collective_hub *t, const struct collective_call *c) {
    struct hub_slot *mine = hub_slot(t, t->rank);
    struct collective_plan p = collective_plan_of(c, t->impl.head.rank, t->hub->size);
    t->parity = (int)(mine->entered & 1);
    mine->calls[t->parity] = (struct hub_call){.primitive = c->primitive,
                                               .dt = c->dt,
                                               .root = c->root,
                                               .reduction = c->reduction,
                                               .enqueues = t->enqueues,
                                               .count = t->count,
                                               .sequence = t->sequence,
                                               .send = c->send,
                                               .recv = c->recv,
                                               .owner = t};
    if (t->windows) fill_window(t, &p);
    if (mark_point(t, c->primitive, HUB_READY) != 0) return hub_fail_and_abort(t, t->impl.error);
    if (hub_barrier_first(t, c->primitive) != 0) return -1;
    int rc = check_signatures(t);
    bool agreed = rc == 0;
    if (agreed && !t->team->probed) rc = probe_access(t, c->primitive);
    if (rc == 0) rc = load_pieces(t, &p);
    // If peers load from a window, this rank need not wait for them.
    if (!t->windows || (!agreed && !t->hub->processes)) rc = finish_operation(t, c->primitive, rc);
    atomic_fetch_add(&mine->left, 1);
    if (rc != 0) hub_abort(t->hub, t->impl.error);
    return rc;
}

// ---------------------------------------------------------------- send and recv
// The receiver loads from the sender's buffer, or chunk by chunk from the halves of its window:
//
//     sender     | fill 0, fill 1 | FULL |          | fill 2 |    | fill 3 | ..  | until TAKEN | EMPTY
//     receiver                    | READING | take 0 |    | take 1 |          ..  | TAKEN
struct message_wait {
    const struct hub_message *message;
    uint32_t state;
    int to;
};

static bool message_is(const void *arg) {
    const struct message_wait *w = arg;
    return atomic_load(&w->message->state) == w->state && w->message->to == w->to;
}

static bool message_is_not(const void *arg) {
    const struct message_wait *w = arg;
    return atomic_load(&w->message->state) != w->state;
}

struct chunks_wait {
    const _Atomic uint64_t *chunks;
    uint64_t least;
};

static bool chunks_have_moved(const void *arg) {
    const struct chunks_wait *w = arg;
    return atomic_load(w->chunks) >= w->least;
}

static void set_message(struct collective_hub *t, struct hub_message *m, enum message_state state) {
    atomic_store(&m->state, state);
    hub_wake(t->hub, &m->futex);
}

// Chunk k of a message: its offset and length in bytes, and its half of the sender's window.
struct message_chunk {
    size_t at, bytes;
    char *window;
};

static struct message_chunk message_chunk(const struct collective_hub *t, int sender, size_t bytes,
                                          uint64_t k) {
    size_t half = t->hub->window_bytes / 2, at = (size_t)k * half, left = bytes - at;
    char *window = hub_window(t->hub, sender, t->impl.channel, HUB_WINDOW_MESSAGE) + (k & 1) * half;
    return (struct message_chunk){at, left < half ? left : half, window};
}

static uint64_t message_chunks(const struct collective_hub *t, size_t bytes) {
    size_t half = t->hub->window_bytes / 2;
    return t->hub->processes ? (bytes + half - 1) / half : 0;
}

// Returns when the receiver has loaded the bytes, or has enqueued the load, for which later work here then waits.
static int run_send(struct collective_hub *t, const struct collective_call *c) {
    int rank = t->impl.head.rank;
    struct hub_message *m = &hub_channel(t->hub, rank, t->impl.channel)->message;
    size_t bytes = c->count * dtype_size(c->dt);
    if (mark_point(t, c->primitive, HUB_READY) != 0) return hub_fail_and_abort(t, t->impl.error);
    m->to = c->peer;
    m->count = c->count;
    m->dt = c->dt;
    m->enqueues = t->enqueues;
    m->failed = false;
    m->send = c->send;
    m->sender = t;
    atomic_store(&m->sent, 0);
    atomic_store(&m->taken, 0);
    for (uint64_t k = 0, n = message_chunks(t, bytes); k < n || (k == 0 && n == 0); k++) {
        struct message_chunk chunk = message_chunk(t, rank, bytes, k);
        struct chunks_wait free_again = {&m->taken, k - 1};
        if (k > 1 && hub_wait_for(t, &m->futex, chunks_have_moved, &free_again, c->primitive, c->peer))
            return -1;
        if (n) memcpy(chunk.window, (const char *)c->send + chunk.at, chunk.bytes);
        atomic_store(&m->sent, k + 1);
        if (k == 0)
            set_message(t, m, MESSAGE_FULL);
        else
            hub_wake(t->hub, &m->futex);
    }
    struct message_wait taken = {m, MESSAGE_TAKEN, c->peer};
    int rc = hub_wait_for(t, &m->futex, message_is, &taken, c->primitive, c->peer);
    uint32_t full = MESSAGE_FULL;
    if (rc != 0 && (t->hub->processes || atomic_compare_exchange_strong(&m->state, &full, MESSAGE_EMPTY)))
        return -1;
    // The receiver is loading. This wait has no deadline: loading only copies memory, and ends soon.
    if (rc != 0) hub_wait_on(t, &m->futex, message_is, &taken);
    bool failed = m->failed;
    if (!failed && t->enqueues) stream_wait_event(t->stream, m->receiver->points[HUB_DONE]);
    set_message(t, m, MESSAGE_EMPTY);
    if (failed) return collective_impl_fail_aborted(&t->impl, collective_name(c->primitive));
    if (rc == 0) collective_count_peer(&t->impl.head, c->peer, bytes, 0);
    return rc;
}

// Loads the bytes of a message. Its sender waits until they are loaded.
static int receive_message(struct collective_hub *t, struct hub_message *m, const struct collective_call *c) {
    size_t bytes = c->count * dtype_size(c->dt);
    if (t->enqueues) stream_wait_event(t->stream, m->sender->points[HUB_READY]);
    if (!t->hub->processes) load(t, c->recv, m->send, bytes);
    for (uint64_t k = 0; k < message_chunks(t, bytes); k++) {
        struct message_chunk chunk = message_chunk(t, c->peer, bytes, k);
        struct chunks_wait filled = {&m->sent, k + 1};
        if (hub_wait_for(t, &m->futex, chunks_have_moved, &filled, c->primitive, c->peer)) return -1;
        memcpy((char *)c->recv + chunk.at, chunk.window, chunk.bytes);
        atomic_store(&m->taken, k + 1);
        hub_wake(t->hub, &m->futex);
    }
    collective_count_peer(&t->impl.head, c->peer, 0, bytes);
    int rc = finish(t, c->primitive, HUB_DONE, 0);
    m->receiver = t;
    m->failed = rc != 0;
    if (rc != 0) hub_abort(t->hub, t->impl.error);
    set_message(t, m, MESSAGE_TAKEN);
    // Waits until the sender follows this rank's point; after that the point may be marked again.
    struct message_wait taken = {m, MESSAGE_TAKEN, 0};
    if (t->enqueues) hub_wait_on(t, &m->futex, message_is_not, &taken);
    return rc;
}

static int run_recv(struct collective_hub *t, const struct collective_call *c) {
    int rank = t->impl.head.rank;
    struct hub_message *m = &hub_channel(t->hub, c->peer, t->impl.channel)->message;
    struct message_wait full = {m, MESSAGE_FULL, rank};
    uint32_t state = MESSAGE_FULL;
    do {
        if (hub_wait_for(t, &m->futex, message_is, &full, c->primitive, c->peer)) return -1;
    } while (!atomic_compare_exchange_strong(&m->state, &state, MESSAGE_READING) && (state = MESSAGE_FULL));
    const char *differs = NULL;
    if (m->count != c->count || m->dt != c->dt) differs = "";
    if (m->enqueues != t->enqueues) differs = ", one of them in device memory";
    if (!differs) return receive_message(t, m, c);
    char text[COLLECTIVE_ERROR_BYTES];
    snprintf(text, sizeof text, "channel %d: rank %d sends %zu %s, but rank %d receives %zu %s%s",
             t->impl.channel, c->peer, m->count, dtype_name(m->dt), rank, c->count, dtype_name(c->dt),
             differs);
    set_message(t, m, MESSAGE_FULL);
    return hub_fail_and_abort(t, text);
}

// ---------------------------------------------------------------- calls
static void select_team(struct collective_hub *t, const struct collective_call *call) {
    struct collective_team team = collective_team_of(call, t->hub->size);
    int i = 0;
    while (i + 1 < HUB_TEAMS && memcmp(&t->teams[i].ranks, &team, sizeof team) != 0) i++;
    assert(t->teams[i].barrier && "a team that its collective was created without");
    t->team_kind = i;
    t->team = &t->teams[i];
    t->rank = t->team->rank;
    t->size = team.count;
}

// With groups each rank has two more teams: its own group, and the ranks with its index in the other groups. A team's
// barrier is its first member's.
static void open_teams(struct collective_hub *t) {
    int group = t->impl.head.group, rank = t->impl.head.rank, size = t->hub->size;
    struct collective_team teams[HUB_TEAMS] = {
        {0, 1, size}, collective_within(rank, group), collective_across(rank, size, group)};
    for (int i = 0; i < (collective_is_grouped(group, size) ? HUB_TEAMS : 1); i++)
        t->teams[i] = (struct hub_team){
            .barrier = &hub_channel(t->hub, teams[i].first, t->impl.channel)->slots[i].barrier,
            .ranks = teams[i],
            .rank = collective_member_of(teams[i], rank)};
}

// Returns the blocks in a sender's buffer.
static size_t blocks_of(const struct collective_hub *t, const struct collective_call *c) {
    return collective_rows[c->primitive].n_sent ? (size_t)t->size : 1;
}

// Runs a call on host memory, or between threads.
static int run_call(struct collective_impl *impl, const struct collective_call *c) {
    struct collective_hub *t = (struct collective_hub *)impl;
    size_t e = dtype_size(c->dt), most = t->hub->window_bytes / e / blocks_of(t, c), done = 0, n;
    int rc = 0;
    const struct collective_row *row = &collective_rows[c->primitive];
    bool large = blocks_of(t, c) * c->count * e > DIRECT_LEAST;
    t->count = c->count;
    t->sequence++;
    t->windows = t->hub->processes ? !(t->team->direct && large && row->result == RESULT_MOVED)
                                   : !t->enqueues && !c->stride && c->count <= most;
    if (!t->windows || !t->hub->processes) return run_operation(t, c);
    do {
        struct collective_call chunk = *c;
        chunk.count = n = c->count - done < most ? c->count - done : most;
        chunk.stride = c->stride ? c->stride : c->count;
        chunk.send = c->send ? (const char *)c->send + done * e : NULL;
        chunk.recv = c->recv ? (char *)c->recv + done * e : NULL;
        rc = run_operation(t, &chunk);
        done += n;
    } while (rc == 0 && done < c->count);
    return rc;
}

// collective_impl.run: between threads on any memory, between processes on host memory.
static int hub_run_call(struct collective_impl *impl, const struct collective_call *c,
                        const struct collective_room *staging) {
    struct collective_hub *t = (struct collective_hub *)impl;
    (void)staging;
    impl->head.method = "memory";
    select_team(t, c);
    if (open_moves(t, c->stream) != 0) return hub_fail_and_abort(t, impl->error);
    if (c->primitive == COLLECTIVE_SEND) return run_send(t, c);
    if (c->primitive == COLLECTIVE_RECV) return run_recv(t, c);
    int rc = run_call(impl, c);
    struct collective_plan p = collective_plan_of(c, impl->head.rank, t->hub->size);
    for (int i = 0; i < t->size && rc == 0; i++) {
        struct collective_volume v = collective_volume_with(&p, i);
        collective_count_peer(&impl->head, collective_member(t->team->ranks, i), v.sent, v.received);
    }
    return rc;
}

// ---------------------------------------------------------------- the table
static void abort_hub(struct collective *c, const char *why) {
    hub_abort(((struct collective_hub *)c)->hub, why);
}

static void destroy(struct collective *c) {
    struct collective_hub *t = (struct collective_hub *)c;
    close_moves(t);
    collective_impl_fini(&t->impl);
    free(t->inputs);
    free(t);
}

static const struct collective_ops threads_ops = {
    .name = "local", .enqueue = collective_impl_enqueue, .abort = abort_hub, .destroy = destroy};
static const struct collective_ops shm_ops = {
    .name = "shm", .enqueue = collective_impl_enqueue, .abort = abort_hub, .destroy = destroy};

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    struct hub *h = world;
    const struct collective_ops *ops = h->processes ? &shm_ops : &threads_ops;
    if (rank < 0 || rank >= h->size || channel < 0 || channel >= COLLECTIVE_CHANNELS) {
        fail("%s collectives: rank %d, channel %d: there are %d ranks and %d channels", ops->name, rank,
             channel, h->size, COLLECTIVE_CHANNELS);
        return NULL;
    }
    struct collective_hub *t = xcalloc(1, sizeof *t);
    t->impl.channel = channel;
    t->impl.lives = h->lives;
    t->impl.run = hub_run_call;
    t->impl.on_host = h->processes;
    t->hub = h;
    if (collective_impl_init(&t->impl, ops, rank, h->size, o)) {
        free(t);
        return NULL;
    }
    if (!t->impl.host.at) t->impl.enqueue = stream_submit;
    open_teams(t);
    t->inputs = xcalloc((unsigned long)h->size, sizeof *t->inputs);
    return &t->impl.head;
}

const struct collective_kind collective_threads_kind = {.name = "local", .create = create};
const struct collective_kind collective_shm_kind = {.name = "shm", .create = create, .on_host = true};
