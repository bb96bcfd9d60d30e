// Finds the rank that others waited for because it was stalled. If a peer is stalled during a transfer, the others
// wait for it, although all ranks had been ready. No rank knows this by itself. Each rank reports when its compute
// was blocked by a transfer that all were ready for, and when its process, or the thread that moves its data, was
// stalled (stall.h). Where the reports are combined, the two are compared.
//
//     rank 0    | forward | exposed ........... | backward |
//     rank 1    | forward |  >---- stopped ----<           |
//     rank 0's  | forward |e.| wait for rank 1 |e| backward |
//
// If several were stalled at once, possibly with the rank itself, the time counts once, for the one that continued
// last. A rank's own stall is neither communication nor waiting: its host gave it no core.
//
// With three ranks, a rank that is waited for may itself be blocked by the third. Then both wait for the third:
//
//     rank 0    | wait for rank 2 ................ |
//     rank 2    | exposed .................. | forward |
//     rank 1    |    >---- stopped ----<     |
//     rank 0's  |wait| wait for rank 1 | wait for 2 |
#ifndef STARRING_SHARED_TIME_STALL_REPORT_H
#define STARRING_SHARED_TIME_STALL_REPORT_H

#include "shared/time/stall.h"
#include "shared/time/timeline.h"

// One rank's report of its stalls and gaps, on the job's clock. Bounded: the longest are kept, GAPS_KEPT and STALLS.
struct stall_report {
    struct spans exposed;  // a server has none: ring is NULL
    struct spans waits;    // peer: the worker that was waited for
    struct spans stalls[STALL_KINDS];
    // Set by stall_report_read: the spans of exposed and waits together, in order of time. exposed is then sorted, too.
    struct spans idle;
    int rank;
    double stood_still;  // seconds of all stalls of the process
    double *waited;      // (ranks) seconds for each worker that was ready last; NULL: none
    int ranks;
    bool alone;  // no worker waits for another one: only servers can be waited for
};
struct stall_report_options {
    struct timeline *timeline;  // a worker's, after timeline_end; NULL: a server
    struct stall_watch *watch;  // NULL if there is only one rank: none waits for it
    int64_t begin;              // of training, CLOCK_MONOTONIC: stalls that ended before it do not count
    int64_t offset;             // the job's clock = CLOCK_MONOTONIC + offset
    bool alone;
};
struct stall_report *stall_report_take(const struct stall_report_options *o);
void stall_report_free(struct stall_report **m);

// A section of a gap of rank `of`, caused by a stall of another rank or of its own. rank: index of the rank that was
// stalled. instead: index of the worker that was named as the cause before; -1: communication was.
struct blame {
    int64_t begin, end;
    int rank, instead;
};
// Returns the sections of rank `of`'s gaps that stalls have caused, in order of time (malloc'd); *n receives their
// number. The reports must have been read by stall_report_read; entries may be NULL.
struct blame *stall_blame(struct stall_report *const *ranks, size_t count, size_t of, size_t *n);

// Cuts a gap of rank `of` where the blame (n entries) changes its cause. each receives every section, in order of
// time. rank: index of the rank that was stalled; -1: the cause is the gap's own. Gaps must come in order of time;
// *at is 0 at first.
typedef void stall_section_fn(void *ctx, const struct span *piece, int rank);
void stall_cut_gap(const struct blame *blame, size_t n, size_t *at, const struct span *gap,
                   stall_section_fn *each, void *ctx);

// "moments" in a rank's report. stall_report_read returns NULL if there are none, or if they are malformed.
struct cJSON;
void stall_report_put(struct cJSON *report, const struct stall_report *m);
struct stall_report *stall_report_read(const struct cJSON *report);

// The stall reports of all ranks, in the order of their reports (an array, which outlives it).
struct stall_reports {
    struct stall_report **all;  // (count); NULL: the report has none
    const char **roles;         // (count)
    int *ranks;                 // (count)
    size_t count;
};
struct stall_reports *stall_reports_read(const struct cJSON *reports);
void stall_reports_free(struct stall_reports **m);
int stall_reports_index(const struct stall_reports *m, const char *role,
                        int rank);  // -1: there is no such report

#endif
