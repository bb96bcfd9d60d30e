// What the threads of a role have written in their diaries, as files of the run directory: the last steps for the
// picture of a step (DIR/ranks/timeline-ROLE-RANK.json), and all of it for Perfetto (DIR/ranks/trace-ROLE-RANK.json,
// events of Chrome's trace format, comma-separated, without brackets).
//
// Arrows   follow one partition of one worker through a step and across processes:
//
//     worker    push ------.                                   .----> pull
//     server               '--> sum --> update --> reply ------'
//
//          's' begins, 't' goes on, 'f' ends an arrow; ids are hashes of (key, step, worker). A span for several
//          workers belongs to the arrow of each.
#ifndef STARRING_PS_DIARY_DIARY_FILE_H
#define STARRING_PS_DIARY_DIARY_FILE_H

#include "ps/diary/diary.h"

struct diary_thread {
    const char *name;
    const struct diary *diary;  // NULL: none
};

struct diary_role {
    const char *dir;  // run directory
    const char *role;
    int rank;
    int64_t shift_ns;  // from this host's clock to the job's
    int64_t error_ns;  // of that
    const struct diary_thread *threads;
    int count;
    // For traces:
    int pid, first_tid;                               // of the first thread
    int workers, keys;                                // of the job
    char (*arrow)(const struct diary_span *s);        // 's', 't', 'f', or 0: no arrow passes here
    const char *(*name)(const struct diary_span *s);  // NULL: the part's
};

// Process numbers of a trace, one for each process of the job.
static inline int trace_pid_worker(int rank) { return rank; }
static inline int trace_pid_server(int workers, int rank) { return workers + rank; }
static inline int trace_pid_scheduler(int workers, int servers) { return workers + servers; }

// 0, or -1 after logging. steps: how many of the last ones.
int diary_write_timeline(const struct diary_role *r, int steps);
int diary_write_trace(const struct diary_role *r);

#endif
