// When to ask again: the retransmission timeout of RFC 6298, one of these for each peer.
//
//     SRTT, RTTVAR   smoothed round trip and its deviation (gains 1/8 and 1/4)
//     RTO            SRTT + 4 RTTVAR, within [RTO_LEAST_S, RTO_MOST_S]; RTO_FIRST_S before there is a sample
//     backoff        the pause doubles with each repetition, up to a limit of the caller's
//
// Karn's rule: only the round trip of a message that is known to be the answered one is a sample. A link numbers each sending
// (link_word.said in link.h), so that repeated ones can be sampled too.
//
// Plain data; seconds.
#ifndef STARRING_SHARED_FABRIC_RTO_H
#define STARRING_SHARED_FABRIC_RTO_H

#include <stdint.h>

#define RTO_FIRST_S 0.1
#define RTO_LEAST_S 0.03  // a thread looks at its messages every POLL_MS, and may have to wait for a core
#define RTO_MOST_S  4.0

struct rto {
    double srtt_s, rttvar_s;
    uint64_t samples;
};

void rto_sample(struct rto *r, double rtt_s);  // negative: dropped
double rto_s(const struct rto *r);             // the RTO
// The pause before the next repetition, after so many: first, twice that, .. up to most.
double rto_backoff(double first_s, int repeats, double most_s);

#endif
