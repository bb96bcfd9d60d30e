// The work of one rank over time: the record for "where the time went" (split.h), the same for every topology.
// Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
//
//     recorder                         records
//     the compute stream, by itself    when it was busy, by phase, and when it was blocked by an event
//     the loop                         where a step begins and ends; when it reads batches
//     a topology                       its transfers, and when the host was blocked by one
//
// A transfer   is what a topology moves: a unit's weights or gradient, or control words. Its times:
//              asked        the host enqueued it
//              own_ready    from then on this rank could have sent its data if the link had been free: the transfer is
//                           asked for, and the compute events that it waits for have passed. Earlier transfers of the
//                           same channel do not count: waiting for them is communication
//              peers_ready  the latest own_ready of all ranks that take part, including this one
//              first_byte   its first byte is on the link
//              done         it has arrived
//              A time that was not recorded is 0: unknown.
// A mark       is a position in the compute stream that a transfer waits for (a gradient is complete). The stream itself
//              records when it passes the mark, because the host runs ahead of the stream.
// Late facts   A device's times are read late, and peers report their times a step or two later. So a step is split when
//              TIMELINE_LATE later steps have begun, or at the end. An id stays valid for TIMELINE_LATE steps after the
//              step in which it was given; times that arrive later are dropped.
//
// Ownership   The loop owns it. The topology has a pointer (struct topology), which is NULL if nothing is recorded:
//             every function accepts NULL, then does nothing, and returns 0.
// Memory      Bounded, and all allocated by timeline_create and timeline_watch. Spans without room are counted
//             (timeline_lost), and the components still add up.
// Threads     timeline_step, timeline_pause, timeline_end, timeline_data, timeline_mark, timeline_ready_at_mark and
//             timeline_stamp: the thread that enqueues on the stream. All others: any thread. Nothing blocks,
//             except a lock that is held briefly, or once per step while a step is split.
#ifndef STARRING_SHARED_TIME_TIMELINE_H
#define STARRING_SHARED_TIME_TIMELINE_H

#include "shared/core/unit.h"
#include "shared/time/split.h"
#include "shared/time/stall.h"

#define TIMELINE_LATE 3  // steps
#define TIMELINE_KEPT 3  // how many of the run's last steps are kept for trace.json

enum transfer_kind { TRANSFER_WEIGHTS, TRANSFER_GRADIENTS, TRANSFER_CONTROL, TRANSFER_KINDS };
const char *transfer_kind_name(enum transfer_kind k);  // "weights", ..

struct transfer {
    enum transfer_kind kind;
    int unit;        // of the layout; -1: none
    uint64_t bytes;  // payload that this rank sends; if it only receives, payload that it receives
};

struct timeline;
struct timeline_options {
    struct stream *compute;
    const struct layout *layout;  // names of the units; outlives the timeline
    int64_t micro_batches;        // per step
    int ranks;                    // ranks of the run: a transfer may wait for any of them
    bool traced;                  // keep the first GAPS_TRACED gaps, in order, for a trace
    struct stall_watch *watch;    // of the process, outlives the timeline; NULL: stalls are unknown
};
// NULL after logging.
struct timeline *timeline_create(const struct timeline_options *o);
void timeline_destroy(struct timeline **tl);
// Returns the host memory in bytes of all arrays. It grows with units and micro-batches up to a bound. In steps of very
// many micro-batches some transfers find no room: they are not recorded, and their time counts as the host's.
size_t timeline_bytes(const struct layout *l, int64_t micro_batches);

// ---------------------------------------------------------------- the loop
// The caller passes the times that it also uses for its own sum of the steps: if each read the clock itself, a loaded
// machine could preempt the thread between the two readings, for longer than 1 % of a short run.
void timeline_step_at(struct timeline *tl, int64_t step,
                      int64_t ns);  // begins a step; the step before it ends here
void timeline_pause_at(struct timeline *tl,
                       int64_t ns);  // ends the step: the time that follows belongs to no step
static inline void timeline_step(struct timeline *tl, int64_t step) { timeline_step_at(tl, step, now_ns()); }
static inline void timeline_pause(struct timeline *tl) { timeline_pause_at(tl, now_ns()); }
void timeline_data(struct timeline *tl, int64_t begin_ns, int64_t end_ns);  // the host read a batch
// Called after the topology's finish: splits the remaining steps. The streams may be destroyed afterwards, not
// before.
void timeline_end(struct timeline *tl);

// ---------------------------------------------------------------- transfers
uint64_t timeline_ask(struct timeline *tl,
                      const struct transfer *t);  // sets `asked` to now; returns the transfer's id
