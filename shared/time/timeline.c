// All data is in ring buffers:
//
//     busy, blocks, reads   spans, in the order in which they were recorded
//     transfers, marks      at index id % room; ids count from 1
//     steps                 at index number % STEPS
#include "shared/time/timeline.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"

#define STEPS        (TIMELINE_LATE + TIMELINE_KEPT + 1)  // kept at once
#define STREAMS      4                                    // compute and the watched ones
#define SPANS        65536                                // busy spans of STEPS steps, at most
#define LOG          8192                                 // spans of a stream between two readings, at most
#define TAKEN        256                                  // spans read from a stream at once
#define GATES        3                                    // marks that a transfer may wait for
#define STOPS        64  // stalls of this process in a step: the longest are used
#define ROOM_MAX     ((int64_t)1 << 18)
#define RECORD_BYTES 352  // of one entry in each of the arrays, at most

// The tag of a span that a stream records is id * TAGS + one of these. The id is a mark's for TAG_MARK, else a transfer's.
enum tag { TAG_TRANSFER, TAG_MARK, TAG_FIRST_BYTE, TAG_DONE, TAGS };

struct record {
    struct transfer_times t;
    uint64_t gates[GATES];  // marks; 0: none
    int last;               // the rank that was ready last, as far as known; -1: unknown
};

struct step {
    int64_t step, begin, end;  // end 0: it has not ended
    uint64_t busy, blocks,
        reads;           // the number of the first span of each ring that was recorded after its begin
    uint64_t asked;      // the id of the first transfer that was asked for after its begin
    uint64_t transfers;  // the id of the first transfer that it may wait for
};

static_assert(4 * sizeof(struct span) + sizeof(struct split_block) + sizeof(struct record) +
                      sizeof(int64_t) <=
                  RECORD_BYTES,
              "one entry in each of timeline's arrays");

struct stamp_ring {
    int64_t *ns;  // (room)
    uint64_t next;
};

struct timeline {
    pthread_mutex_t lock;  // guards all fields below, except those that are constant
    struct stream *streams[STREAMS];
    int stream_count;
    bool ended;
    const struct layout *layout;
    size_t room;  // of transfers, blocks, reads and marks
    struct spans busy, blocks, reads;
    struct record *transfers;
    struct stamp_ring marks;
    uint64_t next_transfer;
    struct step steps[STEPS];
    uint64_t begun, split;  // steps
    struct time_split sum;
    struct gaps gaps;
    uint64_t lost;
    struct timeline_clock clock;
    struct stall_watch *watch;
    // Buffers for the input of time_split_of.
    struct span *step_busy, *step_moves, *step_data;
    struct split_block *step_blocked;
    struct span taken[TAKEN];
};

const char *transfer_kind_name(enum transfer_kind k) {
    static const char *const names[TRANSFER_KINDS] = {"weights", "gradients", "control"};
    return names[k];
}

// ---------------------------------------------------------------- memory
static size_t room_of(const struct layout *l, int64_t micro_batches) {
    int64_t micro = micro_batches > 0 ? micro_batches : 1;
    // Per unit at most: two gathers of weights and a reduction for each micro-batch, and a gather after them.
    int64_t most = size_times(STEPS, size_plus(size_times(l->count, 3 * micro + 2), 16));
    return (size_t)(most < ROOM_MAX ? most : ROOM_MAX);
}

size_t timeline_bytes(const struct layout *l, int64_t micro_batches) {
    return room_of(l, micro_batches) * RECORD_BYTES;
}

int gaps_open(struct gaps *g, int ranks, bool traced) {
    *g = (struct gaps){.ranks = ranks, .waited = xcalloc((unsigned long)ranks + 1, sizeof *g->waited)};
    if (spans_open(&g->exposed, GAPS_KEPT, SPANS_LONGEST) ||
        spans_open(&g->waits, GAPS_KEPT, SPANS_LONGEST) ||
        (traced && spans_open(&g->all, GAPS_TRACED, SPANS_FIRST)))
        return fail("out of memory for the record of gaps in computing: free memory on this host%s",
                    traced ? ", or run without a trace" : "");
    return 0;
}

