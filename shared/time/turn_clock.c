#include "shared/time/turn_clock.h"

#include <math.h>
#include <stdio.h>

#define TURN_COUNTS (1.0 / 32)  // share of lost_s that counts, at most
#define LATE        2           // factor: a turn that is only a little longer than its pause is no stall
#define TOLD        0.25        // share of lost_s from which messages mention it

static double most_of(const struct turn_clock *c) { return fmax(TURN_COUNTS * c->lost_s, c->pause_s); }

double turn_clock_at(const struct turn_clock *c, double host_s) {
    double last_s = c->turn_s > 0 ? c->turn_s : host_s;
    return fmin(host_s, last_s + most_of(c)) - c->behind_s;
}

double turn_clock_turn(struct turn_clock *c, double host_s) {
    double begin_s = c->turn_s - c->behind_s, now_s = turn_clock_at(c, host_s);
    double took_s = c->turn_s > 0 ? host_s - c->turn_s : 0, most_s = most_of(c);
    c->turn_s = host_s;
    if (took_s <= most_s) return now_s;
    c->behind_s += took_s - most_s;
    if (took_s <= LATE * most_s) return now_s;
    // One short turn between two long ones is no recovery.
    c->stood_s = begin_s - c->woke_s < c->lost_s ? c->stood_s + took_s : took_s;
    c->woke_s = now_s;
    return now_s;
}

const char *turn_clock_words(const struct turn_clock *c, double heard_s, char out[TURN_CLOCK_WORDS]) {
    out[0] = 0;
    if (c->stood_s > TOLD * c->lost_s && c->woke_s > heard_s - c->lost_s)
        snprintf(out, TURN_CLOCK_WORDS,
                 ", after this process had stood still for %.1f s: the job may do without it", c->stood_s);
    return out;
}

double turning_stood(struct turning *t, uint64_t turns, double now_s) {
    if (turns != t->turns || turns == 0) t->seen_s = now_s;
    t->turns = turns;
    return now_s - t->seen_s;
}
