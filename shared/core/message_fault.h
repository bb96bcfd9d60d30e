// Trouble on demand for messages (the star's): which of those that arrive are lost, come twice, overtake others, come
// late. The n-th message of a socket draws from (seed, socket, n) alone; which message is the n-th is the schedule's.
//
//     "drop=0.05,dup=0.05,reorder=0.1,delay=5,seed=3"     any of them, in any order
//     drop, dup, reorder   shares of the messages, from 0 to below 1
//     delay                milliseconds that each message comes later, in order
//     seed                 default: the run's
//
// A message that is reordered comes later than that by up to FAULT_LATE_MS and twice the delay: what was behind it may
// overtake it. Pure.
#ifndef STARRING_SHARED_CORE_MESSAGE_FAULT_H
#define STARRING_SHARED_CORE_MESSAGE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#define FAULT_WHY_MAX 256
#define FAULT_LATE_MS 10.0

struct message_fault {
    double drop, dup, reorder;  // shares
    double delay_ms;
    uint64_t seed;
};

// text NULL: none. seed: where the text names none. 0, or -1 with the reason in why.
int message_fault_parse(const char *text, uint64_t seed, struct message_fault *out, char why[FAULT_WHY_MAX]);
static inline bool message_fault_any(const struct message_fault *f) {
    return f->drop > 0 || f->dup > 0 || f->reorder > 0 || f->delay_ms > 0;
}
// For people, malloc'd; NULL where there is none. text: a checked one.
char *message_fault_text(const char *text);

// The fate of message n of a socket.
struct message_fate {
    bool lost, twice, overtaken;
    double late_s, copy_late_s;  // from its arrival on; of the second copy
};
struct message_fate message_fate_of(const struct message_fault *f, uint64_t socket, uint64_t n);

#endif
