// Injected message faults (the star's): lost, duplicated, reordered and delayed messages. Message n of a socket
// draws only from (seed, socket, n). Which message is number n depends on the schedule.
//
//     "drop=0.05,dup=0.05,reorder=0.1,delay=5,seed=3"     any of them, in any order
//     drop, dup, reorder   probabilities, from 0 to below 1
//     delay                milliseconds by which every message is delayed; the order stays
//     seed                 default: the run's seed
//
// A reordered message is delayed further, by up to FAULT_LATE_MS plus twice the delay, so that later messages may
// overtake it. All functions are pure.
#ifndef STARRING_SHARED_CORE_MESSAGE_FAULT_H
#define STARRING_SHARED_CORE_MESSAGE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#define FAULT_WHY_MAX 256
#define FAULT_LATE_MS 10.0

struct message_fault {
    double drop, dup, reorder;  // probabilities
    double delay_ms;
    uint64_t seed;
};

// text NULL: no faults. seed: used if the text has none. Returns 0, or -1 with the reason in why.
int message_fault_parse(const char *text, uint64_t seed, struct message_fault *out, char why[FAULT_WHY_MAX]);
static inline bool message_fault_any(const struct message_fault *f) {
    return f->drop > 0 || f->dup > 0 || f->reorder > 0 || f->delay_ms > 0;
}
// Returns a description to print (malloc'd), or NULL if there are no faults. text must be valid.
char *message_fault_text(const char *text);

// The faults of message n of a socket.
struct message_fate {
    bool lost, twice, overtaken;
    double late_s, copy_late_s;  // delay after arrival: of the message, of its second copy
};
struct message_fate message_fate_of(const struct message_fault *f, uint64_t socket, uint64_t n);

#endif
