#include "shared/time/poll_clock.h"

#include <math.h>
#include <stdio.h>

#define COUNTED_SHARE  (1.0 / 32)  // share of lost_s that counts, at most
#define LATE           2           // factor: a delay of up to twice the time that counts is no stall
#define REPORTED_SHARE 0.25        // share of lost_s from which messages mention it

static double most_of(const struct poll_clock *c) { return fmax(COUNTED_SHARE * c->lost_s, c->pause_s); }

double poll_clock_at(const struct poll_clock *c, double host_s) {
    double last_s = c->poll_s > 0 ? c->poll_s : host_s;
    return fmin(host_s, last_s + most_of(c)) - c->lag_s;
}

double poll_clock_poll(struct poll_clock *c, double host_s) {
    double begin_s = c->poll_s - c->lag_s, now_s = poll_clock_at(c, host_s);
    double took_s = c->poll_s > 0 ? host_s - c->poll_s : 0, most_s = most_of(c);
    c->poll_s = host_s;
    if (took_s <= most_s) return now_s;
    c->lag_s += took_s - most_s;
    if (took_s <= LATE * most_s) return now_s;
    // Stalls that follow each other within lost_s count as one: a short interval between two long ones is no recovery.
    c->stall_s = begin_s - c->stall_end_s < c->lost_s ? c->stall_s + took_s : took_s;
    c->stall_end_s = now_s;
    return now_s;
}

const char *poll_clock_text(const struct poll_clock *c, double heard_s, char out[POLL_CLOCK_TEXT]) {
    out[0] = 0;
    if (c->stall_s > REPORTED_SHARE * c->lost_s && c->stall_end_s > heard_s - c->lost_s)
        snprintf(out, POLL_CLOCK_TEXT,
                 ", after this process had stood still for %.1f s: the job may continue without it",
                 c->stall_s);
    return out;
}

double poll_watch_idle_s(struct poll_watch *t, uint64_t polls, double now_s) {
    if (polls != t->polls || polls == 0) t->seen_s = now_s;
    t->polls = polls;
    return now_s - t->seen_s;
}
