// What a stream notes of itself on request: when it was busy and with what phase, when it stood still for an event,
// and when it came to places that somebody marked. Unlike a trace it names no operations and is bounded.
//
//     ring   | oldest .. newest |      neighbours in time and phase are one; what finds no room is counted
//
// Ownership   A log belongs to its stream.
// Threads     The caller's lock guards it.
#ifndef STARRING_KERNELS_QUEUE_INTERVAL_H
#define STARRING_KERNELS_QUEUE_INTERVAL_H

#include "kernels/backend.h"

// A gap between two operations that is shorter is the queue's own work, and a shorter standstill is none.
#define INTERVAL_GAP_NS 2000

struct interval_log {
    struct interval *ring;  // (room); NULL: nothing is noted
    size_t room;
    uint64_t first, next;  // [first, next) are in the ring
    uint64_t busy;  // 1 + the number of the last busy one, as long as nothing but stamps followed; else 0
    uint64_t lost;
    bool stamps_only;
};

int interval_log_open(struct interval_log *l, size_t room, bool stamps_only);  // 0, or -1: no memory
void interval_log_close(struct interval_log *l);
void interval_note(struct interval_log *l, const struct interval *i);
// Moves up to room of them out, the oldest first; *lost: how many found no room since the last time.
size_t interval_take(struct interval_log *l, struct interval *out, size_t room, uint64_t *lost);

#endif
