// What a thread of a role does with its time. The thread says what it turns to and what for; between two such words
// the time belongs to the first one. Hence the parts add up to the thread's time, whatever happens.
//
//     thread      | receive | sum | reply | receive | sum | update | reply | wait .. | receive
//                 ^ diary_enter            ^ diary_label: it turned out to be a gradient of worker 1
//     totals         from diary_start to the end of the last part that is work
//
// Ownership   A diary belongs to one thread; others read it when that has ended.
// Memory      The last `kept` spans are in a ring that diary_create takes, for pictures. With a trace all spans are
//             kept, up to DIARY_TRACE_MAX; what comes later is counted as dropped.
// NULL        stands for a diary that nobody keeps: all functions then do nothing.
#ifndef STARRING_PS_DIARY_DIARY_H
#define STARRING_PS_DIARY_DIARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIARY_PARTS_MAX 64
#define DIARY_TRACE_MAX ((size_t)1 << 20)  // spans of a thread: 48 MiB

// What a span was for: a key (-1: none), a step (-1: none), and how many workers from which one on.
struct diary_of {
    int key;
    int worker, count;
    int64_t step;
};
#define DIARY_NOTHING ((struct diary_of){-1, -1, 0, -1})

struct diary_span {
    int64_t begin_ns, end_ns;  // CLOCK_MONOTONIC
    struct diary_of of;
    int part;
};

struct diary_options {
    const char *const *names;  // of the parts
    int parts;
    uint32_t idle;  // bits of the parts that are idleness: entered twice, they are one span
    uint32_t work;  // bits of the parts after whose end the totals may stop
    size_t kept;
    bool trace;
};

struct diary;
struct diary *diary_create(const struct diary_options *o);
void diary_destroy(struct diary **d);

void diary_enter(struct diary *d, int part, const struct diary_of *of);
// The span under way goes on with another part: chunk by chunk, one after the other. Afterwards it counts as spans
// that follow each other, one for each part.
void diary_weave(struct diary *d, int part);
void diary_label(struct diary *d, const struct diary_of *of);  // what the span under way is for
void diary_start(struct diary *d);  // the totals begin with this span; the first call counts
void diary_end(struct diary *d);    // the span under way ends, and the diary with it

// ---- what it says
const char *diary_part_name(const struct diary *d, int part);
bool diary_is_idle(const struct diary *d, int part);
// Nanoseconds of each part; returns what they add up to.
int64_t diary_totals(const struct diary *d, int64_t ns[DIARY_PARTS_MAX]);
// Spans in order of time: how many, and the i-th. last: those of the ring; all: with a trace, those of the run.
size_t diary_last(const struct diary *d);
const struct diary_span *diary_last_span(const struct diary *d, size_t i);
size_t diary_all(const struct diary *d);
const struct diary_span *diary_all_span(const struct diary *d, size_t i);
size_t diary_dropped(const struct diary *d);

#endif
