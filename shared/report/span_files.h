// The spans of a run as a file (docs/files.md): each process leaves its own in DIR/ranks/trace-*.json, on the job's clock; where the
// reports meet they are joined to DIR/trace.json, in Chrome's trace event format, which Perfetto reads and of which pictures are drawn
// (experiments/comparison/pages/timeline.py). It holds the last steps, with --trace all spans of the run.
//
// A process of the job is a process (pid) of the trace; a stream or a thread of it is a thread (tid).
//
// Gaps     A worker's gaps, in which computing stood still for a transfer, are cut where all ranks' reports say that a rank
//          stood still (shared/time/moments.h). A worker leaves them as it saw them itself.
// Arrows   follow one partition of one worker through a step and across processes of a star:
//
//     worker    push ------.                                   .----> pull
//     server               '--> sum --> update --> reply ------'
//
//          's' begins, 't' goes on, 'f' ends an arrow; ids are hashes of (key, step, worker). A span for several
//          workers belongs to the arrow of each.
//
// All functions return 0, or -1 after logging.
#ifndef STARRING_SHARED_REPORT_SPAN_FILES_H
#define STARRING_SHARED_REPORT_SPAN_FILES_H

#include "kernels/backend.h"

struct config;
struct meeting;
struct timeline;

// ---------------------------------------------------------------- a worker, after timeline_end
// whole: the spans of its streams and all gaps, not those of the last steps alone.
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
    int64_t shift_ns;  // from this host's clock to the job's
    int64_t error_ns;  // of that
    const struct span_thread *threads;
    int count;
    int steps;                            // how many of the last ones; 0: all spans
    int first_tid;                        // of the first thread
    int workers, servers, keys;           // of the job
    char (*arrow)(const struct span *s);  // 's', 't', 'f', or 0: no arrow passes here; NULL: nowhere
};
int trace_write_threads(const struct span_role *r);

// ---------------------------------------------------------------- all ranks
// m: of all ranks' reports. The parts are removed when they are in the one file.
int trace_merge(const struct config *c, const char *dir, const struct meeting *m);

#endif
