// The one definition of where a step's time went, for every topology. Pure: made-up times in, seconds out.
//
//     compute stream   | forward |   gap   | backward |  gap  | gap | optimizer |
//     blocked                    | on X       |           | Y |
//                                ^ X.peers_ready
//     split            | forward |wait|exp.| backward |  host |exp| | optimizer |     exp.: exposed
//
// A moment of the step is, in this order of precedence:
//   busy      the compute stream works: the phase of the span. Where it hands a transfer over itself (PHASE_COMM), that
//             is exposed communication
//   blocked   compute stream or host stands still for a transfer: up to the moment at which the last rank that
//             the transfer needs was ready it is waiting for peers, after it exposed communication. So is what
//             lies before this rank's own part was ready: its data is on the way to the link. Of several
//             transfers it counts for the one that ends last, because that one ends the gap. Where nobody has
//             said when the peers were ready, all of it is exposed.
//   data      the host reads a batch
//   host      the rest: the host was not fast enough, or works on what has no phase (spans of PHASE_OTHER)
// Hence the parts always add up to the step.
//
// Overlapped communication is no part of it: the time in which compute was busy and some transfer was under way,
// from the moment at which all ranks were ready to the transfer's end.
#ifndef STARRING_SHARED_TIME_SPLIT_H
#define STARRING_SHARED_TIME_SPLIT_H

#include "kernels/backend.h"

// Parts that add up to less or more of what a clock of its own says are warned about.
#define TIME_TOLERANCE 0.01

// Seconds.
struct time_split {
    double data;  // reading batches while the compute stream stood idle
    double forward;
    double backward;  // with the logits and the loss of training
    double optimizer;
    double comm_exposed;
    double comm_overlapped;
    double wait;  // for peers
    double host;
    double total;  // data + forward + backward + optimizer + comm_exposed + wait + host
};

// Times are nanoseconds of one clock; 0: not known. An end that is not after its begin is nothing.
struct split_block {
    int64_t begin, end;
    int64_t own_ready, peers_ready;  // of the transfer
    uint64_t id;
    int peer;  // the rank that was ready last; -1: not known
};

// Arrays are sorted and cut in place. Spans that overlap (they should not) count once, for the earlier one.
struct split_input {
    int64_t begin, end;  // the step
    struct span *busy;   // with phase
    struct split_block *blocked;
    struct span *moves;  // transfers, from the last rank's readiness to the end; without phase
    struct span *data;   // reading of batches; without phase
    size_t busy_count, blocked_count, move_count, data_count;
    // Is told of each piece of a gap in which compute stood still for a transfer, in order of time: SPAN_WAIT or SPAN_EXPOSED,
    // with id and peer. May be NULL.
    void (*gap)(void *ctx, const struct span *g);
    void *ctx;
};

void time_split_of(const struct split_input *in, struct time_split *out);
void time_split_add(struct time_split *sum, const struct time_split *s);
// The parts that should add up to total, added.
double time_split_parts(const struct time_split *s);

#endif
