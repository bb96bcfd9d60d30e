// Files with the spans of a run (docs/files.md). Each process writes its own DIR/ranks/trace-*.json, on the job's
// clock. Where the reports are merged, they are joined into DIR/trace.json, in Chrome's trace event format. Perfetto
// reads it, and experiments/comparison/pages/timeline.py draws it. It holds the last steps; with --trace, all spans of
// the run.
//
// A process of the job is a process (pid) of the trace; its streams and threads are threads (tid).
//
// Gaps     Times in which a worker's computing waited for a transfer. When merged, they are split where any rank's
//          report says that this rank stood still (shared/time/stall_report.h). A worker writes them as it saw them itself.
// Arrows   follow one partition of one worker through one step, across the processes of a star:
//
//     worker    push ------.                                   .----> pull
//     server               '--> sum --> update --> reply ------'
//
//          's' begins, 't' continues, 'f' ends an arrow; ids are hashes of (key, step, worker). A span for several
//          workers is on the arrow of each of them.
//
// All functions return 0, or -1 after logging.
#ifndef STARRING_SHARED_REPORT_SPAN_FILES_H
#define STARRING_SHARED_REPORT_SPAN_FILES_H

#include "kernels/backend.h"

struct config;
struct stall_reports;
struct timeline;

// ---------------------------------------------------------------- a worker, after timeline_end
// whole: write all spans of its streams and all gaps, not only those of the last steps.
int trace_write_worker(const char *dir, int rank, struct device *dev, struct timeline *tl, bool whole);

// ---------------------------------------------------------------- threads of a role
struct span_thread {
    const char *name;
    const struct spans *spans;  // SPAN_PART (shared/time/thread_time.h)
};
struct span_role {
    const char *dir;  // run directory
    const char *role;
    int rank;
    int64_t shift_ns;  // added to this host's clock to get the job's
    int64_t error_ns;  // the largest error of shift_ns
    const struct span_thread *threads;
    int count;
    int steps;                            // number of last steps to write; 0: all spans
    int first_tid;                        // tid of the first thread
    int workers, servers, keys;           // numbers of the job
    char (*arrow)(const struct span *s);  // 's', 't', 'f', or 0: no arrow at this span; NULL: no arrows
};
int trace_write_threads(const struct span_role *r);

// ---------------------------------------------------------------- all ranks
// m: of all ranks' reports. Removes the parts after merging them.
int trace_merge(const struct config *c, const char *dir, const struct stall_reports *m);

#endif
