// The single definition of where a step's time was spent, for every topology. Pure: times in, seconds out.
//
//     compute stream   | forward |   gap   | backward |  gap  | gap | optimizer |
//     blocked                    | on X       |           | Y |
//                                ^ X.peers_ready
//     split            | forward |wait|exp.| backward |  host |exp| | optimizer |     exp.: exposed
//
// Each time within the step is, in this order of precedence:
//   busy      the compute stream works: the time belongs to the span's phase. Work of PHASE_COMM, in which the stream
//             itself hands over a transfer, is exposed communication
//   blocked   the compute stream or the host is blocked by a transfer. The time before this rank's own data is ready is
//             exposed communication: the data is on the way to the link. From then until the last rank that the
//             transfer needs is ready, it is waiting for peers; after that it is exposed communication again. If several
//             transfers block, the one that ends last counts, because it ends the gap. If it is unknown when the peers
//             were ready, all of the time is exposed
//   data      the host reads a batch
//   host      the rest: the host was not fast enough, or a span has PHASE_OTHER
// So the components always add up to the step.
//
// Overlapped communication is not a component: it is the time in which compute was busy while a transfer was in flight,
// from when all ranks were ready to the transfer's end.
#ifndef STARRING_SHARED_TIME_SPLIT_H
#define STARRING_SHARED_TIME_SPLIT_H

#include "kernels/backend.h"

// If the sum of the components differs from an independent clock by more than this share, a warning is logged.
#define TIME_TOLERANCE 0.01

// Seconds.
struct time_split {
    double data;  // reading batches while the compute stream was idle
    double forward;
    double backward;  // with the logits and the loss of training
    double optimizer;
    double comm_exposed;
    double comm_overlapped;
    double wait;  // for peers
    double host;
    double total;  // data + forward + backward + optimizer + comm_exposed + wait + host
};

// A time in which a transfer blocked. Times are nanoseconds of one clock; 0: unknown. One with end <= begin is ignored.
struct split_block {
    int64_t begin, end;
    int64_t own_ready, peers_ready;  // of the transfer
    uint64_t id;
    int peer;  // the rank that was ready last; -1: unknown
};

// Arrays are sorted and cut in place. Where spans overlap (none should), the time counts once, for the earlier span.
struct split_input {
    int64_t begin, end;  // the step
    struct span *busy;   // with phase
    struct split_block *blocked;
    struct span *moves;  // transfers, from the readiness of the last rank to their end; without phase
    struct span *data;   // reading of batches; without phase
    size_t busy_count, blocked_count, move_count, data_count;
    // Called for each section of a gap in which compute was blocked by a transfer, in order of time: SPAN_WAIT or
    // SPAN_EXPOSED, with id and peer. May be NULL.
    void (*gap)(void *ctx, const struct span *g);
    void *ctx;
};

void time_split_of(const struct split_input *in, struct time_split *out);
void time_split_add(struct time_split *sum, const struct time_split *s);
// Returns the sum of the components that should add up to total.
double time_split_parts(const struct time_split *s);

#endif
