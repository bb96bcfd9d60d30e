// The time of a role's thread, divided by kind of work (part). The thread calls thread_time_enter when it begins a part;
// the time until the next such call belongs to that part. So the parts always add up to the thread's time.
//
//     thread      | receive | sum | reply | receive | sum | update | reply | wait .. | receive
//                 ^ thread_time_enter     ^ thread_time_label: the message was a gradient of worker 1
//     totals         from thread_time_start to the end of the last part that is work
//
// Ownership   One thread owns it; others read it after thread_time_end.
// Memory      Allocated by thread_time_create: the last `kept` spans, and with a trace the first SPANS_TRACED.
// NULL        All functions accept NULL and then do nothing: the thread records nothing.
#ifndef STARRING_SHARED_TIME_THREAD_TIME_H
#define STARRING_SHARED_TIME_THREAD_TIME_H

#include <stdbool.h>

#include "kernels/spans.h"

#define THREAD_PARTS 64  // at most

struct thread_time_options {
    const char *const *names;  // of the parts; they outlive it
    int parts;
    // Bit p: part p is idle time. Entering it twice in a row gives one span; traces omit it.
    uint32_t idle;
    uint32_t work;  // bit p: part p is work. The totals end with the last span of work
    size_t kept;
    bool trace;
};

// Returns a span for a step, a key and the `workers` workers that begin with `worker`; -1: none.
static inline struct span span_for(int64_t step, int key, int worker, int workers) {
    return (struct span){.step = step, .key = key, .peer = worker, .peers = workers};
}

struct thread_time;
struct thread_time *thread_time_create(const struct thread_time_options *o);
void thread_time_destroy(struct thread_time **t);

// Ends the current span and begins one of `part`. of: step, key and workers (span_for), or SPAN_OF_NOTHING.
void thread_time_enter(struct thread_time *t, int part, struct span of);
// Switches to another part within the current span, for work that alternates between parts chunk by chunk: a span for each
// chunk would be too many. The trace shows one span per part, one after the other, each as long as its chunks together.
void thread_time_interleave(struct thread_time *t, int part);
void thread_time_label(struct thread_time *t,
                       struct span of);         // sets step, key and workers of the current span
void thread_time_start(struct thread_time *t);  // the totals begin with this span; only the first call counts
// Ends the current span and the record. Later calls of thread_time_enter are ignored.
void thread_time_end(struct thread_time *t);

// Returns the sum of all parts; ns receives the nanoseconds of each part.
int64_t thread_time_totals(const struct thread_time *t, int64_t ns[THREAD_PARTS]);
// Return spans in order of time: the last `kept` spans; with a trace, all spans that are not idle. t NULL: no spans.
const struct spans *thread_time_last(const struct thread_time *t);
const struct spans *thread_time_traced(const struct thread_time *t);

#endif
