// A peer that stands still while a transfer is under way is waited for, though all ranks had been ready for it. No rank
// knows that by itself: each leaves when its computing stood still for a transfer that all were ready for, and when its
// process, or the thread that moves its part, stood still (stall.h); where the reports meet, the two are laid above each
// other.
//
//     rank 0    | forward | exposed ........... | backward |
//     rank 1    | forward |  >---- stopped ----<           |
//     rank 0's  | forward |e.| wait for rank 1 |e| backward |
//
// Several that stood still at once, the rank itself among them, count once, for the one that went on last. A rank's own
// stop is neither communication nor waiting: its host gave it no core.
//
// Of three ranks one that is waited for may itself stand still for the third, which is then waited for by both:
//
//     rank 0    | wait for rank 2 ................ |
//     rank 2    | exposed .................. | forward |
//     rank 1    |    >---- stopped ----<     |
//     rank 0's  |wait| wait for rank 1 | wait for 2 |
#ifndef STARRING_SHARED_TIME_MOMENTS_H
#define STARRING_SHARED_TIME_MOMENTS_H

#include "shared/time/stall.h"
#include "shared/time/timeline.h"

// Of one rank, on the job's clock. Bounded: the longest are kept, GAPS_KEPT and STALLS.
struct moments {
    struct spans exposed;  // without room: of a server
    struct spans waits;    // peer: the worker that was waited for
    struct spans stalls[STALL_KINDS];
    struct spans idle;  // of a report that was read: exposed and waits, in order, as exposed is then
    int rank;
    double stood_still;  // seconds of all stalls of the process
    double *waited;      // (ranks) seconds for each worker that was ready last; NULL: none
    int ranks;
    bool alone;  // no worker waits for another one: servers alone can be waited for
};
struct moments_options {
    struct timeline *timeline;  // of a worker, after timeline_end; NULL: of a server
    struct stall_watch *watch;  // NULL: the rank is the only one
    int64_t begin;              // of training, CLOCK_MONOTONIC: what ended before does not count
    int64_t offset;             // of the job's clock
    bool alone;
};
struct moments *moments_take(const struct moments_options *o);
void moments_free(struct moments **m);

// A part of a gap of rank `of` that was another one's doing, or its own: the index of the rank that stood still, and of the
// worker that was taken for the cause; -1: communication.
struct blame {
    int64_t begin, end;
    int rank, instead;
};
// Of rank `of`, in order of time, of all that it depends on; malloc'd, *n. Of moments that were read; entries may be NULL.
struct blame *moments_blame(struct moments *const *ranks, size_t count, size_t of, size_t *n);

// A gap of rank `of`, cut where the blame (n parts) changes what it says: tell gets each piece, in order of time. rank: the one
// that stood still, an index; -1: what the gap itself says. Of gaps that come in order of time; *at: 0 to begin with.
typedef void moments_tell(void *ctx, const struct span *piece, int rank);
void moments_settle(const struct blame *blame, size_t n, size_t *at, const struct span *gap,
                    moments_tell *tell, void *ctx);

// In a rank's report: "moments". moments_read: NULL where there are none, or they are none.
struct cJSON;
void moments_put(struct cJSON *report, const struct moments *m);
struct moments *moments_read(const struct cJSON *report);

// Of all ranks, in the order of their reports (an array, which outlives it).
struct meeting {
    struct moments **moments;  // (count); NULL: a report without
    const char **roles;        // (count)
    int *ranks;                // (count)
    size_t count;
};
struct meeting *meeting_of(const struct cJSON *reports);
void meeting_free(struct meeting **m);
int meeting_index(const struct meeting *m, const char *role, int rank);  // -1: it left no report

#endif
