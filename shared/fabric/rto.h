// When to ask again: the retransmission timeout of RFC 6298, one per peer.
//
//     SRTT, RTTVAR   smoothed round trip and its deviation (gains 1/8 and 1/4)
//     RTO            SRTT + 4 RTTVAR, within [RTO_LEAST_S, RTO_MOST_S]; RTO_FIRST_S before the first sample
//     backoff        the pause doubles with each repetition, up to a limit of the caller's
//
// Karn's rule: a round trip is a sample only if it is known which sending was answered. A link numbers each sending
// (link_ack.said in link.h), so that resends can be sampled too.
//
// Plain data; seconds.
#ifndef STARRING_SHARED_FABRIC_RTO_H
#define STARRING_SHARED_FABRIC_RTO_H

#include <math.h>
#include <stdint.h>

#define RTO_FIRST_S 0.1
#define RTO_LEAST_S 0.03  // a thread checks its messages every POLL_MS, and may have to wait for a core
#define RTO_MOST_S  4.0

struct rto {
    double srtt_s, rttvar_s;
    uint64_t samples;
};

// Adds a sample. A negative rtt_s is dropped.
static inline void rto_sample(struct rto *r, double rtt_s) {
    if (!(rtt_s >= 0)) return;
    if (r->samples++ == 0) {
        r->srtt_s = rtt_s;
        r->rttvar_s = 0.5 * rtt_s;
        return;
    }
    r->rttvar_s += 0.25 * (fabs(r->srtt_s - rtt_s) - r->rttvar_s);
    r->srtt_s += 0.125 * (rtt_s - r->srtt_s);
}

// The RTO.
static inline double rto_s(const struct rto *r) {
    double s = r->samples ? r->srtt_s + 4 * r->rttvar_s : RTO_FIRST_S;
    return fmin(fmax(s, RTO_LEAST_S), RTO_MOST_S);
}

// The pause before the next repetition, after `repeats` of them: first_s, twice that, .. up to most_s.
static inline double rto_backoff(double first_s, int repeats, double most_s) {
    double s = first_s;
    while (repeats-- > 0 && s < most_s) s *= 2;
    return fmin(s, most_s);
}

#endif
