// The ring's part of the timeline: its collectives as transfers, and how the ranks tell each other when each was
// ready for one.
//
// Every rank enqueues the same collectives in the same order, so that the k-th transfer of a round is the same one
// everywhere. A round is what is asked for between two decisions; its ready times travel as words of a later
// decision's exchange, off everybody's way:
//
//     step       | 1 .. decision | 2 .. decision | 3 .. decision |
//     round               a      |       b       |       c
//     its times:  this rank's own are known      | travel, heard at the end of step 3     (of round a)
//
// Behind the last step the times of the last two rounds follow.
//
// Own ready   When the host has asked for the collective and the compute stream has passed the events that it
//             waits for. Earlier collectives of the channel do not count: waiting for them is communication.
//             So a gather of what was reduced on the same channel is ready when its gradient was.
#include <stdlib.h>
#include <string.h>

#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- life
int zero_time_room(const struct zero *z) {
    const struct zero_policy *p = z->policy;
    int64_t units = z->opt.layout->count, micro = z->opt.accumulation > 0 ? z->opt.accumulation : 1;
    int64_t room = 2;  // control
    if (p->weights == RESIDENT_SHARD) room += (2 * units + 1) * micro;
    if (p->gather_weights) room += units;
    room += p->grads == RESIDENT_SHARD ? units * micro : units;
    if (p->gather_grads) room += units;
    return (int)room;
}

void zero_time_open(struct zero *z) {
    z->time.room = zero_time_room(z);
    for (int i = 0; i < ZERO_ROUNDS; i++)
        z->time.ids[i] = xcalloc((unsigned long)z->time.room, sizeof *z->time.ids[i]);
}

void zero_time_close(struct zero *z) {
    for (int i = 0; i < ZERO_ROUNDS; i++) free(z->time.ids[i]);
}

int zero_time_watch(struct zero *z) {
    struct timeline *tl = z->base.timeline;
    if (z->time.watching || !tl) return 0;
    z->time.watching = true;
    return timeline_watch(tl, z->gather_stream) || timeline_watch(tl, z->reduce_stream) ? -1 : 0;
}

// ---------------------------------------------------------------- transfers
uint64_t zero_move_begin(struct zero *z, struct stream *s, const struct zero_move *m) {
    struct zero_time *t = &z->time;
    struct timeline *tl = z->base.timeline;
    uint64_t id = timeline_ask(tl, &(struct transfer){.kind = m->kind, .unit = m->unit, .bytes = m->bytes});
    if (!id) return 0;
    for (int i = 0; i < 2; i++) timeline_gate(tl, id, m->after[i]);
    if (t->count[ZERO_ROUND_OPEN] < t->room) t->ids[ZERO_ROUND_OPEN][t->count[ZERO_ROUND_OPEN]++] = id;
    *(s == z->gather_stream ? &t->gathered : &t->reduced) = id;
    timeline_stamp(tl, s, id, TIMELINE_FIRST_BYTE);
    return id;
}

void zero_move_end(struct zero *z, struct stream *s, uint64_t id) {
    timeline_stamp(z->base.timeline, s, id, TIMELINE_DONE);
}

// ---------------------------------------------------------------- ready times
// A word carries the bits of a count of nanoseconds; collectives move it as it is.
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

void zero_time_tell(struct zero *z, double *words) {
    struct zero_time *t = &z->time;
    for (int i = 0; i < t->room; i++) {
        bool one = i < t->count[ZERO_ROUND_ENDED];
        int64_t ns = one ? timeline_ready(z->base.timeline, t->ids[ZERO_ROUND_ENDED][i]) : 0;
        words[i] = to_word(ns ? ns + t->offset_ns : 0);
    }
    uint64_t *free_ids = t->ids[ZERO_ROUND_TOLD];
    for (int r = ZERO_ROUND_TOLD; r > 0; r--) {
        t->ids[r] = t->ids[r - 1];
        t->count[r] = t->count[r - 1];
    }
    t->ids[ZERO_ROUND_OPEN] = free_ids;
    t->count[ZERO_ROUND_OPEN] = 0;
}

// The last of all ranks; 0 when one of them does not know.
static int64_t last_ready(const struct zero *z, const double *words, int stride, int i) {
    int64_t last = 0;
    for (int r = 0; r < z->base.size; r++) {
        int64_t ns = from_word(words[(size_t)r * (size_t)stride + (size_t)i]);
        if (!ns) return 0;
        if (ns > last) last = ns;
    }
    return last - z->time.offset_ns;
}

void zero_time_hear(struct zero *z, const double *words, int stride) {
    struct zero_time *t = &z->time;
    for (int i = 0; i < t->count[ZERO_ROUND_TOLD]; i++)
        timeline_peers_ready(z->base.timeline, t->ids[ZERO_ROUND_TOLD][i], last_ready(z, words, stride, i));
    t->count[ZERO_ROUND_TOLD] = 0;
}

int zero_time_finish(struct zero *z) {
    int room = z->time.room, mine = room * z->base.rank;
    for (int i = 0; i < 2 && z->base.timeline; i++) {
        zero_time_tell(z, z->host_shares + mine);
        dev_copy(z->reduce_stream, z->shares + mine, z->host_shares + mine, (size_t)room * sizeof(double));
        collective_all_gather(z->control, z->reduce_stream, z->shares + mine, z->shares, (size_t)room,
                              DT_F64);
        dev_copy(z->reduce_stream, z->host_shares, z->shares,
                 (size_t)room * (size_t)z->base.size * sizeof(double));
        if (stream_sync(z->reduce_stream) != 0) return -1;
        zero_time_hear(z, z->host_shares, room);
    }
    return 0;
}