void gaps_close(struct gaps *g) {
    spans_close(&g->exposed);
    spans_close(&g->waits);
    spans_close(&g->all);
    free(g->waited);
}

void gaps_add(struct gaps *g, const struct span *one) {
    bool wait = one->kind == SPAN_WAIT, named = wait && one->peer >= 0 && one->peer < g->ranks;
    bool longer = span_length(one) >= GAPS_LEAST_NS;
    if (named) g->waited[one->peer] += (double)span_length(one) * 1e-9;
    if (named && longer) spans_add(&g->waits, one);
    if (!wait && longer) spans_add(&g->exposed, one);
    if (g->all.ring) spans_add(&g->all, one);
}

struct timeline *timeline_create(const struct timeline_options *o) {
    struct timeline *tl = xcalloc(1, sizeof *tl);
    size_t room = tl->room = room_of(o->layout, o->micro_batches);
    tl->layout = o->layout;
    tl->watch = o->watch;
    tl->step_busy = xcalloc(SPANS, sizeof *tl->step_busy);
    tl->step_data = xcalloc(room, sizeof *tl->step_data);
    tl->step_blocked = xcalloc(room, sizeof *tl->step_blocked);
    tl->transfers = xcalloc(room, sizeof *tl->transfers);
    tl->step_moves = xcalloc(room, sizeof *tl->step_moves);
    tl->marks.ns = xcalloc(room, sizeof *tl->marks.ns);
    tl->next_transfer = tl->marks.next = 1;
    pthread_mutex_init(&tl->lock, NULL);
    int rc = gaps_open(&tl->gaps, o->ranks, o->traced);
    if (!rc && (spans_open(&tl->busy, SPANS, SPANS_LAST) || spans_open(&tl->blocks, room, SPANS_LAST) ||
                spans_open(&tl->reads, room, SPANS_LAST)))
        rc = fail("out of memory for the record of where a step's time goes: free memory on this host");
    if (rc || timeline_watch(tl, o->compute)) timeline_destroy(&tl);
    return tl;
}

void timeline_destroy(struct timeline **timeline) {
    struct timeline *tl = *timeline;
    if (!tl) return;
    spans_close(&tl->busy);
    spans_close(&tl->blocks);
    spans_close(&tl->reads);
    free(tl->step_busy);
    free(tl->step_data);
    free(tl->step_blocked);
    free(tl->transfers);
    free(tl->step_moves);
    free(tl->marks.ns);
    gaps_close(&tl->gaps);
    pthread_mutex_destroy(&tl->lock);
    free(tl);
    *timeline = NULL;
}

int timeline_watch(struct timeline *tl, struct stream *s) {
    if (!tl) return 0;
    if (tl->stream_count == STREAMS) return fail("a timeline watches at most %d streams", STREAMS);
    // The compute stream records its operations; the other streams record only stamps.
    if (stream_log(s, LOG, tl->stream_count > 0))
        return fail("cannot record the times of a stream: %s", dev_error(stream_device(s)));
    pthread_mutex_lock(&tl->lock);
    tl->streams[tl->stream_count++] = s;
    pthread_mutex_unlock(&tl->lock);
    return 0;
}

void timeline_watch_thread(struct timeline *tl, pid_t tid) {
    if (tl) stall_watch_thread(tl->watch, tl, tid);
}

// ---------------------------------------------------------------- records, with the lock held
static bool is_kept(const struct timeline *tl, uint64_t id, uint64_t next) {
    return id > 0 && id < next && id + tl->room >= next;
}

static struct record *record_of(struct timeline *tl, uint64_t id) {
    return is_kept(tl, id, tl->next_transfer) ? &tl->transfers[id % tl->room] : NULL;
}

static void keep_latest(int64_t *at, int64_t ns) {
    if (ns > *at) *at = ns;
}

