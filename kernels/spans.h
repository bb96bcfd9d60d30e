// Spans, one list type for the whole program: what happened from when to when, in bounded memory. Streams,
// steps, threads of the star and stalls record lists of spans, and shared/report/span_files.h writes them to
// trace.json.
//
//     ring   | first .. next |      the spans numbered [first, next); number n is ring[n % room]
//
// Ownership   A list belongs to its recorder. spans_open allocates all of its memory.
// Threads     The caller's lock guards a list. Only spans_open allocates; nothing here blocks.
#ifndef STARRING_KERNELS_SPANS_H
#define STARRING_KERNELS_SPANS_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define SPANS_TRACED \
    ((size_t)1 << 20)  // per traced stream or thread: 48 MiB of address space, touched as it fills

enum span_kind {
    SPAN_BUSY,     // a stream ran operations of one phase without a gap
    SPAN_BLOCKED,  // a stream, or the host, waited for an event or a transfer: id
    SPAN_STAMP,    // a stream reached a stamp: id; begin == end
    SPAN_PART,     // a thread did one kind of its work: part, step, key, peer, peers
    // The compute stream waited for a peer that was not ready: id; peer; part: the kind of transfer; name: the unit.
    SPAN_WAIT,
    SPAN_EXPOSED,  // the same, but for a transfer for which all peers were ready
};

// A recorder writes what it knows. A key, peer or SPAN_PART's step that is unknown or does not apply is -1.
struct span {
    int64_t begin, end;  // nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share
    const char *name;    // printed; outlives the list. NULL: the kind names it
    union {
        uint64_t id;   // of a transfer, or the tag of a stream's wait or stamp
        int64_t step;  // from 0
    };
    int32_t key;
    int32_t peer;   // the rank that was waited for, or the first worker that this served
    int32_t peers;  // how many workers this served, from that one on
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

// Which spans are kept when there is no room for all.
enum spans_kept { SPANS_FIRST, SPANS_LAST, SPANS_LONGEST };

// {0}: a list without room.
struct spans {
    struct span *ring;  // (room)
    size_t room;
    uint64_t first, next;
    uint64_t lost;  // of SPANS_FIRST and SPANS_LONGEST: spans dropped because there was no room
    enum spans_kept kept;
};

int spans_open(struct spans *s, size_t room, enum spans_kept kept);  // 0, or -1: no memory
void spans_close(struct spans *s);                                   // leaves {0}; accepts {0}
void spans_add(struct spans *s, const struct span *one);
// Moves at most room spans to out, the oldest first. *lost receives how many were dropped since the last call because there
// was no room. Not for SPANS_LONGEST.
size_t spans_take(struct spans *s, struct span *out, size_t room, uint64_t *lost);
void spans_sort(struct spans *s);  // by begin; not for a list from which spans were taken or overwritten

static inline size_t spans_count(const struct spans *s) { return (size_t)(s->next - s->first); }
// The i-th span of the list, i < spans_count.
static inline struct span *spans_at(const struct spans *s, size_t i) {
    return &s->ring[(s->first + i) % s->room];
}

#endif
