// The time of a role's thread, divided by kind of work (part). The thread states which part it enters and what for;
// the time until the next such call belongs to that part. So the parts always add up to the thread's time.
//
//     thread      | receive | sum | reply | receive | sum | update | reply | wait .. | receive
//                 ^ thread_time_enter     ^ thread_time_label: it turned out to be a gradient of worker 1
//     totals         from thread_time_start to the end of the last part that is work
//
// Ownership   One thread owns it; others read it after thread_time_end.
// Memory      Allocated by thread_time_create: the last `kept` spans, and with a trace the first SPANS_TRACED.
// NULL        is a thread that records nothing: all functions then do nothing.
#ifndef STARRING_SHARED_TIME_THREAD_TIME_H
#define STARRING_SHARED_TIME_THREAD_TIME_H

#include <stdbool.h>

#include "kernels/spans.h"

#define THREAD_PARTS 64  // at most

struct thread_time_options {
    const char *const *names;  // of the parts; they outlive it
    int parts;
    // Bits of the parts that are idle time. Entered twice in a row they are one span; traces omit them.
    uint32_t idle;
    uint32_t work;  // bits of the parts that are work: the totals end with the last of them
    size_t kept;
    bool trace;
};

// A step, a key, and `workers` workers from `worker` on; -1: none.
static inline struct span span_for(int64_t step, int key, int worker, int workers) {
    return (struct span){.step = step, .key = key, .peer = worker, .peers = workers};
}

struct thread_time;
struct thread_time *thread_time_create(const struct thread_time_options *o);
void thread_time_destroy(struct thread_time **t);

// of: what it is for, by span_for, or SPAN_OF_NOTHING.
void thread_time_enter(struct thread_time *t, int part, struct span of);
// The current span continues with another part, chunk by chunk. Afterwards it counts as consecutive spans, one for
// each part.
void thread_time_weave(struct thread_time *t, int part);
void thread_time_label(struct thread_time *t, struct span of);  // sets what the current span is for
void thread_time_start(struct thread_time *t);  // the totals begin with this span; only the first call counts
// Ends the current span and the record. Later calls of thread_time_enter are ignored.
void thread_time_end(struct thread_time *t);

// Returns the sum of all parts; ns receives the nanoseconds of each part.
int64_t thread_time_totals(const struct thread_time *t, int64_t ns[THREAD_PARTS]);
// In order of time: the last `kept`; with a trace those of the run that are not idle. t NULL: none.
const struct spans *thread_time_last(const struct thread_time *t);
const struct spans *thread_time_traced(const struct thread_time *t);

#endif
