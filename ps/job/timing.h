// How the configured times divide. Deadlines follow heartbeats: slow is not dead.
//
//     silent      A member whose heartbeats stop is lost. So is a shard that has not answered a worker and whose
//                 link is silent. It is named, and the job, or this epoch of it, ends before
//                 the deadline of those who wait for it.
//     slow        A member that sends heartbeats and does not arrive is waited for without limit, and the
//                 scheduler prints that once.
#ifndef STARRING_PS_JOB_TIMING_H
#define STARRING_PS_JOB_TIMING_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "shared/config/config.h"

#define POLL_MS        20   // the time that a thread waits for messages before it reads the clock
#define HURRY_MS       1    // the same while it waits for the transport to release a buffer
#define FLUSH_MS       500  // time in which queued messages are still sent at the end
#define DRAIN_MESSAGES 64   // messages that are read from one socket before the others are served

#define REPEAT_MOST_S 2.0  // the longest time between two resends of a link

static inline double ps_deadline_s(const struct config *c) { return (double)c->ps.deadline_ms * 1e-3; }
// A step or gather may be incomplete this long before the missing members are printed as slow.
static inline double ps_overdue_s(const struct config *c) { return 0.75 * ps_deadline_s(c); }
// Advice in error messages.
#define PS_LOST_KEY \
    "; a process may be silent for half of parameter_server.deadline_ms, and at least four heartbeats"
// A silent member counts as lost (registry.c, check_member) after half the deadline, but not before four heartbeats.
static inline double ps_lost_s(const struct config *c) {
    double half = 0.5 * ps_deadline_s(c), beats = 4e-3 * (double)c->ps.heartbeat_ms;
    return half > beats ? half : beats;
}
// A message that is not acknowledged is resent after a round-trip timeout (ps/net/link.h), then at twice that, .., at
// most this long apart. That is eight times before a silent peer counts as lost.
static inline double ps_repeat_most_s(const struct config *c) {
    double most = 0.0625 * ps_deadline_s(c);
    return most < REPEAT_MOST_S ? most : REPEAT_MOST_S;
}
static inline double ps_heartbeat_s(const struct config *c) { return (double)c->ps.heartbeat_ms * 1e-3; }

// ---------------------------------------------------------------- lines about waits
// When a line about a wait is printed: the first at once, then one second after the last line if the text has
// changed, ten seconds after it if not.
#define WAITING_CHANGED_S 1.0
#define WAITING_STEADY_S  10.0

struct waiting {
    char text[384];  // the text that was printed last; "": none
    double said_s;
};

// Whether to print text now; then it counts as printed.
static inline bool waiting_due(struct waiting *w, const char *text, double now) {
    double pause = strcmp(w->text, text) ? WAITING_CHANGED_S : WAITING_STEADY_S;
    if (w->text[0] && now - w->said_s < pause) return false;
    snprintf(w->text, sizeof w->text, "%s", text);
    w->said_s = now;
    return true;
}

#endif