static void note_done(struct timeline *tl, uint64_t id, int64_t ns) {
    struct record *r = record_of(tl, id);
    if (r) keep_latest(&r->t.done, ns);
}

static void note_first_byte(struct timeline *tl, uint64_t id, int64_t ns) {
    struct record *r = record_of(tl, id);
    if (!r) return;
    if (ns < r->t.asked)
        ns = r->t.asked;  // a stamp has the end of the operation before it: earlier if the link was idle
    if (!r->t.first_byte || ns < r->t.first_byte) r->t.first_byte = ns;
}

static void note_block(struct timeline *tl, uint64_t id, int64_t begin, int64_t end) {
    if (record_of(tl, id) && end > begin)
        spans_add(&tl->blocks, &(struct span){.begin = begin, .end = end, .id = id, .kind = SPAN_BLOCKED});
}

static void note_span(struct timeline *tl, const struct span *s) {
    uint64_t number = s->id / TAGS, tag = s->id % TAGS;
    if (s->kind == SPAN_BUSY)
        spans_add(&tl->busy, s);
    else if (s->kind == SPAN_BLOCKED && tag == TAG_TRANSFER)
        note_block(tl, number, s->begin, s->end);
    else if (s->kind == SPAN_STAMP && tag == TAG_MARK)
        tl->marks.ns[number % tl->room] = s->begin;
    else if (s->kind == SPAN_STAMP && tag == TAG_FIRST_BYTE)
        note_first_byte(tl, number, s->begin);
    else if (s->kind == SPAN_STAMP && tag == TAG_DONE)
        note_done(tl, number, s->begin);
}

// Reads what the streams have recorded so far.
static void read_streams(struct timeline *tl) {
    for (int s = 0; s < tl->stream_count && !tl->ended; s++) {
        size_t n;
        uint64_t lost = 0;
        do {
            n = stream_take_log(tl->streams[s], tl->taken, TAKEN, &lost);
            for (size_t i = 0; i < n; i++) note_span(tl, &tl->taken[i]);
            tl->lost += lost;
        } while (n == TAKEN);
    }
}

// Returns own_ready as noted so far; with marks, it is not before the time at which compute passed the last of them. 0: unknown.
static int64_t ready_of(const struct timeline *tl, const struct record *r) {
    int64_t at = r->t.own_ready;
    bool gated = false;
    for (size_t i = 0; i < GATES; i++) {
        if (!r->gates[i]) continue;
        bool kept = is_kept(tl, r->gates[i], tl->marks.next);
        int64_t ns = kept ? tl->marks.ns[r->gates[i] % tl->room] : 0;
        if (!ns) return 0;
        gated = true;
        keep_latest(&at, ns);
    }
    if (gated) keep_latest(&at, r->t.asked);
    return at;
}

static struct transfer_times times_of(const struct timeline *tl, const struct record *r) {
    struct transfer_times t = r->t;
    t.own_ready = ready_of(tl, r);
    if (t.peers_ready) keep_latest(&t.peers_ready, t.own_ready);
    return t;
}

// ---------------------------------------------------------------- the end of a step, with the lock held
// Returns `from`, or the oldest number in a ring of `room` entries if `from` has been overwritten.
static uint64_t oldest(uint64_t from, uint64_t next, size_t room) {
    return next > room && from < next - room ? next - room : from;
}

static size_t spans_within(const struct spans *all, uint64_t from, const struct step *s, struct span *out) {
    size_t n = 0;
    for (uint64_t i = oldest(from, all->next, all->room); i < all->next; i++) {
        const struct span *one = &all->ring[i % all->room];
        if (one->end > s->begin && one->begin < s->end) out[n++] = *one;
    }
    return n;
}

