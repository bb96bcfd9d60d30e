// trace.json in Chrome's trace event format (Perfetto reads it). A process of the job is a pid: a worker's is its
// rank, a tid is a stream or a thread.
#ifndef STARRING_SHARED_REPORT_TRACE_H
#define STARRING_SHARED_REPORT_TRACE_H

#include "kernels/backend.h"

// DIR/ranks/trace-R.json: this rank's events, comma-separated, no brackets: its streams, and in a thread of their own the
// gaps in which computing stood still for a transfer, on the job's clock. 0, or -1 after logging.
struct timeline;
int trace_write_rank(const char *dir, int rank, struct device *dev, struct timeline *tl);
// Joins the files of `ranks` ranks, what else lies there as DIR/ranks/trace-*.json, and from the ranks' reports when each
// process stood still, into DIR/trace.json, and removes them. 0, or -1 after logging.
int trace_merge(const char *dir, int ranks);

#endif