// Record that the event was at ns. After several calls first_byte is the earliest time, the others are the latest.
void timeline_own_ready(struct timeline *tl, uint64_t id, int64_t ns);
// peer: the rank that was ready last; -1: unknown.
void timeline_peers_ready(struct timeline *tl, uint64_t id, int64_t ns, int peer);
void timeline_first_byte(struct timeline *tl, uint64_t id, int64_t ns);
void timeline_done(struct timeline *tl, uint64_t id, int64_t ns);
// Records that the transfer blocked the host from begin_ns to end_ns. (timeline_wait: it blocks the compute stream.)
void timeline_blocked(struct timeline *tl, uint64_t id, int64_t begin_ns, int64_t end_ns);

// ---------------------------------------------------------------- what streams record themselves
// Thread tid moves this rank's data of transfers (stall_watch_thread).
void timeline_watch_thread(struct timeline *tl, pid_t tid);
// Makes a stream other than compute record what timeline_stamp asks for. Returns 0, or -1 after logging.
int timeline_watch(struct timeline *tl, struct stream *s);
uint64_t timeline_mark(struct timeline *tl);  // marks this position of the compute stream
// Makes the transfer's own_ready at least the time of the mark (mark 0: none) and at least `asked`. Call it once per mark;
// timeline_own_ready is then not needed.
void timeline_ready_at_mark(struct timeline *tl, uint64_t id, uint64_t mark);
enum timeline_stamp { TIMELINE_FIRST_BYTE, TIMELINE_DONE };
// Records the time at which s (compute, or watched) reaches this position.
void timeline_stamp(struct timeline *tl, struct stream *s, uint64_t id, enum timeline_stamp what);
// stream_wait_event on the compute stream, for the transfer (0: for none).
void timeline_wait(struct timeline *tl, struct stream *compute, struct event *e, uint64_t id);

// ---------------------------------------------------------------- results
// Returns this rank's own_ready of a transfer, as far as the device has passed its marks; 0: not known yet.
int64_t timeline_ready(struct timeline *tl, uint64_t id);
// *sum receives the sum of all steps that have been split. Returns how many these are.
int64_t timeline_split(struct timeline *tl, struct time_split *sum);
const struct layout *timeline_layout(const struct timeline *tl);  // the one of the options
// For ranks on several hosts: the job's clock (rank 0's, or a star's scheduler's) = this host's clock + offset_ns, with
// an error of at most error_ns. If it is not set, all ranks share one clock.
struct timeline_clock {
    int64_t offset_ns, error_ns;
};
void timeline_set_clock(struct timeline *tl, struct timeline_clock clock);
struct timeline_clock timeline_clock(struct timeline *tl);
uint64_t timeline_lost(struct timeline *tl);  // spans of the streams that had no room

// The gaps in which compute was blocked by a transfer, as split.h reports them one by one: SPAN_WAIT and
// SPAN_EXPOSED, with id, peer, the transfer's kind as part and the name of its unit.
#define GAPS_KEPT     4096       // the longest gaps of exposed communication, and as many of waiting
#define GAPS_LEAST_NS 1000000    // a shorter gap is not among the longest
#define GAPS_TRACED   (1 << 18)  // with a trace: the first gaps
struct gaps {
    struct spans exposed, waits;  // the longest, unordered; waits: only those with a known peer
    struct spans all;             // with a trace: the first, in order of time
    double *waited;               // (ranks) seconds of waiting for each rank that was ready last
    int ranks;
};
int gaps_open(struct gaps *g, int ranks, bool traced);  // 0, or -1 after logging
void gaps_close(struct gaps *g);
void gaps_add(struct gaps *g, const struct span *one);
const struct gaps *timeline_gaps(const struct timeline *tl);  // of all steps; after timeline_end

// A step as it was recorded. timeline_view_free frees the arrays. Times as in split.h.
struct transfer_times {
    struct transfer what;
    uint64_t id;
    int64_t asked, own_ready, peers_ready, first_byte, done;
};
struct timeline_view {
    int64_t step, begin, end;
    struct span *compute;
    struct transfer_times *transfers;  // within the step: asked before its end, not done before its begin
    struct span *gaps;  // in order of time, as in struct gaps; id: of a transfer, which may not be listed
    size_t compute_count, transfer_count, gap_count;
};
// *out receives the step that is `back` steps before the last one; back < TIMELINE_KEPT. Returns false if there is no such
// step. Call it only after timeline_end.
bool timeline_view(struct timeline *tl, int back, struct timeline_view *out);
void timeline_view_free(struct timeline_view *v);

#endif