static size_t blocks_within(struct timeline *tl, const struct step *s, struct split_block *out) {
    size_t n = 0;
    for (uint64_t i = oldest(s->blocks, tl->blocks.next, tl->room); i < tl->blocks.next; i++) {
        const struct span *b = &tl->blocks.ring[i % tl->room];
        const struct record *r = record_of(tl, b->id);
        if (!r || b->end <= s->begin || b->begin >= s->end) continue;
        struct transfer_times t = times_of(tl, r);
        out[n++] = (struct split_block){b->begin, b->end, t.own_ready, t.peers_ready, b->id, r->last};
    }
    return n;
}

static size_t moves_within(struct timeline *tl, const struct step *s, struct span *out) {
    size_t n = 0;
    for (uint64_t i = oldest(s->transfers, tl->next_transfer, tl->room); i < tl->next_transfer; i++) {
        struct transfer_times t = times_of(tl, &tl->transfers[i % tl->room]);
        int64_t begin = t.peers_ready ? t.peers_ready : t.own_ready;
        if (!begin || t.done <= s->begin || begin >= s->end) continue;
        out[n++] = (struct span){.begin = begin, .end = t.done, .phase = PHASE_COMM};
    }
    return n;
}

// Removes the stalls of the process from the busy spans: a stopped process computes nothing.
static size_t cut_stops(struct timeline *tl, const struct step *s, struct span *busy, size_t n) {
    struct span stops[STOPS];
    size_t count = stall_list(tl->watch, STALL_PROCESS, tl, s->begin, stops, STOPS);
    for (size_t k = 0; k < count; k++)
        for (size_t i = 0, spans = n; i < spans; i++) {
            struct span *b = &busy[i], rest = *b;
            if (stops[k].begin >= b->end || stops[k].end <= b->begin) continue;
            b->end = stops[k].begin;
            rest.begin = stops[k].end;
            if (rest.end > rest.begin && n < SPANS) busy[n++] = rest;
        }
    return n;
}

// Returns the gap with the kind and unit of the transfer that blocked compute.
static struct span named_gap(struct timeline *tl, const struct span *gap) {
    const struct record *r = record_of(tl, gap->id);
    struct span one = *gap;
    int unit = r ? r->t.what.unit : -1;
    one.part = r ? r->t.what.kind : TRANSFER_WEIGHTS;
    if (unit >= 0 && unit < layout_units(tl->layout)) one.name = tl->layout->units[unit].name;
    return one;
}

static void add_gap(void *ctx, const struct span *gap) {
    struct timeline *tl = ctx;
    struct span one = named_gap(tl, gap);
    gaps_add(&tl->gaps, &one);
}

static void split_step(struct timeline *tl, const struct step *s,
                       void (*gap)(void *ctx, const struct span *g), void *ctx, struct time_split *out) {
    struct split_input in = {.begin = s->begin,
                             .end = s->end,
                             .busy = tl->step_busy,
                             .blocked = tl->step_blocked,
                             .moves = tl->step_moves,
                             .data = tl->step_data,
                             .gap = gap,
                             .ctx = ctx};
    in.busy_count = cut_stops(tl, s, tl->step_busy, spans_within(&tl->busy, s->busy, s, tl->step_busy));
    in.data_count = spans_within(&tl->reads, s->reads, s, tl->step_data);
    in.blocked_count = blocks_within(tl, s, tl->step_blocked);
    in.move_count = moves_within(tl, s, tl->step_moves);
    time_split_of(&in, out);
}

static void split_next(struct timeline *tl) {
    struct time_split one;
    split_step(tl, &tl->steps[tl->split++ % STEPS], add_gap, tl, &one);
    time_split_add(&tl->sum, &one);
}

static void end_step(struct timeline *tl, int64_t now) {
    struct step *s = tl->begun ? &tl->steps[(tl->begun - 1) % STEPS] : NULL;
    if (s && !s->end) s->end = now;
}

