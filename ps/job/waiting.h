// When a line about a wait is due: the first at once, then one second after the last line if the text has
// changed, ten seconds after it if not.
#ifndef STARRING_PS_JOB_WAITING_H
#define STARRING_PS_JOB_WAITING_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define WAITING_CHANGED_S 1.0
#define WAITING_STEADY_S  10.0

struct waiting {
    char text[384];  // said last; "": nothing yet
    double said_s;
};

// Whether to say text now; then it counts as said.
static inline bool waiting_due(struct waiting *w, const char *text, double now) {
    double pause = strcmp(w->text, text) ? WAITING_CHANGED_S : WAITING_STEADY_S;
    if (w->text[0] && now - w->said_s < pause) return false;
    snprintf(w->text, sizeof w->text, "%s", text);
    w->said_s = now;
    return true;
}

#endif
