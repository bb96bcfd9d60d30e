#include "ps/standstill.h"

#include <stdio.h>

#define TURN_COUNTS 0.25  // of lost_s, at most

double standstill_turn(struct standstill *s, double lost_s, double now) {
    double begin = s->turn_s, stood_s = begin > 0 ? now - begin : 0, counts = TURN_COUNTS * lost_s;
    s->turn_s = now;
    if (stood_s <= counts) return 0;
    // One short turn between two of them is no recovery.
    s->stood_s = begin - s->woke_s < lost_s ? s->stood_s + stood_s : stood_s;
    s->woke_s = now;
    return stood_s - counts;
}

double standstill_moved(double heard_s, double excused_s, double now) {
    return heard_s + excused_s < now ? heard_s + excused_s : now;
}

const char *standstill_words(const struct standstill *s, double lost_s, double heard_s,
                             char out[STANDSTILL_WORDS]) {
    out[0] = 0;
    if (s->stood_s > 0 && s->woke_s > heard_s - lost_s)
        snprintf(out, STANDSTILL_WORDS,
                 ", after this process had stood still for %.1f s: the job may do without it", s->stood_s);
    return out;
}
