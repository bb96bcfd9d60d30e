// Injected trouble: slow ranks, and lost, repeated and late messages.
//
// Slowness: which ranks compute slower than they could, and when. Whether a step straggles, the factor of
// a micro-batch and the length of a delay are functions of (seed, step, micro-batch, rank) only
// (shared/core/numbers.h). So a run repeats them, and every topology gets the same. All functions are pure;
// shared/train/slowdown.h does the extra computing.
//
//     straggle   RANK:FACTOR[:PROBABILITY]   each unit's forward and backward takes FACTOR times as long, with this
//                                            probability per step (1: always)
//                RANK:DISTRIBUTION:MEAN      it takes 1 + x times as long; x is drawn for each micro-batch, with
//                                            this mean
//     delay      RANK:DISTRIBUTION:MS        once per step the rank computes for MS ms on average, without a result
//
//     RANK       a number, or *: each rank, with draws of its own
//
//     DISTRIBUTION of mean M, for u uniform in (0, 1] and z standard normal
//                constant                    M
//                exponential                 -M ln u
//                pareto                      (M / 2) / sqrt(u): shape 2, at least M / 2, of infinite variance
//                lognormal                   M exp(z - 1/2): the standard deviation of the logarithm is 1
#ifndef STARRING_SHARED_CORE_TROUBLE_H
#define STARRING_SHARED_CORE_TROUBLE_H

#include <stdbool.h>
#include <stdint.h>

enum trouble_kind { TROUBLE_STRAGGLE, TROUBLE_DELAY };
enum trouble_distribution {
    TROUBLE_CONSTANT,
    TROUBLE_EXPONENTIAL,
    TROUBLE_PARETO,
    TROUBLE_LOGNORMAL,
    TROUBLE_DISTRIBUTIONS
};
struct trouble_draw {
    enum trouble_distribution distribution;
    double mean;  // 0: nothing is drawn
};

// The trouble of one rank.
struct trouble {
    int rank;  // TROUBLE_EACH_RANK: the item was written for all ranks (*)
    uint64_t seed;
    double factor, probability;  // per step (RANK:FACTOR); factor 1: no step straggles
    struct trouble_draw more;    // per micro-batch (RANK:DISTRIBUTION): the x of 1 + x
    struct trouble_draw delay;   // milliseconds
};
#define TROUBLE_EACH_RANK (-1)

#define TROUBLE_WHY_MAX 256
// Checks every item of a list ("1:3:0.5,2:pareto:1"; NULL: none): its form, its rank in 0..ranks-1, and that no
// rank occurs twice. Returns 0, or -1 with the reason in why.
int trouble_check(enum trouble_kind kind, const char *list, int ranks, char why[TROUBLE_WHY_MAX]);
// Returns the trouble of one rank, from checked lists.
struct trouble trouble_of(const char *straggle, const char *delay, int rank, uint64_t seed);

// Returns the factor by which the rank's computing of a micro-batch takes longer; 1: no longer.
double trouble_factor(const struct trouble *t, int64_t step, int64_t micro);
int64_t trouble_delay_ns(const struct trouble *t, int64_t step);

// Returns the lists as text to print, one sentence per list (malloc'd), or NULL if both are empty.
char *trouble_text(const char *straggle, const char *delay);

// ---------------------------------------------------------------- faults of messages
// Faults of a star's messages: lost, duplicated, reordered and delayed messages. Message n of a socket
// draws only from (seed, socket, n). The timing of the run decides which message is number n, so runs do not repeat exactly.
//
//     "drop=0.05,dup=0.05,reorder=0.1,delay=5,seed=3"     any of them, in any order
//     drop, dup, reorder   probabilities, from 0 to below 1
//     delay                milliseconds by which every message is delayed; the order does not change
//     seed                 default: the run's seed
//
// A reordered message is delayed further, by up to FAULT_LATE_MS plus twice the delay, so that later messages may
// overtake it. All functions are pure.

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
struct message_faults {
    bool lost, twice, overtaken;
    double late_s, copy_late_s;  // delay after arrival: of the message, of its second copy
};
struct message_faults message_faults_of(const struct message_fault *f, uint64_t socket, uint64_t n);

#endif