void timeline_step_at(struct timeline *tl, int64_t step, int64_t now) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    read_streams(tl);
    end_step(tl, now);
    if (tl->begun - tl->split >= TIMELINE_LATE) split_next(tl);
    // This step may also wait for transfers of the last TIMELINE_LATE steps.
    uint64_t back = tl->begun < TIMELINE_LATE ? tl->begun : TIMELINE_LATE;
    uint64_t first = back ? tl->steps[(tl->begun - back) % STEPS].asked : tl->next_transfer;
    tl->steps[tl->begun % STEPS] = (struct step){.step = step,
                                                 .begin = now,
                                                 .busy = tl->busy.next,
                                                 .blocks = tl->blocks.next,
                                                 .reads = tl->reads.next,
                                                 .asked = tl->next_transfer,
                                                 .transfers = first};
    tl->begun++;
    pthread_mutex_unlock(&tl->lock);
}

void timeline_pause_at(struct timeline *tl, int64_t now) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    end_step(tl, now);
    pthread_mutex_unlock(&tl->lock);
}

void timeline_end(struct timeline *tl) {
    if (!tl) return;
    int64_t now = now_ns();
    pthread_mutex_lock(&tl->lock);
    read_streams(tl);
    end_step(tl, now);
    while (tl->split < tl->begun) split_next(tl);
    tl->ended = true;
    pthread_mutex_unlock(&tl->lock);
}

void timeline_data(struct timeline *tl, int64_t begin_ns, int64_t end_ns) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    spans_add(&tl->reads, &(struct span){.begin = begin_ns, .end = end_ns, .phase = PHASE_DATA});
    pthread_mutex_unlock(&tl->lock);
}

// ---------------------------------------------------------------- transfers
uint64_t timeline_ask(struct timeline *tl, const struct transfer *t) {
    if (!tl) return 0;
    int64_t now = now_ns();
    pthread_mutex_lock(&tl->lock);
    uint64_t id = tl->next_transfer++;
    tl->transfers[id % tl->room] = (struct record){.t = {.what = *t, .id = id, .asked = now}, .last = -1};
    pthread_mutex_unlock(&tl->lock);
    return id;
}

void timeline_own_ready(struct timeline *tl, uint64_t id, int64_t ns) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    struct record *r = record_of(tl, id);
    if (r) keep_latest(&r->t.own_ready, ns);
    pthread_mutex_unlock(&tl->lock);
}

void timeline_peers_ready(struct timeline *tl, uint64_t id, int64_t ns, int peer) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    struct record *r = record_of(tl, id);
    if (r && ns > r->t.peers_ready) r->last = peer;
    if (r) keep_latest(&r->t.peers_ready, ns);
    pthread_mutex_unlock(&tl->lock);
}

void timeline_first_byte(struct timeline *tl, uint64_t id, int64_t ns) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    note_first_byte(tl, id, ns);
    pthread_mutex_unlock(&tl->lock);
}

void timeline_done(struct timeline *tl, uint64_t id, int64_t ns) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    note_done(tl, id, ns);
    pthread_mutex_unlock(&tl->lock);
}

void timeline_blocked(struct timeline *tl, uint64_t id, int64_t begin_ns, int64_t end_ns) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    note_block(tl, id, begin_ns, end_ns);
    pthread_mutex_unlock(&tl->lock);
}

// ---------------------------------------------------------------- what streams record themselves
uint64_t timeline_mark(struct timeline *tl) {
    if (!tl) return 0;
    pthread_mutex_lock(&tl->lock);
    uint64_t mark = tl->marks.next++;
    tl->marks.ns[mark % tl->room] = 0;
    pthread_mutex_unlock(&tl->lock);
    stream_stamp(tl->streams[0], mark * TAGS + TAG_MARK);
    return mark;
}

void timeline_ready_at_mark(struct timeline *tl, uint64_t id, uint64_t mark) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    struct record *r = record_of(tl, id);
    for (size_t i = 0; r && i < GATES; i++) {
        if (r->gates[i] && r->gates[i] != mark) continue;
        r->gates[i] = mark;
        break;
    }
    if (r) keep_latest(&r->t.own_ready, r->t.asked);
    pthread_mutex_unlock(&tl->lock);
}

