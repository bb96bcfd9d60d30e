// Time in which this process stood still: it was frozen, slept, or waited for a core. Its peers were not silent then:
// nobody listened.
#ifndef STARRING_PS_STANDSTILL_H
#define STARRING_PS_STANDSTILL_H

#include <stdint.h>

#define STANDSTILL_WORDS 96

// Of a thread that looks at its messages in turns. {0} to begin with. Moments and times in seconds.
struct standstill {
    double turn_s;           // when its last turn was
    double woke_s, stood_s;  // behind what it stood still last, and for how long; 0: it never did
};

// A turn of the thread, whose peers are lost when they are silent for lost_s. Returns by how much they were less silent
// than the clock says, mostly 0: of the time since the last turn, a 32nd of lost_s counts at most. Where a host is so busy
// that its threads take turns of a second, peers wait as long for theirs; whoever is silent for 33 turns is lost however
// slow they are.
double standstill_turn(struct standstill *s, double lost_s, double now);

// A moment at which a peer was heard last, moved by what standstill_turn returned.
double standstill_moved(double heard_s, double excused_s, double now);

// Another thread of this process, of whose turns none takes long, as who watches it sees it. {0} to begin with.
struct turning {
    uint64_t turns;
    double seen_s;  // when they last changed, or had not begun
};

// For how long it has taken none, of which excused_s, what standstill_turn returned to who watches, does not count: where a
// process stands still, all its threads do.
double turning_stood(struct turning *t, uint64_t turns, double excused_s, double now);

// To be put behind "silent for ..": that this process had stood still shortly before or since a peer was heard last;
// "" where it had not. Returns out.
const char *standstill_words(const struct standstill *s, double lost_s, double heard_s,
                             char out[STANDSTILL_WORDS]);

#endif
