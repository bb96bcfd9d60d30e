// The time of a thread of a role, part by part. The thread says which part of its work it turns to and what for; between two such
// words the time belongs to the first one. Hence the parts add up to the thread's time, whatever happens.
//
//     thread      | receive | sum | reply | receive | sum | update | reply | wait .. | receive
//                 ^ thread_time_enter     ^ thread_time_label: it turned out to be a gradient of worker 1
//     totals         from thread_time_start to the end of the last part that is work
//
// Ownership   It belongs to one thread; others read it behind thread_time_end.
// Memory      Taken by thread_time_create: the last `kept` spans, and with a whole trace the first SPANS_TRACED.
// NULL        stands for a thread that records nothing: all functions then do nothing.
#ifndef STARRING_SHARED_TIME_THREAD_TIME_H
#define STARRING_SHARED_TIME_THREAD_TIME_H

#include <stdbool.h>

#include "kernels/spans.h"

#define THREAD_PARTS 64  // at most

struct thread_time_options {
    const char *const *names;  // of the parts; they outlive it
    int parts;
    uint32_t
        idle;  // bits of the parts that are idleness: entered twice they are one span, and no trace has them
    uint32_t work;  // bits of the parts after whose end the totals may stop
    size_t kept;
    bool trace;
};

// A step, a key, and so many workers from one on; -1: none.
static inline struct span span_for(int64_t step, int key, int worker, int workers) {
    return (struct span){.step = step, .key = key, .peer = worker, .peers = workers};
}

struct thread_time;
struct thread_time *thread_time_create(const struct thread_time_options *o);
void thread_time_destroy(struct thread_time **t);

// of: what it is for, as span_for says it, or SPAN_OF_NOTHING.
void thread_time_enter(struct thread_time *t, int part, struct span of);
// The span under way goes on with another part: chunk by chunk, one after the other. Afterwards it counts as spans
// that follow each other, one for each part.
void thread_time_weave(struct thread_time *t, int part);
void thread_time_label(struct thread_time *t, struct span of);  // what the span under way is for
void thread_time_start(struct thread_time *t);  // the totals begin with this span; the first call counts
// The span under way ends, and the record with it: nothing is entered any more.
void thread_time_end(struct thread_time *t);

// Nanoseconds of each part; returns what they add up to.
int64_t thread_time_totals(const struct thread_time *t, int64_t ns[THREAD_PARTS]);
// In order of time: the last `kept`; with a trace those of the run that are not idle. Of NULL: none.
const struct spans *thread_time_last(const struct thread_time *t);
const struct spans *thread_time_traced(const struct thread_time *t);

#endif
