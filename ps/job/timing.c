#include "ps/job/timing.h"

#include <stdbool.h>
#include <stdio.h>

#define TURN_COUNTS (1.0 / 32)  // of lost_s, at most
#define TOLD        0.25        // of lost_s, and more: people hear of it

double turn_stall_excused(struct turn_stall *s, double lost_s, double now) {
    double begin = s->turn_s, stood_s = begin > 0 ? now - begin : 0, counts = TURN_COUNTS * lost_s;
    s->turn_s = now;
    if (stood_s <= counts) return 0;
    // One short turn between two of them is no recovery.
    s->stood_s = begin - s->woke_s < lost_s ? s->stood_s + stood_s : stood_s;
    s->woke_s = now;
    return stood_s - counts;
}

double turn_stall_moved(double heard_s, double excused_s, double now) {
    return heard_s + excused_s < now ? heard_s + excused_s : now;
}

double turning_stood(struct turning *t, uint64_t turns, double excused_s, double now) {
    bool turned = turns != t->turns || turns == 0;
    t->seen_s = turned ? now : turn_stall_moved(t->seen_s, excused_s, now);
    t->turns = turns;
    return now - t->seen_s;
}

const char *turn_stall_words(const struct turn_stall *s, double lost_s, double heard_s,
                             char out[TURN_STALL_WORDS]) {
    out[0] = 0;
    if (s->stood_s > TOLD * lost_s && s->woke_s > heard_s - lost_s)
        snprintf(out, TURN_STALL_WORDS,
                 ", after this process had stood still for %.1f s: the job may do without it", s->stood_s);
    return out;
}
