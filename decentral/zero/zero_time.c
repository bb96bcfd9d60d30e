// The ring's transfers in the timeline, and how the ranks exchange when each was ready for a transfer.
//
// Every rank enqueues the same collectives in the same order, so the k-th transfer of an interval is the same one on every
// rank. An interval is the list of transfers that are enqueued between two decisions. Its ready times are words of a later
// decision's exchange, so they need no collective of their own:
//
//     step       | 1 .. decision | 2 .. decision | 3 .. decision |
//     interval            a      |       b       |       c
//     its times:  this rank's own are known      | sent, and read at the end of step 3    (of interval a)
//
// After the last step the times of the last two intervals are exchanged separately.
//
// Own ready   The host has enqueued the collective, and the compute stream has passed the events that it waits for.
//             Earlier collectives of the channel do not count: waiting for them is communication.
//             So a gather of what was reduced on the same channel is ready when its gradient was.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"
#include "shared/time/clock.h"

#define CLOCK_EXCHANGES 16

// ---------------------------------------------------------------- words, and clocks
// A word holds the bits of an int64 count of nanoseconds; collectives do not change them.
static double to_word(int64_t ns) {
    double word;
    memcpy(&word, &ns, sizeof word);
    return word;
}

static int64_t from_word(double word) {
    int64_t ns;
    memcpy(&ns, &word, sizeof ns);
    return ns;
}

int zero_exchange(struct zero *z, int count) {
    int mine = count * z->base.rank;
    dev_copy(z->reduce_stream, z->shares + mine, z->host_shares + mine, (size_t)count * sizeof(double));
    collective_all_gather(z->control, z->reduce_stream, z->shares + mine, z->shares, (size_t)count, DT_F64);
    dev_copy(z->reduce_stream, z->host_shares, z->shares, (size_t)(count * z->base.size) * sizeof(double));
    return stream_sync(z->reduce_stream);
}

static int64_t own_clock(const struct zero *z) { return now_ns() + z->time.ahead_ns; }

// Measures the offset to rank 0's clock. Each exchange sends the times before and after the previous exchange.
static int measure_offset(struct zero *z, struct clock_offset *o) {
    struct clock_barrier own = {0}, last = {0};
    *o = clock_offset_unknown();
    for (int i = 0; i <= CLOCK_EXCHANGES; i++) {
        double *mine = z->host_shares + 2 * z->base.rank;
        mine[0] = to_word(own.before);
        mine[1] = to_word(own.after);
        last = own;
        own.before = own_clock(z);
        if (zero_exchange(z, 2)) return -1;
        own.after = own_clock(z);
        struct clock_barrier first = {from_word(z->host_shares[0]), from_word(z->host_shares[1])};
        if (i > 0) clock_offset_learn(o, last, first);
    }
    return 0;
}

// Called at the start and at the end of a run. Times in between use the first offset, so its change adds to the error.
static int align(struct zero *z) {
    struct zero_time *t = &z->time;
    const struct zero_clock *clock = z->opt.clock;
    struct clock_offset o;
    bool one = true, first = !t->aligned;
    t->aligned = true;
    t->ahead_ns = clock ? clock->ahead_ns : 0;
    z->host_shares[z->base.rank] = to_word((int64_t)(clock ? clock->host : clock_host()));
    if (zero_exchange(z, 1)) return -1;
    for (int r = 1; r < z->base.size; r++)
        one = one && from_word(z->host_shares[r]) == from_word(z->host_shares[0]);
    if (one) return 0;
    if (measure_offset(z, &o)) return -1;
    int64_t offset = clock_offset_ns(&o), moved = first ? 0 : llabs(offset - t->offset_ns);
    if (first) t->offset_ns = offset;
    if (clock_offset_error_ns(&o) + moved > t->error_ns) t->error_ns = clock_offset_error_ns(&o) + moved;
    timeline_set_clock(z->base.timeline, (struct timeline_clock){t->ahead_ns + t->offset_ns, t->error_ns});
    return 0;
}

// ---------------------------------------------------------------- open, close, watch
int zero_time_capacity(const struct zero *z) {
    const struct zero_policy *p = z->policy;
    int64_t units = z->opt.layout->count, micro = z->c->accumulation > 0 ? z->c->accumulation : 1;
    int64_t capacity = 2;  // transfers for control
    if (p->weights == RESIDENT_SHARD) capacity += (2 * units + 1) * micro;
    if (zero_shards_frozen(z)) capacity += (2 * z->opt.layout->rest->count + 1) * micro;
    if (p->gather_weights) capacity += units;
    capacity += p->grads == RESIDENT_SHARD ? units * micro : units;
    if (p->gather_grads) capacity += units;
    return (int)capacity;
}

void zero_time_open(struct zero *z) {
    z->time.capacity = zero_time_capacity(z);
    for (int i = 0; i < ZERO_INTERVALS; i++)
        z->time.ids[i] = xcalloc((unsigned long)z->time.capacity, sizeof *z->time.ids[i]);
}

