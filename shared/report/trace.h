// trace.json in Chrome's trace event format (Perfetto reads it). A process of the job is a pid: a worker's is its
// rank, a tid is a stream or a thread.
#ifndef STARRING_SHARED_REPORT_TRACE_H
#define STARRING_SHARED_REPORT_TRACE_H

#include "kernels/backend.h"

// DIR/ranks/trace-R.json: the events of this rank's streams, comma-separated, no brackets; DIR/ranks/gaps-R.txt: the gaps in
// which computing stood still for a transfer. On the job's clock. 0, or -1 after logging.
struct timeline;
int trace_write_rank(const char *dir, int rank, struct device *dev, struct timeline *tl);
// Joins the files of `ranks` workers, what else lies there as DIR/ranks/trace-*.json, the gaps as the reports of all settle
// them, and when each process stood still, into DIR/trace.json, and removes them. 0, or -1 after logging.
struct meeting;
int trace_merge(const char *dir, int ranks, const struct meeting *m);

#endif
