// Credits: how many bytes a worker may have pushed that are in no sum yet, and which of them an urgent key gets past.
//
//     QUEUED --may go--> under way --the shard has it, an earlier worker's turn--> held --summed--> returned
//                            \--------------------------------- summed -----------------------------/
//
// Gradients become ready in the opposite order of their urgency, so workers of unequal speed push in unequal orders.
// A gradient that one has sent too early is held until the others send it, which they may do last of all; and they wait for its
// urgent keys meanwhile. So what is held takes credits from less urgent keys alone: half of the credits are for what is
// under way and the more urgent ones held, all of them for everything. One key more may go where nothing is under way
// and nothing as urgent is held.
#ifndef STARRING_PS_WORKER_CREDITS_H
#define STARRING_PS_WORKER_CREDITS_H

#include <stdbool.h>
#include <stddef.h>

struct credits {
    size_t most, taken, held;  // bytes; held: the part of taken that has arrived
};

// Whether a key of `bytes` may go. held_before: bytes held of keys more urgent than it. Keys are asked for in order of
// urgency, and after the first that may not go no other may.
static inline bool credits_allow(const struct credits *c, size_t bytes, size_t held_before) {
    size_t under_way = c->taken - c->held;
    if (!under_way && !held_before) return c->taken <= c->most;
    return under_way + held_before + bytes <= c->most / 2 && c->taken + bytes <= c->most;
}

#endif
