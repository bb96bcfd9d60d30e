// The spans of a run as files (docs/files.md). Each process leaves its own in DIR/ranks, on the job's clock; where the
// reports meet they are joined:
//
//     DIR/ranks/timeline-ROLE-RANK.json   -> DIR/timeline.json   the last steps, for pictures
//     DIR/ranks/trace-*.json, with --trace -> DIR/trace.json     all spans, in Chrome's trace event format (Perfetto reads it)
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
int timeline_write_worker(const char *dir, int rank, struct timeline *tl);
int trace_write_worker(const char *dir, int rank, struct device *dev, struct timeline *tl);

// ---------------------------------------------------------------- threads of a role
struct span_thread {
    const char *name;
    const struct spans *last, *traced;  // SPAN_PART (shared/time/thread_time.h)
};
struct span_role {
    const char *dir;  // run directory
    const char *role;
    int rank;
    int64_t shift_ns;  // from this host's clock to the job's
    int64_t error_ns;  // of that
    const struct span_thread *threads;
    int count;
    // For traces:
    int first_tid;                        // of the first thread
    int workers, servers, keys;           // of the job
    char (*arrow)(const struct span *s);  // 's', 't', 'f', or 0: no arrow passes here; NULL: nowhere
};
int timeline_write_threads(const struct span_role *r, int steps);  // steps: how many of the last ones
int trace_write_threads(const struct span_role *r);

// ---------------------------------------------------------------- all ranks
// m: of all ranks' reports. The parts of a trace are removed when they are in the one file.
int timeline_merge(const struct config *c, const char *dir, const struct meeting *m);
int trace_merge(const char *dir, int workers, const struct meeting *m);

// A piece of a gap as the reports settle it: its part of the time, and the rank that was waited for (role NULL: none is known).
struct settled_gap {
    const char *part;  // "host", "wait", "comm_exposed"
    const char *role;
    int rank;
};
// stood: the index of the rank that stood still, -1: what the gap itself says; own: the index of the gap's rank.
struct settled_gap gap_settle(const struct meeting *m, const struct span *piece, int stood, int own);

// The key, step and worker of a SPAN_PART, as far as it has them: "key":1,"step":2,"worker":3. comma: before the first member.
void span_put_members(void *file, const char *comma, const struct span *s);

#endif
