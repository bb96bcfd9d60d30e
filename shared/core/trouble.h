// Trouble on demand: which ranks compute slower than they could, and when. Whether a step straggles and how long
// a delay is are functions of (seed, step, rank) alone (shared/core/rng.h): a run repeats them, and every topology
// gets the same. Pure; the computing itself is shared/train/slowdown.h's.
//
//     straggle   RANK:FACTOR[:PROBABILITY]   each unit's forward and backward takes FACTOR times as long, in this
//                                            share of the steps (1: in all)
//     delay      RANK:DISTRIBUTION:MS        once a step the rank computes for nothing, MS milliseconds on average:
//                  constant                  MS
//                  exponential               -MS ln u
//                  pareto                    (MS / 2) / sqrt(u): shape 2, at least MS / 2, of infinite variance
//                                            u uniform in (0, 1]
#ifndef STARRING_SHARED_CORE_TROUBLE_H
#define STARRING_SHARED_CORE_TROUBLE_H

#include <stdbool.h>
#include <stdint.h>

enum trouble_kind { TROUBLE_STRAGGLE, TROUBLE_DELAY };
enum trouble_distribution { DELAY_CONSTANT, DELAY_EXPONENTIAL, DELAY_PARETO, DELAY_DISTRIBUTIONS };

// The trouble of one rank.
struct trouble {
    int rank;
    uint64_t seed;
    double factor, probability;  // factor 1: it never straggles
    enum trouble_distribution distribution;
    double mean_ms;  // 0: no delays
};

#define TROUBLE_WHY_MAX 256
// Whether every item of a list ("1:3:0.5,2:4"; NULL: none) is right, of one of the ranks 0..ranks-1, and no rank
// is there twice. 0, or -1 with the reason in why.
int trouble_check(enum trouble_kind kind, const char *list, int ranks, char why[TROUBLE_WHY_MAX]);
// The trouble that checked lists give a rank.
struct trouble trouble_of(const char *straggle, const char *delay, int rank, uint64_t seed);
static inline bool trouble_any(const struct trouble *t) { return t->factor > 1 || t->mean_ms > 0; }

// By how much the rank's computing of a step takes longer: 1 where it does not.
double trouble_factor(const struct trouble *t, int64_t step);
int64_t trouble_delay_ns(const struct trouble *t, int64_t step);

// The lists for people, a sentence each, malloc'd; NULL where there is nothing to say.
char *trouble_text(const char *straggle, const char *delay);

#endif