void zero_time_close(struct zero *z) {
    for (int i = 0; i < ZERO_INTERVALS; i++) free(z->time.ids[i]);
}

static int record_thread(void *timeline) {
    timeline_watch_thread(timeline, gettid());
    return 0;
}

int zero_time_watch(struct zero *z) {
    struct timeline *tl = z->base.timeline;
    struct stream *const moves[] = {z->gather_stream, z->reduce_stream};
    if (z->time.watching || !tl) return 0;
    z->time.watching = true;
    for (int i = 0; i < 2; i++) {
        if (timeline_watch(tl, moves[i])) return -1;
        stream_host(moves[i], "takes part", record_thread, tl);
    }
    return align(z) ? fail("rank %d: the ranks' clocks: %s", z->base.rank, topology_why(&z->base)) : 0;
}

// ---------------------------------------------------------------- transfers
void zero_serialize_begin(struct zero *z, struct stream *s, uint64_t id) {
    if (!z->c->no_overlap) return;
    event_record(z->serialized.begun, z->opt.compute);
    if (id) timeline_ready_at_mark(z->base.timeline, id, timeline_mark(z->base.timeline));
    stream_wait_event(s, z->serialized.begun);
}

uint64_t zero_move_begin(struct zero *z, struct stream *s, const struct zero_move *m) {
    struct zero_time *t = &z->time;
    struct timeline *tl = z->base.timeline;
    uint64_t id = timeline_ask(tl, &(struct transfer){.kind = m->kind, .unit = m->unit, .bytes = m->bytes});
    zero_serialize_begin(z, s, id);
    if (!id) return 0;
    for (int i = 0; i < 2; i++) timeline_ready_at_mark(tl, id, m->after[i]);
    if (t->count[ZERO_INTERVAL_OPEN] < t->capacity)
        t->ids[ZERO_INTERVAL_OPEN][t->count[ZERO_INTERVAL_OPEN]++] = id;
    *(s == z->gather_stream ? &t->gathered : &t->reduced) = id;
    timeline_stamp(tl, s, id, TIMELINE_FIRST_BYTE);
    return id;
}

void zero_move_end(struct zero *z, struct stream *s, uint64_t id) {
    timeline_stamp(z->base.timeline, s, id, TIMELINE_DONE);
    if (!z->c->no_overlap) return;
    event_record(z->serialized.over, s);
    timeline_wait(z->base.timeline, z->opt.compute, z->serialized.over, id);
}

// ---------------------------------------------------------------- ready times
void zero_time_send(struct zero *z, double *words) {
    struct zero_time *t = &z->time;
    for (int i = 0; i < t->capacity; i++) {
        bool one = i < t->count[ZERO_INTERVAL_ENDED];
        int64_t ns = one ? timeline_ready(z->base.timeline, t->ids[ZERO_INTERVAL_ENDED][i]) : 0;
        words[i] = to_word(ns ? ns + t->ahead_ns + t->offset_ns : 0);
    }
    uint64_t *free_ids = t->ids[ZERO_INTERVAL_SENT];
    for (int r = ZERO_INTERVAL_SENT; r > 0; r--) {
        t->ids[r] = t->ids[r - 1];
        t->count[r] = t->count[r - 1];
    }
    t->ids[ZERO_INTERVAL_OPEN] = free_ids;
    t->count[ZERO_INTERVAL_OPEN] = 0;
}

// Returns the latest ready time of all ranks, and *rank receives that rank. Returns 0 if a rank does not know its time.
static int64_t last_ready(const struct zero *z, const double *words, int stride, int i, int *rank) {
    int64_t last = 0;
    *rank = -1;
    for (int r = 0; r < z->base.size; r++) {
        int64_t ns = from_word(words[(size_t)r * (size_t)stride + (size_t)i]);
        if (!ns) return 0;
        if (ns <= last) continue;
        last = ns;
        *rank = r;
    }
    return last - z->time.ahead_ns - z->time.offset_ns;
}

void zero_time_receive(struct zero *z, const double *words, int stride) {
    struct zero_time *t = &z->time;
    for (int i = 0; i < t->count[ZERO_INTERVAL_SENT]; i++) {
        int rank;
        int64_t ns = last_ready(z, words, stride, i, &rank);
        timeline_peers_ready(z->base.timeline, t->ids[ZERO_INTERVAL_SENT][i], ns, rank);
    }
    t->count[ZERO_INTERVAL_SENT] = 0;
}

int zero_time_finish(struct zero *z) {
    if (!z->base.timeline) return 0;
    for (int i = 0; i < 2; i++) {
        zero_time_send(z, z->host_shares + z->time.capacity * z->base.rank);
        if (zero_exchange(z, z->time.capacity)) return -1;
        zero_time_receive(z, z->host_shares, z->time.capacity);
    }
    return z->time.watching ? align(z) : 0;
}
