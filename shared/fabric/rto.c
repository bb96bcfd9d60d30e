#include "shared/fabric/rto.h"

#include <math.h>

void rto_sample(struct rto *r, double rtt_s) {
    if (!(rtt_s >= 0)) return;
    if (r->samples++ == 0) {
        r->srtt_s = rtt_s;
        r->rttvar_s = 0.5 * rtt_s;
        return;
    }
    r->rttvar_s += 0.25 * (fabs(r->srtt_s - rtt_s) - r->rttvar_s);
    r->srtt_s += 0.125 * (rtt_s - r->srtt_s);
}

double rto_s(const struct rto *r) {
    double s = r->samples ? r->srtt_s + 4 * r->rttvar_s : RTO_FIRST_S;
    return fmin(fmax(s, RTO_LEAST_S), RTO_MOST_S);
}

double rto_backoff(double first_s, int repeats, double most_s) {
    double s = first_s;
    while (repeats-- > 0 && s < most_s) s *= 2;
    return fmin(s, most_s);
}
