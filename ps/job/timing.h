// How the configured times divide. Deadlines follow heartbeats: slow is not dead.
//
//     silent      A member whose heartbeats stop, or a shard that owes a worker an answer and whose link says
//                 nothing either, is lost: it is named, and the job, or this epoch of it, ends before
//                 the deadline of those who wait for it.
//     slow        A member that is heard and does not come is waited for, however long it takes, and the
//                 scheduler says so once.
#ifndef STARRING_PS_JOB_TIMING_H
#define STARRING_PS_JOB_TIMING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shared/config/config.h"

#define POLL_MS        20   // a thread waits for messages this long before it looks at the clock
#define HURRY_MS       1    // or this long, while only the transport still holds what is waited for
#define FLUSH_MS       500  // for queued messages to leave at the end
#define DRAIN_MESSAGES 64   // of one socket before the others get their turn

#define REPEAT_MOST_S 2.0  // between two questions of a link

static inline double ps_deadline_s(const struct config *c) { return (double)c->ps.deadline_ms * 1e-3; }
// A step or gather may be incomplete this long before those who are waited for are said to be slow.
static inline double ps_overdue_s(const struct config *c) { return 0.75 * ps_deadline_s(c); }
// The advice to people.
#define PS_LOST_KEY "; parameter_server.deadline_ms is twice as long as anybody may be silent"
// A silent member counts as lost: half the deadline, but never fewer than four heartbeats.
static inline double ps_lost_s(const struct config *c) {
    double half = 0.5 * ps_deadline_s(c), beats = 4e-3 * (double)c->ps.heartbeat_ms;
    return half > beats ? half : beats;
}
// A message that has not been heard is said again after a round-trip timeout (ps/net/link.h), then at twice that, .., at most this
// apart: eight times before a silent peer counts as lost.
static inline double ps_repeat_most_s(const struct config *c) {
    double most = 0.0625 * ps_deadline_s(c);
    return most < REPEAT_MOST_S ? most : REPEAT_MOST_S;
}
// Between two HELLOs of who waits for START.
static inline double ps_hello_s(const struct config *c) {
    double beat = (double)c->ps.heartbeat_ms * 1e-3;
    return beat < 0.25 ? beat : 0.25;
}
static inline double ps_heartbeat_s(const struct config *c) { return (double)c->ps.heartbeat_ms * 1e-3; }

// ---------------------------------------------------------------- stalls
// Stalls as a thread sees them that looks at its messages in turns: this process was frozen, slept, or waited for a core. Its
// peers were not silent then: nobody listened. (shared/time/stall.h finds all stalls of a process, by a thread of its own.)
#define TURN_STALL_WORDS 96

// Of one thread. {0} to begin with. Moments and times in seconds.
struct turn_stall {
    double turn_s;           // when its last turn was
    double woke_s, stood_s;  // behind what it stood still last, and for how long; 0: it never did
};

// A turn of the thread, whose peers are lost when they are silent for lost_s. Returns by how much they were less silent
// than the clock says, mostly 0: of the time since the last turn, a 32nd of lost_s counts at most. Where a host is so busy
// that its threads take turns of a second, peers wait as long for theirs; a peer that is silent for 33 turns is lost however
// slow they are.
double turn_stall_excused(struct turn_stall *s, double lost_s, double now);

// A moment at which a peer was heard last, moved by what turn_stall_excused returned.
double turn_stall_moved(double heard_s, double excused_s, double now);

// Another thread of this process, whose turns are short, as the thread that watches it sees it. {0} to begin with.
struct turning {
    uint64_t turns;
    double seen_s;  // when they last changed, or had not begun
};

// Seconds since its last turn, without excused_s, which turn_stall_excused returned to the watcher: where a process stands still,
// all its threads do.
double turning_stood(struct turning *t, uint64_t turns, double excused_s, double now);

// To be put behind "silent for ..": that this process had stood still shortly before or since a peer was heard last;
// "" where it had not. Returns out.
const char *turn_stall_words(const struct turn_stall *s, double lost_s, double heard_s,
                             char out[TURN_STALL_WORDS]);

// ---------------------------------------------------------------- lines about waits
// When a line about a wait is due: the first at once, then one second after the last line if the text has
// changed, ten seconds after it if not.
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
