// A stream's kept spans and how they are written: Chrome trace events (the Trace Event Format), which
// Perfetto opens as well. What the host backends' and CUDA's streams share; no state of its own.
//
// Ownership   A list belongs to its stream and grows as spans are kept, up to TRACE_SPANS_MAX; what comes
//             later is counted as dropped. trace_free empties it.
// Threads     The caller's lock guards a list.
#ifndef STARRING_KERNELS_QUEUE_TRACE_H
#define STARRING_KERNELS_QUEUE_TRACE_H

#include "kernels/backend.h"

#define TRACE_NAME_BYTES 32
#define TRACE_SPANS_MAX  ((size_t)1 << 20)  // of one stream: 64 MiB

struct trace_span {
    char name[TRACE_NAME_BYTES];
    int64_t start_ns;  // of the monotonic clock, so the ranks of one machine line up
    int64_t duration_ns;
    uint64_t tag;
    enum phase phase;
    enum interval_kind kind;
};

struct trace_list {
    struct trace_span *spans;
    size_t count, capacity, dropped;
    int64_t shift_ns;  // added to times as they are written
};

void trace_keep(struct trace_list *l, const struct trace_span *span);
void trace_free(struct trace_list *l);
// file: FILE *. Names the process: the first event of a device.
void trace_write_process(void *file, int pid, const char *label);
// Names the thread and writes its spans, each with a comma before it.
void trace_write_thread(void *file, int pid, int tid, const char *name, const struct trace_list *l);

#endif