void timeline_stamp(struct timeline *tl, struct stream *s, uint64_t id, enum timeline_stamp what) {
    if (tl && id) stream_stamp(s, id * TAGS + (what == TIMELINE_DONE ? TAG_DONE : TAG_FIRST_BYTE));
}

void timeline_wait(struct timeline *tl, struct stream *compute, struct event *e, uint64_t id) {
    stream_wait_tagged(compute, e, tl ? id * TAGS + TAG_TRANSFER : 0);
}

// ---------------------------------------------------------------- results
int64_t timeline_ready(struct timeline *tl, uint64_t id) {
    if (!tl) return 0;
    pthread_mutex_lock(&tl->lock);
    read_streams(tl);
    const struct record *r = record_of(tl, id);
    int64_t at = r ? ready_of(tl, r) : 0;
    pthread_mutex_unlock(&tl->lock);
    return at;
}

int64_t timeline_split(struct timeline *tl, struct time_split *sum) {
    *sum = (struct time_split){0};
    if (!tl) return 0;
    pthread_mutex_lock(&tl->lock);
    *sum = tl->sum;
    int64_t steps = (int64_t)tl->split;
    pthread_mutex_unlock(&tl->lock);
    return steps;
}

const struct gaps *timeline_gaps(const struct timeline *tl) { return &tl->gaps; }

const struct layout *timeline_layout(const struct timeline *tl) { return tl->layout; }

void timeline_set_clock(struct timeline *tl, struct timeline_clock clock) {
    if (!tl) return;
    pthread_mutex_lock(&tl->lock);
    tl->clock = clock;
    pthread_mutex_unlock(&tl->lock);
}

struct timeline_clock timeline_clock(struct timeline *tl) {
    if (!tl) return (struct timeline_clock){0};
    pthread_mutex_lock(&tl->lock);
    struct timeline_clock clock = tl->clock;
    pthread_mutex_unlock(&tl->lock);
    return clock;
}

uint64_t timeline_lost(struct timeline *tl) {
    if (!tl) return 0;
    pthread_mutex_lock(&tl->lock);
    uint64_t lost = tl->lost;
    pthread_mutex_unlock(&tl->lock);
    return lost;
}

struct viewing {
    struct timeline *tl;
    struct timeline_view *v;
};

static void view_gap(void *ctx, const struct span *gap) {
    const struct viewing *x = ctx;
    struct timeline_view *v = x->v;
    v->gaps = xrealloc(v->gaps, (v->gap_count + 1) * sizeof *v->gaps);
    v->gaps[v->gap_count++] = named_gap(x->tl, gap);
}

bool timeline_view(struct timeline *tl, int back, struct timeline_view *out) {
    *out = (struct timeline_view){0};
    if (!tl || back < 0 || back >= TIMELINE_KEPT || (uint64_t)back >= tl->begun) return false;
    const struct step *s = &tl->steps[(tl->begun - 1 - (uint64_t)back) % STEPS];
    *out = (struct timeline_view){.step = s->step,
                                  .begin = s->begin,
                                  .end = s->end,
                                  .compute = xcalloc(SPANS, sizeof *out->compute),
                                  .transfers = xcalloc(tl->room, sizeof *out->transfers)};
    out->compute_count = spans_within(&tl->busy, s->busy, s, out->compute);
    for (uint64_t i = oldest(s->transfers, tl->next_transfer, tl->room); i < tl->next_transfer; i++) {
        struct transfer_times t = times_of(tl, &tl->transfers[i % tl->room]);
        if (t.asked < s->end && (i >= s->asked || t.done > s->begin))
            out->transfers[out->transfer_count++] = t;
    }
    struct time_split unused;
    split_step(tl, s, view_gap, &(struct viewing){tl, out}, &unused);
    return true;
}

void timeline_view_free(struct timeline_view *v) {
    free(v->compute);
    free(v->transfers);
    free(v->gaps);
    *v = (struct timeline_view){0};
}
