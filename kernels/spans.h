// The one recorder of spans: what happened from when to when, in bounded memory. Streams, steps, threads of the star and
// stalls are all recorded as lists of spans, of which shared/report/span_files.h writes trace.json.
//
//     ring   | first .. next |      the spans numbered [first, next); number n lies at ring[n % room]
//
// Ownership   A list belongs to its recorder. All of its memory is taken by spans_open.
// Threads     The caller's lock guards a list. Nothing here blocks or allocates, but spans_open.
#ifndef STARRING_KERNELS_SPANS_H
#define STARRING_KERNELS_SPANS_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define SPANS_TRACED \
    ((size_t)1 << 20)  // of a stream or thread, with a trace: 48 MiB of addresses, used as they fill

enum span_kind {
    SPAN_BUSY,     // a stream was in operations of one phase, one behind the other
    SPAN_BLOCKED,  // a stream, or the host, stood still for an event or a transfer: id
    SPAN_STAMP,    // a stream came to a stamp: id; begin and end are one
    SPAN_PART,     // a thread was at a part of its work: part, step, key, peer, peers
    SPAN_WAIT,  // computing stood still for a peer that was not ready: id, key: the unit, part: the kind of transfer, peer
    SPAN_EXPOSED,  // the same for a transfer that all were ready for
};

// A recorder writes what it knows. A member that is not known, or does not apply, is -1 (key, peer, step of SPAN_PART).
struct span {
    int64_t begin, end;  // nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share
    const char *name;    // for people; outlives the list. NULL: its kind says it
    union {
        uint64_t id;   // of a transfer, or the tag of a stream's wait or stamp
        int64_t step;  // from 0
    };
    int32_t key;
    int32_t peer;   // a rank: the one that was waited for; the first worker that this was for
    int32_t peers;  // how many workers it was for, from that one on
    uint8_t kind;   // enum span_kind
    union {
        uint8_t phase;  // enum phase
        uint8_t part;
    };
};
#define SPAN_OF_NOTHING ((struct span){.step = -1, .key = -1, .peer = -1})

static inline int64_t span_length(const struct span *s) { return s->end - s->begin; }

static inline int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static inline int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

// The spans that stay when there is no room for all.
enum spans_kept { SPANS_FIRST, SPANS_LAST, SPANS_LONGEST };

// {0}: a list without room.
struct spans {
    struct span *ring;  // (room)
    size_t room;
    uint64_t first, next;
    uint64_t lost;  // of SPANS_FIRST and SPANS_LONGEST: how many are not in the list for want of room
    enum spans_kept kept;
};

int spans_open(struct spans *s, size_t room, enum spans_kept kept);  // 0, or -1: no memory
void spans_close(struct spans *s);                                   // {0} afterwards; also of {0}
void spans_add(struct spans *s, const struct span *one);
// Moves up to room of them out, the oldest first; *lost: how many found no room since the last time. Not of SPANS_LONGEST.
size_t spans_take(struct spans *s, struct span *out, size_t room, uint64_t *lost);
void spans_sort(struct spans *s);  // by begin; of a list from which nothing was taken or overwritten

static inline size_t spans_count(const struct spans *s) { return (size_t)(s->next - s->first); }
// The i-th of those that are there, below spans_count.
static inline struct span *spans_at(const struct spans *s, size_t i) {
    return &s->ring[(s->first + i) % s->room];
}

#endif
